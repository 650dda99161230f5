"""``python -m experiments benchmark trust-region``: what each ingredient of the trust region on a surrogate gains.

Each row takes one ingredient away, by a constant of its modules or a function in its place, and runs the same
problems of COCO's ``bbob``, by default twelve functions of all groups at d = 5 and 10, on instances that are tuned on.
It says by how much the logarithm of the last gap changes, with its standard error over problems: above 0 the
ingredient gains.
"""

from __future__ import annotations

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
LEAST = 1e-8
"""Gaps below this count as this, COCO's own target."""

Change = tuple[Any, str, Any]
"""A module, the name of a constant or a function of it, and what takes its place."""


def _identity(hessian: torch.Tensor, *_: float) -> torch.Tensor:
    return torch.eye(len(hessian), dtype=hessian.dtype)


NO_NOISE: list[Change] = [(pinned_model, "EVIDENCE", float("inf"))]
NO_SHARED: list[Change] = [(pinned_model, "SHARED", 0.0)]
ROOT: list[Change] = [(metric, "POWER", 0.25)]
VARIANCE: list[Change] = [(region_model, "gain_map", _identity)]

ROWS: dict[str, list[Change]] = {
    "all": [],
    "without the Matérn part": [(pinned_model, "AMPLITUDES", (1e-6, 1e-6))],
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
    "half the first radius": [(free_box, "START", 0.1)],
    "radius grows at any decrease": [(radius, "POOR", 0.1)],
    "the prototype's model": [*NO_NOISE, *NO_SHARED, *ROOT, *VARIANCE, (cut, "REACH", 0.0)],
}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = output.options_of(
        "trust-region",
        __doc__,
        arguments,
        dimensions=((5, 10), "variables"),
        functions=(FUNCTIONS, "COCO's functions"),
        instances=((4, 5, 6), "COCO's instances, from 4 on"),
        queries=(20, "queries over the number of variables"),
        rows=(tuple(ROWS), "which rows, beside the first"),
    )
    registry.require("problems", "the benchmark trust-region")
    problems = chosen(SUITES["bbob"], options.dimensions, options.functions, options.instances, options.queries)
    gaps = {
        name: [gap(problem, ROWS[name]) for problem in problems] for name in {"all": 0, **dict.fromkeys(options.rows)}
    }
    return output.write(options.out, "trust-region", summary(gaps), gaps=gaps)


def gap(problem: Problem, changes: Sequence[Change]) -> float:
    """log₁₀ of the last gap of a run with changed constants."""
    with tempfile.TemporaryDirectory() as folder, changed(changes):
        with opened(problem, "trust_region", Path(folder)) as found:
            box = [(-SIDE, SIDE)] * problem.dimension
            optimizer = SurrogateTrustRegion(found.start, bounds=box, max_queries=problem.queries)
            run(optimizer, _of_tensor(found.fun))
        assert found.progress is not None
        return float(np.log10(max(found.progress.final, LEAST)))


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


def summary(gaps: Mapping[str, Sequence[float]]) -> list[str]:
    """The table."""
    whole = np.asarray(gaps["all"])
    lines = [f"mean log10 gap of all ingredients: {whole.mean():.2f}, over {len(whole)} problems; the change without"]
    for name, found in gaps.items():
        change = np.asarray(found) - whole
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            error = change.std(ddof=1) / len(change) ** 0.5
        lines.append(f"  {name:52} {change.mean():+.3f} ± {error:.3f}")
    return lines
