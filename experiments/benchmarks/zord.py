"""``python -m experiments benchmark zord``: times an iteration of ZoRD, without the objective, and its parts.

A run with the library's defaults first makes a history of queries. Then each iteration is timed: the processor time of
one ``tell``, which includes the virtual steps to the next query. Three parts are timed separately: selecting the
nearest queries (once at the start of the virtual steps and once per step), updating the Cholesky factor and α of these
queries, and fitting hyperparameters. The virtual steps take the remaining time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import timed_parts
from optimizers import ZoRD
from surrogates.window import window_surrogate
from surrogates.window.nearest_window import NearestWindow
from surrogates.window.window_surrogate import WindowSurrogate

PARTS: dict[str, list[tuple[object, str]]] = {
    "selection": [(NearestWindow, "move_to")],
    "conditioning": [(WindowSurrogate, "conditioning")],
    "fit": [(window_surrogate, "fit_isotropic")],
}
"""The timed parts of an iteration, in the form that ``timed_parts`` takes."""
MOST_RATIO, MOST_MILLISECONDS = 2.0, 5.0


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "zord",
        __doc__,
        arguments,
        dimension=(2189, "inputs"),
        history=(5000, "queries before the timed iterations"),
        steps=(10, "virtual steps per iteration"),
        iterations=(200, "timed iterations"),
    )
    optimizer = _run_to(options.dimension, options.history, options.steps, options.iterations)
    times = measure(optimizer, options.iterations)
    text = summary(times, options.dimension, options.history, options.steps)
    return output.write(options.out, "zord", text, seconds=times)


def measure(optimizer: ZoRD, iterations: int) -> list[dict[str, float]]:
    """Returns the seconds of each iteration: in all (``whole``) and in each of ``PARTS``."""
    rows = []
    with timed_parts(PARTS) as spent:
        for _ in range(iterations):
            batch = optimizer.ask()
            values = objective(batch.points())
            spent.update(dict.fromkeys(PARTS, 0.0))
            start = time.process_time()
            optimizer.tell(batch, values)
            rows.append({"whole": time.process_time() - start} | spent)
    return rows


def summary(times: list[dict[str, float]], d: int, n: int, steps: int) -> list[str]:
    """Formats the table and the targets."""
    column = {name: np.array([row[name] for row in times]) for name in ("whole", *PARTS)}
    plain = column["fit"] == 0.0
    chosen = column["selection"] + column["conditioning"]
    stepping = column["whole"] - chosen - column["fit"]
    lines = [f"ZoRD, d = {d}, {n} queries, {steps} virtual steps, {len(times)} iterations, one thread"]
    for label, values in (
        ("selecting and updating the window", column["selection"][plain]),
        ("α", column["conditioning"][plain]),
        ("virtual steps", stepping[plain]),
        ("whole iteration, without a fit", column["whole"][plain]),
        ("whole iteration, with a fit", column["whole"][~plain]),
    ):
        if len(values):
            median, least, most = 1e3 * np.array([np.median(values), values.min(), values.max()])
            lines.append(f"  {label:34} {median:.3g} ms [{least:.3g} to {most:.3g}]  ({len(values)} iterations)")
    step, fit = float(np.median(stepping[plain])), float(column["fit"].mean())
    lines.append(f"  {'fits, spread over all iterations':34} {1e3 * fit:.2f} ms")
    ratio = float(np.median(chosen[plain] / stepping[plain]))
    targets = [
        Target("selection and refit over the virtual steps", ratio, MOST_RATIO),
        Target("the same with fits of hyper-parameters", ratio + fit / step, MOST_RATIO),
        Target("whole iteration, milliseconds, median", 1e3 * float(np.median(column["whole"])), MOST_MILLISECONDS),
    ]
    return [*lines, *output.target_lines(targets)]


def objective(X: Tensor) -> Tensor:
    """Returns Σⱼ (wⱼ xⱼ² + sin xⱼ) for points ``q x d``, with weights wⱼ from ½ to 2."""
    weights = torch.linspace(0.5, 2.0, X.shape[-1], dtype=X.dtype)
    return (weights * X.square()).sum(-1) + X.sin().sum(-1)


def _run_to(d: int, queries: int, steps: int, further: int) -> ZoRD:
    box = [(-5.0, 5.0)] * d
    x0 = torch.full((d,), 2.0, dtype=torch.float64)
    optimizer = ZoRD(x0, bounds=box, max_queries=queries + further, max_virtual_steps=steps)
    with tqdm(total=queries, desc="history", disable=not sys.stderr.isatty()) as bar:
        while optimizer.queries < queries:
            batch = optimizer.ask()
            optimizer.tell(batch, objective(batch.points()))
            bar.update(len(batch))
    return optimizer
