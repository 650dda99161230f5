"""``python -m experiments benchmark derived-gp``: the derived GP against what a user could pick instead.

One thread, one process, all competitors of a cell in turn, warm. Times are medians [fastest-slowest]; memory is what
one call adds to the peak. Where a competitor would need more than ``--memory`` or was slower than ``--patience``
in a smaller cell it is left out of the cell, and the table says so. The targets of the project are checked at the
end, met or missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from tqdm import tqdm

from experiments.benchmarks import output, peers, updates
from experiments.benchmarks.peers import Problem
from experiments.benchmarks.timing import Call, Timing, interleaved, peak_memory
from experiments.harness import style

OBSERVATIONS = (20, 150, 500, 2000)
DIMENSIONS = (10, 100, 784, 2189, 10_000, 100_000)
POINTS = (1, 100)
COVARIANCE_ROWS = 3


@dataclass(frozen=True)
class Competitor:
    """One way to the same numbers.

    Attributes:
        name: In the table.
        gives: ``"mean"``, ``"mean+trace"`` or ``"covariance"``.
        make: Its warm call for a problem.
        gigabytes: What it needs for (n, d, q), about.
        scale: What its time is multiplied by, where it runs a part of the work.
    """

    name: str
    gives: str
    make: Callable[[Problem], Call]
    gigabytes: Callable[[int, int, int], float] = lambda n, d, q: 3e-9 * 8 * n * d
    scale: Callable[[int, int, int], float] = lambda n, d, q: 1.0


COMPETITORS = (
    Competitor("matrix-vector product", "–", lambda p: lambda: peers.matrix_vector(p)),
    Competitor("DerivedGP", "mean", lambda p: lambda: peers.our_mean(p)),
    Competitor("autograd by hand", "mean", peers.autograd_by_hand),
    Competitor("BoTorch + autograd", "mean", peers.botorch_autograd),
    Competitor("GPyTorch + autograd", "mean", peers.gpytorch_autograd),
    Competitor("scikit-learn + differences", "mean", peers.sklearn_differences),
    Competitor("DerivedGP", "mean+trace", lambda p: lambda: peers.our_mean_and_trace(p)),
    Competitor(
        "torch.func Jacobian + solve",
        "mean+trace",
        peers.jacobian_and_solve,
        lambda n, d, q: 8e-9 * (3 * q * n * d + 2 * n * n * d),
    ),
    Competitor(
        "GPyTorch, autograd looped",
        "mean+trace",
        lambda p: peers.gpytorch_covariance_loop(p, COVARIANCE_ROWS),
        lambda n, d, q: 8e-9 * 20 * n * d if q == 1 else math.inf,
        lambda n, d, q: d / min(d, COVARIANCE_ROWS),
    ),
    Competitor(
        "DerivedGP",
        "covariance",
        lambda p: lambda: peers.our_covariance(p),
        lambda n, d, q: 8e-9 * q * (3 * n * d + 2 * d * d),
    ),
    Competitor(
        "torch.func, two Jacobians",
        "covariance",
        peers.double_jacobian,
        lambda n, d, q: 8e-9 * (6 * n * d * d + q * d * d),
    ),
    Competitor(
        "Matern52KernelGrad on values",
        "covariance",
        peers.kernel_grad,
        lambda n, d, q: 8e-9 * 6 * (q * (d + 1)) * (n * (d + 1)),
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; exit status 0 also where a target is missed, which the summary says."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    rows = [] if options.only == "updates" else _grid(options)
    rows += [] if options.only == "grid" else [asdict(row) for row in updates.measure(options.seconds)]
    output.write(options.out, "derived-gp", "\n".join([_table(rows), "", _targets(rows)]), rows=rows)
    if options.only != "updates":
        _plot(rows, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = output.parser_of("derived-gp", __doc__)
    parser.add_argument("--n", type=int, nargs="+", default=OBSERVATIONS, help="observations")
    parser.add_argument("--d", type=int, nargs="+", default=DIMENSIONS, help="inputs")
    parser.add_argument("--q", type=int, nargs="+", default=POINTS, help="points asked for")
    parser.add_argument("--seconds", type=float, default=0.5, help="measured time a call, about")
    parser.add_argument("--memory", type=float, default=6.0, help="gigabytes that a competitor may need")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds a call that end its use in larger cells")
    parser.add_argument("--only", choices=("grid", "updates"), help="one part of the benchmark")
    return parser


def _grid(options: argparse.Namespace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    slow: dict[tuple[str, str, int], float] = {}
    cells = [(n, d, q) for q in options.q for d in options.d for n in options.n]
    for n, d, q in tqdm(cells, desc="cells", disable=not sys.stderr.isatty()):
        if 8e-9 * n * d > options.memory / 3:
            rows.append(_row("all", "–", n, d, q, note=f"left out: the data alone take {8e-9 * n * d:.1f} GB"))
            continue
        problem = Problem(n, d, q)
        calls: dict[str, Call] = {}
        for competitor in COMPETITORS:
            gigabytes = competitor.gigabytes(n, d, q)
            was = slow.get((competitor.name, competitor.gives, q), 0.0)
            if gigabytes > options.memory or was > options.patience:
                note = f"needs about {gigabytes:.0f} GB" if was <= options.patience else f"took {was:.0f} s before"
                if math.isinf(gigabytes):
                    note = "for one point only"
                rows.append(_row(competitor.name, competitor.gives, n, d, q, note=f"left out: {note}"))
                continue
            calls[f"{competitor.name}|{competitor.gives}"] = competitor.make(problem)
        timings = interleaved(calls, options.seconds)
        quick = {name: call for name, call in calls.items() if timings[name].median < options.patience / 4}
        memory = {name: peak_memory(call) if name in quick else math.nan for name, call in calls.items()}
        for name, timing in timings.items():
            competitor = next(c for c in COMPETITORS if f"{c.name}|{c.gives}" == name)
            factor = competitor.scale(n, d, q)
            scaled = Timing(
                timing.median * factor, timing.fastest * factor, timing.slowest * factor, timing.repetitions
            )
            slow[competitor.name, competitor.gives, q] = timing.median
            note = "" if factor == 1 else f"{COVARIANCE_ROWS} of {d} rows, scaled"
            rows.append(_row(competitor.name, competitor.gives, n, d, q, scaled, memory[name], note))
    return rows


def _row(
    name: str,
    gives: str,
    n: int,
    d: int,
    q: int,
    timing: Timing | None = None,
    memory: float = float("nan"),
    note: str = "",
) -> dict[str, object]:
    times = {"median": None, "fastest": None, "slowest": None, "repetitions": 0} if timing is None else timing._asdict()
    return {"name": name, "gives": gives, "n": n, "d": d, "q": q, **times, "megabytes": memory, "note": note}


def _table(rows: list[dict[str, object]]) -> str:
    """One line a competitor and cell, with the ratio to ours that gives the same."""
    lines = [
        f"{'n':>5} {'d':>7} {'q':>4}  {'gives':<11} {'competitor':<30} {'median [fastest-slowest]':<32} "
        f"{'x ours':>9} {'MB':>8}"
    ]
    for row in rows:
        cell = f"{row['n']:>5} {row['d']:>7} {row['q']:>4}  {row['gives']:<11} {row['name']:<30} "
        if row["median"] is None:
            lines.append(cell + str(row["note"]))
            continue
        times = f"{_duration(row['median'])} [{_duration(row['fastest'])}-{_duration(row['slowest'])}]"
        ours = _find(rows, row.get("baseline", "DerivedGP"), row["gives"], row)
        ratio = "" if ours is None or ours is row else f"{row['median'] / ours['median']:.3g}"  # type: ignore[operator]
        memory = row["megabytes"]
        shown = "" if memory is None or math.isnan(memory) else f"{memory:.1f}"  # type: ignore[arg-type]
        lines.append(f"{cell}{times:<32} {ratio:>9} {shown:>8}  {row['note']}")
    return "\n".join(lines)


def _find(
    rows: list[dict[str, object]], name: object, gives: object, like: dict[str, object]
) -> dict[str, object] | None:
    for row in rows:
        same = all(row[key] == like[key] for key in ("n", "d", "q"))
        if same and row["name"] == name and row["gives"] == gives and row["median"] is not None:
            return row
    return None


def _duration(seconds: object) -> str:
    assert isinstance(seconds, float)
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _targets(rows: list[dict[str, object]]) -> str:
    """The project's targets, met or missed, on what was measured here."""

    def ratio(a: tuple[str, str], b: tuple[str, str], n: int, d: int) -> float | None:
        like: dict[str, object] = {"n": n, "d": d, "q": 1}
        first, second = _find(rows, *a, like), _find(rows, *b, like)
        if first is None or second is None:
            return None
        return first["median"] / second["median"]  # type: ignore[operator]

    mean, both = ("DerivedGP", "mean"), ("DerivedGP", "mean+trace")
    gemv = ("matrix-vector product", "–")
    wanted = [
        (
            "mean+trace, 150 x 2189, at least 40 times faster than Jacobian and solve",
            ratio(("torch.func Jacobian + solve", "mean+trace"), both, 150, 2189),
            40,
            True,
        ),
        (
            "mean+trace, 150 x 2189, at least 100,000 times faster than looped autograd",
            ratio(("GPyTorch, autograd looped", "mean+trace"), both, 150, 2189),
            1e5,
            True,
        ),
        (
            "mean, 150 x 2189, at least 40 times faster than BoTorch with autograd",
            ratio(("BoTorch + autograd", "mean"), mean, 150, 2189),
            40,
            True,
        ),
        ("mean+trace, 150 x 2189, within 3 matrix-vector products", ratio(both, gemv, 150, 2189), 3, False),
        ("mean+trace, 150 x 100000, within 2 matrix-vector products", ratio(both, gemv, 150, 100_000), 2, False),
    ]
    memory = _find(rows, *both, {"n": 150, "d": 100_000, "q": 1})
    if memory is not None:
        wanted.append(("mean+trace, 150 x 100000, megabytes above the data, under 50", memory["megabytes"], 50, False))  # type: ignore[arg-type]
    wanted += updates.targets(rows)
    lines = ["Targets (ratios of medians measured above):"]
    for text, value, limit, at_least in wanted:
        if value is None:
            continue
        met = value >= limit if at_least else value <= limit
        lines.append(f"  {'met   ' if met else 'MISSED'}  {text}: {value:.3g}")
    return "\n".join(lines)


def _plot(rows: list[dict[str, object]], out: Path) -> None:
    """Time of the gradient mean, and of mean and trace, against d at n = 150 (or the nearest n) for one point."""
    timed = [row for row in rows if row["median"] is not None and row["q"] == 1 and "baseline" not in row]
    sizes = sorted({row["n"] for row in timed}, key=lambda n: abs(n - 150))  # type: ignore[operator]
    if not sizes:
        return
    with style.applied():
        figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True)
        for axis, gives in zip(axes, ("mean", "mean+trace", "covariance"), strict=True):
            shown = [row for row in timed if row["n"] == sizes[0] and row["gives"] in (gives, "–")]
            for i, name in enumerate(dict.fromkeys(row["name"] for row in shown)):
                line = sorted((row["d"], row["median"]) for row in shown if row["name"] == name)
                ours, floor = name == "DerivedGP", name == "matrix-vector product"
                axis.plot(
                    *zip(*line, strict=True),
                    marker="" if floor else "os^DvP"[i % 6],
                    color="black" if ours else "0.6" if floor else f"C{i}",
                    linestyle="--" if floor else "-",
                    linewidth=2.2 if ours else 1.2,
                    label=name,
                )
            axis.set(xscale="log", yscale="log", xlabel="dimension d", title=f"{gives}, n = {sizes[0]}, one point")
            axis.legend(fontsize=8)
        axes[0].set_ylabel("seconds, median, one thread")
        figure.tight_layout()
        for suffix in ("png", "pdf"):
            figure.savefig(out / f"benchmark-derived-gp.{suffix}", dpi=150)
        plt.close(figure)
