"""``python -m experiments benchmark constraints``: queries to solve constrained designs, and the time per query.

The default method and COBYQA start on each design (``experiments.workloads.designs``) at the same uniform points. A
query is one distinct point. A run succeeds when f is within a relative 1e-3 of the optimum and no constraint is
violated by more than 1e-6. The table lists the median number of queries to success, or inf if fewer than half of the
runs succeed. COBYQA runs in the design's variables and in variables scaled to [−1, 1]. The benchmark scales them
itself, because SciPy 1.17 evaluates constraints at the wrong point with COBYQA's option ``scale``. In scaled variables
its initial radius is a fifth of a side, as in the default method; with COBYQA's default some runs stop at once.

The benchmark also measures the default method's processor time per query on a quadratic with m curved constraints,
relative to the time without constraints. Each time is the shortest of three runs.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence

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
"""Budget of a run on a design, in queries per variable."""

SIZES = ((5, 5), (10, 10), (20, 20), (40, 40), (40, 189))
"""Numbers of variables and constraints (d, m) for which queries are timed."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of("constraints", __doc__, arguments, starts=(10, "runs of each design"))
    needed = {name: medians(design, options.starts) for name, design in tqdm(DESIGNS.items(), leave=False)}
    lines = [f"{'median queries to a design':<26} trust region   COBYQA   COBYQA, scaled"]
    lines += [f"{name:<26} {ours:>12g} {plain:>8g} {scaled:>16g}" for name, (ours, plain, scaled) in needed.items()]
    no_more = sum(ours <= min(theirs) and ours < math.inf for ours, *theirs in needed.values())
    ratios = {(d, m): query_time(d, m) / query_time(d, 0) for d, m in SIZES}
    lines += [f"time of a query, d = {d}, m = {m}: {ratio:.2f}" for (d, m), ratio in ratios.items()]
    targets = [
        Target("designs in no more queries than COBYQA", no_more, 8, at_least=True),
        Target("largest time of a query at m = d", max(ratio for (d, m), ratio in ratios.items() if d == m), 3.0),
    ]
    numbers = {"queries": needed, "ratios": list(ratios.values())}
    return output.write(options.out, "constraints", [*lines, *target_lines(targets)], **numbers)


def medians(design: Design, starts: int) -> list[float]:
    """Returns the median queries to success of the default method, COBYQA, and COBYQA in scaled variables."""
    best, box, needed = design.optimum(12)[0], np.column_stack([design.lower, design.upper]), []
    for seed in range(starts):
        start = box[:, 0] + np.ptp(box, axis=1) * np.random.default_rng(seed).random(len(box))
        runs = [queries_of(design, start, box, scaled) for scaled in (None, False, True)]
        reached = [[f - best <= GAP * abs(best) and g.max() <= VIOLATION for f, g in run] for run in runs]
        needed.append([column.index(True) + 1 if True in column else math.inf for column in reached])
    return np.median(needed, axis=0).tolist()


def queries_of(design: Design, start: np.ndarray, box: np.ndarray, scaled: bool | None) -> list[Values]:
    """Returns f and g at the distinct points that COBYQA queried, or the default method if ``scaled`` is None."""
    seen: dict[bytes, Values] = {}
    middle, half, d = box.mean(axis=1), 0.5 * np.ptp(box, axis=1), len(box)

    def fun(x: np.ndarray) -> Values:
        point = np.clip(middle + half * x if scaled else x, *box.T)
        return seen.setdefault(point.tobytes(), design.fun(point))

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if scaled is None:
            m = len(design.fun(start)[1])
            limits = ReturnedConstraints(np.full(m, -np.inf), np.zeros(m))
            minimize(fun, start, bounds=box, constraints=limits, max_queries=FACTOR * d, feasibility_tol=1e-9)
        else:
            scipy_minimize(
                lambda x: fun(x)[0],
                (start - middle) / half if scaled else start,
                method="COBYQA",
                bounds=[(-1.0, 1.0)] * d if scaled else box,
                constraints=NonlinearConstraint(lambda x: fun(x)[1], -np.inf, 0.0),
                options={"maxfev": FACTOR * d, "initial_tr_radius": 0.4 if scaled else 1.0},
            )
    return list(seen.values())


def query_time(d: int, m: int, queries: int = 100) -> float:
    """Returns the processor seconds per query of the default method on a function with m constraints."""
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
