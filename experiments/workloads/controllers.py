"""Controllers of gymnasium's environments as minimization problems: minus the mean return of their episodes.

A controller is an MLP with two hidden layers of 10 units and biases. Continuous actions are the tanh of its outputs,
scaled to the action's range. A discrete action is the largest output's index; ZoRD's Appx. C.5 uses a softmax layer.
The tanh in the hidden layers is our choice. Episode e of every query starts from the environment's state with seed
``seed + e``, so f is deterministic. (BipedalWalker keeps state between episodes, so Box2D's environments are made
anew.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

HIDDEN = (10, 10)

ENVIRONMENTS: dict[str, tuple[str, int]] = {
    "acrobot": ("Acrobot-v1", 213),
    "swimmer": ("Swimmer-v5", 222),
    "lunar_lander": ("LunarLander-v3", 244),
    "bipedal_walker": ("BipedalWalker-v3", 404),
    "walker2d": ("Walker2d-v5", 356),
    "half_cheetah": ("HalfCheetah-v5", 356),
}
"""gymnasium's name and the controller's number of parameters."""

OTHERS = {"hopper": "Hopper-v5", "double_pendulum": "InvertedDoublePendulum-v5", "reacher": "Reacher-v5"}
"""gymnasium's names of environments that the papers do not use."""

TITLES = {name: gym.partition("-")[0] for name, (gym, _) in ENVIRONMENTS.items()}
BOX2D = ("lunar_lander", "bipedal_walker")


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Suppresses MuJoCo's warnings, which it would write to a file in the working directory."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def make(name: str) -> Any:
    """Creates a gymnasium environment.

    Raises:
        ValueError: for an unknown name.
    """
    known = {key: gym for key, (gym, _) in ENVIRONMENTS.items()} | OTHERS
    if name not in known:
        raise ValueError(f"unknown environment {name!r}; choose from {', '.join(known)}")
    import gymnasium

    with _quiet_mujoco():
        return gymnasium.make(known[name])


environment = lru_cache(maxsize=len(ENVIRONMENTS) + len(OTHERS))(make)
"""Returns an instance that the process shares: for its spaces, and for episodes if a reset clears its state."""


def layers(env: Any, hidden: tuple[int, ...] = HIDDEN) -> tuple[int, ...]:
    """Returns the layer widths from the observation to the action."""
    actions = env.action_space.n if hasattr(env.action_space, "n") else env.action_space.shape[0]
    return (int(env.observation_space.shape[0]), *hidden, int(actions))


def dimension(widths: tuple[int, ...]) -> int:
    """Returns the number of weights and biases of an MLP."""
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(widths))


def unpacked(theta: np.ndarray, widths: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns weight (outputs x inputs) and bias of each layer as views of ``d`` numbers."""
    pieces = []
    for fan_in, fan_out in itertools.pairwise(widths):
        weight, bias, theta = np.split(theta, [fan_in * fan_out, (fan_in + 1) * fan_out])
        pieces.append((weight.reshape(fan_out, fan_in), bias))
    return pieces


@dataclasses.dataclass(frozen=True)
class Controller:
    """f(θ) = −(mean return over episodes).

    Attributes:
        name: one of ``ENVIRONMENTS`` or ``OTHERS``.
        episodes: number of episodes of a query (ZoRD: 32 environments).
        seed: seed of the first episode's start.
        horizon: largest number of steps of an episode; None: the environment's own.
        bound: θ is in [−bound, bound]^d.
        hidden: widths of the hidden layers; empty: a linear policy.
    """

    name: str
    episodes: int
    seed: int
    horizon: int | None = None
    bound: float = 1.0
    hidden: tuple[int, ...] = HIDDEN

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return dimension(layers(environment(self.name), self.hidden))

    def episode(self, theta: np.ndarray, seed: int) -> float:
        """Returns the return of one episode that starts with the given seed."""
        env = make(self.name) if self.name in BOX2D else environment(self.name)
        pieces = unpacked(theta, layers(env, self.hidden))
        discrete = hasattr(env.action_space, "n")
        if not discrete:
            middle = (env.action_space.high + env.action_space.low) / 2.0
            half = (env.action_space.high - env.action_space.low) / 2.0
        observation, _ = env.reset(seed=seed)
        total, steps = 0.0, 0
        while self.horizon is None or steps < self.horizon:
            hidden = np.asarray(observation, dtype=np.float64)
            for weight, bias in pieces[:-1]:
                hidden = np.tanh(weight @ hidden + bias)
            output = pieces[-1][0] @ hidden + pieces[-1][1]
            if discrete:
                action: Any = int(output.argmax())
            else:
                action = (middle + half * np.tanh(output)).astype(env.action_space.dtype)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, steps = total + float(reward), steps + 1
            if terminated or truncated:
                break
        return total

    def __call__(self, theta: Tensor) -> float:
        """Returns f at θ, shape ``d``."""
        values = theta.detach().to(torch.float64).numpy()
        return -float(np.mean([self.episode(values, self.seed + e) for e in range(self.episodes)]))
