"""``python -m experiments benchmark hiso``: times one update of HiSo at d = 1e8, and the replay of 100 rounds.

The update computes x and H from P scalars and the seed, in float32 and in place. The update is compared with the same
step in whole-vector torch operations, which draws with ``torch.randn`` and allocates temporaries of size d, and with
the update of group probes, which have one number per group instead of H. All run on one thread. Times are medians of
processor time, and of wall-clock time on a GPU and for the replay. Memory is the increase of the process's peak memory
during one call. The replay updates the model of a client that missed 100 rounds from the scalars of these rounds; the
result must equal the server's model bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.benchmark import Measurement, timer

from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import Call, peak_memory, timed
from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.model import follow
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal, Groups
from optimizers.methods.hiso.displacement import Displacement
from optimizers.methods.hiso.update import update

RULE = Displacement()
FASTER, MEGABYTES = 3.0, 64.0


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "hiso",
        __doc__,
        arguments,
        dimension=(100_000_000, "d of the timed update"),
        perturbations=(1, "P"),
        device=("cpu", "device of x and H"),
        seconds=(3.0, "approximate measured seconds of each update"),
        replay_dimension=(1_000_000, "d of the replay"),
        rounds=(100, "number of replayed rounds"),
    )
    times, memory = measure(options.dimension, options.seconds, options.perturbations, options.device)
    replay = replayed(options.replay_dimension, options.rounds, options.device)
    text = summary(times, memory, replay, options.dimension, options.perturbations)
    seconds = {name: timing.median for name, timing in times.items()}
    return output.write(
        options.out, "hiso", text, device=options.device, seconds=seconds, megabytes=memory, replay=replay
    )


def measure(d: int, seconds: float, count: int, device: str = "cpu") -> tuple[dict[str, Measurement], dict[str, float]]:
    """Returns the time of each update, and by how many megabytes one call raises the peak memory."""
    x, hessian = torch.ones(2, d, dtype=torch.float32, device=device)
    directions, terms = Directions(0, d), [(0, p, 0.1) for p in range(count)]
    grouped = GroupDiagonal(Groups(min(d, 100), d), torch.ones(min(d, 100), device=device))

    calls: dict[str, Call] = {
        "ours, x and H": lambda: update(x, directions, terms, 1e-3, hessian=hessian, learning=RULE.learning),
        "ours, one number a group": lambda: update(x, directions, terms, 1e-3, hessian=grouped),
        "torch, whole vectors": lambda: torch_step(x, hessian, count),
    }
    times = {name: timed(call, seconds, device=device) for name, call in calls.items()}
    return times, {name: peak_memory(call, device) for name, call in calls.items()}


def torch_step(x: Tensor, hessian: Tensor, count: int) -> None:
    """Computes the step with whole vectors: Δx = H^(−1/2) Σ c u, x ← x − ηΔx, H ← (1 − ν)H + ν(Δx² + ε)."""
    delta = sum(0.1 * torch.randn_like(x) for _ in range(count)) / hessian.sqrt()
    x.copy_(x - 1e-3 * delta)
    hessian.copy_((1.0 - RULE.weight) * hessian + RULE.weight * (delta.square() + RULE.epsilon))


def replayed(d: int, rounds: int, device: str = "cpu") -> dict[str, float]:
    """Returns the seconds to replay ``rounds`` rounds, and in how many coordinates client and server then differ."""
    algorithm = HiSo(torch.ones(d, dtype=torch.float32, device=device), clients=1, local_steps=1, perturbations=1)
    server, client = algorithm.model(), algorithm.model()
    generator = torch.Generator().manual_seed(0)
    scalars = [torch.randn(1, generator=generator).to(device) for _ in range(rounds)]
    for number, told in enumerate(scalars, 1):
        follow(server, number, told)

    start = timer()
    for number, told in enumerate(scalars, 1):
        follow(client, number, told)
    seconds = timer() - start
    differ = sum(
        int((a.view(torch.int32) != b.view(torch.int32)).sum())
        for a, b in zip(server.vectors().values(), client.vectors().values(), strict=True)
    )
    return {"dimension": d, "rounds": rounds, "seconds": seconds, "coordinates_that_differ": differ}


def summary(
    times: dict[str, Measurement], memory: dict[str, float], replay: dict[str, float], d: int, perturbations: int
) -> list[str]:
    """Formats the table and the targets."""
    reference, ours = times["torch, whole vectors"].median, "ours, x and H"
    lines = [
        f"HiSo, d = {d:,}, P = {perturbations}, float32: one update, one thread",
        f"  {'':26} {'seconds':>9} {'million/s':>9} {'x torch':>8} {'MB':>8}",
    ]
    for name, timing in times.items():
        speed, ratio = d / timing.median / 1e6, reference / timing.median
        lines.append(f"  {name:26} {timing.median:9.3g} {speed:9.0f} {ratio:8.2f} {memory[name]:8.1f}")
    differ = replay["coordinates_that_differ"]
    lines.append(
        f"replay of {replay['rounds']} missed rounds at d = {replay['dimension']:,}: {replay['seconds']:.3g} s, "
        f"{differ} coordinates of x and H differ"
    )
    faster = reference / times[ours].median
    targets = [
        Target("times faster than whole vectors of torch", faster, FASTER, at_least=True),
        Target("megabytes of temporaries", memory[ours], MEGABYTES),
        Target("coordinates in which the replay is not the server, bit for bit", differ, 0),
    ]
    return [*lines, *output.target_lines(targets)]
