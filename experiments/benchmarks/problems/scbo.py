"""Scalable constrained Bayesian optimization (SCBO; Eriksson and Poloczek, AISTATS 2021), as in BoTorch's tutorial.

The settings follow the tutorial ``scalable_constrained_bo``: inputs in the unit cube, ten initial points, batches
of four by Thompson sampling among 2,000 candidates in a cube around the best point, and a standardized Matérn 5/2
Gaussian process for f and for each constraint, refitted for each batch. The side of the cube doubles after ten
successful batches in a row, halves after max(4, d)/4 unsuccessful ones, and starts at 0.8.

Two points differ: the start is the first of the initial points, and a cube whose side falls below 1/128, where the
tutorial ends, is replaced by a new one with its own initial points.
"""

from __future__ import annotations

import dataclasses
import math
import warnings

import gpytorch
import numpy as np
import torch
from botorch.exceptions.warnings import BotorchWarning, OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from optimizers.comparison.outside import Ended, Queries
from optimizers.designs import sobol
from optimizers.seeding import seeded

BATCH, DESIGN, CANDIDATES = 4, 10, 2000
SIDE, LEAST_SIDE, LARGEST_SIDE = 0.8, 0.5**7, 1.6
SUCCESSES = 10
IMPROVEMENT = 1e-3
"""Least relative decrease of f by a successful batch."""


@dataclasses.dataclass
class Cube:
    """The trust region.

    Attributes:
        patience: number of unsuccessful batches in a row that halve the side.
        side: the side.
        successes: number of successful batches in a row.
        failures: number of unsuccessful batches in a row.
        best: total violation and f of the best batch.
    """

    patience: int
    side: float = SIDE
    successes: int = 0
    failures: int = 0
    best: tuple[float, float] = (math.inf, math.inf)

    def update(self, f: Tensor, c: Tensor) -> None:
        """Updates the side after a batch with values f, shape ``q``, and constraints c, ``q x m``."""
        k = best_of(f, c)
        violation, value = float(c[k].clamp(min=0).sum()), float(f[k])
        before, least = self.best
        lower = before > 0 or value < least - IMPROVEMENT * abs(least)
        if lower if violation == 0 else violation < before:
            self.best, self.successes, self.failures = (violation, value), self.successes + 1, 0
        else:
            self.successes, self.failures = 0, self.failures + 1
        if self.successes == SUCCESSES:
            self.side, self.successes = min(2 * self.side, LARGEST_SIDE), 0
        elif self.failures == self.patience:
            self.side, self.failures = self.side / 2, 0


def best_of(f: Tensor, c: Tensor) -> int:
    """Returns the index of the feasible point with the least f or, without one, of the least total violation."""
    violations = c.clamp(min=0).sum(dim=-1)
    feasible = violations == 0
    return int(torch.where(feasible, f, math.inf).argmin() if bool(feasible.any()) else violations.argmin())


def scbo(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries a constrained objective, which has a finite box, from x0 until the budget is spent."""
    constrained, d = queries.constrained, len(x0)
    assert constrained is not None, "SCBO needs constraints"
    lower, sides = queries.lower.double().cpu(), (queries.upper - queries.lower).double().cpu()
    first, cubes = ((torch.from_numpy(x0) - lower) / sides)[None], 0
    with seeded(seed, []), warnings.catch_warnings():
        for category in (OptimizationWarning, BotorchWarning, gpytorch.utils.warnings.NumericalWarning):
            warnings.simplefilter("ignore", category)
        try:
            while True:
                X = torch.cat([first, sobol(DESIGN - len(first), d, seed + cubes)])
                cube, rows = Cube(math.ceil(max(4, d) / BATCH)), list[list[float]]()
                while cube.side >= LEAST_SIDE:
                    points = [(lower + sides * x).numpy() for x in X[len(rows) :]]
                    rows += [[constrained.value(x), *constrained.rows(x)] for x in points]
                    data = torch.tensor(rows, dtype=torch.float64)
                    if len(data) > DESIGN:
                        cube.update(data[-BATCH:, 0], data[-BATCH:, 1:])
                    X = torch.cat([X, _batch(X, data, cube.side)])
                first, cubes = first[:0], cubes + 1
        except Ended:
            pass


def _batch(X: Tensor, data: Tensor, side: float) -> Tensor:
    """Returns a batch, ``q x d`` in the unit cube, given the queries, ``n x d``, and f and c, ``n x (1 + m)``."""
    center, d = X[best_of(data[:, 0], data[:, 1:])], X.shape[1]
    low, high = ((center + sign * side / 2).clamp(0, 1) for sign in (-1, 1))
    points = low + (high - low) * sobol(CANDIDATES, d, int(torch.randint(2**31, (1,))))
    moved = torch.rand(CANDIDATES, d, dtype=torch.float64) <= min(20 / d, 1)
    candidates = torch.where(moved, points, center)
    with gpytorch.settings.max_cholesky_size(float("inf")):
        models = [_fitted(X, column) for column in (-data[:, :1], *data[:, 1:].split(1, dim=1))]
        with torch.no_grad():
            found: Tensor = ConstrainedMaxPosteriorSampling(models[0], ModelListGP(*models[1:]), replacement=False)(
                candidates, num_samples=BATCH
            )
    return found


def _fitted(X: Tensor, Y: Tensor) -> SingleTaskGP:
    kernel = MaternKernel(nu=2.5, ard_num_dims=X.shape[1], lengthscale_constraint=Interval(0.005, 4.0))
    noise = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
    model = SingleTaskGP(X, Y, covar_module=ScaleKernel(kernel), likelihood=noise, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model
