"""``python -m experiments benchmark derived-gp``: times the derived GP against its alternatives.

One process times all competitors of a cell. They are warmed up, and then timed in turn, one block of calls each
(``--block``), on one thread and on torch's default number of threads (``--threads``). Times are per call, as the median
[fastest-slowest] over the blocks: processor seconds on one thread, wall-clock seconds on several. Memory is the
increase of the peak during one call on one thread. A competitor that would need more than ``--memory``, or that was
slower than ``--patience`` in a smaller cell, is skipped; the table says so.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from experiments.benchmarks import growth, output, peers, updates
from experiments.benchmarks.output import Target
from experiments.benchmarks.peers import Problem
from experiments.benchmarks.timing import (
    BLOCK,
    DEFAULT_THREADS,
    Call,
    Timing,
    duration,
    interleaved,
    peak_memory,
    threads,
)

Row = dict[str, Any]
COVARIANCE_ROWS = 3
PARTS = ("all", "grid", "updates", "growth")


@dataclass(frozen=True)
class Competitor:
    """One way to compute the same numbers.

    Attributes:
        name: name in the table.
        gives: ``"mean"``, ``"mean+trace"`` or ``"covariance"``.
        make: creates its warmed-up call for a problem.
        numbers: approximate number of float64 values that it needs for (n, d, q).
        scale: factor on its time for (n, d, q), if it runs only part of the work.
    """

    name: str
    gives: str
    make: Callable[[Problem], Call]
    numbers: Callable[[int, int, int], float] = lambda n, d, q: 3 * n * d
    scale: Callable[[int, int, int], float] = lambda n, d, q: 1.0


COMPETITORS = (
    Competitor("matrix-vector product", "–", peers.matrix_vector),
    Competitor("DerivedGP", "mean", peers.our_mean),
    Competitor("autograd by hand", "mean", peers.autograd_by_hand),
    Competitor("BoTorch + autograd", "mean", peers.botorch_autograd),
    Competitor("GPyTorch + autograd", "mean", peers.gpytorch_autograd),
    Competitor("scikit-learn + differences", "mean", peers.sklearn_differences),
    Competitor("DerivedGP", "mean+trace", peers.our_mean_and_trace),
    Competitor(
        "torch.func Jacobian + solve", "mean+trace", peers.jacobian_and_solve, lambda n, d, q: (3 * q + 2 * n) * n * d
    ),
    Competitor(
        "GPyTorch, autograd looped",
        "mean+trace",
        lambda problem: peers.gpytorch_covariance_loop(problem, COVARIANCE_ROWS),
        lambda n, d, q: 20 * n * d if q == 1 else math.inf,
        lambda n, d, q: d / min(d, COVARIANCE_ROWS),
    ),
    Competitor("DerivedGP", "covariance", peers.our_covariance, lambda n, d, q: q * (3 * n * d + 2 * d * d)),
    Competitor("torch.func, two Jacobians", "covariance", peers.double_jacobian, lambda n, d, q: (6 * n + q) * d * d),
    Competitor("Matern52KernelGrad on values", "covariance", peers.kernel_grad, lambda n, d, q: 6 * q * n * d * d),
)

GEMV, MEAN, BOTH = ("matrix-vector product", "–"), ("DerivedGP", "mean"), ("DerivedGP", "mean+trace")
JACOBIAN, LOOPED = ("torch.func Jacobian + solve", "mean+trace"), ("GPyTorch, autograd looped", "mean+trace")
RATIOS = (
    ("mean+trace: times faster than Jacobian and solve", JACOBIAN, BOTH, 2189, 40, True),
    ("mean+trace: times faster than looped autograd", LOOPED, BOTH, 2189, 1e5, True),
    ("mean: times faster than BoTorch with autograd", ("BoTorch + autograd", "mean"), MEAN, 2189, 40, True),
    ("mean+trace: matrix-vector products", BOTH, GEMV, 2189, 3, False),
    ("mean+trace: matrix-vector products", BOTH, GEMV, 100_000, 2, False),
)
"""The targets: name of a ratio, its two competitors, d (with n = 150 and one point), limit, and whether it is a lower
limit.
"""

HAND = ("autograd by hand", "mean")
MANY_POINTS = ((500, 2189, 100), (2000, 2189, 100))
"""n, d and q at which the mean should be as fast as handwritten autograd."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "derived-gp",
        __doc__,
        arguments,
        n=((20, 150, 500, 2000), "observations"),
        d=((10, 100, 784, 2189, 10_000, 100_000), "inputs"),
        q=((1, 100), "query points"),
        threads=((1, 0), "threads; 0 is torch's default"),
        seconds=(0.5, "approximate measured seconds per call"),
        block=(BLOCK, "smallest number of seconds of a block"),
        memory=(6.0, "largest memory of a competitor in GB"),
        patience=(20.0, "seconds per call above which a competitor is skipped in larger cells"),
        only=("all", f"one part of the benchmark: {', '.join(PARTS)}"),
    )
    if options.only not in PARTS:
        raise ValueError(f"--only takes {', '.join(PARTS)}, got {options.only!r}")
    grid = _grid(options) if options.only in ("all", "grid") else []
    changes, targets = list[Row](), list[Target]()
    for part, measure in (("updates", updates.measure), ("growth", growth.measure)):
        if options.only in ("all", part):
            rows, reached = measure(options.seconds)
            changes, targets = [*changes, *rows], [*targets, *reached]
    lines = [*_table([*grid, *changes]), "", *output.target_lines([*_targets(grid), *targets])]
    return output.write(options.out, "derived-gp", lines, rows=[*grid, *changes])


def _grid(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    slow: dict[Competitor, float] = {}
    numbers = dict.fromkeys(number or DEFAULT_THREADS for number in options.threads)
    cells = list(itertools.product(numbers, options.q, options.d, options.n))
    for running, q, d, n in tqdm(cells, desc="cells", disable=not sys.stderr.isatty()):
        cell = {"n": n, "d": d, "q": q, "threads": running}
        gigabytes = 8e-9 * n * d
        if gigabytes > options.memory / 3:
            rows.append(_row("all", "–", cell, note=f"left out: the data alone take {gigabytes:.1f} GB"))
            continue
        problem, calls = Problem(n, d, q), dict[Competitor, Call]()
        for competitor in COMPETITORS:
            gigabytes, was = 8e-9 * competitor.numbers(n, d, q), slow.get(competitor, 0.0)
            if gigabytes <= options.memory and was <= options.patience:
                calls[competitor] = competitor.make(problem)
                continue
            note = f"needs about {gigabytes:.0f} GB" if was <= options.patience else f"took {was:.0f} s before"
            note = "for one point only" if math.isinf(gigabytes) else note
            rows.append(_row(competitor.name, competitor.gives, cell, note=f"left out: {note}"))
        with threads(running):
            clock = time.process_time if running == 1 else time.perf_counter
            timings = interleaved(calls, options.seconds, block=options.block, clock=clock)
            # A fork has none of the threads that its parent's libraries count on.
            quick = [one for one in calls if running == 1 and timings[one].median < options.patience / 4]
            memory = {one: peak_memory(calls[one]) for one in quick}
        for competitor, timing in timings.items():
            factor = competitor.scale(n, d, q)
            slow[competitor] = timing.median
            note = "" if factor == 1 else f"{COVARIANCE_ROWS} of {d} rows, scaled"
            given = timing.times(factor), memory.get(competitor, math.nan), note
            rows.append(_row(competitor.name, competitor.gives, cell, *given))
    return rows


def _row(
    name: str, gives: str, cell: Row, timing: Timing | None = None, megabytes: float = math.nan, note: str = ""
) -> Row:
    times = Timing(math.nan, math.nan, math.nan, 0) if timing is None else timing
    return {"name": name, "gives": gives, **cell, **times._asdict(), "megabytes": megabytes, "note": note}


def _table(rows: list[Row]) -> list[str]:
    lines = [
        f"{'n':>5} {'d':>7} {'q':>4} {'threads':>7}  {'gives':<11} {'competitor':<30} {'median [fastest-slowest]':<32} "
        f"{'x ours':>9} {'MB':>8}"
    ]
    for row in rows:
        running = row.get("threads", 1)
        cell = f"{row['n']:>5} {row['d']:>7} {row['q']:>4} {running:>7}  {row['gives']:<11} {row['name']:<30} "
        if not row["repetitions"]:
            lines.append(cell + row["note"])
            continue
        times = f"{duration(row['median'])} [{duration(row['fastest'])}-{duration(row['slowest'])}]"
        ours = _find(rows, (row.get("baseline", "DerivedGP"), row["gives"]), row["n"], row["d"], row["q"], running)
        ratio = "" if ours is None or ours is row else f"{row['median'] / ours['median']:.3g}"
        memory = "" if math.isnan(row["megabytes"]) else f"{row['megabytes']:.1f}"
        lines.append(f"{cell}{times:<32} {ratio:>9} {memory:>8}  {row['note']}")
    return lines


def _find(rows: list[Row], what: tuple[str, str], n: int, d: int, q: int = 1, running: int = 1) -> Row | None:
    wanted = dict(zip(("name", "gives", "n", "d", "q", "threads"), (*what, n, d, q, running), strict=True))
    return next((row for row in rows if row["repetitions"] and wanted.items() <= ({"threads": 1} | row).items()), None)


def _targets(rows: list[Row]) -> list[Target]:
    targets = []
    for text, above, below, d, limit, at_least in RATIOS:
        first, second = _find(rows, above, 150, d), _find(rows, below, 150, d)
        if first and second:
            targets.append(Target(f"{text}, 150 x {d}", first["median"] / second["median"], limit, at_least))
    for (n, d, q), running in itertools.product(MANY_POINTS, sorted({row.get("threads", 1) for row in rows})):
        hand, ours = _find(rows, HAND, n, d, q, running), _find(rows, MEAN, n, d, q, running)
        if hand and ours:
            text = f"mean: times as fast as autograd by hand, {n} x {d}, {q} points, {running} threads"
            targets.append(Target(text, hand["median"] / ours["median"], 1, True))
    if row := _find(rows, BOTH, 150, 100_000):
        targets.append(Target("mean+trace: megabytes above the data, 150 x 100000", row["megabytes"], 50))
    return targets
