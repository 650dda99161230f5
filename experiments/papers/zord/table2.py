"""ZoRD, Table 2: the environments and the dimensions of their controllers.

A controller is an MLP with two hidden layers of 10 units and biases, so that the environment's observations and actions
determine its dimension (Appx. C.5). The numbers that the table prints are not in our text of the paper. The expected
size, with biases in all layers, follows from the environments' published spaces; the counted size is measured on
gymnasium's environments (``experiments.workloads.controllers``). The table also lists the mean reward of controllers
drawn uniformly from the box, where the search begins.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Table, Verdict, never
from experiments.workloads.controllers import ENVIRONMENTS, TITLES, Controller, environment, layers
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Rows, by_seed, seeds_of, where


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the measurement.

    Attributes:
        environments: names of the environments.
        controllers: number of controllers per seed.
        episodes: number of episodes per controller.
        horizon: largest number of steps of an episode; None: the environment's own.
    """

    environments: tuple[str, ...] = tuple(ENVIRONMENTS)
    controllers: int = 20
    episodes: int = 4
    horizon: int | None = None


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records the sizes, and the mean reward of the seed's controllers."""
    rows: Rows = []
    for name in settings.environments:
        widths, fun = layers(environment(name)), Controller(name, settings.episodes, seed, settings.horizon)
        generator = torch.Generator().manual_seed(seed)
        thetas = 2 * torch.rand(settings.controllers, fun.dimension, generator=generator, dtype=torch.float64) - 1
        measured = {
            "observation": widths[0],
            "action": widths[-1],
            "parameters": fun.dimension,
            "expected": ENVIRONMENTS[name][1],
            "random_reward": -float(np.mean([fun(theta) for theta in thetas])),
        }
        rows += [{"seed": seed, "environment": name, "quantity": k, "value": v} for k, v in measured.items()]
    return rows


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges whether the sizes are as expected."""
    seeds = seeds_of(rows)
    wrong = np.zeros(len(seeds))
    for name in settings.environments:
        found, expected = (by_seed(rows, environment=name, quantity=q) for q in ("parameters", "expected"))
        wrong += found != expected
    trials = np.full(len(seeds), len(settings.environments))
    claim = "controllers have the expected dimensions"
    return [never(claim, "share of environments that differ", wrong, trials)]


def table(settings: Settings, rows: Rows) -> Table:
    """Lists the sizes, and the reward of random controllers."""
    columns = ("environment", "gymnasium", "observation", "action", "parameters", "expected", "random reward")
    cells = []
    for name in settings.environments:
        own = where(rows, environment=name)
        counts = [f"{by_seed(own, quantity=q)[0]:.0f}" for q in ("observation", "action", "parameters", "expected")]
        reward = with_interval(by_seed(own, quantity="random_reward"))
        cells.append((TITLES[name], ENVIRONMENTS[name][0], *counts, reward))
    return Table(columns, tuple(cells), "Sizes, and the mean reward of random controllers with its 95% interval.")


EXPERIMENT = Experiment(
    id="zord-table2",
    shows="environments of reinforcement learning and the dimensions of their controllers",
    claim="A controller's number of parameters is determined by the dimensions of the observation and of the action.",
    scales={
        "paper": Settings(),
        "reduced": Settings(controllers=3, episodes=1, horizon=200),
        "quick": Settings(controllers=1, episodes=1, horizon=5),
    },
    run_seed=run_seed,
    plot=None,
    claims=claims,
    table=table,
    seeds=3,
    extra="rl",
)
