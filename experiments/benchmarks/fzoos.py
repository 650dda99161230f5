"""``python -m experiments benchmark fzoos``: what a client's round of FZooS costs beside the objective, and where.

Two clients of Fig. 1's quadratics are given trajectories of n queries, such as rounds of local steps leave them, and
run rounds with the adaptive γ from there: the processor's time of each phase of a client's round, one thread. Before,
a round that is not measured fits wᵢ to the whole trajectory, as after a restart. With ``--figure`` all algorithms of
Fig. 1 run as well, one C and one seed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from experiments import registry
from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import Timing, clocked
from experiments.papers.fzoos import comparison, convergence
from experiments.papers.fzoos.quadratics import Federated, quadratics
from federated.core.messages import Broadcast
from federated.engine.federation import Federation
from federated.engine.host import Host, Request, Service
from federated.methods.fzoos.fzoos import FZooS
from optimizers.evaluation import Evaluator

MOST_SECONDS, MOST_MINUTES = 4.0, 20.0
PHASES = {
    "local": "local steps with their active queries",
    "surrogate": "wᵢ after the round's queries",
    "gamma": "mᵢ·cᵢ",
}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    options = output.options_of(
        "fzoos",
        __doc__,
        arguments,
        dimension=(300, "inputs"),
        features=(10_000, "M"),
        history=(3000, "queries before the first timed round"),
        rounds=(3, "timed ones, of 60 queries a client"),
        figure=(False, "time all of Fig. 1 too, one C and one seed"),
    )
    times = measure(options.dimension, options.features, options.history, options.rounds)
    figure = figure_seconds() if options.figure else {}
    text = summary(times, options.dimension, options.features, options.history, figure)
    return output.write(options.out, "fzoos", text, seconds=times, figure=figure)


@dataclass
class TimedHost(Host):
    """A host that keeps what each of its clients' phases took.

    Attributes:
        seconds: processor seconds by phase, one for each time that a client was served.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def serve(self, request: Request) -> Service:
        """Serve a client as ``Host`` does, and keep the time."""
        assert isinstance(request.message, Broadcast)
        start = time.process_time()
        service = super().serve(request)
        self.seconds.setdefault(request.message.phase, []).append(time.process_time() - start)
        return service


def measure(d: int, num_features: int, history: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each phase, one for each client and round, and of the first fit of wᵢ (``"first fit"``)."""
    problem = quadratics(d, 2, 5.0, seed=0)
    algorithm = FZooS(
        problem.x0, clients=2, bounds=problem.bounds, gamma="adaptive", num_features=num_features, rate="constant"
    )
    host = TimedHost(algorithm, {i: Evaluator(f) for i, f in enumerate(problem.clients)})
    federation = Federation(algorithm, host, codec=False)
    for i in range(2):
        points = trajectory(problem, history, seed=i)
        values = problem.clients[i].exact(points)
        host.client(i).optimizer.state.models.local.append(points, values)
    federation.run_round()
    first, host.seconds = host.seconds, {}
    for _ in range(rounds):
        federation.run_round()
    return host.seconds | {"first fit": first["surrogate"]}


def trajectory(problem: Federated, length: int, seed: int) -> Tensor:
    """Points of a walk to x0 by steps of ±0.01 in each coordinate, with five others beside each; ``length x d``."""
    generator = torch.Generator().manual_seed(seed)
    steps = -(-length // 6)
    shape = (steps, problem.mean.dimension)
    walk = 0.01 * (2 * torch.randint(2, shape, generator=generator) - 1).double()
    centres = problem.x0 - walk.flip(0).cumsum(0).flip(0)
    beside = 0.02 * torch.rand(steps, 5, shape[1], generator=generator, dtype=torch.float64) - 0.01
    points = torch.cat([centres[:, None], centres[:, None] + beside], dim=1)
    return points.reshape(-1, shape[1])[-length:].clamp(0.0, 1.0)


def figure_seconds() -> dict[str, float]:
    """Processor seconds of each method and Q of Fig. 1 at C = 5, seed 0."""
    settings = registry.get("fzoos-fig1").settings("paper").at(5.0)
    problem = convergence.problem_of(settings, 0)
    return {
        f"{method}, Q = {q}" if q else method: clocked(partial(comparison.run, settings, problem, method, q, 0))
        for method, q in comparison.variants(settings.methods, settings.directions)
    }


def summary(
    times: dict[str, list[float]], d: int, num_features: int, history: int, figure: dict[str, float]
) -> list[str]:
    """The table and the targets."""
    whole = np.sum([times[phase] for phase in PHASES], axis=0)
    lines = [f"FZooS, a client's round at {history} queries, d = {d}, M = {num_features}, one thread"]
    for label, values in (
        *((label, times[phase]) for phase, label in PHASES.items()),
        ("the whole", whole),
        ("(wᵢ from nothing, after a restart)", times["first fit"]),
    ):
        lines.append(f"  {label:40} {Timing.of(values)}  ({len(values)} measured)")
    targets = [Target("a client's round, seconds", float(np.median(whole)), MOST_SECONDS)]
    if figure:
        lines.append("Fig. 1, C = 5, one seed, one thread")
        lines += [f"  {name:40} {seconds:6.1f} s" for name, seconds in figure.items()]
        minutes = sum(figure.values()) / 60
        targets.append(Target("Fig. 1, one C and one seed, minutes on one thread", minutes, MOST_MINUTES))
    return [*lines, *output.target_lines(targets)]
