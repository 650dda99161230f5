"""Runs the methods of ZoRD's figures: by name from any point, and on test functions from TuRBO's best point.

Figures 3, 7 and 8: each box is searched as [0, 10]^d (Appx. C.1). x₀ is the best of 300 queries of TuRBO (Appx. C.2),
which are not counted, and each curve starts at f(x₀). All first-order rules are Adam with step 0.1 (Appx. C.2). RGF and
PRGF use λ = 0.01 and n = 10 (Appx. C.1), GLD n = 10. Boxes are [−20, 20]^d for Ackley and [−7.5, 7.5]^d for Levy.

Our choices where the paper gives no details: ZoRD's lengthscale and its limit on virtual steps depend on each other. We
use ℓ = 0.67 √d (3 at d = 20) with a limit of 10; the prior variance of a partial derivative is then below c = 0.35.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from experiments.harness.records import checkpoints, log10_gap
from experiments.workloads.cache import cached
from experiments.workloads.problems import Problem, standard_problem
from optimizers import Optimizer, TuRBO, registry, run
from optimizers.comparison.records import Row, Rows, best_so_far, where
from optimizers.evaluation import Evaluator
from optimizers.first_order import adam
from optimizers.registry import method_class, named_class

RELATIVE = "log₁₀ of gap / first gap"
CAPTION = "Lines are means over seeds of log₁₀ of the gap relative to the gap at x₀; bands show ± one standard error."

LENGTHSCALE = 0.67
"""ℓ/√d of the paper's ZoRD in [0, 10]^d."""

CMA_SIGMA = 0.3
"""Initial standard deviation of CMA-ES in [0, 10]^d, the best of 0.1, 0.3 and 1 on Ackley and Levy at d = 20."""


@dataclasses.dataclass(frozen=True)
class Start:
    """The common start of all methods, and the data known there.

    Attributes:
        x: x₀, shape ``d``.
        value: f(x₀).
        X: TuRBO's queries, ``n x d``.
        y: their values, shape ``n``.
        state: TuRBO's state, from which it continues.
        options: TuRBO's options besides its defaults.
    """

    x: Tensor
    value: float
    X: Tensor
    y: Tensor
    state: dict[str, Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


HALF_WIDTHS = (("ackley", 20.0), ("levy", 7.5))
"""The paper's boxes, [−w, w]^d in the functions' own units (Appx. C.2)."""

Sides = tuple[float, float]
TurboOptions = tuple[tuple[str, int], ...]
"""TuRBO's options besides its defaults, by name."""

QUICK_TURBO: TurboOptions = (("batch_size", 20), ("candidates", 1000))
"""TuRBO's options at the reduced scale; the defaults (batches of 5, up to 5,000 candidates) take ten times as long."""


def problem_and_start(
    name: str, half_width: float, dim: int, queries: int, seed: int, cache: str, turbo: TurboOptions = ()
) -> tuple[Problem, Start]:
    """Returns a test function on [−half_width, half_width]^d, and TuRBO's best point as the start."""
    sides = (-half_width, half_width)
    return standard_problem(name, dim, sides), turbo_start(name, dim, queries, seed, cache, turbo, sides)


@functools.lru_cache(maxsize=4)
def turbo_start(
    name: str, dim: int, queries: int, seed: int, cache: str, turbo: TurboOptions = (), sides: Sides | None = None
) -> Start:
    """Runs TuRBO-1 from a uniform point drawn with the seed, on the box with the given sides (``standard_problem``).

    The result is stored in the folder ``cache``, if one is given.
    """

    def searched() -> dict[str, Any]:
        problem = standard_problem(name, dim, sides)
        x0 = problem.sample(1, torch.Generator().manual_seed(1000 + seed))[0]
        search = TuRBO(x0, bounds=problem.bounds.T, max_queries=queries, seed=seed, **dict(turbo))  # type: ignore[arg-type]
        run(search, Evaluator(problem, batched=True))
        return vars(Start(search.best_x, search.best_fun, *search.observations, search.state_dict(), dict(turbo)))

    label = "".join(f"-{option}{value}" for option, value in turbo)
    label += f"-box{sides[0]:g}to{sides[1]:g}" if sides else ""
    return Start(**cached(cache, f"turbo{queries}-{name}-{dim}-{seed}{label}", searched))


LOST = {"zord_probability_gate": ("experiments.beyond.query_rules", "ProbabilityGate")}
"""Maps the names of rejected rules to their classes, as text because the modules of these classes import this one."""


def ours(
    method: str | type[Optimizer], options: Callable[[Problem, Start], Mapping[str, Any]] = lambda problem, start: {}
) -> Callable[..., list[float]]:
    """Returns a function that runs one of the project's methods and returns the values of f in query order.

    Args:
        method: the name of a method or of a rejected rule (``LOST``), or a class.
        options: maps a problem and a start to options besides ``SETTINGS``; options of a single run override them.
    """

    def descend(problem: Problem, start: Start, queries: int, seed: int, **changed: Any) -> list[float]:
        arguments = {**SETTINGS.get(str(method), {}), **options(problem, start), **changed}
        cls = named_class("method", method, registry.METHODS | LOST, Optimizer)
        return _values(cls(start.x, bounds=problem.bounds.T, max_queries=queries, seed=seed, **arguments), problem)

    return descend


def _values(optimizer: Optimizer, problem: Problem) -> list[float]:
    values: list[float] = run(optimizer, Evaluator(problem, batched=True)).history.y.tolist()
    return values


def as_printed(dim: int) -> dict[str, Any]:
    """Returns the options of ZoRD in its paper: spectral norm, fixed lengthscale, steps that are never shortened."""
    return {"uncertainty": "spectral_norm", "lengthscale": LENGTHSCALE * math.sqrt(dim), "step_decay": 1.0}


SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"directions": 10, "smoothing_radius": 0.01, "update_rule": adam} for name in ("rgf", "prgf", "es")},
    "gld": {"widest": 5.0, "narrowest": 0.1},
}
"""The baselines' options in the figures: n, λ and Adam's rate from Appx. C.1 and C.2; GLD's radii are our choice."""

CLASSES = {"default": "trust_region", "zord_kept": "zord", "turbo1": "turbo", "turbom": "turbo"}
"""Maps a name in the figures to the optimizer's name if they differ."""


def search(method: str, x0: Tensor, *, rate: float, radius: float | None = None, **options: Any) -> Optimizer:
    """Creates the optimizer of a method at x0; ``zord`` follows the paper, ``zord_kept`` the library's defaults.

    Args:
        method: its name in ``surrogates.plotting``.
        x0: shape ``d``.
        rate: Adam's rate, if the method uses a first-order rule.
        radius: root mean square distance of queries (or ZoRD's initial design) from the iterate; None: the default.
        **options: options of the optimizer; they override the others.
    """
    given: dict[str, Any] = dict(SETTINGS.get(method, {}))
    if method not in ("gld", "turbo1", "turbom", "default"):
        given["update_rule"] = lambda p: torch.optim.Adam([p], lr=rate)
        if radius is not None and method.startswith("zord"):
            given["radius"] = radius
        elif radius is not None:
            given["smoothing_radius"] = radius
    if method == "es":
        given["distribution"] = "orthonormal"  # Appx. C.1: the same directions as RGF
    if method == "zord":
        given |= as_printed(len(x0))
    return method_class(CLASSES.get(method, method))(x0, **given | options)


def _go_on(problem: Problem, start: Start, queries: int, seed: int) -> list[float]:
    """Continues TuRBO from the start's state."""
    told = len(start.y)
    turbo = TuRBO(start.x, bounds=problem.bounds.T, max_queries=told + queries, seed=seed, **start.options)
    turbo.load_state_dict(start.state)
    return _values(turbo, problem)[told:]


def _cma_es(problem: Problem, start: Start, queries: int, seed: int, sigma: float = CMA_SIGMA) -> list[float]:
    import cma

    width = (problem.upper - problem.lower) / 10.0
    options = {"bounds": [0.0, 10.0], "seed": seed + 1, "verbose": -9, "maxfevals": queries}
    search = cma.CMAEvolutionStrategy(((start.x - problem.lower) / width).tolist(), sigma, options)
    values: list[float] = []
    while len(values) < queries:
        asked = search.ask()
        told = problem(problem.lower + width * torch.from_numpy(np.array(asked))).tolist()
        search.tell(asked, told)
        values += told
    return values[:queries]


def _cobyqa(problem: Problem, start: Start, queries: int, seed: int, radius: float = 1.0) -> list[float]:
    width = (problem.upper - problem.lower) / 10.0
    values: list[float] = []

    def fun(z: np.ndarray) -> float:
        values.append(float(problem(problem.lower + width * torch.from_numpy(z))))
        return values[-1]

    z0, bounds = ((start.x - problem.lower) / width).numpy(), [(0.0, 10.0)] * problem.dim
    options = {"maxfev": queries, "initial_tr_radius": radius}
    optimize.minimize(fun, z0, method="COBYQA", bounds=bounds, options=options)
    return values[:queries]


METHODS: dict[str, Callable[..., list[float]]] = {
    "zord": ours("zord", lambda problem, start: as_printed(problem.dim)),
    "zord_last": ours("zord", lambda problem, start: {**as_printed(problem.dim), "start": "last"}),
    "zord_history": ours("zord", lambda problem, start: {**as_printed(problem.dim), "history": (start.X, start.y)}),
    "zord_kept": ours("zord"),
    "zord_gated": ours("zord_probability_gate", lambda problem, start: {"active": "gated"}),
    **{name: ours(name) for name in ("least_squares_gradient", "rgf", "prgf", "gld", "cobbo")},
    "gradient_descent": ours("gradient_descent", lambda problem, start: {"jac": problem.gradient, "rescale": True}),
    "turbo1": _go_on,
    "turbo_alone": ours("turbo", lambda problem, start: start.options),
    "cma_es": _cma_es,
    "cobyqa": _cobyqa,
}
"""Maps a method's name in ``surrogates.plotting`` to a function that returns its values of f in query order."""


def relative_to_first(rows: Rows) -> Rows:
    """Subtracts from each record of ``gap_rows`` the log₁₀ of the gap at x₀, which differs between seeds."""
    names = ("problem", "dim", "seed")
    first = {tuple(row.get(name) for name in names): float(row["value"]) for row in where(rows, queries=0)}
    return [row | {"value": float(row["value"]) - first[tuple(row.get(name) for name in names)]} for row in rows]


def gap_rows(key: Row, problem: Problem, start: Start, values: list[float], queries: int, every: int) -> Rows:
    """Returns records of log₁₀ of the smallest f − f* so far, f(x₀) included.

    Args:
        key: the columns that are the same in every record, such as the method and the seed.
        problem: the problem.
        start: the start.
        values: the values of f in query order; NaN for failed queries.
        queries: the budget; the last gap of a method that ends early is repeated up to it.
        every: the number of queries between records.
    """
    best = best_so_far(values, queries, start.value)
    gaps = {n: log10_gap(best[n], problem.minimum) for n in checkpoints(queries, every)}
    return [key | {"queries": n, "value": gap} for n, gap in gaps.items()]
