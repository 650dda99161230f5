"""``python -m experiments benchmark threads``: what a query of ZoRD costs with the machine's threads, with 1, with 16.

A process for each, as the libraries read their number of threads when they load: none given, 1, and 16, more than most
machines have cores for. Each runs the library's defaults on the same function until the window is full; then they take
turns of a block of queries, by the clock on the wall, so that what disturbs the machine disturbs all of them. That is
done on the machine as it is and beside processes that keep it busy. What they query must be the same, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import Timing
from optimizers import ZoRD

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What the libraries read their number of threads from."""
THREADS: dict[str, int | None] = {"default": None, "one": 1, "16": 16}
MOST_RATIO = 1.1

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = output.options_of(
        "threads",
        __doc__,
        arguments,
        dimensions=((20, 200, 2189), "inputs"),
        history=(160, "queries before the first timed one"),
        block=(20, "queries of a turn"),
        rounds=(15, "turns of each"),
        busy=((0, 2), "processes that keep the machine busy meanwhile"),
    )
    rows = [
        {"dimension": d, "busy": busy} | measure(d, options.history, options.block, options.rounds, busy)
        for d in options.dimensions
        for busy in options.busy
    ]
    return output.write(options.out, "threads", summary(rows), rows=rows)


def measure(d: int, history: int, block: int, rounds: int, busy: int) -> Row:
    """Seconds of a query in each turn, by the number of threads, and how many sequences of queries there were."""
    total = history + block * rounds
    with ExitStack() as stack:
        runs = {name: stack.enter_context(_process(n, f"serve({d}, {total})")) for name, n in THREADS.items()}
        for run in runs.values():
            _turn(run, history)
        for _ in range(busy):
            stack.enter_context(_process(1, "spin()"))
        turns = [{name: _turn(run, block) for name, run in runs.items()} for _ in range(rounds)]
    return {
        "seconds": {name: [turn[name]["seconds"] / block for turn in turns] for name in runs},
        "sequences": len({turns[-1][name]["queried"] for name in runs}),
    }


def serve(d: int, total: int) -> None:
    """Run ZoRD by as many queries as each line of the standard input says; print their seconds and a digest of all."""
    x0 = torch.full((d,), 2.0, dtype=torch.float64)
    optimizer = ZoRD(x0, bounds=[(-5.0, 5.0)] * d, max_queries=total)
    for line in sys.stdin:
        start, until = time.perf_counter(), optimizer.queries + int(line)
        while optimizer.queries < until:
            batch = optimizer.ask()
            optimizer.tell(batch, [objective(x.numpy()) for x in batch.points()])
        seconds = time.perf_counter() - start
        queried = hashlib.sha256(optimizer.trajectory.X.numpy().tobytes()).hexdigest()
        print(json.dumps({"seconds": seconds, "queried": queried}), flush=True)


def objective(x: np.ndarray) -> float:
    """Σ wⱼ xⱼ² + sin xⱼ, w from ½ to 2, of NumPy's loops, which have one thread: ZoRD's are what is timed."""
    return float(np.sum(np.linspace(0.5, 2.0, len(x)) * x * x + np.sin(x)))


def spin() -> None:
    """Keep a core busy until the standard input ends."""
    threading.Thread(target=lambda: sys.stdin.read() or os._exit(0), daemon=True).start()
    while True:
        pass


def summary(rows: Sequence[Row]) -> list[str]:
    """The table and the targets."""
    lines, targets = ["ZoRD, a query by the clock on the wall, median [fastest-slowest] of the turns"], []
    for row in rows:
        where = f"d = {row['dimension']}, {row['busy']} busy processes beside it"
        lines.append(where)
        found = {name: Timing.of(seconds) for name, seconds in row["seconds"].items()}
        for name, timing in found.items():
            lines.append(f"  {name:8} {timing!s:34} {timing.median / found['one'].median:6.2f} x one thread")
        for name in found.keys() - {"one"}:
            ratio = found[name].median / found["one"].median
            targets.append(Target(f"{name} threads over one, {where}", ratio, MOST_RATIO))
        targets.append(Target(f"sequences of queries, {where}", row["sequences"], 1))
    return [*lines, *output.target_lines(sorted(targets, key=lambda target: target.text))]


@contextmanager
def _process(threads: int | None, call: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that makes a call of this module with a number of threads, until its standard input ends."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {} if threads is None else dict.fromkeys(VARIABLES, str(threads))
    command = [sys.executable, "-c", f"from {__name__} import *; {call}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process


def _turn(process: subprocess.Popen[str], queries: int) -> Row:
    assert process.stdin is not None and process.stdout is not None
    print(queries, file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError("a process of the benchmark ended early; its error is above")
    row: Row = json.loads(answer)
    return row
