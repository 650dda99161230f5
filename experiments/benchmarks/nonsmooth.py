"""``python -m experiments benchmark nonsmooth``: the default method on functions with kinks and on functions in steps.

With a center c, a random rotation Q and y = Q(x − c), the functions are max|x − c|, max|y|, ‖x − c‖₁, ‖y‖₁, the
quadratic yᵀDy rounded to an integer, for curvatures D from 1 to 10, and Σ(round yᵢ)². All are searched in [−5, 5]^d,
with c uniform in [−3, 3]^d and the start in [−4, 4]^d; the least value is 0. The methods are COBYQA and NEWUOA with our
trust region's initial radius, the default method, and the default method without each of its rules for such functions.

A score is log10 of the least value, where values below 1e-8 count as 1e-8; for functions in steps it is the least value
itself. The table lists the mean over seeds with its 95% interval.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch
from tqdm import tqdm

from experiments.benchmarks import output
from experiments.benchmarks.problems.board import FLOOR
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.suites import SIDE, START_SIDE
from experiments.benchmarks.trust_region import ROWS
from optimizers import SurrogateTrustRegion, run
from optimizers.comparison.interval import with_interval
from optimizers.comparison.queries import Ended, Queries

KINKS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "max|x - c|": lambda z, y: np.abs(z).max(),
    "max|Q(x - c)|": lambda z, y: np.abs(y).max(),
    "|x - c|_1": lambda z, y: np.abs(z).sum(),
    "|Q(x - c)|_1": lambda z, y: np.abs(y).sum(),
}
STEPS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "rounded quadratic": lambda z, y: np.round(np.logspace(0, 1, len(y)) @ y**2),
    "rounded variables": lambda z, y: np.square(np.round(y)).sum(),
}
"""The functions of z = x − c and y = Qz."""

METHODS = ("cobyqa_wide", "newuoa_wide")
OPTIONS = ("all", "without errors at kinks", "without near queries at kinks", "without coarser scales on plateaus")


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "nonsmooth",
        __doc__,
        arguments,
        dimension=(10, "d"),
        queries=(30, "queries per variable"),
        seeds=(tuple(range(11, 21)), "seeds; 4 to 10 were used for tuning"),
    )
    methods = [name for name in METHODS if name != "newuoa_wide" or importlib.util.find_spec("nlopt")]
    rows, scores = (*methods, *OPTIONS), dict[str, dict[str, list[float]]]()
    for function in tqdm([*KINKS, *STEPS], leave=False):
        d, budget = options.dimension, options.queries * options.dimension
        scores[function] = {row: [least(function, row, seed, d, budget) for seed in options.seeds] for row in rows}
    lines = [f"{'':<20}" + "".join(f"{row:>40}" for row in rows)]
    for function, found in scores.items():
        columns = (np.log10(np.maximum(found[row], FLOOR)) if function in KINKS else found[row] for row in rows)
        lines.append(f"{function:<20}" + "".join(f"{with_interval(column):>40}" for column in columns))
    return output.write(options.out, "nonsmooth", lines, least=scores)


def least(function: str, row: str, seed: int, d: int, budget: int) -> float:
    """Returns the least value that a rival, or the default method with the rules of a row, finds."""
    rng = np.random.default_rng([seed, d])
    center, start = rng.uniform(-3.0, 3.0, d), rng.uniform(-START_SIDE, START_SIDE, d)
    Q, fun = np.linalg.qr(rng.standard_normal((d, d)))[0], (KINKS | STEPS)[function]
    value = lambda x: float(fun(x - center, Q @ (x - center)))  # noqa: E731
    side = torch.full((d,), SIDE, dtype=torch.float64)
    if row in ROWS:
        opt = SurrogateTrustRegion(start, bounds=[(-SIDE, SIDE)] * d, max_queries=budget, seed=seed, rules=ROWS[row])
        return float(run(opt, lambda x: value(x.numpy())).fun)
    queries = Queries(value, -side, side, budget, numpy=True)
    with contextlib.suppress(Ended):
        RIVALS[row].run(queries, start, seed)
    return queries.least
