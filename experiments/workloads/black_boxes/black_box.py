"""The interface of a black box, and the check of its bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from surrogates.threads import small_algebra

Objective = Callable[[np.ndarray], float]

ROUNDING = 1e-9
"""Points outside the box by at most this share of a side are projected onto it."""


START, PROBLEM = 101, 102
"""Numbers that are added to the seed, so that starts, problems and methods use different random numbers."""


@dataclasses.dataclass(frozen=True)
class BlackBox:
    """A black-box objective in a box, with a different problem for each seed.

    Attributes:
        name: its name in ``BLACK_BOXES``.
        lower: lower bounds of the box, float64, shape ``d``.
        upper: upper bounds.
        start: maps a seed to the common start of all methods, shape ``d``.
        draw: maps a seed to the objective f, to be minimized. f maps an array of shape ``d`` to its value, NaN if a
            simulation fails or a design is not allowed.
        budget: number of queries in the benchmark.
        needs: modules that it imports and the extra ``problems`` installs.
    """

    name: str
    lower: np.ndarray
    upper: np.ndarray
    start: Callable[[int], np.ndarray]
    draw: Callable[[int], Objective]
    budget: int
    needs: tuple[str, ...] = ()

    @property
    def dimension(self) -> int:
        """Number of variables d."""
        return len(self.lower)

    def make(self, seed: int) -> InBox:
        """Returns the objective of a seed; it raises a ValueError outside the box."""
        return InBox(self.draw(seed), self.lower, self.upper)

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules of ``needs`` that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


@dataclasses.dataclass(frozen=True)
class OfArrays:
    """Applies a torch function to NumPy arrays, on one thread because the number of threads changes rounding.

    Attributes:
        fun: function of a tensor of shape ``d``.
    """

    fun: Callable[[Tensor], Tensor | float]

    def __call__(self, x: np.ndarray) -> float:
        """Returns the value at x, shape ``d``."""
        with small_algebra(0):
            return float(self.fun(torch.from_numpy(x)))


@dataclasses.dataclass(frozen=True)
class InBox:
    """An objective that is defined on a box only.

    Attributes:
        fun: the objective, a function of an array of shape ``d``.
        lower: lower bounds, shape ``d``.
        upper: upper bounds.
    """

    fun: Objective
    lower: np.ndarray
    upper: np.ndarray

    def __call__(self, x: np.ndarray) -> float:
        """Returns f at x, shape ``d``.

        Raises:
            ValueError: for another shape, or a point outside the box by more than rounding.
        """
        x = np.asarray(x, dtype=np.float64)
        if x.shape != self.lower.shape:
            raise ValueError(f"x must have shape {self.lower.shape}, got {x.shape}")
        inside = np.clip(x, self.lower, self.upper)
        if not np.all(np.abs(x - inside) <= ROUNDING * (self.upper - self.lower)):
            raise ValueError(f"x must be between {self.lower.min():g} and {self.upper.max():g}, got {x}")
        return float(self.fun(inside))


@contextmanager
def kept_generator() -> Iterator[None]:
    """Restores NumPy's global generator after a block in which another package seeds it or draws from it."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def cube(dimension: int, half: float, middle: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of [middle − half, middle + half]^d."""
    return np.full(dimension, middle - half), np.full(dimension, middle + half)


def middle(dimension: int, seed: int) -> np.ndarray:
    """Returns the start 0 for every seed, shape ``d``."""
    return np.zeros(dimension)


def central(lower: np.ndarray, upper: np.ndarray, seed: int) -> np.ndarray:
    """Draws a start uniformly from the inner half of each side of the box."""
    u = np.random.default_rng([seed, START]).uniform(0.25, 0.75, len(lower))
    return lower + u * (upper - lower)
