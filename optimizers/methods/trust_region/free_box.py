"""The part of a run's box that is searched, and the points in it that a trust region asks without a model."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain
from optimizers.methods.trust_region.radius import Radius
from optimizers.methods.trust_region.spanning import random_design, widened

START = 0.2
"""The first radius, in units of the box's least side; and 1 where a side is infinite, if that is less."""

GROWTH = 1e3
"""The largest radius in units of the first one, where a side is infinite."""

FINEST = 5e-8
"""The lower radius that ends a run, in units of the first radius: 1e-8 of a box's side."""

SCOUTS = 16
"""The random points of which a new run takes one."""


class FreeBox:
    """The coordinates whose bounds differ, as float64 on the CPU, whatever the run's dtype and device are.

    Args:
        x: a point of the run in search coordinates, shape ``d``: what it has in other coordinates, all points have.
        domain: the run's bounds, or None.

    Attributes:
        d: the number of free coordinates.
        lower: the lower side, shape ``d_free``.
        upper: the upper side.
        sides: their lengths.
    """

    def __init__(self, x: Tensor, domain: Domain | None) -> None:
        self._x, self._domain = x, domain
        self._free = torch.arange(len(x), device=x.device)
        if domain is None:
            lower = torch.full((len(x),), -math.inf, dtype=torch.float64, device="cpu")
            self.lower, self.upper = lower, -lower
        else:
            lower, upper = domain.search_lower, domain.search_upper
            self._free = (upper > lower).nonzero().flatten()
            self.lower, self.upper = (side[self._free].double().cpu() for side in (lower, upper))
        self.d = len(self._free)
        self.sides = self.upper - self.lower

    def part(self, z: Tensor) -> Tensor:
        """The free coordinates of points in search coordinates, ``... x d_free``."""
        return z[..., self._free].double().cpu()

    def kept(self, values: Tensor) -> Tensor:
        """What a state holds of a tensor: it on the run's device."""
        return values.to(self._x.device)

    def whole(self, points: Tensor) -> Tensor:
        """The points in search coordinates, of the run's dtype, for their free coordinates, ``q x d``."""
        z = self.kept(points).to(self._x.dtype, copy=True)
        if self.d < len(self._x):
            z, free = self._x.repeat(len(points), 1), z
            z[:, self._free] = free
        return z if self._domain is None else torch.clamp(z, self._domain.search_lower, self._domain.search_upper)

    def exact(self, free: Tensor) -> Tensor:
        """A point in search coordinates for its free ones, shape ``d``: in the box or not, in float64 on the CPU."""
        z = self._x.to("cpu", torch.float64, copy=True)
        z[self._free.cpu()] = free
        return z

    def clamped(self, points: Tensor) -> Tensor:
        """The points of the box nearest to some, ``... x d_free``."""
        return torch.clamp(points, self.lower, self.upper)

    def first_radius(self, radius: float | None) -> Radius:
        """The radius at the start: the one given, or 0.2 of the least side, more in many dimensions.

        It is at least what the dtype resolves at the start.
        """
        least, resolved = float(self.sides.min()), self._resolved(self.part(self._x))
        if bool(torch.isfinite(self.sides).all()):
            wider = widened(self.d)
            delta, largest = radius or wider * START * least, wider * 0.5 * float(self.sides.max())
            delta = min(max(delta, resolved), largest)
            return Radius(delta, delta, largest)
        delta = max(radius or min(1.0, START * least), resolved)
        return Radius(delta, delta, GROWTH * delta)

    def finest(self, center: Tensor, opening: Radius) -> float:
        """The lower radius that ends a run: of the first radius, and of what the points' dtype resolves."""
        return max(FINEST * opening.rho, self._resolved(center))

    def _resolved(self, center: Tensor) -> float:
        return 8.0 * torch.finfo(self._x.dtype).eps * float(center.abs().max())

    def design(self, center: Tensor, delta: float) -> Tensor:
        """A center and the points at ±δ from it along each free coordinate, ``2d_free + 1 x d_free``.

        A point outside is half as far on the other side. In a box narrower than 2.5 δ the distance is 0.4 of it.
        """
        reach = torch.minimum(torch.full_like(self.sides, delta), 0.4 * self.sides)
        up, down = reach, -reach
        up = torch.where(center + reach > self.upper, -0.5 * reach, up)
        down = torch.where(center - reach < self.lower, 0.5 * reach, down)
        return center + torch.cat([torch.zeros_like(center)[None], torch.diag(up), torch.diag(down)])

    def random_design(self, center: Tensor, delta: float, generator: np.random.Generator) -> Tensor:
        """A center and a few points at δ along random directions, clipped to the box."""
        return self.clamped(random_design(center, delta, generator))

    def along(self, center: Tensor, direction: Tensor, delta: float) -> Tensor:
        """The point at δ along a direction, or against it where the box cuts less of that, ``1 x d_free``."""
        move = direction * (delta / direction.norm())
        there, back = (self.clamped(center + sign * move) for sign in (1.0, -1.0))
        enough = 0.5 * delta <= float((there - center).norm())
        better = enough or float((there - center).norm()) >= float((back - center).norm())
        return (there if better else back)[None]

    def scout(
        self, center: Tensor, delta: float, points: Tensor, failed: Tensor, generator: np.random.Generator
    ) -> Tensor:
        """A random point, ``1 x d_free``: of the box, or about a center where a side is infinite.

        It is the first of ``SCOUTS`` whose nearest query has not failed, or the first of all.
        """
        u = torch.from_numpy(generator.random((SCOUTS, self.d)))
        z = torch.from_numpy(generator.standard_normal((SCOUTS, self.d)))
        near = center + delta * 2.0 * z
        spots = self.clamped(torch.where(torch.isfinite(self.sides), self.lower + u * self.sides, near))
        chosen = 0
        if len(failed) and len(points):
            nearest = [torch.cdist(spots, asked.cpu()).min(dim=1).values for asked in (points, failed)]
            chosen = int((nearest[0] < nearest[1]).int().argmax())
        return spots[chosen][None]
