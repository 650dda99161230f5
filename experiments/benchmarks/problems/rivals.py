"""The compared methods: name, function, the problems on which each one runs, and why.

All methods have the same start, the same number of queries and the same box. CMA-ES samples around the start without
querying it. If the start is closer to a bound than COBYQA's initial radius, COBYQA moves it onto the bound or away. Our
methods run through ``minimize`` with their defaults; RGF and PRGF may leave up to one step's queries unused. Outside
methods use their own defaults (``optimizers.comparison.outside``). If an outside method stops before its budget is
spent, it restarts at a uniform point of the box; this can only help, since the best value counts.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.problems.global_search import log_ei, ngopt, pybads, smac
from experiments.benchmarks.problems.local_entropy import local_entropy_search
from experiments.benchmarks.problems.mixed_integer import sample
from experiments.benchmarks.problems.newton_step import newton_step_targeting
from experiments.benchmarks.problems.quadratic_models import lq_cma, nlopt, py_bobyqa
from experiments.benchmarks.problems.scbo import scbo
from experiments.benchmarks.problems.suites import BOXES, SIDE, Problem
from optimizers import SurrogateTrustRegion, minimize
from optimizers.comparison.outside import run_outside
from optimizers.comparison.queries import Queries
from surrogates import plotting

OUR_RADIUS = 0.2
"""Initial radius of ``SurrogateTrustRegion`` relative to a side of the box, for d up to 20."""

AT_A_TIME = 8
"""Number of queries per round of ``trust_region_8``."""

IN_A_BOX = ("bbob", "bbob-noisy", "bbob-largescale", "real")
CONSTRAINED = ("bbob-constrained",)
MIXED = ("bbob-mixint", "tuning")

Run = Callable[[Queries, np.ndarray, int], None]
"""Queries the objective from a start, with a seed, until the budget is spent or the method stops."""


@dataclasses.dataclass(frozen=True)
class Rival:
    """A method of the comparison.

    Attributes:
        name: its name.
        run: the function that runs it.
        most: largest d on COCO's suites on which it runs.
        most_real: largest d on real problems, whose budgets grow more slowly with d.
        every: 1 if it runs on all functions of a suite, k if on every k-th.
        instances: number of selected instances on which it runs, counted from the first; None: all.
        factor: largest budget, in queries over d.
        suites: suites on which it runs by default.
        constraints: largest number of constraints.
        asks_start: whether its first query is the start.
        why: why it is included, and why it does not run everywhere.
        needs: modules that it needs and that some versions of a dependency lack.
    """

    name: str
    run: Run
    most: float = math.inf
    most_real: float = math.inf
    every: int = 1
    instances: int | None = None
    factor: int = 20
    asks_start: bool = True
    why: str = ""
    needs: tuple[str, ...] = ()
    suites: tuple[str, ...] = IN_A_BOX
    constraints: float = math.inf

    def takes(self, problem: Problem, functions: Sequence[int | str], instances: Sequence[int]) -> bool:
        """Returns whether the method runs on a problem by default, given all functions and the selected instances."""
        if problem.suite not in self.suites or problem.instance not in list(instances)[: self.instances]:
            return False
        if problem.constraints > self.constraints:
            return False
        if problem.suite in BOXES:
            return problem.dimension <= self.most_real
        if problem.queries > self.factor * problem.dimension:
            return False
        return problem.dimension <= self.most and functions.index(problem.function) % self.every == 0

    @property
    def look(self) -> plotting.MethodStyle:
        """The style in figures, and the name in tables."""
        return plotting.METHODS[_LOOKS.get(self.name, self.name)]

    @property
    def missing(self) -> list[str]:
        """The required modules that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]

    @property
    def where(self) -> str:
        """The problems on which the method runs, in words."""
        parts = [] if math.isinf(self.most) else [f"d ≤ {self.most:g}"]
        real = f"d ≤ {self.most_real:g} on real problems" if self.most_real else "no real problems"
        parts += [] if math.isinf(self.most_real) else [real]
        parts += [f"every {_ORDINALS[self.every]} function"] if self.every > 1 else []
        parts += [f"the first {self.instances} selected instances"] if self.instances else []
        parts += [f"up to {self.constraints:g} constraints"] if self.constraints < math.inf else []
        return ", ".join([*parts, f"up to {self.factor} d queries"])


_LOOKS = {
    "zord": "zord_kept",
    "cma": "cma_es",
    "turbo": "turbo1",
    "least_squares": "least_squares_gradient",
    "sobol": "sobol_search",
}
"""Maps a rival's name to its name in ``plotting.METHODS`` if they differ."""

_ORDINALS = {2: "second", 3: "third", 4: "fourth"}


def _ours(method: str, **options: Any) -> Run:
    return functools.partial(_run_ours, method, options)


def _run_ours(method: str, options: Mapping[str, Any], queries: Queries, x0: np.ndarray, seed: int) -> None:
    box: Any = list(zip(queries.lower.tolist(), queries.upper.tolist(), strict=True))
    told, more, budget = functools.partial(_told, queries), dict(options), queries.max_queries
    if queries.domain is not None:
        box = queries.domain.space
    if queries.constraints is not None:
        more["constraints"] = queries.constraints
    minimize(told, x0, method, bounds=box, max_queries=budget, seed=seed, progress=False, **more)


def _run_rounds(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs the trust region with ``AT_A_TIME`` concurrent queries; all are told before new ones are asked."""
    box, budget = [(-SIDE, SIDE)] * len(x0), queries.max_queries
    optimizer = SurrogateTrustRegion(x0, bounds=box, max_queries=budget, seed=seed)
    while not optimizer.stopped:
        batches = [optimizer.ask()]
        while sum(map(len, batches)) < AT_A_TIME and (another := optimizer.ask_another()) is not None:
            batches.append(another)
        values = [[_told(queries, x.numpy()) for x in batch.points()] for batch in batches]
        for batch, own in zip(batches, values, strict=True):
            optimizer.tell(batch, own)


def _told(queries: Queries, x: np.ndarray) -> Any:
    if queries.constraints is not None:
        return queries(x), queries.evaluated(x)
    queries(x if queries.domain is None else queries.domain.to_search(torch.from_numpy(x)).numpy())
    return queries.values[-1]  # NaN for a failed query, which our methods know


def _outside(name: str, **options: Any) -> Run:
    return functools.partial(_run_outside, name, options)


def _run_outside(name: str, options: Mapping[str, Any], queries: Queries, x0: np.ndarray, seed: int) -> None:
    start = torch.from_numpy(x0) if queries.domain is None else queries.domain.to_search(torch.from_numpy(x0))
    run_outside(name, queries, start, seed, options, restarts=True)


_TABLE = (
    Rival(
        "trust_region",
        _ours("trust_region"),
        factor=100,
        suites=IN_A_BOX + CONSTRAINED + MIXED,
        why="ours, the method under test",
    ),
    Rival("trust_region_8", _run_rounds, most=20, most_real=0, every=2, why="ours with eight concurrent queries"),
    Rival("zord", _ours("zord"), why="ours, the library's ZoRD with its defaults"),
    Rival("zord_gated", _ours("zord", active="gated"), most=40, most_real=400, why="ours, with active queries"),
    Rival("rgf", _ours("rgf"), factor=100, why="the papers' baseline"),
    Rival("prgf", _ours("prgf"), factor=100, why="the papers' baseline"),
    Rival("es", _ours("es"), factor=100, why="the papers' baseline"),
    Rival("gld", _ours("gld"), factor=100, why="the papers' baseline"),
    Rival(
        "least_squares",  # the name in published records
        _ours("least_squares_gradient"),
        most=40,
        most_real=400,
        why="a linear model instead of the GP",
    ),
    Rival(
        "cobyqa",
        _outside("cobyqa"),
        most=40,
        most_real=120,
        factor=100,
        asks_start=False,
        suites=IN_A_BOX + CONSTRAINED,
        why="SciPy's best derivative-free method, with its default radius of 1",
    ),
    Rival(
        "cobyqa_wide",
        _outside("cobyqa", initial_tr_radius=OUR_RADIUS * 2 * SIDE),
        most=40,
        most_real=120,
        factor=100,
        asks_start=False,
        suites=IN_A_BOX + CONSTRAINED,
        why="the same with our trust region's initial radius up to d = 20, 0.2 of the box",
    ),
    Rival(
        "cma",
        _outside("cma"),
        factor=100,
        asks_start=False,
        suites=IN_A_BOX + CONSTRAINED + MIXED,
        why="the standard evolution strategy, with IPOP restarts",
    ),
    *(
        Rival(
            name,
            functools.partial(nlopt, algorithm, radius),
            most=160,
            most_real=120,
            factor=100,
            asks_start=False,
            needs=("nlopt",),
            why=f"Powell's {label} in NLopt, with {whose} initial step; slow in many variables",
        )
        for label, algorithm in (("NEWUOA", "LN_NEWUOA_BOUND"), ("BOBYQA", "LN_BOBYQA"))
        for name, radius, whose in (
            (label.lower(), None, "its own"),
            (f"{label.lower()}_wide", OUR_RADIUS * 2 * SIDE, "our trust region's"),
        )
    ),
    *(
        Rival(
            name,
            functools.partial(py_bobyqa, noisy),
            most=40,
            most_real=120,
            asks_start=False,
            needs=("pybobyqa",),
            suites=suites,
            why=f"BOBYQA in Python{', with its options for noise and restarts' if noisy else ''}",
        )
        for name, noisy, suites in (("py_bobyqa", False, ("bbob", "real")), ("py_bobyqa_noisy", True, ("bbob-noisy",)))
    ),
    Rival(
        "lq_cma",
        lq_cma,
        most=40,
        most_real=120,
        asks_start=False,
        why="CMA-ES with a linear or quadratic surrogate",
    ),
    Rival(
        "ngopt",
        ngopt,
        most=40,
        most_real=120,
        asks_start=False,
        needs=("nevergrad",),
        suites=("bbob", "bbob-noisy", "real"),
        why="nevergrad's choice among many methods; what it chooses for more queries fails with NumPy 2.4",
    ),
    Rival(
        "log_ei",
        log_ei,
        most=10,
        most_real=20,
        instances=1,
        suites=("bbob", "real"),
        why="BoTorch's default Bayesian optimization in the whole box; slow",
    ),
    Rival(
        "smac",
        smac,
        most=10,
        instances=1,
        needs=("smac",),
        suites=("bbob",),
        why="SMAC with a Gaussian process; slow",
    ),
    Rival(
        "pybads_noisy",
        pybads,
        most=10,
        instances=1,
        asks_start=False,
        needs=("pybads",),
        suites=("bbob-noisy",),
        why="Bayesian adaptive direct search, told of the noise; slow",
    ),
    Rival("l_bfgs_b", _outside("l-bfgs-b"), factor=100, why="forward differences with d + 1 queries per gradient"),
    Rival("nelder_mead", _outside("nelder-mead"), factor=100, why="the classic, with SciPy's simplex"),
    Rival("random", _outside("random"), factor=100, suites=IN_A_BOX + CONSTRAINED + MIXED, why="the baseline"),
    Rival("sobol", _outside("sobol"), factor=100, why="the baseline with evenly spread points"),
    Rival(
        "turbo", _ours("turbo"), most=10, most_real=120, every=2, why="the best known local Bayesian optimization; slow"
    ),
    Rival(
        "nest_bo",
        newton_step_targeting,
        most=10,
        most_real=18,
        every=2,
        why="NeST-BO's rule: local steps from a GP's gradient and Hessian; slow",
    ),
    Rival(
        "local_entropy",
        local_entropy_search,
        most=10,
        most_real=12,
        every=2,
        instances=1,
        why="the nearest peer, from BoTorch's community package; by far the slowest",
        needs=("botorch_community.acquisition.local_entropy_search",),
    ),
    Rival(
        "cobyla",
        _outside("cobyla", rhobeg=OUR_RADIUS * 2 * SIDE),
        factor=100,
        suites=CONSTRAINED,
        why="Powell's linear models, with our trust region's initial radius",
    ),
    Rival(
        "slsqp",
        _outside("slsqp"),
        factor=100,
        suites=CONSTRAINED,
        why="quadratic programming with forward differences, d + 1 queries per gradient",
    ),
    Rival(
        "scbo",
        scbo,
        most=5,
        instances=1,
        suites=CONSTRAINED,
        constraints=10,
        why="constrained Bayesian optimization in a trust region, set up like BoTorch's tutorial; slow",
    ),
    Rival(
        "optuna_tpe",
        functools.partial(sample, "TPESampler"),
        most=10,
        instances=1,
        suites=MIXED,
        needs=("optuna",),
        why="optuna's default, the tree-structured Parzen estimator",
    ),
    Rival(
        "optuna_gp",
        functools.partial(sample, "GPSampler"),
        most=10,
        instances=1,
        suites=("bbob", *MIXED),
        needs=("optuna",),
        why="optuna's Gaussian process; slow",
    ),
)

RIVALS = {rival.name: rival for rival in _TABLE}
