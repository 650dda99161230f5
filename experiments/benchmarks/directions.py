"""``python -m experiments benchmark directions``: numbers a second of addressed directions against ``torch.randn``.

One thread, float32, processor time, in turn; the fastest of the repetitions, as other work on the machine only adds.
``row`` makes a vector, ``add_to`` adds one to a point in place, ``signs`` makes ±1; without numba ``row`` is torch's
own path, whose bits are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

import torch

from experiments.benchmarks import output
from optimizers import Directions

PEER = "torch.randn"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; exit status 0 also where the target is missed, which the summary says."""
    parser = output.parser_of("directions", __doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000], metavar="D")
    parser.add_argument("--numbers", type=int, default=50_000_000, help="drawn in each way at each size, about")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rates = {d: measure(d, max(3, options.numbers // d)) for d in options.sizes}
    text = summary(rates)
    output.write(options.out, "directions", text, rates=rates)
    return 0


def measure(d: int, repetitions: int) -> dict[str, float]:
    """Numbers a second of each way to make d of them."""
    normals, signs = Directions(0, d), Directions(0, d, "rademacher")
    x, generator, steps = torch.zeros(d), torch.Generator().manual_seed(0), count()
    ways: dict[str, Callable[[], object]] = {
        PEER: lambda: torch.randn(d, generator=generator),
        "row": lambda: normals.row(next(steps), 0, dtype=torch.float32),
        "add_to": lambda: normals.add_to(x, next(steps), 0, 1e-3),
        "signs": lambda: signs.row(next(steps), 0, dtype=torch.float32),
    }
    fastest = dict.fromkeys(ways, float("inf"))
    for repetition in range(repetitions + 1):
        for name, way in ways.items():
            start = time.thread_time()
            way()
            if repetition:
                fastest[name] = min(fastest[name], time.thread_time() - start)
    return {name: d / seconds for name, seconds in fastest.items()}


def summary(rates: dict[int, dict[str, float]]) -> str:
    """A line a size, and whether normals are at least as fast as torch's."""
    lines = [f"{'d':>12}" + "".join(f"{name:>14}" for name in next(iter(rates.values()))) + "   (million a second)"]
    lines += [f"{d:>12,}" + "".join(f"{rate / 1e6:>14.0f}" for rate in row.values()) for d, row in rates.items()]
    slow = [d for d, row in rates.items() if min(row["row"], row["add_to"]) < row[PEER]]
    met = "met" if not slow else f"missed at d = {', '.join(f'{d:,}' for d in slow)}"
    return "\n".join([*lines, f"target, normals at least as fast as {PEER}: {met}"])
