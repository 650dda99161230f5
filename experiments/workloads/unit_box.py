"""Objectives in [0, 1]^d, where FZooS works: so that the rates and radii of all methods are in the same units."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor


class Centred(Protocol):
    """An objective about 0 in a box [−bound, bound]^d."""

    @property
    def dimension(self) -> int: ...  # noqa: D102
    @property
    def bound(self) -> float: ...  # noqa: D102
    def __call__(self, x: Tensor, /) -> Any: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class InUnitBox:
    """z ↦ f(bound (2z − 1)), z in [0, 1]^d.

    Attributes:
        fun: f.
    """

    fun: Centred

    @property
    def dimension(self) -> int:
        """d."""
        return self.fun.dimension

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """[0, 1]^d."""
        return [(0.0, 1.0)] * self.dimension

    @property
    def start(self) -> Tensor:
        """z of x = 0."""
        return torch.full((self.dimension,), 0.5, dtype=torch.float64)

    def centred(self, z: Tensor) -> Tensor:
        """x of z."""
        return self.fun.bound * (2.0 * z - 1.0)

    def __call__(self, z: Tensor) -> Any:
        """f at z, ``d`` or ``q x d``."""
        return self.fun(self.centred(z))
