"""``python -m experiments benchmark history``: how much a history of evaluations helps the default method.

A whole run of n + m queries is compared with a second run that gets n of these queries as ``history`` and makes m
queries. The n queries are the first ones of a run from a random x0, or the Sobol' design with which a run without x0
begins. The benchmark reports the mean difference of the final log10 gap, with history minus whole run, paired by
problem and seed, and its 95% interval. Problems are functions of COCO's ``bbob``; successive seeds use the instances 4
to 10 in turn. Gaps below 1e-8 count as 1e-8.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult
from tqdm import tqdm

from experiments import registry
from experiments.benchmarks import output
from experiments.benchmarks.output import Target, target_lines
from experiments.benchmarks.problems.board import FLOOR
from experiments.benchmarks.problems.suites import FIRST_INSTANCE, SIDE, START_SIDE, Problem, opened
from optimizers import minimize
from optimizers.comparison.interval import bootstrap_interval, with_interval

FUNCTIONS = (1, 3, 6, 8, 10, 12, 14, 15, 17, 21)
INSTANCES = 7
GIVEN = ("the first of another run", "a Sobol' design")


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "history",
        __doc__,
        arguments,
        dimension=(5, "d"),
        functions=(FUNCTIONS, "functions of bbob"),
        seeds=(30, "seeds of each function"),
        given=(8, "n over d, where the given values are the first of another run"),
        asked=(8, "m over d"),
    )
    registry.require("problems", "the benchmark history")
    d, n, m = (options.dimension * times for times in (1, options.given, options.asked))
    pairs = [(function, seed) for seed in range(options.seeds) for function in options.functions]
    found = [differences(f, seed, d, n, m) for f, seed in tqdm(pairs, leave=False)]
    lines, columns = list[str](), dict(zip(GIVEN, np.transpose(found), strict=True))
    for name, column in columns.items():
        lines += [f"log10 gap with a history, {name}, less without: {with_interval(column)}"]
        lines += target_lines([Target("upper end", bootstrap_interval(column)[1], 0.1)])
    return output.write(options.out, "history", lines, pairs=pairs, **{k: v.tolist() for k, v in columns.items()})


def differences(function: int, seed: int, d: int, n: int, m: int) -> list[float]:
    """Returns the differences of final log10 gaps, one for each kind of history."""
    x0 = np.random.default_rng([function, seed]).uniform(-START_SIDE, START_SIDE, d)
    problem = Problem("bbob", function, d, FIRST_INSTANCE + seed % INSTANCES, n + m)
    with tempfile.TemporaryDirectory() as folder:
        with opened(problem, "trust_region", Path(folder)) as found:

            def run(queries: int, seed: int, **options: Any) -> OptimizeResult:
                options |= {"bounds": [(-SIDE, SIDE)] * d, "store_points": True, "progress": False}
                return minimize(found.fun, max_queries=queries, seed=seed, **options)

            begun = [(run(n + m, seed, x0=x0), n), (run(n + m, seed), min(2 * d, 16, (n + m) // 4))]
            # With the same seed the second part would repeat random numbers of the first.
            given = [(result.history.x[:k], result.history.y[:k]) for result, k in begun]
            ended = [run(n + m - len(y), seed + 1000, history=(X, y)).fun for X, y in given]
        assert found.progress is not None
        whole = [result.fun for result, _ in begun]
        optimum = min(*whole, *ended) - found.progress.final
    log = [[math.log10(max(value - optimum, FLOOR)) for value in values] for values in (ended, whole)]
    return [after - before for after, before in zip(*log, strict=True)]
