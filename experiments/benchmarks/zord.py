"""``python -m experiments benchmark zord``: what an iteration of ZoRD costs beside the objective, and where.

A run of the library's defaults at d = 2189 is brought to a history of 5,000 queries and timed from there, iteration
by iteration: the processor's time of one ``tell``, in which the ten virtual steps to the next query are made. Selecting
the nearest 150 queries (once where the steps begin and once for each of them), updating their factor and α, and fitting
hyper-parameters every ten queries are timed inside; the steps are what is left. Medians over the iterations, as other
work on the machine only adds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from experiments.benchmarks import output
from optimizers import ZoRD
from surrogates import NearestWindow
from surrogates.window.window_surrogate import WindowSurrogate

PARTS = ("selection", "conditioning", "fit")
MOST_RATIO, MOST_MILLISECONDS = 2.0, 15.0


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; exit status 0 also where a target is missed, which the summary says."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    optimizer = _run_to(options.dimension, options.history, options.steps, options.iterations)
    times = measure(optimizer, options.iterations)
    text = summary(times, options.dimension, options.history, options.steps)
    output.write(options.out, "zord", text, seconds=times)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = output.parser_of("zord", __doc__)
    parser.add_argument("--dimension", type=int, default=2189)
    parser.add_argument("--history", type=int, default=5000, help="queries before the first timed one")
    parser.add_argument("--steps", type=int, default=10, help="virtual steps of an iteration")
    parser.add_argument("--iterations", type=int, default=200, help="timed ones")
    return parser


def measure(optimizer: ZoRD, iterations: int) -> list[dict[str, float]]:
    """Seconds of each iteration: ``whole`` and, within it, ``PARTS``."""
    rows = []
    with ExitStack() as stack:
        spent = {
            "selection": stack.enter_context(_timed(NearestWindow, "move_to")),
            "conditioning": stack.enter_context(_timed_property(WindowSurrogate, "conditioning")),
            "fit": stack.enter_context(_timed("surrogates.window.window_surrogate", "fit_isotropic")),
        }
        for _ in range(iterations):
            batch = optimizer.ask()
            values = objective(batch.points())
            for clock in spent.values():
                clock[0] = 0.0
            start = time.process_time()
            optimizer.tell(batch, values)
            rows.append({"whole": time.process_time() - start} | {name: clock[0] for name, clock in spent.items()})
    return rows


def summary(times: list[dict[str, float]], d: int, n: int, steps: int) -> str:
    """The table and the targets, met or missed."""
    column = {name: np.array([row[name] for row in times]) for name in ("whole", *PARTS)}
    plain = column["fit"] == 0.0
    chosen = column["selection"] + column["conditioning"]
    stepping = column["whole"] - chosen - column["fit"]
    lines = [f"ZoRD, d = {d}, {n} queries, {steps} virtual steps, {len(times)} iterations; milliseconds, one thread"]
    for label, values in (
        ("selecting and updating the window", column["selection"][plain]),
        ("α", column["conditioning"][plain]),
        ("virtual steps", stepping[plain]),
        ("the whole, without a fit", column["whole"][plain]),
        ("the whole, with a fit", column["whole"][~plain]),
    ):
        if len(values):
            lines.append(f"  {label:34} {_milliseconds(values)}  ({len(values)} iterations)")
    fit = 1e3 * float(column["fit"].sum()) / len(times)
    lines.append(f"  fits, spread over all iterations   {fit:.2f}")
    ratio = float(np.median(chosen[plain] / stepping[plain]))
    spread_ratio = ratio + fit / (1e3 * float(np.median(stepping[plain])))
    whole = 1e3 * float(np.median(column["whole"]))
    lines.append("Targets:")
    for text, value, limit in (
        ("selection and refit over the virtual steps", ratio, MOST_RATIO),
        ("the same with fits of hyper-parameters", spread_ratio, MOST_RATIO),
        ("the whole, milliseconds, median of all iterations", whole, MOST_MILLISECONDS),
    ):
        lines.append(f"  {'met   ' if value <= limit else 'MISSED'}  {text}, at most {limit:g}: {value:.3g}")
    return "\n".join(lines)


def objective(X: Tensor) -> Tensor:
    """Σ wⱼ xⱼ² + sin xⱼ, w from ½ to 2, at ``q x d``."""
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


def _milliseconds(values: np.ndarray) -> str:
    low, middle, high = (1e3 * float(v) for v in (values.min(), np.median(values), values.max()))
    return f"{middle:6.2f} [{low:.2f}-{high:.2f}]"


@contextmanager
def _timed(owner: object, name: str) -> Iterator[list[float]]:
    """Adds the processor's time of every call to the one number that it gives."""
    spent = [0.0]
    target = sys.modules[owner] if isinstance(owner, str) else owner
    with patch.object(target, name, _clocked(getattr(target, name), spent)):
        yield spent


@contextmanager
def _timed_property(owner: type, name: str) -> Iterator[list[float]]:
    spent = [0.0]
    with patch.object(owner, name, property(_clocked(getattr(owner, name).fget, spent))):
        yield spent


def _clocked(call: Callable[..., object], spent: list[float]) -> Callable[..., object]:
    def timed(*arguments: object, **named: object) -> object:
        start = time.process_time()
        try:
            return call(*arguments, **named)
        finally:
            spent[0] += time.process_time() - start

    return timed
