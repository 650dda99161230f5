"""``python -m experiments benchmark trust-region``: what each ingredient of the trust region on a surrogate gains.

Each row takes one ingredient away, by a constant of its modules or a function in its place, and runs the same
problems, by default twelve functions of all groups of COCO's ``bbob`` at d = 5 and 10, on instances that are tuned on.
It says by how much the logarithm of the last gap changes, with its standard error over problems: above 0 the
ingredient gains. On real black boxes, whose optimum is not known, a run counts by the percentage that it left of what
the best row gained.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import registry
from experiments.benchmarks import output
from experiments.benchmarks.problems.board import log_gaps, percent_left
from experiments.benchmarks.problems.runs import Record, Run, record_of
from experiments.benchmarks.problems.suites import SIDE, SUITES, Problem, chosen, opened
from optimizers import SurrogateTrustRegion, run
from optimizers.methods.trust_region import (
    cut,
    free_box,
    metric,
    modeller,
    pinned_model,
    radius,
    region_model,
    step,
    surrogate_trust_region,
)

FUNCTIONS = (1, 2, 6, 7, 8, 10, 12, 13, 15, 17, 20, 22)

Change = tuple[Any, str, Any]
"""A module, the name of a constant or a function of it, and what takes its place."""


def _identity(hessian: torch.Tensor, *_: float) -> torch.Tensor:
    return torch.eye(len(hessian), dtype=hessian.dtype)


def _of_likeliest_lengthscale(
    data: pinned_model.PinnedData, start: pinned_model.Shape | None, noisy: bool | None = False
) -> pinned_model.Shape:
    """``PinnedData.fitted`` with each of some lengthscales; the most likely one is the model's."""

    def tried(lengthscale: float) -> tuple[float, pinned_model.Shape]:
        pinned_model.RATE = math.sqrt(5.0) / lengthscale
        pinned_model.CURVATURE = pinned_model.RATE**2 / 3.0
        object.__setattr__(data, "bend", pinned_model.PinnedData.of(data.U, data.y).bend)
        shape = _fitted(data, start, noisy)
        return data.loss(shape), shape

    best = min(LENGTHSCALES, key=lambda lengthscale: tried(lengthscale)[0])
    return tried(best)[1]


_fitted = pinned_model.PinnedData.fitted

LENGTHSCALES = (0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0)
"""What a fitted lengthscale is one of."""

FITTED: list[Change] = [
    (pinned_model.PinnedData, "fitted", _of_likeliest_lengthscale),
    (pinned_model, "RATE", pinned_model.RATE),
    (pinned_model, "CURVATURE", pinned_model.CURVATURE),
]
NO_NOISE: list[Change] = [(pinned_model, "EVIDENCE", float("inf"))]
NO_SHARED: list[Change] = [(pinned_model, "SHARED", 0.0)]
ROOT: list[Change] = [(metric, "POWER", 0.25)]
VARIANCE: list[Change] = [(region_model, "gain_map", _identity)]

ROWS: dict[str, list[Change]] = {
    "all": [],
    "without the Matérn part": [(pinned_model, "AMPLITUDES", (1e-6, 1e-6))],
    "the most likely lengthscale": FITTED,
    "a lengthscale of 1": [(pinned_model, "RATE", math.sqrt(5.0)), (pinned_model, "CURVATURE", 5.0 / 3.0)],
    "without the quadratic form": [(pinned_model, "QUADRATIC", 0.0)],
    "without the shared curvature": NO_SHARED,
    "without the metric": [(modeller, "metric_of", _identity)],
    "the metric of the curvatures' roots": ROOT,
    "without lessons": [(surrogate_trust_region, "LESSONS", 0)],
    "lessons where the variance is most": VARIANCE,
    "without Newton steps after the first": [(step, "NEWTON", 0)],
    "without noise and ripples": NO_NOISE,
    "ripples told from noise, not smoothed over": [(surrogate_trust_region, "RUGGED", False)],
    "ripples smoothed over until no more is seen": [(surrogate_trust_region, "EARLY", 0)],
    "without searches of hyper-parameters after the first": [(pinned_model, "LATER", 0)],
    "any number of steps may fall short by chance": [(surrogate_trust_region, "CHANCES", float("inf"))],
    "new runs at any random point": [(surrogate_trust_region, "RETURNS", False)],
    "queries of a finer scale in the window": [(modeller, "CLOSE", 0.0)],
    "half the first radius": [(free_box, "START", 0.1)],
    "radius grows at any decrease": [(radius, "POOR", 0.1)],
    "the prototype's model": [*FITTED, *NO_NOISE, *NO_SHARED, *ROOT, *VARIANCE, (cut, "REACH", 0.0)],
}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = output.options_of(
        "trust-region",
        __doc__,
        arguments,
        suite=("bbob", "COCO's suite, or real"),
        dimensions=((5, 10), "variables, of COCO's problems"),
        functions=(tuple(map(str, FUNCTIONS)), "COCO's functions, or black boxes by name"),
        instances=((4, 5, 6), "COCO's instances, from 4 on, or seeds"),
        queries=(20, "queries over the number of variables, of COCO's problems"),
        rows=(tuple(ROWS), "which rows, beside the first"),
    )
    registry.require("problems", "the benchmark trust-region")
    functions = [int(name) if name.isdigit() else name for name in options.functions]
    suite = SUITES[options.suite]
    problems = chosen(suite, options.dimensions, functions, options.instances, options.queries)
    rows = dict.fromkeys(["all", *options.rows])
    found = [[record(name, problem) for name in rows] for problem in problems]
    score, unit = (percent_left, "% left") if suite.name == "real" else (log_gaps, "log10 gap")
    scores = dict(zip(rows, np.transpose([score(runs) for runs in found]).tolist(), strict=True))
    return output.write(options.out, "trust-region", summary(scores, unit), scores=scores)


def record(row: str, problem: Problem) -> Record:
    """A row's run on a problem; its method has the row's name."""
    with tempfile.TemporaryDirectory() as folder, changed(ROWS[row]):
        with opened(problem, "trust_region", Path(folder)) as found:
            box = [(-SIDE, SIDE)] * problem.dimension
            optimizer = SurrogateTrustRegion(found.start, bounds=box, max_queries=problem.queries)
            run(optimizer, _of_tensor(found.fun))
        assert found.progress is not None
        return record_of(Run(row, problem), found.progress)


def _of_tensor(fun: Callable[[np.ndarray], float]) -> Callable[[torch.Tensor], float]:
    return lambda x: fun(x.numpy())


@contextmanager
def changed(changes: Sequence[Change]) -> Iterator[None]:
    """A block in which constants have other values."""
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def summary(scores: Mapping[str, Sequence[float]], unit: str) -> list[str]:
    """The table."""
    whole = np.asarray(scores["all"])
    lines = [f"mean {unit} of all ingredients: {whole.mean():.2f}, over {len(whole)} problems; the change without"]
    for name, found in scores.items():
        change = np.asarray(found) - whole
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            error = change.std(ddof=1) / len(change) ** 0.5
        lines.append(f"  {name:52} {change.mean():+.3f} ± {error:.3f}")
    return lines
