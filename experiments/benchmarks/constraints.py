"""``python -m experiments benchmark constraints``: constrained designs of the literature, and the time of a query.

The default method and COBYQA make runs on each design (``experiments.workloads.designs``) from the same uniform points
of the box. A query is one distinct point. The number is the median, over the runs, of the queries until a value is
within 1e-3 of the optimum, relative to it, where no constraint is violated by more than 1e-6; inf if fewer than half of
the runs get there. COBYQA runs in the design's variables, and in variables scaled to [−1, 1]. This benchmark scales
them, because COBYQA's option ``scale`` does not work with nonlinear constraints: SciPy 1.17 then evaluates their
violation at the scaled point instead of the point. The radius is then a fifth of a side, as ours is: with COBYQA's own,
which is half a side, some runs end where they begin.

The times are of a query on a quadratic with m curved constraints, without the time of the function, in units of the
time without constraints. They are processor times, the least of three runs.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import NonlinearConstraint
from scipy.optimize import minimize as scipy_minimize
from tqdm import tqdm

from experiments.benchmarks import output
from experiments.benchmarks.output import Target, target_lines
from experiments.workloads.designs import DESIGNS, Design, Values
from optimizers import ReturnedConstraints, minimize

GAP, VIOLATION = 1e-3, 1e-6
FACTOR = 60
"""The budget of a run on a design, in queries a variable."""

SIZES = ((5, 5), (10, 10), (20, 20), (40, 40), (40, 189))
"""Variables and constraints of the functions whose queries are timed."""


Function = Callable[[np.ndarray], Values]


class _Spent(Exception):
    """Raised by a function whose budget is spent."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "constraints",
        __doc__,
        arguments,
        starts=(10, "runs of each design"),
        largest=(40, "largest number of variables of a function whose queries are timed"),
    )
    needed = {name: medians(design, options.starts) for name, design in tqdm(DESIGNS.items(), leave=False)}
    lines = [f"{'design':<16} {'d':>2} {'trust region':>13} {'COBYQA':>8} {'COBYQA, scaled':>15}"]
    for name, row in needed.items():
        lines.append(f"{name:<16} {len(DESIGNS[name].lower):>2} {row[0]:>13g} {row[1]:>8g} {row[2]:>15g}")
    no_more = sum(row[0] <= min(row[1:]) and row[0] < math.inf for row in needed.values())
    times = {(d, m): (query_time(d, 0), query_time(d, m)) for d, m in SIZES if d <= options.largest}
    ratios = {size: constrained / plain for size, (plain, constrained) in times.items()}
    lines += [
        f"d = {d}, m = {m}: {1e3 * times[d, m][1]:.2f} ms a query, {ratio:.2f} of that without constraints"
        for (d, m), ratio in ratios.items()
    ]
    equal = max(ratio for (d, m), ratio in ratios.items() if d == m)
    targets = [Target("designs in no more queries than COBYQA", no_more, 8, at_least=True)]
    targets += [Target("time of a query at m = d over that without constraints", equal, 3.0)]
    named = {f"{d},{m}": found for (d, m), found in times.items()}
    return output.write(options.out, "constraints", [*lines, *target_lines(targets)], queries=needed, seconds=named)


def medians(design: Design, starts: int) -> list[float]:
    """The median queries of the default method, COBYQA, and COBYQA in scaled variables."""
    lower, upper = np.array(design.lower), np.array(design.upper)
    best, box = design.optimum(12)[0], np.column_stack([lower, upper])
    needed: list[list[float]] = [[] for _ in METHODS]
    for seed in range(starts):
        start = np.random.default_rng(seed).random(len(lower))
        for method, column in zip(METHODS, needed, strict=True):
            seen: dict[bytes, Values] = {}

            def fun(x: np.ndarray, seen: dict[bytes, Values] = seen) -> Values:
                point = np.clip(x, lower, upper)
                if (key := point.tobytes()) not in seen:
                    if len(seen) == FACTOR * len(box):
                        raise _Spent
                    seen[key] = design.fun(point)
                return seen[key]

            with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.suppress(_Spent):
                warnings.simplefilter("ignore")
                method(fun, lower + start * (upper - lower), box)
            reached = [f - best <= GAP * abs(best) and g.max() <= VIOLATION for f, g in seen.values()]
            column.append(reached.index(True) + 1 if True in reached else math.inf)
    return [float(np.median(column)) for column in needed]


def default(fun: Function, start: np.ndarray, box: np.ndarray) -> None:
    """Runs the default method."""
    m, budget = len(fun(start)[1]), FACTOR * len(box)
    limits = ReturnedConstraints(np.full(m, -np.inf), np.zeros(m))
    minimize(fun, start, bounds=box, constraints=limits, max_queries=budget, feasibility_tol=1e-9, progress=False)


def cobyqa(fun: Function, start: np.ndarray, box: np.ndarray, radius: float = 1.0) -> None:
    """Runs COBYQA with an initial radius."""
    limits = NonlinearConstraint(lambda x: fun(x)[1], -np.inf, 0.0)
    options = {"maxfev": 10 * FACTOR * len(box), "initial_tr_radius": radius}
    scipy_minimize(lambda x: fun(x)[0], start, method="COBYQA", bounds=box, constraints=limits, options=options)


def scaled_cobyqa(fun: Function, start: np.ndarray, box: np.ndarray) -> None:
    """Runs COBYQA in variables scaled to [−1, 1], with an initial radius of a fifth of a side."""
    middle, half = box.mean(axis=1), 0.5 * np.ptp(box, axis=1)
    cobyqa(lambda u: fun(middle + half * u), (start - middle) / half, np.tile([-1.0, 1.0], (len(box), 1)), 0.4)


METHODS = (default, cobyqa, scaled_cobyqa)


def query_time(d: int, m: int, queries: int = 100) -> float:
    """Processor time of a query of the default method in seconds; without constraints where m is 0."""
    random = np.random.default_rng(0)
    A, B = random.standard_normal((2, m, d)) / math.sqrt(d)
    weights, count, times = 10.0 ** random.uniform(0.0, 2.0, d), max(queries, 6 * d), []

    def fun(x: np.ndarray) -> float | Values:
        f = float(weights @ (x - 1.0) ** 2 + np.sin(x).sum())
        return (f, A @ x + 0.1 * (x @ x) + 0.1 * np.sin(B @ x) - 1.0) if m else f

    limits = ReturnedConstraints(np.full(m, -np.inf), np.zeros(m)) if m else None
    for _ in range(3):
        begun = time.process_time()
        minimize(fun, np.zeros(d), bounds=[(-5, 5)] * d, max_queries=count, constraints=limits, progress=False)
        times.append(time.process_time() - begun)
    return min(times) / count
