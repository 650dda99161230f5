"""A finite box seen as the unit cube of its free coordinates, for methods that model a whole domain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimizers.bounds import Domain


@dataclass(frozen=True)
class UnitBox:
    """The map between a box in search coordinates and the unit cube of its free coordinates, in float64.

    A coordinate is free where its bounds differ; the others keep their one value.

    Attributes:
        lower: lower bounds, search units, shape ``d``.
        upper: upper bounds, shape ``d``.
        free: the free coordinates' numbers, shape ``d_free``.
    """

    lower: Tensor
    upper: Tensor
    free: Tensor

    @classmethod
    def of(cls, domain: Domain | None, method: str) -> UnitBox:
        """The box of a domain.

        Raises:
            ValueError: if there is no box, a side of it is infinite, or no coordinate is free.
        """
        if domain is None:
            raise ValueError(f"{method} searches a box: it needs bounds, finite in every coordinate")
        lower, upper = domain.search_lower, domain.search_upper
        infinite = ~(torch.isfinite(lower) & torch.isfinite(upper))
        if bool(infinite.any()):
            j = int(infinite.nonzero()[0])
            raise ValueError(f"{method} searches a box: coordinate {j} needs finite bounds on both sides")
        free = (upper > lower).nonzero().flatten()
        if free.numel() == 0:
            raise ValueError(f"{method} has nothing to search: every coordinate has equal bounds")
        return cls(lower, upper, free)

    @property
    def dimension(self) -> int:
        """Number of free coordinates."""
        return self.free.numel()

    def to_unit(self, z: Tensor) -> Tensor:
        """Search coordinates ``... x d`` to the unit cube ``... x d_free``, float64."""
        lower, upper = self.lower[self.free].double(), self.upper[self.free].double()
        return (z[..., self.free].double() - lower) / (upper - lower)

    def from_unit(self, u: Tensor) -> Tensor:
        """The unit cube ``... x d_free`` to search coordinates ``... x d`` within the box, in its dtype."""
        lower, upper = self.lower[self.free].double(), self.upper[self.free].double()
        z = self.lower.expand(*u.shape[:-1], -1).clone()
        z[..., self.free] = (lower + (upper - lower) * u).to(z.dtype)
        return torch.clamp(z, self.lower, self.upper)
