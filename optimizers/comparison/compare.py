"""``compare``: runs several methods on the user's function, from the same starts and with the same budget."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds
from torch import Tensor

from optimizers.comparison.comparison import Comparison
from optimizers.comparison.outside import NAMES, TAKE_CONSTRAINTS, TAKE_INTEGERS, outside_name, run_outside
from optimizers.comparison.queries import Queries
from optimizers.comparison.records import Rows, best_so_far
from optimizers.core.bounds import BoundsLike, Domain, check_within, middle, parse_box
from optimizers.core.options import keyword_names, nearest_name, option_names, positive_integer, refuse_misspelt
from optimizers.core.space import Space
from optimizers.core.stopping import StopReason
from optimizers.core.values import parse_point
from optimizers.minimize import minimize
from optimizers.registry import FORMER, METHODS, method_class
from optimizers.running.finished import FinishedUnits
from optimizers.running.pool import run_tasks

Method = str | type | tuple[str | type, Mapping[str, Any]]
"""A method's name, an ``Optimizer`` subclass, or a pair of one of these and options."""

NEED_MORE = ("gradient_descent", "accelerated_zo")
"""Methods that need more than values: the gradient, or a constant of strong convexity."""

OUTSIDE_TAKES = ("numpy", "batched", "target", "constraints")
"""The options of ``minimize`` that SciPy's methods, CMA-ES and blind search take too."""


def compare(
    fun: Callable[[Any], Any],
    *,
    bounds: BoundsLike | None,
    max_queries: int,
    methods: Iterable[str] | Mapping[str, Method] | None = None,
    starts: Sequence[Any] | None = None,
    seeds: int = 5,
    jobs: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Minimizes a function with each method, from the same starts and with the same budget.

    Besides this project's methods it runs those of ``scipy.optimize.minimize`` that need no derivatives, CMA-ES of the
    package ``cma``, and blind search: "cobyqa", "l-bfgs-b", "nelder-mead", …, "cma", "random", "sobol". No run makes
    more than ``max_queries`` queries, including those of SciPy's finite differences. f is evaluated in the box only;
    points outside are projected onto it. Failed queries count; SciPy and CMA-ES then receive the worst value of the run
    so far. SciPy and CMA-ES keep their own defaults, except that SciPy's iteration limits are raised to the budget.
    SciPy searches in the box's units, CMA-ES in the unit cube. A run that stops early keeps its best value.

    Args:
        fun: the objective, a function from a point to a number, as for ``minimize``. NaN, inf and exceptions are failed
            queries, but an exception in a run's first query is raised.
        bounds: the box as for ``minimize``, or None, which requires ``starts``. With integers (``Space``), the methods
            may be 'trust_region', 'turbo', 'cobbo', 'gld', 'cma' and blind search.
        max_queries: the budget of each run.
        methods: names, or a mapping from labels to a name, an ``Optimizer`` subclass, or a pair of one of these and
            options: ``{"mine": ("zord", {"active": "gated"}), "simplex": ("nelder-mead", {"adaptive": True})}``. The
            default is every method of this project that needs only values and, if there is a ``history``, accepts one.
        starts: a start for each seed; by default uniform in the box, or the best point of a ``history``.
        seeds: the number of runs of each method, at least two.
        jobs: the number of processes. With more than one, ``fun`` and the options must be picklable, a script needs
            ``if __name__ == "__main__":``, and each process has as many threads as this one. If ``fun`` depends on the
            point only, the result is bitwise equal to that of one job.
        checkpoint: a file to which finished runs are appended. The same call with the same file makes only the missing
            runs. A change in the body of ``fun`` is not noticed.
        **options: further options of ``minimize``: ``numpy``, ``batched``, ``history``, ``prox``, …. SciPy's methods,
            CMA-ES and blind search only take ``numpy``, ``batched``, ``target`` and, where supported, ``constraints``.

    Returns:
        The least values of f (of f + ψ with a prox) that each method found.

    Raises:
        ValueError: for fewer than two seeds, a number of starts other than ``seeds``, a method that needs derivatives,
            an option unknown to a method, a damaged checkpoint or one of another call, or as ``minimize`` does.
        TypeError: with more than one job, for objects that cannot be pickled.
        ImportError: for "cma" without its package.
        RuntimeError: if a process died, or another process uses the checkpoint.
    """
    if seeds < 2:
        raise ValueError(f"an interval needs at least two seeds, got {seeds}")
    positive_integer("jobs", jobs)
    positive_integer("max_queries", max_queries)
    chosen = _chosen(methods, options, bounds if isinstance(bounds, Space) else None)
    at_best = starts is None and options.get("history") is not None
    points = [None] * seeds if at_best else _starts(bounds, seeds) if starts is None else list(starts)
    if len(points) != seeds:
        raise ValueError(f"there must be a start for each of the {seeds} seeds, got {len(points)}")
    runs = _Runs(fun, bounds, max_queries, points, chosen, options)
    units = [(seed, label) for seed in range(seeds) for label in chosen]
    path = None if checkpoint is None else Path(checkpoint)
    with closing(FinishedUnits(path, "comparison", runs.description())) as finished:
        found = {
            (seed, label): [math.inf if value is None else value for value in least]
            for seed, label, least in finished.read
        }

        def keep(unit: _Unit, least: list[float]) -> None:
            found[unit] = least
            finished.add(*unit, [value if math.isfinite(value) else None for value in least])

        run_tasks(runs, [unit for unit in units if unit not in found], keep, jobs=jobs)
    rows: Rows = [
        {"seed": seed, "method": label, "queries": n, "value": value}
        for seed, label in units
        for n, value in enumerate(best_so_far(found[seed, label], max_queries).tolist())
        if math.isfinite(value)
    ]
    return Comparison(rows, tuple(chosen), seeds)


_Unit = tuple[int, str]


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The runs of a comparison; a unit is a seed and a method's label."""

    fun: Callable[[Any], Any]
    bounds: BoundsLike | None
    max_queries: int
    starts: list[Any]
    methods: dict[str, tuple[Any, Mapping[str, Any]]]
    options: dict[str, Any]

    def __call__(self, unit: _Unit) -> list[float]:
        """The least value after 1, 2, … queries of a run; inf before the first success."""
        seed, label = unit
        method, own = self.methods[label]
        if (name := outside_name(method)) is not None:
            return self._run_outside(name, self.starts[seed], seed, own)
        shared = {"bounds": self.bounds, "max_queries": self.max_queries, "seed": seed, "progress": False}
        arguments: dict[str, Any] = {**shared, **self.options, **own}
        result = minimize(self.fun, self.starts[seed], method, **arguments)
        if result.stop_reason == StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        least: list[float] = result.history.best_y.tolist()
        return least

    def _run_outside(self, name: str, start: Any, seed: int, own: Mapping[str, Any]) -> list[float]:
        x0, domain, integrality = parse_point(start), None, None
        upper = torch.full_like(x0, math.inf)
        lower = -upper
        if self.bounds is not None:
            domain = _domain(self.bounds, x0)
            check_within(x0, domain.lower, domain.upper)
            lower, upper, x0 = domain.search_lower, domain.search_upper, domain.to_search(x0)
        if isinstance(self.bounds, Space):  # integers on a log scale are rounded in user units
            integrality = torch.tensor(self.bounds.integrality & ~self.bounds.log)
        numpy, batched, target, constraints = (self.options.get(name) for name in OUTSIDE_TAKES)
        queries = Queries(
            self.fun,
            lower,
            upper,
            self.max_queries,
            numpy=not isinstance(start, Tensor) if numpy is None else bool(numpy),
            batched=bool(batched),
            target=target,
            integrality=integrality,
            domain=domain,
            constraints=constraints,
            x0=x0,
        )
        run_outside(name, queries, x0, seed, own)
        return np.nan_to_num(np.fmin.accumulate(queries.values), nan=math.inf).tolist()

    def description(self) -> dict[str, Any]:
        """The values that determine the runs."""
        box: Any = (self.bounds.lb, self.bounds.ub) if isinstance(self.bounds, Bounds) else self.bounds
        box = [*box, self.bounds.description()] if isinstance(self.bounds, Space) else box
        shared = {"fun": self.fun, "bounds": box, "max_queries": self.max_queries, "starts": self.starts}
        methods = {f"method {label}": method for label, method in self.methods.items()}
        options = {f"option {name}": value for name, value in self.options.items()}
        return {name: _described(value) for name, value in {**shared, **methods, **options}.items()}


def _described(value: Any) -> Any:
    """A value as JSON; numbers of tensors and arrays by their digest, functions and classes by their names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _described(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_described(entry) for entry in value]
    if isinstance(value, Tensor | np.ndarray | np.generic):
        array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]
    if isinstance(value, functools.partial):
        return [_described(part) for part in (value.func, value.args, value.keywords)]
    named = value if hasattr(value, "__qualname__") else type(value)
    name = f"{named.__module__}.{named.__qualname__}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [name, {f.name: _described(getattr(value, f.name)) for f in dataclasses.fields(value)}]
    return name


def _chosen(
    methods: Iterable[str] | Mapping[str, Method] | None, options: Mapping[str, Any], space: Space | None
) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    integers = space is not None and bool(space.integrality.any())
    if methods is None:
        methods = [name for name in METHODS if name not in NEED_MORE]
        methods = [name for name in methods if method_class(name).takes_integers or not integers]
        if options.get("history") is not None:
            methods = [name for name in methods if method_class(name).has_model]
    named = methods if isinstance(methods, Mapping) else {name: name for name in methods}
    chosen = {label: found if isinstance(found, tuple) else (found, {}) for label, found in named.items()}
    constrained, known = options.get("constraints") is not None, keyword_names(minimize)
    for method, own in chosen.values():
        if "max_queries" in own:
            raise ValueError("all methods have the same budget: max_queries cannot be an option of one of them")
        name = outside_name(method)
        if name is None and isinstance(method, str) and method not in METHODS | FORMER:
            raise ValueError(f"unknown method {method!r}{nearest_name(method, [*METHODS, *NAMES])}")
        takes = {"constraints"} if name in TAKE_CONSTRAINTS else set() if name else option_names(method_class(method))
        known |= takes
        if constrained and "constraints" not in takes:
            raise ValueError(
                f"{method!r} takes no constraints: compare 'trust_region' and {', '.join(TAKE_CONSTRAINTS)}"
            )
        if name is None:
            continue
        if integers and name not in TAKE_INTEGERS:
            raise ValueError(f"{method!r} takes no integers: compare 'trust_region' with {', '.join(TAKE_INTEGERS)}")
        if space is not None and constrained:
            raise ValueError(f"{method!r} takes constraints with plain bounds only, not with a Space")
    refuse_misspelt(compare, keyword_names(compare), known, options, {})
    outside = [method for method, _ in chosen.values() if outside_name(method)]
    if outside and (refused := sorted(set(options) - set(OUTSIDE_TAKES))):
        raise ValueError(
            f"{outside[0]!r} does not take {refused[0]!r}; give it to the methods that do, "
            f'{{"zord": ("zord", {{{refused[0]!r}: ...}}), …}}'
        )
    return chosen


def _domain(bounds: BoundsLike, like: Tensor) -> Domain:
    space = bounds if isinstance(bounds, Space) else None
    return Domain.of(*parse_box(bounds, like), rescale=False, space=space)


def _starts(bounds: BoundsLike | None, seeds: int) -> list[Tensor]:
    """Uniform points in the box, one for each seed."""
    like = None if bounds is None else middle(bounds)
    domain = None if bounds is None or like is None else _domain(bounds, like.double())
    if domain is None or not bool(torch.isfinite(domain.upper - domain.lower).all()):
        raise ValueError(f"without starts, bounds must be d finite pairs (lower, upper), got {bounds}")
    lower, upper = domain.search_lower, domain.search_upper
    unit = torch.rand(seeds, len(lower), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return list(domain.to_user(lower + (upper - lower) * unit))
