"""What is said of a black box, and the box around its objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from surrogates.threads import small_algebra

Objective = Callable[[np.ndarray], float]

ROUNDING = 1e-9
"""The share of a side by which a point may be outside of the box and is put on it."""


START, PROBLEM = 101, 102
"""What generators are seeded with beside the seed, so that no search's draws are a start's or a problem's."""


@dataclasses.dataclass(frozen=True)
class BlackBox:
    """A family of problems of one kind, one a seed.

    Attributes:
        name: its name among ``BLACK_BOXES``.
        lower: the box's lower bounds, float64, shape ``d``.
        upper: its upper bounds.
        start: seed ↦ the point that all methods begin at, in the box, shape ``d``.
        draw: seed ↦ f, which is minimized. f has an array of shape ``d`` and gives its value, NaN where a simulation
            fails or a design may not be tried.
        budget: queries that make sense.
        cost: what a query computes, and how long that takes.
        noise: what of the value is random, and how it is rough.
        licence: of the program and of the data.
        needs: modules that it imports and the extra ``problems`` installs.
    """

    name: str
    lower: np.ndarray
    upper: np.ndarray
    start: Callable[[int], np.ndarray]
    draw: Callable[[int], Objective]
    budget: int
    cost: str
    noise: str
    licence: str
    needs: tuple[str, ...] = ()

    @property
    def dimension(self) -> int:
        """The number of variables d."""
        return len(self.lower)

    def make(self, seed: int) -> InBox:
        """f of a seed, which raises a ValueError for a point that is not in the box."""
        return InBox(self.draw(seed), self.lower, self.upper)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of ``needs`` that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


@dataclasses.dataclass(frozen=True)
class OfArrays:
    """A function of torch's tensors that NumPy's arrays are given to, on one thread: others may round otherwise.

    Attributes:
        fun: of a tensor of shape ``d``.
    """

    fun: Callable[[Tensor], Tensor | float]

    def __call__(self, x: np.ndarray) -> float:
        """Its value at x, shape ``d``."""
        with small_algebra(0):
            return float(self.fun(torch.from_numpy(x)))


@dataclasses.dataclass(frozen=True)
class InBox:
    """f on a box and nowhere else.

    Attributes:
        fun: the objective, of an array of shape ``d``.
        lower: lower bounds, shape ``d``.
        upper: upper bounds.
    """

    fun: Objective
    lower: np.ndarray
    upper: np.ndarray

    def __call__(self, x: np.ndarray) -> float:
        """f at x, shape ``d``.

        Raises:
            ValueError: for another shape, or a point that is outside by more than rounding.
        """
        x = np.asarray(x, dtype=np.float64)
        if x.shape != self.lower.shape:
            raise ValueError(f"x must have shape {self.lower.shape}, got {x.shape}")
        inside = np.clip(x, self.lower, self.upper)
        if not np.all(np.abs(x - inside) <= ROUNDING * (self.upper - self.lower)):
            raise ValueError(f"x must be between {self.lower.min():g} and {self.upper.max():g}, got {x}")
        return float(self.fun(inside))


def cube(dimension: int, half: float, middle: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of [middle − half, middle + half]^d."""
    return np.full(dimension, middle - half), np.full(dimension, middle + half)


def middle(dimension: int, seed: int) -> np.ndarray:
    """The start 0 for every seed, shape ``d``."""
    return np.zeros(dimension)


def central(lower: np.ndarray, upper: np.ndarray, seed: int) -> np.ndarray:
    """A start: uniform in the inner half of each side of the box."""
    u = np.random.default_rng([seed, START]).uniform(0.25, 0.75, len(lower))
    return lower + u * (upper - lower)
