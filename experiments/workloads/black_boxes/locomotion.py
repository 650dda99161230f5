"""Locomotion in MuJoCo: minus the return of gymnasium's bodies as a function of a controller's weights.

Policies are ZoRD's networks with two hidden layers (Table 3) for Swimmer, HalfCheetah and Walker2d, and linear policies
for all bodies. All have biases and actions in the range of tanh (``experiments.workloads.controllers``). The seed draws
the initial states and, for Reacher, the targets.

An episode has up to 1,000 steps: a query takes about a tenth of a second for Swimmer, tens of milliseconds for
HalfCheetah and Reacher, and milliseconds for a body that falls, but tenths of a second if it stays upright. f is
deterministic; contacts make it rough. gymnasium: MIT; MuJoCo and its bodies: Apache 2.0.
"""

from __future__ import annotations

from functools import partial

from experiments.workloads.black_boxes.black_box import BlackBox, OfArrays, central, cube
from experiments.workloads.controllers import ENVIRONMENTS, HIDDEN, Controller

LINEAR = {
    "swimmer": 18,
    "half_cheetah": 108,
    "hopper": 36,
    "walker2d": 108,
    "double_pendulum": 10,
    "reacher": 22,
}
"""Number of weights and biases of a linear policy."""

EPISODES = {"swimmer": 1, "half_cheetah": 1, "walker2d": 8, "hopper": 8, "double_pendulum": 8, "reacher": 16}
"""Number of episodes per query; those of Walker2d, Hopper and the pendulum end when the body falls."""


def gait(name: str, hidden: tuple[int, ...], seed: int) -> OfArrays:
    """Returns the controller of one of the environments in ``EPISODES``, with the episodes of a seed."""
    return OfArrays(Controller(name, EPISODES[name], 1000 * seed, hidden=hidden))


def _problem(title: str, name: str, hidden: tuple[int, ...], dimension: int, budget: int) -> BlackBox:
    box, needs = cube(dimension, 1.0), ("gymnasium", "mujoco", "imageio")
    return BlackBox(title, *box, partial(central, *box), partial(gait, name, hidden), budget, needs)


PROBLEMS = (
    _problem("swimmer_linear", "swimmer", (), LINEAR["swimmer"], 360),
    _problem("half_cheetah_linear", "half_cheetah", (), LINEAR["half_cheetah"], 540),
    _problem("swimmer", "swimmer", HIDDEN, ENVIRONMENTS["swimmer"][1], 500),
    _problem("half_cheetah", "half_cheetah", HIDDEN, ENVIRONMENTS["half_cheetah"][1], 500),
    _problem("walker2d", "walker2d", HIDDEN, ENVIRONMENTS["walker2d"][1], 1000),
    _problem("hopper_linear", "hopper", (), LINEAR["hopper"], 360),
    _problem("walker2d_linear", "walker2d", (), LINEAR["walker2d"], 540),
    _problem("double_pendulum_linear", "double_pendulum", (), LINEAR["double_pendulum"], 200),
    _problem("reacher_linear", "reacher", (), LINEAR["reacher"], 440),
)
