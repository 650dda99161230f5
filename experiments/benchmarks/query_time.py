"""``python -m experiments benchmark query-time``: the time that a method takes for a query, besides the objective's.

The default method, COBYQA and TuRBO-1 minimize Rosenbrock's function in [−5, 5]^d from the same start, one after the
other on one thread, with their defaults. The processor time of their runs is divided by their queries: of the first 2 d
queries, in which COBYQA and TuRBO have initial designs, and of those that follow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import rosen
from tqdm import tqdm

from experiments.benchmarks import output
from experiments.benchmarks.problems.rivals import RIVALS
from optimizers.comparison.queries import Queries

METHODS = ("trust_region", "cobyqa", "turbo")
SIZES = {20: 360, 1000: 50}
"""Numbers of variables, and of queries after the first 2 d."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of("query-time", __doc__, arguments, dimensions=(tuple(SIZES), "numbers of variables"))
    times = {
        f"{method}, d = {d}": milliseconds(method, d, SIZES.get(d, 50))
        for d in tqdm(options.dimensions, leave=False)
        for method in METHODS
    }
    lines = [f"{'ms per query':<24} first 2 d   afterwards"]
    lines += [f"{name:<24} {design:>9.3g} {after:>12.3g}" for name, (design, after) in times.items()]
    return output.write(options.out, "query-time", lines, milliseconds=times)


def milliseconds(method: str, d: int, more: int) -> tuple[float, float]:
    """Returns the milliseconds per query of the first 2 d queries, and of ``more`` queries after these."""
    told: list[float] = []

    def fun(x: np.ndarray) -> float:
        told.append(time.process_time())
        return float(rosen(x))

    side, start = torch.full((d,), 5.0, dtype=torch.float64), np.random.default_rng(0).uniform(-4.0, 4.0, d)
    begun = time.process_time()
    RIVALS[method].run(Queries(fun, -side, side, 2 * d + more, numpy=True), start, 0)
    design = told[2 * d - 1]
    return 1e3 * (design - begun) / (2 * d), 1e3 * (told[-1] - design) / (len(told) - 2 * d)
