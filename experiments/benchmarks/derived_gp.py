"""``python -m experiments benchmark derived-gp``: times the derived GP against its alternatives.

Times are medians per call: processor time on one thread, wall-clock time on several (``--threads``). A competitor that
needs more than ``--memory`` gigabytes, or took more than ``--patience`` seconds on the previous problem, is skipped and
reported. Memory is the growth of peak memory during one call. With ``--device cuda`` times are wall-clock times.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.utils.benchmark import Compare, Measurement
from tqdm import tqdm

from experiments.benchmarks import output, peers
from experiments.benchmarks.output import Target
from experiments.benchmarks.peers import Problem
from experiments.benchmarks.timing import Call, peak_memory, timed

Key = tuple[str, str, int, int, int, int]
"""Key of a measured time: the competitor's name and result, n, d, q, and the number of threads."""


@dataclass(frozen=True)
class Competitor:
    """One way to compute the gradient posterior of a problem.

    Attributes:
        name: name in the table.
        gives: the result: ``"mean"``, ``"mean+trace"`` or ``"covariance"``.
        make: maps a problem to the function without arguments that is timed.
        numbers: maps n, d and q to the approximate number of float64 values in memory.
    """

    name: str
    gives: str
    make: Callable[[Problem], Call]
    numbers: Callable[[int, int, int], float] = lambda n, d, q: 3 * n * d


COMPETITORS = (
    Competitor("matrix-vector product", "–", peers.matrix_vector),
    Competitor("DerivedGP", "mean", peers.our_mean),
    Competitor("autograd by hand", "mean", peers.autograd_by_hand),
    Competitor("BoTorch + autograd", "mean", peers.botorch_autograd, lambda n, d, q: 4 * q * n * d),
    Competitor("DerivedGP", "mean+trace", peers.our_mean_and_trace),
    Competitor(
        "torch.func Jacobian + solve", "mean+trace", peers.jacobian_and_solve, lambda n, d, q: (3 * q + 2 * n) * n * d
    ),
    Competitor("DerivedGP", "covariance", peers.our_covariance, lambda n, d, q: q * (3 * n * d + 2 * d * d)),
    Competitor("torch.func, two Jacobians", "covariance", peers.double_jacobian, lambda n, d, q: (6 * n + q) * d * d),
    Competitor("Matern52KernelGrad on values", "covariance", peers.kernel_grad, lambda n, d, q: 6 * q * n * d * d),
)

GEMV, MEAN, BOTH = ("matrix-vector product", "–"), ("DerivedGP", "mean"), ("DerivedGP", "mean+trace")
JACOBIAN, HAND = ("torch.func Jacobian + solve", "mean+trace"), ("autograd by hand", "mean")
RATIOS = (
    ("mean+trace: times faster than Jacobian and solve", JACOBIAN, BOTH, (150, 2189, 1), 40, True),
    ("mean: times faster than BoTorch with autograd", ("BoTorch + autograd", "mean"), MEAN, (150, 2189, 1), 40, True),
    ("mean+trace: matrix-vector products", BOTH, GEMV, (150, 2189, 1), 3, False),
    ("mean+trace: matrix-vector products", BOTH, GEMV, (150, 100_000, 1), 2, False),
    ("mean: times as fast as autograd by hand", HAND, MEAN, (500, 2189, 100), 1, True),
    ("mean: times as fast as autograd by hand", HAND, MEAN, (2000, 2189, 100), 1, True),
)
"""Targets for ratios of times: name, both competitors, (n, d, q), limit, and whether the limit is a lower one."""

MEGABYTES, WIDE = 50.0, (150, 100_000, 1)
"""Largest memory in MB that mean and trace may need in addition to the data, and the (n, d, q) of this test."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "derived-gp",
        __doc__,
        arguments,
        n=((20, 150, 500, 2000), "observations"),
        d=((10, 100, 784, 2189, 10_000, 100_000), "inputs"),
        q=((1, 100), "query points"),
        threads=((1,), "threads"),
        device=("cpu", "device of the data and models"),
        seconds=(0.5, "approximate measured seconds per call"),
        memory=(6.0, "largest memory of a competitor in GB"),
        patience=(20.0, "seconds per call above which a competitor is left out of larger cells"),
    )
    times, left_out = _times(options)
    table = Compare(list(times.values()))
    table.trim_significant_figures()
    targets = _targets({key: timing.median for key, timing in times.items()})
    if WIDE in itertools.product(options.n, options.d, options.q):
        call = peers.our_mean_and_trace(Problem(*WIDE, device=options.device))
        megabytes = peak_memory(call, options.device)
        targets.append(Target(f"mean+trace: megabytes above the data, {_cell(*WIDE)}", megabytes, MEGABYTES))
    rows = [(*key, timing.median) for key, timing in times.items()]
    lines = [str(table), *left_out, *output.target_lines(targets)]
    return output.write(options.out, "derived-gp", lines, device=options.device, rows=rows)


def _times(options: argparse.Namespace) -> tuple[dict[Key, Measurement], list[str]]:
    """Returns the times in all cells, and a line for each competitor that was left out of a cell."""
    times, left_out, slow = dict[Key, Measurement](), list[str](), dict[Competitor, float]()
    cells = list(itertools.product(options.threads, options.q, options.d, options.n))
    for threads, q, d, n in tqdm(cells, desc="cells", disable=None):
        problem = Problem(n, d, q, device=options.device)
        for one in COMPETITORS:
            gigabytes, before = 8e-9 * one.numbers(n, d, q), slow.get(one, 0.0)
            if gigabytes > options.memory or before > options.patience:
                why = f"took {before:.0f} s before" if before > options.patience else f"needs {gigabytes:.2g} GB"
                left_out.append(f"left out at {_cell(n, d, q)}: {one.name}, {one.gives}, {why}")
                continue
            names = {"label": f"{one.gives}, d = {d}, q = {q}", "sub_label": one.name, "description": f"n = {n}"}
            found = timed(one.make(problem), options.seconds, threads, options.device, **names)
            times[one.name, one.gives, n, d, q, threads], slow[one] = found, found.median
    return times, left_out


def _cell(n: int, d: int, q: int) -> str:
    return f"n = {n}, d = {d}, q = {q}"


def _targets(medians: Mapping[Key, float]) -> list[Target]:
    targets = []
    for (text, above, below, cell, limit, at_least), threads in itertools.product(RATIOS, {key[-1] for key in medians}):
        first, second = medians.get((*above, *cell, threads)), medians.get((*below, *cell, threads))
        if first is not None and second is not None:
            targets.append(Target(f"{text}, {_cell(*cell)}, threads = {threads}", first / second, limit, at_least))
    return targets
