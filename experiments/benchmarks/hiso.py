"""``python -m experiments benchmark hiso``: one update of HiSo at d = 1e8 against torch, and the replay of 100 rounds.

The update is x and H from P scalars and the seed, in float32 and in place. Beside it the whole-vector torch expression
of the same step, which draws by ``torch.randn`` and has temporaries of size d, and the same expression over pieces of
65,536 coordinates. One thread, processor time, in turn; memory is what one call adds to the peak. The group probe's
update, with one number a group in the place of H, stands beside them. The replay is that of a federation's client
that was away for 100 rounds: it follows their scalars and must then be the server's model, bit for bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.benchmarks import output
from experiments.benchmarks.timing import peak_memory
from federated.methods.scalar.hiso import HiSo
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal, Groups
from optimizers.directions.hessian_update import HessianRule, update

PIECE = 1 << 16
RULE = HessianRule()
FASTER, MEGABYTES = 3.0, 64.0


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; exit status 0 also where a target is missed, which the summary says."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    times, memory = measure(options.dimension, options.repetitions, options.perturbations)
    replay = replayed(options.replay_dimension, options.rounds)
    text = summary(times, memory, replay, options)
    output.write(options.out, "hiso", text, seconds=times, megabytes=memory, replay=replay)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = output.parser_of("hiso", __doc__)
    parser.add_argument("--dimension", type=int, default=100_000_000, help="of the timed update")
    parser.add_argument("--perturbations", type=int, default=1, help="P")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--replay-dimension", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100, help="rounds that are replayed")
    return parser


def measure(d: int, repetitions: int, count: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Processor seconds of every repetition, and the megabytes that one call adds, of each way to make the update."""
    x, hessian = torch.ones(d, dtype=torch.float32), torch.ones(d, dtype=torch.float32)
    directions, terms = Directions(0, d), [(0, p, 0.1) for p in range(count)]
    grouped = GroupDiagonal(Groups(min(d, 100), d), torch.ones(min(d, 100)))

    def ours() -> None:
        update(x, directions, terms, 1e-3, hessian=hessian, rule=RULE)

    def ours_grouped() -> None:
        update(x, directions, terms, 1e-3, hessian=grouped)

    def whole() -> None:
        torch_step(x, hessian, count)

    def pieces() -> None:
        for low in range(0, d, PIECE):
            torch_step(x[low : low + PIECE], hessian[low : low + PIECE], count)

    calls: dict[str, Callable[[], None]] = {
        "ours, x and H": ours,
        "ours, one number a group": ours_grouped,
        "torch, whole vectors": whole,
        "torch, pieces of 65,536": pieces,
    }
    update(x[:1000], directions, terms, 0.0, hessian=hessian[:1000], rule=RULE)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return times, {name: peak_memory(call) for name, call in calls.items()}


def torch_step(x: Tensor, hessian: Tensor, count: int) -> None:
    """The step as it is written with whole vectors: Δx = H^(−1/2) Σ c u, x ← x − ηΔx, H ← (1 − ν)H + ν(Δx² + ε)."""
    delta = sum(0.1 * torch.randn(x.shape) for _ in range(count)) / hessian.sqrt()
    x.copy_(x - 1e-3 * delta)
    hessian.copy_((1.0 - RULE.weight) * hessian + RULE.weight * (delta.square() + RULE.epsilon))


def replayed(d: int, rounds: int) -> dict[str, float]:
    """Seconds to follow so many rounds, and in how many of d coordinates the client then differs from the server."""
    algorithm = HiSo(torch.ones(d, dtype=torch.float32), clients=1, local_steps=1, perturbations=1)
    server, client = algorithm.model(), algorithm.model()
    generator = torch.Generator().manual_seed(0)
    scalars = [torch.randn(1, generator=generator) for _ in range(rounds)]
    for number, told in enumerate(scalars, 1):
        server.follow(number, told)
    start = time.process_time()
    for number, told in enumerate(scalars, 1):
        client.follow(number, told)
    seconds = time.process_time() - start
    differ = sum(
        int((a.view(torch.int32) != b.view(torch.int32)).sum())
        for a, b in zip(server.vectors().values(), client.vectors().values(), strict=True)
    )
    return {"dimension": d, "rounds": rounds, "seconds": seconds, "coordinates_that_differ": differ}


def summary(
    times: dict[str, list[float]],
    memory: dict[str, float],
    replay: dict[str, float],
    options: argparse.Namespace,
) -> str:
    """The table and the targets, met or missed."""
    d, reference = options.dimension, "torch, whole vectors"
    lines = [
        f"HiSo, d = {d:,}, P = {options.perturbations}, float32: one update, one thread",
        f"  {'':26} {'seconds [fastest-slowest]':26} {'million/s':>9} {'x torch':>8} {'MB':>8}",
    ]
    middle = {name: float(np.median(found)) for name, found in times.items()}
    for name, found in times.items():
        spread = f"{middle[name]:.3g} [{min(found):.3g}-{max(found):.3g}]"
        ratio = middle[reference] / middle[name]
        lines.append(f"  {name:26} {spread:26} {d / middle[name] / 1e6:9.0f} {ratio:8.2f} {memory[name]:8.1f}")
    lines.append(
        f"replay of {replay['rounds']} missed rounds at d = {replay['dimension']:,}: {replay['seconds']:.3g} s, "
        f"{replay['coordinates_that_differ']} coordinates of x and H differ"
    )
    ours = "ours, x and H"
    lines.append("Targets:")
    for met, text in (
        (
            middle[reference] / middle[ours] >= FASTER,
            f"at least {FASTER:g} times faster than whole vectors of torch: {middle[reference] / middle[ours]:.3g}",
        ),
        (not memory[ours] > MEGABYTES, f"temporaries under {MEGABYTES:g} MB: {memory[ours]:.3g}"),
        (replay["coordinates_that_differ"] == 0, "the replay is the server, bit for bit"),
    ):
        lines.append(f"  {'met   ' if met else 'MISSED'}  {text}")
    return "\n".join(lines)
