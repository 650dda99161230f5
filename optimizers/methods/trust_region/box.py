"""The variables of a run that are searched, in units of their scales, as float64 on the CPU, and their box."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain


class FreeBox:
    """The variables whose bounds differ, in units of their scales.

    Args:
        x: a point of the run in search units, shape ``d``: the variables that are not searched keep its values.
        domain: the run's bounds, or None.
        scale: the variables' scales in search units, shape ``d_free``, powers of two, with which scaling is exact; None
            for 1.

    Attributes:
        d: the number of free variables.
        scale: their scales.
        lower: the lower side, shape ``d_free``.
        upper: the upper side.
        sides: upper minus lower side.
    """

    def __init__(self, x: Tensor, domain: Domain | None, scale: Tensor | None = None) -> None:
        self._x, self._domain = x, domain
        free = torch.full((len(x),), math.inf, dtype=x.dtype, device=x.device)
        lower, upper = (-free, free) if domain is None else (domain.search_lower, domain.search_upper)
        self._free = (upper > lower).nonzero().flatten()
        self.d = len(self._free)
        self.scale = torch.ones(self.d, dtype=torch.float64) if scale is None else scale
        self.lower, self.upper = self.part(lower), self.part(upper)
        self.sides = self.upper - self.lower

    def scaled(self, scale: Tensor) -> FreeBox:
        """The same box with other scales, shape ``d_free``."""
        return FreeBox(self._x, self._domain, scale)

    def part(self, z: Tensor) -> Tensor:
        """The free variables of points in search units, ``... x d_free``."""
        return z[..., self._free].double().cpu() / self.scale

    def whole(self, points: Tensor) -> Tensor:
        """Converts free variables to points in search units and the run's dtype, ``q x d``."""
        z = (points * self.scale).to(self._x)
        if self.d < len(self._x):
            z = self._x.repeat(len(points), 1).index_copy(1, self._free, z)
        return z if self._domain is None else torch.clamp(z, self._domain.search_lower, self._domain.search_upper)

    def exact(self, free: Tensor) -> Tensor:
        """Converts free variables to a point in search units, float64 on the CPU, without clipping it to the box."""
        z = self._x.to("cpu", torch.float64, copy=True)
        z[self._free.cpu()] = free * self.scale
        return z

    def user(self, points: Tensor) -> Tensor:
        """Converts free variables to points in user units and the run's dtype, ``q x d``."""
        z = self.whole(points)
        return (
            z if self._domain is None else torch.clamp(self._domain.to_user(z), self._domain.lower, self._domain.upper)
        )

    def user_geometry(self, point: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A point in user units, not rounded; the free variables; all units and upper bounds, shape ``d``."""
        z, domain, free = self.exact(point), self._domain, self._free.cpu().numpy()
        unit = np.ones(len(z)) if domain is None or domain.unit is None else domain.unit.double().cpu().numpy().copy()
        unit[free] *= self.scale.numpy()
        if domain is None:
            return z.numpy(), free, unit, np.full(len(z), np.inf)
        x = domain.to_user(z.to(self._x.device).to(domain.lower.dtype)).double().cpu().numpy()
        return x, free, unit, domain.upper.double().cpu().numpy()

    def rounded(self, points: Tensor) -> Tensor:
        """The free variables of points as the run's dtype has them, inside the box, ``q x d_free``."""
        return self.part(self.whole(points))

    def clamped(self, points: Tensor) -> Tensor:
        """Points clipped to the box, ``... x d_free``."""
        return torch.clamp(points, self.lower, self.upper)

    def resolution(self, center: Tensor) -> float:
        """A distance that the run's dtype resolves at a point."""
        return 8.0 * torch.finfo(self._x.dtype).eps * float(center.abs().max())

    def along(self, center: Tensor, direction: Tensor, delta: float) -> Tensor:
        """The point at δ along a direction, clipped to the box, or along −direction if that keeps more, ``1 x d_free``.

        The opposite point is taken only if clipping leaves less than half of δ.
        """
        move = direction * (delta / direction.norm())
        there, back = (self.clamped(center + sign * move) for sign in (1.0, -1.0))
        reached = float((there - center).norm())
        return (there if reached >= min(0.5 * delta, float((back - center).norm())) else back)[None]
