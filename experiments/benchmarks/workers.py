"""``python -m experiments benchmark workers``: the wall time of runs whose objective takes half a second.

With q workers a budget of n queries takes ⌈n/q⌉ turns of the objective at the least. Above it are what the method takes
to choose points, and the time in which workers wait: at the end of a batch whose size q does not divide, or for values
that the method needs before it can ask on. RGF has batches of 16 here, which 1, 4 and 8 divide; ZoRD asks beside points
that are pending once its initial design is told. Workers are threads, and the objective sleeps, as one does that waits
for another machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from optimizers import minimize

METHODS: dict[str, dict[str, int]] = {"zord": {}, "rgf": {"directions": 15}}
MOST_RATIO = 1.1


@dataclass(frozen=True)
class Run:
    """A run's wall time beside the least, in seconds."""

    method: str
    workers: int
    queries: int
    wall: float
    ideal: float

    @property
    def ratio(self) -> float:
        """The wall time over the least."""
        return self.wall / self.ideal


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = output.options_of(
        "workers",
        __doc__,
        arguments,
        dimension=(20, "inputs"),
        queries=(200, "of a run"),
        seconds=(0.5, "that the objective takes"),
        workers=((1, 4, 8), "queries that are out at once"),
        repetitions=(1, "of each run; the fastest counts"),
    )
    runs = []
    for method in METHODS:
        _run(method, options.dimension, options.queries, 0.0, 2)
        for workers in options.workers:
            tried = [
                _run(method, options.dimension, options.queries, options.seconds, workers)
                for _ in range(options.repetitions)
            ]
            runs.append(min(tried, key=lambda run: run.wall))
    text = summary(runs, options.dimension, options.seconds)
    return output.write(options.out, "workers", text, runs=[asdict(run) for run in runs])


def summary(runs: Sequence[Run], d: int, seconds: float) -> list[str]:
    """The table and the targets."""
    lines = [f"d = {d}, an objective of {seconds:g} s, threads"]
    for run in runs:
        lines.append(
            f"  {run.method:5} {run.workers:3} workers, {run.queries} queries: {run.wall:6.2f} s, "
            f"at least {run.ideal:6.2f} s, {run.ratio - 1.0:.1%} over it"
        )
    targets = [
        Target(f"{run.method} with {run.workers} workers, wall time over the least", run.ratio, MOST_RATIO)
        for run in runs
        if run.workers > 1
    ]
    return [*lines, *output.target_lines(targets)]


def _run(method: str, d: int, queries: int, seconds: float, workers: int) -> Run:
    def objective(x: Tensor) -> float:
        time.sleep(seconds)
        return float((x - 1.0).square().sum() + (3.0 * x).sin().square().sum() / 2.0)

    x0 = torch.full((d,), -2.0, dtype=torch.float64)
    start = time.perf_counter()
    result = minimize(
        objective,
        x0,
        method,
        bounds=[(-5.0, 5.0)] * d,
        max_queries=queries,
        workers=workers,
        progress=False,
        **METHODS[method],  # type: ignore[arg-type]
    )
    wall = time.perf_counter() - start
    return Run(method, workers, result.nfev, wall, math.ceil(result.nfev / workers) * seconds)
