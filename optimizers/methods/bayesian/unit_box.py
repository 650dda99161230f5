"""Maps a finite box to the unit cube, in which TuRBO and CobBO search, and stores the queries that succeeded."""

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

    A coordinate is free if its two bounds differ; the other coordinates are constant.

    Attributes:
        lower: lower bounds in search coordinates, shape ``d``.
        upper: upper bounds, shape ``d``.
        free: the indices of the free coordinates, shape ``d_free``.
    """

    lower: Tensor
    upper: Tensor
    free: Tensor

    @classmethod
    def of(cls, domain: Domain | None, method: str) -> UnitBox:
        """Makes the map for a run's bounds; ``method`` is named in errors.

        Raises:
            ValueError: if there are no bounds, if a bound is infinite, or if no coordinate is free.
        """
        if domain is None:
            raise ValueError(f"{method} needs bounds, finite for every variable: pass bounds=[(lower, upper), ...]")
        lower, upper = domain.search_lower, domain.search_upper
        infinite = ~(torch.isfinite(lower) & torch.isfinite(upper))
        if bool(infinite.any()):
            j = int(infinite.nonzero()[0])
            raise ValueError(f"{method} needs finite bounds, but a bound of variable {j} is infinite")
        free = (upper > lower).nonzero().flatten()
        if free.numel() == 0:
            raise ValueError(f"{method} has nothing to search: all lower bounds equal the upper bounds")
        return cls(lower, upper, free)

    @property
    def dimension(self) -> int:
        """The number of free coordinates."""
        return self.free.numel()

    def to_unit(self, z: Tensor) -> Tensor:
        """Maps points in search coordinates, ``... x d``, to the unit cube, float64, ``... x d_free``."""
        lower, upper = self.lower[self.free].double(), self.upper[self.free].double()
        return (z[..., self.free].double() - lower) / (upper - lower)

    def from_unit(self, u: Tensor) -> Tensor:
        """Maps points of the unit cube, ``... x d_free``, to search coordinates, ``... x d``."""
        lower, upper = self.lower[self.free].double(), self.upper[self.free].double()
        z = self.lower.expand(*u.shape[:-1], -1).clone()
        z[..., self.free] = (lower + (upper - lower) * u).to(z.dtype)
        return torch.clamp(z, self.lower, self.upper)

    def design(self, num_points: int, generator: np.random.Generator, first: Tensor | None = None) -> Tensor:
        """Draws a Latin hypercube of the box in search coordinates, ``n x d``; ``first`` replaces its first point."""
        points = self.from_unit(latin_hypercube(num_points, self.dimension, generator).to(self.lower.device))
        if first is not None:
            points[0] = first
        return points


@dataclass(frozen=True)
class Observations:
    """The queries that succeeded.

    Attributes:
        points: the queried points in search coordinates, ``n x d``.
        values: f at the points, float64, shape ``n``.
        totals: f + ψ at the points, float64, shape ``n``.
    """

    points: Tensor
    values: Tensor
    totals: Tensor

    @classmethod
    def none(cls, x: Tensor) -> Observations:
        """Makes an empty set of queries; ``x``, shape ``d``, sets dtype and device."""
        numbers = x.new_empty(0, dtype=torch.float64)
        return cls(x.new_empty(0, len(x)), numbers, numbers)

    def __len__(self) -> int:
        return len(self.totals)

    def extended(self, points: Tensor | None, values: Tensor, totals: Tensor) -> Observations:
        """Returns these queries together with those points of a batch, ``q x d``, at which f + ψ is finite."""
        succeeded, points = torch.isfinite(totals), cast(Tensor, points)
        return Observations(
            torch.cat([self.points, points[succeeded]]),
            torch.cat([self.values, values[succeeded]]),
            torch.cat([self.totals, totals[succeeded]]),
        )

    def best(self) -> Tensor:
        """Returns a copy of the point of least f + ψ, shape ``d``."""
        return self.points[int(self.totals.argmin())].clone()


def check_prox_value(prox: Any, method: str) -> None:
    """Raises ``TypeError`` if a prox has no method ``value(x)``, which a model of f + ψ needs."""
    if prox is not None and not callable(getattr(prox, "value", None)):
        raise TypeError(f"{method} models f + ψ: prox must have a method value(x), {type(prox).__name__} has none")
