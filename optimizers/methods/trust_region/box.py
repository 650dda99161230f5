"""Converts points between a run's coordinates and the free variables that the trust-region method searches."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain

ALL = 10_000
"""The largest number of lattice points that ``lattice_points`` returns."""


class FreeBox:
    """The box of the free variables, whose bounds differ, in units of the variables' scales; float64 on the CPU.

    Args:
        x: a point in search coordinates, shape ``d``, from which the variables that are not free take their values.
        domain: the run's bounds, or None.
        scale: the scales of the free variables in search coordinates, shape ``d_free``, powers of two; None: 1.

    Attributes:
        d: the number of free variables.
        scale: the scales of the free variables, shape ``d_free``.
        lower: the lower bounds, shape ``d_free``.
        upper: the upper bounds, shape ``d_free``.
        sides: ``upper`` minus ``lower``.
        integers: which free variables are integers, shape ``d_free``.
        has_integers: whether a free variable is an integer.
    """

    def __init__(self, x: Tensor, domain: Domain | None, scale: Tensor | None = None) -> None:
        if domain is None:
            infinite = torch.full_like(x, math.inf)
            domain = Domain(-infinite, infinite)
        self._x, self._domain = x, domain
        self._free = (domain.search_upper > domain.search_lower).nonzero().flatten()
        self.d = len(self._free)
        self.scale = torch.ones(self.d, dtype=torch.float64) if scale is None else scale
        self.lower, self.upper = self.part(domain.search_lower), self.part(domain.search_upper)
        self.sides = self.upper - self.lower
        integers = torch.zeros_like(x, dtype=torch.bool) if domain.integers is None else domain.integers
        self.integers = integers[self._free].cpu()
        self.has_integers = bool(self.integers.any())

    def scaled(self, scale: Tensor) -> FreeBox:
        """Returns the same box in units of other scales, shape ``d_free``."""
        return FreeBox(self._x, self._domain, scale)

    def part(self, z: Tensor) -> Tensor:
        """Converts points in search coordinates, ``... x d``, to free variables, ``... x d_free``."""
        return z[..., self._free].double().cpu() / self.scale

    def searched(self, x: Tensor) -> Tensor:
        """Converts points in user units, ``... x d``, to free variables, ``... x d_free``."""
        return self.part(self._domain.to_search(x.to(self._x)))

    def whole(self, points: Tensor) -> Tensor:
        """Converts free variables, ``q x d_free``, to points in search coordinates and the run's dtype, ``q x d``."""
        z = (points * self.scale).to(self._x)
        if self.d < len(self._x):
            z = self._x.repeat(len(points), 1).index_copy(1, self._free, z)
        return torch.clamp(z, self._domain.search_lower, self._domain.search_upper)

    def exact(self, free: Tensor) -> Tensor:
        """Converts free variables, shape ``d_free``, to search coordinates, float64, without clipping to the box."""
        z = self._x.to("cpu", torch.float64, copy=True)
        z[self._free.cpu()] = free * self.scale
        return z

    def user(self, points: Tensor) -> Tensor:
        """Converts free variables, ``q x d_free``, to points in user units and the run's dtype, ``q x d``."""
        return torch.clamp(self._domain.to_user(self.whole(points)), self._domain.lower, self._domain.upper)

    def user_geometry(self, point: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Converts free variables to a point in user units, without rounding its integers.

        Returns the point, the indices of the free variables, the size of each variable's unit in user units, and the
        upper bounds in user units; all of shape ``d`` but the indices.
        """
        domain, free = self._domain, self._free.cpu().numpy()
        user = torch.clamp(domain.relaxed(self.exact(point).to(domain.lower)), domain.lower, domain.upper)
        x, unit, upper = (t.double().cpu().numpy().copy() for t in (user, domain.slopes(user), domain.upper))
        unit[free] *= self.scale.numpy()
        return x, free, unit, upper

    def user_slopes(self, point: Tensor, slopes: Tensor) -> Tensor:
        """Converts derivatives at a point, ``m x d_free``, to user units, ``m x d``; 0 for variables not free."""
        _, free, unit, _ = self.user_geometry(point)
        found = slopes.new_zeros(len(slopes), len(unit))
        found[:, free] = slopes / torch.from_numpy(unit[free])
        return found

    def rounded(self, points: Tensor) -> Tensor:
        """Clips points, ``q x d_free``, to the box, and rounds them to the run's dtype."""
        return self.part(self.whole(points))

    def on_lattice(self, points: Tensor) -> Tensor:
        """Rounds the integer variables of points, ``q x d_free``."""
        if not self.has_integers:
            return points
        near = self.searched(self._domain.to_user(self.whole(points)))
        return torch.where(self.integers, near, points)

    def neighbours(self, point: Tensor) -> Tensor:
        """Returns the lattice points, ``m x d_free``, that differ from a point by 1 in one integer."""
        x, at = self._domain.to_user(self.whole(point[None])), self._free[self.integers.to(self._free.device)]
        units = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[at]
        near = x + torch.cat([units, -units])
        return torch.where(self.integers, self.searched(near[self._domain.contains(near)]), point)

    def spacing(self, point: Tensor) -> Tensor:
        """Returns the distance between neighbouring values of each integer, shape ``d_free``; 0 for other variables."""
        steps = 1.0 / self._domain.slopes(self._domain.to_user(self.whole(point[None]))[0])
        return torch.where(self.integers, self.part(steps), 0.0)

    def finest_spacing(self, point: Tensor) -> float:
        """Returns the least distance between two values of an integer variable; 0 without integers."""
        return float(self.spacing(point)[self.integers].min()) if self.has_integers else 0.0

    @cached_property
    def lattice_size(self) -> float:
        """The number of lattice points in the box if all variables are integers, else inf."""
        levels = (self._domain.upper - self._domain.lower + 1.0)[self._free]
        return float(levels.double().prod()) if bool(self.integers.all()) else math.inf

    def lattice_points(self, random: np.random.Generator) -> Tensor:
        """Returns all lattice points in random order, ``n x d_free``, or ``ALL`` random ones if there are more."""
        lower = self._domain.lower[self._free]
        levels = (self._domain.upper[self._free] - lower + 1.0).double().cpu().numpy()
        if self.lattice_size <= ALL:
            numbers = np.stack(np.unravel_index(random.permutation(int(self.lattice_size)), levels.astype(int)), axis=1)
        else:
            numbers = np.floor(random.random((ALL, self.d)) * levels)
        x = self._domain.to_user(self._x).repeat(len(numbers), 1)
        x[:, self._free] = lower + torch.as_tensor(numbers).to(lower)
        return self.searched(x)

    def clamped(self, points: Tensor) -> Tensor:
        """Clips points, ``... x d_free``, to the box."""
        return torch.clamp(points, self.lower, self.upper)

    def resolution(self, center: Tensor) -> float:
        """Returns a distance that the run's dtype resolves at a point; for integers only, half their spacing."""
        if math.isfinite(self.lattice_size):
            return 0.5 * self.finest_spacing(center)
        return 8.0 * torch.finfo(self._x.dtype).eps * float(center.abs().max())

    def along(self, center: Tensor, direction: Tensor, delta: float) -> Tensor:
        """Moves from a center by ``delta`` along a direction, and clips the point to the box, ``1 x d_free``.

        If clipping leaves less than half of the move, the opposite direction is used, unless it leaves even less.
        """
        move = direction * (delta / direction.norm())
        there, back = (self.clamped(center + sign * move) for sign in (1.0, -1.0))
        reached = float((there - center).norm())
        return (there if reached >= min(0.5 * delta, float((back - center).norm())) else back)[None]
