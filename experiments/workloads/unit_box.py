"""Maps objectives to [0, 1]^d, where FZooS works, so that the rates and radii of all methods have the same units."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.workloads.attack import Attack
from experiments.workloads.metrics import MetricObjective

Centred = Attack | MetricObjective
"""An objective on a box [−bound, bound]^d around 0."""


@dataclasses.dataclass(frozen=True)
class InUnitBox:
    """z ↦ f(bound (2z − 1)) for z in [0, 1]^d and an objective f on [−bound, bound]^d."""

    fun: Centred

    def centred(self, z: Tensor) -> Tensor:
        """Returns the point x of f for z."""
        return self.fun.bound * (2.0 * z - 1.0)

    def __call__(self, z: Tensor) -> Tensor:
        """Returns f at z, ``d`` or ``q x d``."""
        return self.fun(self.centred(z))


@dataclasses.dataclass(frozen=True)
class UnitBoxProblem:
    """The mean F of the clients' objectives in [0, 1]^d; F is at least 0, and its gap is F itself."""

    clients: Sequence[InUnitBox]

    @property
    def x0(self) -> Tensor:
        """The middle of the box, which is the z of x = 0."""
        return torch.full((self.clients[0].fun.dimension,), 0.5, dtype=torch.float64)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """[0, 1]^d."""
        return [(0.0, 1.0)] * self.clients[0].fun.dimension

    def gap(self, z: Tensor) -> float:
        """Returns F at z, a point of shape ``d``."""
        return float(np.mean([float(client(z)) for client in self.clients]))
