"""The unit cube of the free coordinates of a finite box, which TuRBO and CobBO search, and the queries made in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain
from optimizers.designs import latin_hypercube

LEAST_DATA = 2
"""The fewest successful queries for a fit; with fewer, another initial design is drawn."""


@dataclass(frozen=True)
class UnitBox:
    """The map between a box in search coordinates and the unit cube of its free coordinates, in float64.

    A coordinate is free where its bounds differ; every other coordinate keeps its one value.

    Attributes:
        lower: lower bounds in search coordinates, shape ``d``.
        upper: upper bounds, shape ``d``.
        free: the numbers of the free coordinates, shape ``d_free``.
    """

    lower: Tensor
    upper: Tensor
    free: Tensor

    @classmethod
    def of(cls, domain: Domain | None, method: str) -> UnitBox:
        """The box of a domain.

        Raises:
            ValueError: if there is no box, if a side of it is infinite, or if no coordinate is free.
        """
        if domain is None:
            raise ValueError(f"{method} needs bounds that are finite in every coordinate")
        lower, upper = domain.search_lower, domain.search_upper
        infinite = ~(torch.isfinite(lower) & torch.isfinite(upper))
        if bool(infinite.any()):
            j = int(infinite.nonzero()[0])
            raise ValueError(f"{method} needs finite bounds on both sides of coordinate {j}")
        free = (upper > lower).nonzero().flatten()
        if free.numel() == 0:
            raise ValueError(f"{method} has nothing to search: every coordinate has equal bounds")
        return cls(lower, upper, free)

    @property
    def dimension(self) -> int:
        """The number of free coordinates."""
        return self.free.numel()

    def to_unit(self, z: Tensor) -> Tensor:
        """Points of the unit cube, float64, ``... x d_free``, for points in search coordinates, ``... x d``."""
        lower, upper = self.lower[self.free].double(), self.upper[self.free].double()
        return (z[..., self.free].double() - lower) / (upper - lower)

    def from_unit(self, u: Tensor) -> Tensor:
        """Points of the box in search coordinates, ``... x d``, for points of the unit cube, ``... x d_free``."""
        lower, upper = self.lower[self.free].double(), self.upper[self.free].double()
        z = self.lower.expand(*u.shape[:-1], -1).clone()
        z[..., self.free] = (lower + (upper - lower) * u).to(z.dtype)
        return torch.clamp(z, self.lower, self.upper)

    def design(self, num_points: int, generator: np.random.Generator, first: Tensor | None = None) -> Tensor:
        """A Latin hypercube of the box in search coordinates, ``n x d``; ``first`` replaces its first point."""
        points = self.from_unit(latin_hypercube(num_points, self.dimension, generator).to(self.lower.device))
        if first is not None:
            points[0] = first
        return points


@dataclass(frozen=True)
class Observations:
    """The queries that succeeded.

    Attributes:
        points: their points in search coordinates, ``n x d``.
        values: f at the points, float64, shape ``n``.
        totals: f + ψ at the points, float64, shape ``n``.
    """

    points: Tensor
    values: Tensor
    totals: Tensor

    @classmethod
    def none(cls, x: Tensor) -> Observations:
        """No queries; points added later have the dtype and device of x, shape ``d``."""
        numbers = x.new_empty(0, dtype=torch.float64)
        return cls(x.new_empty(0, len(x)), numbers, numbers)

    def __len__(self) -> int:
        return len(self.totals)

    def extended(self, points: Tensor | None, values: Tensor, totals: Tensor) -> Observations:
        """These queries plus those of the points of a batch, ``q x d``, whose f + ψ is finite."""
        succeeded, points = torch.isfinite(totals), cast(Tensor, points)
        return Observations(
            torch.cat([self.points, points[succeeded]]),
            torch.cat([self.values, values[succeeded]]),
            torch.cat([self.totals, totals[succeeded]]),
        )

    def best(self) -> Tensor:
        """The point of least f + ψ, a new tensor of shape ``d``."""
        return self.points[int(self.totals.argmin())].clone()


def check_prox_value(prox: Any, method: str) -> None:
    """Raises ``TypeError`` for a prox without ``value(x)``, which models of f + ψ need."""
    if prox is not None and not callable(getattr(prox, "value", None)):
        raise TypeError(f"{method} models f + ψ: its prox needs a method value(x)")
