"""Scalable constrained Bayesian optimization (SCBO; Eriksson and Poloczek, AISTATS 2021), as in BoTorch's tutorial.

The settings follow the tutorial ``scalable_constrained_bo``: inputs in the unit cube, ten initial points, batches of
four by Thompson sampling among 2,000 candidates in a cube around the best point, and a standardized Matérn 5/2 Gaussian
process for f and for each constraint, refitted for each batch. The side of the cube doubles after ten successful
batches in a row, halves after max(4, d)/4 unsuccessful batches in a row, and starts at 0.8.

Three details differ. The start is the first of the initial points. The tutorial ends when the side of the cube falls
below 1/128; here a new cube with new initial points replaces it. If a fit fails, which ends the tutorial, the model
keeps its initial hyper-parameters.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from contextlib import suppress
from dataclasses import replace

import gpytorch
import numpy as np
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning, OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.utils.warnings import NumericalWarning
from torch import Tensor

from optimizers.comparison.queries import Ended, Queries
from optimizers.designs import sobol
from optimizers.methods.bayesian.turbo_region import TrustRegionRule, perturbed_candidates
from optimizers.seeding import seeded

BATCH, DESIGN, CANDIDATES, SUCCESSES = 4, 10, 2000, 10


def best_of(f: Tensor, c: Tensor) -> int:
    """Returns the index of the best point: the least f among feasible points, or else the least total violation."""
    violations = c.clamp(min=0).sum(dim=-1)
    feasible = violations == 0
    return int(torch.where(feasible, f, math.inf).argmin() if bool(feasible.any()) else violations.argmin())


def succeeded(best: tuple[float, float], batch: tuple[float, float], improvement: float) -> bool:
    """Returns whether a batch beats the best point by the tutorial's rule, given total violation and f of both."""
    (before, least), (violation, value) = best, batch
    if violation > 0:
        return violation < before
    return before > 0 or value < least - improvement * abs(least)


def scbo(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries a constrained objective, which has a finite box, from x0 until the budget is spent."""
    assert queries.constraints is not None, "SCBO needs constraints"
    d = len(x0)
    lower, sides = queries.lower.double().cpu(), (queries.upper - queries.lower).double().cpu()
    first = ((torch.from_numpy(x0) - lower) / sides)[None]
    rule = TrustRegionRule(failure_tolerance=math.ceil(max(4, d) / BATCH) * BATCH, success_tolerance=SUCCESSES)
    with seeded(seed, []), warnings.catch_warnings(), suppress(Ended):
        for category in (OptimizationWarning, BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", category)
        for number in itertools.count():
            X, rows = torch.cat([first, sobol(DESIGN - len(first), d, seed + number)]), list[list[float]]()
            region, best = rule.start(number), (math.inf, math.inf)
            while not rule.ended(region):
                points = [(lower + sides * x).numpy() for x in X[len(rows) :]]
                rows += [[queries(x), *queries.rows(x)] for x in points]
                data = torch.tensor(rows, dtype=torch.float64)
                if len(data) > DESIGN:
                    f, c = data[-BATCH:, 0], data[-BATCH:, 1:]
                    batch = float(c[best_of(f, c)].clamp(min=0).sum()), float(f[best_of(f, c)])
                    better = succeeded(best, batch, rule.improvement)
                    best = batch if better else best
                    region = rule.update(replace(region, best=0.0), -1.0 if better else 0.0, BATCH)
                X = torch.cat([X, _batch(X, data, region.length)])
            first = first[:0]


def _batch(X: Tensor, data: Tensor, side: float) -> Tensor:
    """Returns a batch, ``q x d`` in the unit cube, given the queries, ``n x d``, and f and c, ``n x (1 + m)``."""
    center, d = X[best_of(data[:, 0], data[:, 1:])], X.shape[1]
    low, high = ((center + sign * side / 2).clamp(0, 1) for sign in (-1, 1))
    points, uniforms = sobol(CANDIDATES, d, int(torch.randint(2**31, (1,)))), torch.rand(CANDIDATES, d).double()
    candidates = perturbed_candidates(center, low, high, points, uniforms, min(20 / d, 1.0))
    with gpytorch.settings.max_cholesky_size(float("inf")):
        models = [_fitted(X, column) for column in (-data[:, :1], *data[:, 1:].split(1, dim=1))]
        sampling = ConstrainedMaxPosteriorSampling(models[0], ModelListGP(*models[1:]), replacement=False)
        with torch.no_grad():
            found: Tensor = sampling(candidates, num_samples=BATCH)
    return found


def _fitted(X: Tensor, Y: Tensor) -> SingleTaskGP:
    kernel = MaternKernel(nu=2.5, ard_num_dims=X.shape[1], lengthscale_constraint=Interval(0.005, 4.0))
    noise = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
    model = SingleTaskGP(X, Y, covar_module=ScaleKernel(kernel), likelihood=noise, outcome_transform=Standardize(m=1))
    before = copy.deepcopy(model.state_dict())
    try:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError:
        model.load_state_dict(before)
    return model
