"""Parses bounds, and defines the box and the coordinates in which methods search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds
from torch import Tensor

from optimizers.core.pairs import parse_pairs
from optimizers.core.space import Space

BoundsLike = Bounds | Sequence[tuple[float | None, float | None]] | np.ndarray | Tensor

SEARCH_WIDTH = 10.0
"""The side of a rescaled box in search coordinates, which is [0, 10]^d as in ZoRD, Appx. C.1."""


@dataclass(frozen=True)
class Domain:
    """A box and the coordinates in which it is searched.

    The point z in search coordinates is x = origin + unit ∘ z in user coordinates, or x = z without a unit. For a
    variable with ``log`` this formula gives log10 x. Integers are rounded last.

    Attributes:
        lower: lower bounds in user units, shape ``d``; −inf for no bound.
        upper: upper bounds in user units, shape ``d``; inf for no bound.
        unit: user units (or decades) per search unit, shape ``d``, 1 if a variable is not rescaled; None: all are 1.
        confine: whether ``to_user`` projects onto the box.
        width: the width of a rescaled variable's interval in search coordinates.
        space: the integers, log scales and names, or None.
    """

    lower: Tensor
    upper: Tensor
    unit: Tensor | None = None
    confine: bool = True
    width: float = SEARCH_WIDTH
    space: Space | None = None

    @classmethod
    def of(
        cls,
        lower: Tensor,
        upper: Tensor,
        *,
        rescale: bool,
        confine: bool = True,
        width: float = SEARCH_WIDTH,
        space: Space | None = None,
    ) -> Domain:
        """The domain of a box; with ``rescale`` each variable with two finite bounds is searched on [0, width].

        A variable with equal bounds keeps its unit, and its interval in search coordinates is [0, 0]. A variable with
        an infinite bound is searched in user coordinates. An integer with n values is searched on [0, width (n − 1)/n],
        so that each value has a cell of length width/n.
        """
        plain = cls(lower, upper, confine=confine, width=width, space=space)
        sides = plain.search_upper - plain.search_lower
        finite = torch.isfinite(sides)
        if not rescale or not bool(finite.any()):
            return cls(lower, upper, confine=confine, space=space)
        cells = sides if plain.integers is None else sides + (plain.integers & (sides > 0)).to(sides)
        unit = torch.where(finite & (sides > 0), cells / width, torch.ones_like(sides))
        return cls(lower, upper, unit, confine, width, space)

    @cached_property
    def integers(self) -> Tensor | None:
        """Which variables are integers, shape ``d``; None if there are none."""
        return self._mask("integrality")

    @cached_property
    def decades(self) -> Tensor | None:
        """Which variables are searched in log10, shape ``d``; None if there are none."""
        return self._mask("log")

    def _mask(self, name: str) -> Tensor | None:
        flags = None if self.space is None else np.broadcast_to(getattr(self.space, name), self.lower.shape)
        return None if flags is None or not flags.any() else torch.tensor(flags, device=self.lower.device)

    def _flat(self, x: Tensor) -> Tensor:
        """x with log10 of the variables with ``log``."""
        return x if self.decades is None else torch.where(self.decades, x.log10(), x)

    @cached_property
    def origin(self) -> Tensor:
        """The user coordinates of z = 0, shape ``d``: the lower bounds of rescaled variables, 0 for other variables."""
        return torch.where(torch.isfinite(self.upper - self.lower), self._flat(self.lower), 0.0)

    @cached_property
    def search_lower(self) -> Tensor:
        """Lower bounds in search coordinates, shape ``d``."""
        return self._flat(self.lower) if self.unit is None else self._flat(self.lower) - self.origin

    @cached_property
    def search_upper(self) -> Tensor:
        """Upper bounds in search coordinates, shape ``d``."""
        upper = self._flat(self.upper)
        if self.unit is None:
            return upper
        wide = torch.where(self.lower == self.upper, 0.0, self.width).to(self.upper)
        if self.integers is not None:
            wide = torch.where(self.integers, (upper - self.origin) / self.unit, wide)
        return torch.where(torch.isfinite(self.upper - self.lower), wide, upper)

    def to_search(self, x: Tensor) -> Tensor:
        """The search coordinates of points in user coordinates, shape ``... x d``; integers are rounded."""
        x = self._flat(x if self.space is None else self.space.rounded(x))
        return x if self.unit is None else (x - self.origin) / self.unit

    def relaxed(self, z: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Like ``to_user``, but neither rounds integers nor projects onto the box."""
        part = slice(start, stop)
        if self.unit is not None:
            z = self.origin[part] + self.unit[part] * z
        return z if self.decades is None else torch.where(self.decades[part], 10.0**z, z)

    def to_user(self, z: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """The user coordinates of points z in search coordinates; z may hold only the variables ``start:stop``."""
        part, x = slice(start, stop), self.relaxed(z, start, stop)
        x = x if self.integers is None else torch.where(self.integers[part], x.round(), x)
        return torch.clamp(x, self.lower[part], self.upper[part]) if self.confine else x

    def slopes(self, x: Tensor) -> Tensor:
        """The derivatives of user coordinates with respect to search coordinates at a point x, shape ``d``."""
        unit = torch.ones_like(x) if self.unit is None else self.unit
        return unit if self.decades is None else torch.where(self.decades, unit * x * math.log(10.0), unit)

    def description(self) -> list[Any]:
        """The bounds and a space's other properties as plain values."""
        sides = [self.lower.tolist(), self.upper.tolist()]
        return sides if self.space is None else [*sides, self.space.description()]

    def contains(self, x: Tensor) -> Tensor:
        """Whether points in user coordinates, ``... x d``, lie in the box, shape ``...``."""
        return ((x >= self.lower) & (x <= self.upper)).all(dim=-1)


def parse_bounds(bounds: Any, x0: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds as tensors of x0's shape, dtype and device.

    Args:
        bounds: ``scipy.optimize.Bounds`` (scalars are broadcast; ``keep_feasible`` is ignored, since queries always
            stay in the box), or d pairs (lower, upper), where None and ±inf mean no bound.
        x0: the initial point, shape ``d``.

    Raises:
        TypeError: if the bounds have another type.
        ValueError: for a wrong length, NaN, reversed bounds, an empty interval, or x0 outside the box.
    """
    return check_within(x0, *parse_box(bounds, x0))


def parse_box(bounds: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Like ``parse_bounds``, for a point that may lie outside the bounds."""
    lower, upper = parse_pairs(bounds, like.numel())
    for wrong, says in (
        (np.isnan(lower), "the lower bound of coordinate {j} is NaN"),
        (np.isnan(upper), "the upper bound of coordinate {j} is NaN"),
        (lower > upper, "coordinate {j} has lower {low} > upper {high}"),
        (np.isposinf(lower) | np.isneginf(upper), "coordinate {j} has the empty interval [{low}, {high}]"),
    ):
        if wrong.any():
            j = int(wrong.argmax())
            raise ValueError(f"bounds: {says.format(j=j, low=lower[j], high=upper[j])}")
    low, high = (torch.as_tensor(side, dtype=like.dtype, device=like.device) for side in (lower, upper))
    return low, high


def check_within(x0: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the bounds; raises ``ValueError`` if x0 lies outside them."""
    outside = ((x0 < low) | (x0 > high)).nonzero().flatten().tolist()
    if outside:
        j, (lower, upper) = outside[0], (side.double().cpu().numpy() for side in (low, high))
        raise ValueError(
            f"x0 must lie within the bounds: coordinate {j} is {x0[j].item()}, its bounds are [{lower[j]}, {upper[j]}]"
            + _hint(lower, upper, x0.detach().cpu().numpy())
        )
    return low, high


def middle(bounds: Any) -> Tensor:
    """The middle of a box, shape ``d``; for a coordinate with an infinite bound it is the finite bound, or 0."""
    d = max(np.size(bounds.lb), np.size(bounds.ub)) if isinstance(bounds, Bounds) else len(bounds)
    like = bounds if isinstance(bounds, Tensor) and bounds.is_floating_point() else torch.empty(0, dtype=torch.float64)
    lower, upper = parse_box(bounds, like.new_empty(d))
    finite = torch.isfinite(upper - lower)
    return torch.where(finite, lower + 0.5 * (upper - lower), torch.zeros_like(lower).clamp(lower, upper))


def check_rescalable(lower: Tensor, upper: Tensor) -> None:
    """Raises ``ValueError`` for a box with an infinite bound, which cannot be searched as [0, 10]^d."""
    infinite = (~torch.isfinite(upper - lower)).nonzero().flatten().tolist()
    if infinite:
        j = infinite[0]
        raise ValueError(
            f"rescale=True needs a finite box, but coordinate {j} has the bounds [{lower[j].item()}, "
            f"{upper[j].item()}]; without rescale=True, the variables with finite bounds are rescaled"
        )


def _hint(lower: np.ndarray, upper: np.ndarray, x0: np.ndarray) -> str:
    """A hint for two pairs that contain x0 when read as a row of lower and a row of upper bounds."""
    if x0.size != 2:
        return ""
    (low, high), (other_low, other_high) = zip(lower, upper, strict=True)
    fits = low <= x0[0] <= other_low and high <= x0[1] <= other_high
    return "; each entry is a coordinate's pair (lower, upper): pass the transpose of BoTorch's 2 x d" if fits else ""


def search_width(domain: Domain | None) -> float | None:
    """The mean length of the box's nonzero sides in search coordinates, 10 if rescaled; None without a finite box."""
    if domain is None:
        return None
    sides = domain.search_upper.double() - domain.search_lower.double()
    sides = sides[sides > 0]
    return float(sides.mean()) if sides.numel() and bool(torch.isfinite(sides).all()) else None
