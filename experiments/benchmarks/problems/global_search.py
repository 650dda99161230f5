"""Rivals that search the whole box: BoTorch's default Bayesian optimization, SMAC, PyBADS and nevergrad's NGOpt.

Bayesian optimization is BoTorch's ``SingleTaskGP`` with its default priors, which depend on d, in the unit cube,
refitted for each query, and the log expected improvement (Ament et al., NeurIPS 2023), maximized from ten starting
points chosen among 512. It begins with max(5, 2 d) points, as many as Ax: the start, then Sobol' points. If a fit
fails, the model keeps its initial hyperparameters. SMAC (Lindauer et al., JMLR 2022) runs as its facade for black
boxes, with a Gaussian process, and is first told the value at the start. PyBADS (Acerbi and Ma, NeurIPS 2017) is told
of the noise, and restarts at a uniform point of the box if it stops before its budget is spent. NGOpt chooses its
algorithm from d and the budget. An error of Bayesian optimization, SMAC or NGOpt is raised, so that the run counts as
failed.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning, OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.utils.warnings import NumericalWarning

from experiments.workloads.black_boxes.black_box import kept_generator
from optimizers.comparison.outside import box_of, search_from
from optimizers.comparison.queries import Ended, Queries
from optimizers.designs import sobol
from optimizers.seeding import seeded

STARTS, CANDIDATES = 10, 512
"""The arguments ``num_restarts`` and ``raw_samples`` of ``optimize_acqf`` in BoTorch's tutorials."""


def log_ei(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs BoTorch's default Bayesian optimization."""
    d, (lower, upper) = len(x0), map(torch.from_numpy, box_of(queries))
    unit = torch.stack([torch.zeros_like(lower), torch.ones_like(lower)])

    with seeded(seed, []), warnings.catch_warnings(), suppress(Ended):
        for category in (RuntimeWarning, OptimizationWarning, BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", category)
        first = ((torch.from_numpy(x0) - lower) / (upper - lower))[None]
        X = torch.cat([first, sobol(max(5, 2 * d) - 1, d, seed)])
        Y = [queries((lower + (upper - lower) * x).numpy()) for x in X]
        while True:
            values = -torch.tensor(Y, dtype=torch.float64)[:, None]
            model = SingleTaskGP(X, values)
            with suppress(ModelFittingError):
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            improvement = LogExpectedImprovement(model.eval(), values.max())
            x, _ = optimize_acqf(improvement, unit, q=1, num_restarts=STARTS, raw_samples=CANDIDATES)
            X = torch.cat([X, x])
            Y.append(queries((lower + (upper - lower) * x[0]).numpy()))


def smac(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs SMAC's facade for black boxes."""
    from ConfigSpace import ConfigurationSpace, Float
    from smac import BlackBoxFacade, Scenario
    from smac.runhistory import TrialInfo, TrialValue

    variables = [Float(f"x{i}", side, default=x) for i, (*side, x) in enumerate(zip(*box_of(queries), x0, strict=True))]
    space = ConfigurationSpace(seed=seed)
    space.add(variables)
    with kept_generator(), suppress(Ended), TemporaryDirectory() as folder:
        options = {"deterministic": True, "n_trials": queries.max_queries, "seed": seed}
        plan = Scenario(space, output_directory=Path(folder), **options)
        search = BlackBoxFacade(plan, lambda _, seed: 0.0, logging_level=False)  # told values, it calls no function
        trial, x = TrialInfo(space.get_default_configuration(), seed=0), x0
        while True:
            search.tell(trial, TrialValue(queries(x)))
            trial = search.ask()
            x = np.array([trial.config[variable.name] for variable in variables])


def pybads(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs PyBADS on a noisy objective."""
    from pybads import BADS

    lower, upper = box_of(queries)

    def search(start: np.ndarray, number: int) -> None:
        options = {"uncertainty_handling": True, "max_fun_evals": queries.max_queries, "display": "off"}
        BADS(queries, start, lower, upper, options=options | {"random_seed": seed + number}).optimize()

    with kept_generator():
        search_from(x0, search, queries, np.random.default_rng(seed), "PyBADS")


def ngopt(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs nevergrad's default."""
    import nevergrad

    with kept_generator(), suppress(Ended):
        box = nevergrad.p.Array(init=x0).set_bounds(*box_of(queries))
        box.random_state.seed(seed)
        nevergrad.optimizers.NGOpt(box, budget=queries.max_queries).minimize(queries)
