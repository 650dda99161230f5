"""``python -m experiments benchmark history``: what given values are worth to the default method.

A run of n + m queries is compared with a run that is given n of its evaluations and makes m queries. The n evaluations
are the first ones of a run from a random x0, or the Sobol' design that a run without x0 begins with. The number is the
difference of log10 of the last gap, history less whole run, paired by problem and seed, with its 95% interval. Problems
are functions of COCO's ``bbob`` on the instances 4 to 10, one after another over the seeds; gaps are at least 1e-8.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments import registry
from experiments.benchmarks import output
from experiments.benchmarks.output import Target, target_lines
from experiments.benchmarks.problems.board import FLOOR
from experiments.benchmarks.problems.suites import FIRST_INSTANCE, SIDE, START_SIDE, Problem, opened
from optimizers import SurrogateTrustRegion
from optimizers.comparison.interval import bootstrap_interval, with_interval

FUNCTIONS = (1, 3, 6, 8, 10, 12, 14, 15, 17, 21)
INSTANCES = 7

Values = tuple[np.ndarray, np.ndarray]


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "history",
        __doc__,
        arguments,
        dimension=(5, "d"),
        functions=(FUNCTIONS, "functions of bbob"),
        seeds=(30, "seeds of each function"),
        given=(8, "n over d, where the given values are the first ones of another run"),
        asked=(8, "m over d"),
    )
    registry.require("problems", "the benchmark history")
    pairs = [(function, seed) for seed in range(options.seeds) for function in options.functions]
    n, m = options.given * options.dimension, options.asked * options.dimension
    found = [differences(f, options.dimension, s, n, m) for f, s in tqdm(pairs, desc="pairs", leave=False)]
    lines, numbers = [], {}
    for name, column in zip(("first of another run", "Sobol' design"), np.transpose(found), strict=True):
        lines.append(f"n are the {name}: log10 gap with a history less without: {with_interval(column)}")
        lines += target_lines([Target(f"upper end, n are the {name}", bootstrap_interval(column)[1], 0.1)])
        numbers[name] = column.tolist()
    return output.write(options.out, "history", lines, pairs=pairs, differences=numbers)


def differences(function: int, d: int, seed: int, n: int, m: int) -> tuple[float, float]:
    """The differences of log10 gaps for the first n of another run, and for a Sobol' design."""
    x0 = np.random.default_rng([function, seed]).uniform(-START_SIDE, START_SIDE, d)
    problem = Problem("bbob", function, d, FIRST_INSTANCE + seed % INSTANCES, n + m)
    with tempfile.TemporaryDirectory() as folder:
        with opened(problem, "trust_region", Path(folder)) as found:
            whole = evaluated(optimizer(d, n + m, seed, x0), found.fun)
            begun = optimizer(d, n + m, seed, None)
            size = len(begun.ask())
            designed = evaluated(begun, found.fun)
            values = [whole[1], designed[1]]
            results = []
            for (X, y), k in ((whole, n), (designed, size)):
                # Another seed: with the same one the second half would repeat random numbers of the first.
                history = X[:k], y[:k]
                continued = optimizer(d, n + m - k, seed + 1000, None, history)
                evaluated(continued, found.fun)
                results.append(continued.best_y)
        assert found.progress is not None
        optimum = min(*(v.min() for v in values), *results) - found.progress.final
    logs = [
        [math.log10(max(value - optimum, FLOOR)) for value in part] for part in (results, [v.min() for v in values])
    ]
    return logs[0][0] - logs[1][0], logs[0][1] - logs[1][1]


def optimizer(
    d: int, queries: int, seed: int, x0: np.ndarray | None, history: Values | None = None
) -> SurrogateTrustRegion:
    """The default method in the suite's box."""
    return SurrogateTrustRegion(x0, bounds=[(-SIDE, SIDE)] * d, max_queries=queries, seed=seed, history=history)


def evaluated(optimizer: SurrogateTrustRegion, fun: Callable[[np.ndarray], float]) -> Values:
    """The points, ``q x d``, and values of a whole run."""
    X, y = list[np.ndarray](), list[float]()
    while not optimizer.stopped:
        batch = optimizer.ask()
        points = batch.points().numpy()
        values = [fun(x) for x in points]
        X, y = [*X, *points], [*y, *values]
        optimizer.tell(batch, values)
    return np.array(X), np.array(y)
