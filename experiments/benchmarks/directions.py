"""``python -m experiments benchmark directions``: numbers a second of addressed directions against ``torch.randn``.

One thread, float32, in turn; the fastest of the repetitions counts. ``row`` makes a vector, ``add_to`` adds one to a
point in place, ``signs`` makes ±1; without numba ``row`` is torch's own path, whose bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import torch

from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import interleaved
from optimizers import Directions

PEER = "torch.randn"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = output.options_of(
        "directions",
        __doc__,
        arguments,
        sizes=((10_000, 1_000_000, 10_000_000), "numbers of a direction"),
        numbers=(50_000_000, "drawn in each way at each size, about"),
    )
    rates = {d: measure(d, max(3, options.numbers // d)) for d in options.sizes}
    return output.write(options.out, "directions", summary(rates), rates=rates)


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
    return {name: d / timing.fastest for name, timing in interleaved(ways, most=repetitions).items()}


def summary(rates: dict[int, dict[str, float]]) -> list[str]:
    """A line a size, and whether normals are at least as fast as torch's."""
    lines = [f"{'d':>12}" + "".join(f"{name:>14}" for name in next(iter(rates.values()))) + "   (million a second)"]
    lines += [f"{d:>12,}" + "".join(f"{rate / 1e6:>14.0f}" for rate in row.values()) for d, row in rates.items()]
    targets = [
        Target(f"normals over {PEER}'s, d = {d:,}", min(row["row"], row["add_to"]) / row[PEER], 1.0, at_least=True)
        for d, row in rates.items()
    ]
    return [*lines, *output.target_lines(targets)]
