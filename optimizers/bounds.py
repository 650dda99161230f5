"""Bounds of the search: scipy's ``Bounds`` or pairs, checked once, and the domain that the methods search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds
from torch import Tensor

BoundsLike = Bounds | Sequence[tuple[float | None, float | None]] | np.ndarray | Tensor

SEARCH_WIDTH = 10.0
"""Side of the box that a rescaled domain is searched in: [0, 10]^d, ZoRD's (Appx. C)."""


@dataclass(frozen=True)
class Domain:
    """A box and the coordinates it is searched in.

    User coordinates are x = origin + unit ∘ z with z the search coordinates; without rescaling origin = 0
    and unit = 1 (both None).

    Attributes:
        lower: lower bounds in user units, shape ``d``; −inf where there is none.
        upper: upper bounds in user units, shape ``d``; inf where there is none.
        origin: user coordinates of z = 0, or None.
        unit: user units per search unit, shape ``d``, or None.
        confine: whether ``to_user`` clamps to the box.
        width: side of the box in search coordinates, where it is rescaled.
    """

    lower: Tensor
    upper: Tensor
    origin: Tensor | None = None
    unit: Tensor | None = None
    confine: bool = True
    width: float = SEARCH_WIDTH

    @classmethod
    def of(
        cls,
        lower: Tensor,
        upper: Tensor,
        *,
        rescale: bool,
        confine: bool = True,
        width: float = SEARCH_WIDTH,
    ) -> Domain:
        """The domain of a box; with ``rescale``, and where every bound is finite, [0, width]^d is searched.

        A coordinate with equal bounds keeps its unit and has a search interval of width zero.
        """
        if not rescale or not bool(torch.isfinite(lower).all() and torch.isfinite(upper).all()):
            return cls(lower, upper, confine=confine)
        sides = upper - lower
        unit = torch.where(sides > 0, sides / width, torch.ones_like(sides))
        return cls(lower, upper, lower, unit, confine, width)

    @property
    def search_lower(self) -> Tensor:
        """Lower bounds in search coordinates, shape ``d``."""
        return self.lower if self.unit is None else torch.zeros_like(self.lower)

    @property
    def search_upper(self) -> Tensor:
        """Upper bounds in search coordinates, shape ``d``."""
        if self.unit is None:
            return self.upper
        fixed = self.lower == self.upper
        return torch.where(fixed, 0.0, self.width).to(self.upper)

    def to_search(self, x: Tensor) -> Tensor:
        """User coordinates to search coordinates, shape ``... x d``."""
        return x if self.unit is None or self.origin is None else (x - self.origin) / self.unit

    def to_user(self, z: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Search coordinates ``start:stop`` to user coordinates, in the box where ``confine``."""
        part = slice(start, stop)
        if self.unit is not None and self.origin is not None:
            z = self.origin[part] + self.unit[part] * z
        return torch.clamp(z, self.lower[part], self.upper[part]) if self.confine else z

    def contains(self, x: Tensor) -> Tensor:
        """Whether user points of shape ``... x d`` lie in the box, shape ``...``."""
        return ((x >= self.lower) & (x <= self.upper)).all(dim=-1)


def parse_bounds(bounds: Any, x0: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds, each of x0's shape, dtype and device.

    Args:
        bounds: ``scipy.optimize.Bounds`` (scalars broadcast; ``keep_feasible`` is not read, as queries stay
            inside anyway), or d pairs (lower, upper) in which None or ±inf is no bound.
        x0: the initial point, shape ``d``.

    Raises:
        TypeError: if bounds is neither.
        ValueError: for a wrong length, NaN, reversed bounds, an empty interval, or x0 outside of the box.
    """
    d = x0.numel()
    lower, upper = _pairs(bounds, d)
    for name, side in (("lower", lower), ("upper", upper)):
        if np.isnan(side).any():
            raise ValueError(f"bounds: the {name} bound of coordinate {int(np.isnan(side).argmax())} is NaN")
    reversed_ = lower > upper
    if reversed_.any():
        j = int(reversed_.argmax())
        raise ValueError(f"bounds: coordinate {j} has lower {lower[j]} > upper {upper[j]}")
    empty = np.isposinf(lower) | np.isneginf(upper)
    if empty.any():
        j = int(empty.argmax())
        raise ValueError(f"bounds: coordinate {j} has the empty interval [{lower[j]}, {upper[j]}]")
    low = torch.as_tensor(lower, dtype=x0.dtype, device=x0.device)
    high = torch.as_tensor(upper, dtype=x0.dtype, device=x0.device)
    outside = (x0 < low) | (x0 > high)
    if bool(outside.any()):
        j = int(outside.nonzero()[0])
        raise ValueError(
            f"x0 must lie within the bounds: coordinate {j} is {x0[j].item()}, its bounds are [{lower[j]}, {upper[j]}]"
        )
    return low, high


def _pairs(bounds: Any, d: int) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(bounds, Bounds):
        sides = []
        for name, side in (("lb", bounds.lb), ("ub", bounds.ub)):
            array = np.asarray(side, dtype=np.float64)
            if array.size != 1 and array.shape != (d,):
                raise ValueError(f"bounds: Bounds.{name} has shape {array.shape}, x0 has {d} coordinates")
            sides.append(np.broadcast_to(array.reshape(-1), (d,)).copy())
        return sides[0], sides[1]
    if isinstance(bounds, Tensor):
        bounds = bounds.detach().cpu().numpy()
    if isinstance(bounds, str) or not isinstance(bounds, Sequence | np.ndarray):
        raise TypeError(
            f"bounds must be scipy.optimize.Bounds or {d} pairs (lower, upper), got {type(bounds).__name__}"
        )
    shape = np.shape(bounds) if isinstance(bounds, np.ndarray) else None
    if shape is not None and shape != (d, 2):
        hint = "; pass the transpose of BoTorch's 2 x d" if shape == (2, d) else ""
        raise ValueError(f"bounds must have shape ({d}, 2), a pair for each coordinate, got {shape}{hint}")
    if len(bounds) != d:
        raise ValueError(f"bounds must be {d} pairs (lower, upper), one a coordinate, got {len(bounds)}")
    lower, upper = np.empty(d), np.empty(d)
    for j, pair in enumerate(bounds):
        try:
            low, high = pair
            lower[j] = -np.inf if low is None else float(low)
            upper[j] = np.inf if high is None else float(high)
        except (TypeError, ValueError) as error:
            raise ValueError(f"bounds: entry {j} must be a pair (lower, upper), got {pair!r}") from error
    return lower, upper
