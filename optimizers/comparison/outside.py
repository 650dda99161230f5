"""Runs SciPy's methods, CMA-ES of the package ``cma`` and blind search on values only, in a box and with a budget."""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import optimize
from torch import Tensor

from optimizers.comparison.queries import Ended, Queries

logger = logging.getLogger(__name__)

SCIPY = {
    "nelder-mead": ("maxfev", "maxiter"),
    "powell": ("maxfev", "maxiter"),
    "cg": ("maxiter",),
    "bfgs": ("maxiter",),
    "l-bfgs-b": ("maxfun", "maxiter"),
    "tnc": ("maxfun",),
    "cobyla": ("maxiter",),
    "cobyqa": ("maxfev", "maxiter"),
    "slsqp": ("maxiter",),
    "trust-constr": ("maxiter",),
}
"""The methods of ``scipy.optimize.minimize`` that need no derivatives, with their options that limit a run."""

WITHOUT_BOUNDS = ("cg", "bfgs")
NEED_DERIVATIVES = ("newton-cg", "dogleg", "trust-ncg", "trust-exact", "trust-krylov")

TAKE_CONSTRAINTS = ("cobyla", "cobyqa", "slsqp", "trust-constr", "cma", "random", "sobol")

TAKE_INTEGERS = ("cma", "random", "sobol")

SEARCHES = ("random", "sobol")
"""Blind search: x0, then uniform points or a scrambled Sobol' sequence."""

NAMES = (*SCIPY, "cma", *SEARCHES)

CMA_SIGMA = 0.3
"""CMA-ES's initial standard deviation, in sides of the box (Hansen, *The CMA Evolution Strategy: A Tutorial*)."""


def outside_name(method: Any) -> str | None:
    """Returns the name in ``NAMES`` that equals a method's name up to case; None for anything else.

    Raises:
        ValueError: for a SciPy method that needs derivatives.
        ImportError: for "cma" if that package is not installed.
    """
    name = method.lower() if isinstance(method, str) else ""
    if name in NEED_DERIVATIVES:
        raise ValueError(
            f"{method!r} needs derivatives, which are not available; methods that need none: {', '.join(NAMES)}"
        )
    if name == "cma" and importlib.util.find_spec("cma") is None:
        raise ImportError(
            "'cma' needs the package cma, which is not installed: "
            "pip install 'gradient-surrogates[compare]', in a checkout '.[compare]'"
        )
    return name if name in NAMES else None


def run_outside(
    name: str, queries: Queries, x0: Tensor, seed: int, options: Mapping[str, Any], *, restarts: bool = False
) -> None:
    """Runs a method until it stops by its own rules or the budget is spent; the values are in ``queries.values``.

    SciPy's methods keep their defaults, except that their limits are raised to the budget. Methods with gradients use
    SciPy's finite differences, whose queries count. CMA-ES searches the box as the unit cube, with an initial standard
    deviation of 0.3. CMA-ES and COBYQA do not always evaluate f at x0.

    With ``restarts``, a method that stops is restarted at a uniform point of the box until the budget is spent: SciPy's
    methods unchanged, CMA-ES with twice the population (IPOP; Auger and Hansen 2005).

    An error before the first query is raised. A later error is logged and ends the run or, with restarts, this start.

    Args:
        name: a name in ``NAMES``.
        queries: the objective, without queries so far.
        x0: initial point in the box, shape ``d``.
        seed: seed of CMA-ES, blind search and restarts; the other methods are not random.
        options: SciPy's ``options`` or ``cma.CMAOptions``. CMA-ES also takes ``sigma0``, the initial standard deviation
            in sides of the box, or in units of x if a side is infinite; then it is required.
        restarts: whether a method that stops before its budget is spent is restarted.

    Raises:
        ValueError: for an unknown option, and for restarts or blind search without a finite box.
    """
    if (restarts or name in SEARCHES) and not bool((queries.upper - queries.lower).isfinite().all()):
        raise ValueError(f"{name} draws random points, which needs finite bounds")
    rng = np.random.default_rng(seed)

    def search(start: np.ndarray, number: int) -> None:
        if name == "cma":
            _cma(queries, start, rng, options, number)
        elif name in SEARCHES:
            _search(name, queries, start, rng)
        else:
            _scipy(name, queries, start, options)

    search_from(x0.cpu().numpy().astype(np.float64), search, queries, rng if restarts else None, name)


def search_from(
    start: np.ndarray,
    search: Callable[[np.ndarray, int], object],
    queries: Queries,
    rng: np.random.Generator | None,
    name: str,
) -> None:
    """Calls ``search(start, number)`` for a start and, with ``rng``, for uniform points until the budget is spent.

    An error before the first query is raised. A later one is logged under ``name`` and ends this start.
    """
    number = 0
    while len(queries.values) < queries.max_queries:
        before = len(queries.values)
        try:
            search(start, number)
        except Ended:
            break
        except Exception as error:
            if queries.error is not None or not queries.values:
                raise
            logger.warning("%s ended after %d queries: %s", name, len(queries.values), error, exc_info=True)
        if rng is None or len(queries.values) == before:
            break
        start, number = _spread(queries, rng.random(len(start))), number + 1
    if queries.error is not None:
        raise queries.error


def box_of(queries: Queries) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper bounds as arrays, shape ``d`` each."""
    lower, upper = (side.cpu().numpy().astype(np.float64) for side in (queries.lower, queries.upper))
    return lower, upper


def _integers(queries: Queries) -> np.ndarray:
    none = np.zeros(len(queries.lower), dtype=bool)
    return none if queries.integrality is None else queries.integrality.cpu().numpy()


def _spread(queries: Queries, unit: np.ndarray) -> np.ndarray:
    """Maps uniform numbers in [0, 1), shape ``d``, to a point in the box; an integer's values are equally likely."""
    (lower, upper), integers = box_of(queries), _integers(queries)
    point: np.ndarray = lower + np.where(integers, np.floor((upper - lower + 1) * unit), (upper - lower) * unit)
    return point


def _search(name: str, queries: Queries, start: np.ndarray, rng: np.random.Generator) -> None:
    from scipy.stats import qmc

    queries(start)
    sequence = qmc.Sobol(len(start), rng=rng) if name == "sobol" else None
    while True:
        queries(_spread(queries, rng.random(len(start)) if sequence is None else sequence.random(1)[0]))


def _scipy(name: str, queries: Queries, start: np.ndarray, options: Mapping[str, Any]) -> None:
    box = optimize.Bounds(queries.lower.cpu().numpy(), queries.upper.cpu().numpy(), keep_feasible=True)
    constraints = {} if queries.constraints is None else {"constraints": queries.scipy_constraints(name, start)}
    limits = dict.fromkeys(SCIPY[name], max(queries.max_queries, len(start) + 2))  # COBYLA's least
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Unknown solver options", optimize.OptimizeWarning)
        try:
            optimize.minimize(
                queries,
                start,
                method=name,
                bounds=None if name in WITHOUT_BOUNDS else box,
                options={**limits, **options},
                **constraints,
            )
        except optimize.OptimizeWarning as warning:
            raise ValueError(f"{name}: {warning}") from None


def _cma(
    queries: Queries, start: np.ndarray, rng: np.random.Generator, options: Mapping[str, Any], number: int
) -> None:
    import cma

    lower, upper = box_of(queries)
    free = upper > lower
    lower, upper, integers = lower[free], upper[free], _integers(queries)[free]
    boxed = np.isfinite(upper - lower)
    if not boxed.all() and "sigma0" not in options:
        raise ValueError('without finite bounds cma needs an initial standard deviation: ("cma", {"sigma0": ...})')
    sides = np.where(boxed, upper - lower, 1.0)
    scale, corner = np.where(integers, 1.0, sides), np.where(boxed & ~integers, lower, 0.0)

    def user(z: np.ndarray) -> np.ndarray:
        x = start.copy()
        x[free] = corner + scale * z
        return x

    ends = (lower - 0.5 * integers, upper + 0.5 * integers)  # pycma rounds integers, and needs halves as their bounds
    given = {
        "bounds": [((end - corner) / scale).tolist() for end in ends],
        "maxiter": queries.max_queries,
        "randn": lambda *shape: rng.standard_normal(shape),
        "seed": math.nan,
        "verbose": -10,
    }
    if integers.any():
        given |= {"integer_variables": np.flatnonzero(integers).tolist(), "CMA_stds": (sides / scale).tolist()}
    if queries.constraints is not None:
        given["tolstagnation"] = 0  # as in cma.fmin_con2: the augmented Lagrangian changes between iterations
    given |= {name: value for name, value in options.items() if name != "sigma0"}
    z0, sigma = ((start[free] - corner) / scale).tolist(), options.get("sigma0", CMA_SIGMA)
    search = cma.CMAEvolutionStrategy(z0, sigma, given)
    if number:
        search = cma.CMAEvolutionStrategy(z0, sigma, {**given, "popsize": search.popsize * 2**number})
    lagrangian = None if queries.constraints is None else _lagrangian(queries, len(z0))
    value = lagrangian or queries
    while not search.stop():
        asked = search.ask()
        search.tell(asked, [value(user(np.asarray(z))) for z in asked])
        if lagrangian is not None:
            lagrangian.update(search)


def _lagrangian(queries: Queries, dimension: int) -> Any:
    """The augmented Lagrangian of ``cma.fmin_con2``, which writes no files."""
    import cma

    class Quiet(cma.constraints_handler.AugmentedLagrangian):
        def _init_(self) -> None:
            self.logging = 0
            super()._init_()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*moarchiving")  # for archives that are not used
        found = cma.ConstrainedFitnessAL(queries, queries.rows, archives=False)
    found._al = Quiet(dimension)
    return found
