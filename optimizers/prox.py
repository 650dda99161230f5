"""Proximal operators: ``prox(z, step)`` = argmin over x of ψ(x) + ‖x − z‖² / (2 step).

If ψ is the indicator of a convex set, the prox is the projection onto this set for every step. All operators work on
the last dimension, keep z's dtype and device, and leave z unchanged.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch

from optimizers.core.options import nonnegative, positive
from optimizers.core.values import numeric

Coordinates: TypeAlias = float | Sequence[float] | torch.Tensor
"""One number for all coordinates, or one for each."""

Step: TypeAlias = float | torch.Tensor
"""A step size, or one for each coordinate of a separable ψ."""


class Prox(ABC):
    """A closed convex ψ and its proximal operator.

    A subclass implements `_prox` and `_value`; this class checks their arguments.

    Attributes:
        separable: Whether ψ is a sum over coordinates. Then the prox of ψ on a box is the clipped prox of ψ.
    """

    separable: ClassVar[bool] = False

    @property
    def strong_convexity(self) -> float:
        """The largest μ for which ψ − μ/2 ‖x‖² is convex."""
        return 0.0

    def __call__(self, z: torch.Tensor, step: Step) -> torch.Tensor:
        """The argmin over x of ψ(x) + ‖x − z‖² / (2 step), ``batch x d``.

        Args:
            z: Floating tensor of finite numbers, ``batch x d``.
            step: A positive, finite number; for a separable ψ also a tensor of shape ``d``.

        Raises:
            TypeError: If z is not a floating tensor.
            ValueError: If z is not finite or has the wrong number of coordinates, or a step is not positive and finite.
        """
        self._check(z)
        if not torch.isfinite(z).all():
            raise ValueError("z holds NaN or infinite numbers; all must be finite")
        return self._prox(z, self._steps(z, step) if isinstance(step, torch.Tensor) else positive("step", step))

    def _steps(self, z: torch.Tensor, steps: torch.Tensor) -> Step:
        if steps.dim() == 0:
            return positive("step", float(steps))
        if not self.separable:
            raise ValueError(f"{type(self).__name__} is not separable: pass one step for all coordinates")
        if steps.shape != z.shape[-1:] or not bool(((steps > 0) & torch.isfinite(steps)).all()):
            raise ValueError(f"steps must be {z.shape[-1]} positive, finite numbers")
        return steps

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """ψ(x) for a floating tensor x, ``batch x d``; inf outside ψ's domain. Shape ``batch``.

        Raises:
            TypeError: If x is not a floating tensor.
            ValueError: If x has the wrong number of coordinates.
        """
        self._check(x)
        return self._value(x)

    def _check(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise TypeError(f"a point must be a floating torch.Tensor, got {kind}")
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"points must have shape batch x d with d >= 1, got {tuple(x.shape)}")

    @abstractmethod
    def _prox(self, z: torch.Tensor, step: Step) -> torch.Tensor: ...

    @abstractmethod
    def _value(self, x: torch.Tensor) -> torch.Tensor: ...


class NoProx(Prox):
    """ψ = 0: prox(z, step) = z."""

    separable = True

    def __repr__(self) -> str:
        return "NoProx()"

    def _prox(self, z: torch.Tensor, step: Step) -> torch.Tensor:
        return z.clone()

    def _value(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(x.shape[:-1])


@dataclass(eq=False)
class BoxRidge(Prox):
    """ψ(x) = weight/2 ‖x‖² if lower <= x <= upper, and inf otherwise.

    prox(z, step) = clip(z / (1 + step weight), lower, upper): ψ is separable, and a parabola's minimum over an interval
    is the point nearest to its unconstrained minimum.

    Args:
        lower: A number, or one for each coordinate; −inf for no bound. Bounds are rounded to the point's dtype.
        upper: A number, or one for each coordinate; inf for no bound.
        weight: At least 0.

    Raises:
        ValueError: If a bound is NaN, lower exceeds upper, their lengths differ, a coordinate admits no finite number,
            or the weight is negative or not finite.
    """

    separable = True

    lower: Coordinates
    upper: Coordinates
    weight: float

    def __post_init__(self) -> None:
        lower, upper = _coordinates("lower", self.lower), _coordinates("upper", self.upper)
        if lower.dim() and upper.dim() and lower.shape != upper.shape:
            raise ValueError(f"lower and upper must have equally many numbers, got {len(lower)} and {len(upper)}")
        if (lower > upper).any() or (lower == math.inf).any() or (upper == -math.inf).any():
            raise ValueError(f"lower must be at most upper, with a finite number between them, got {lower} and {upper}")
        self.lower, self.upper = lower, upper
        self.weight = nonnegative("weight", self.weight)

    @property
    def strong_convexity(self) -> float:
        """The weight."""
        return self.weight

    def _prox(self, z: torch.Tensor, step: Step) -> torch.Tensor:
        return torch.clamp(z / (1.0 + step * self.weight), _like(z, self.lower), _like(z, self.upper))

    def _value(self, x: torch.Tensor) -> torch.Tensor:
        lower, upper = _like(x, self.lower), _like(x, self.upper)
        inside = ((x >= lower) & (x <= upper)).all(-1)
        return torch.where(inside, _half_square(x, self.weight), math.inf)


class Box(BoxRidge):
    """ψ(x) = 0 if lower <= x <= upper, and inf otherwise: prox(z, step) = clip(z, lower, upper).

    Args:
        lower: See `BoxRidge`, also for errors.
        upper: See `BoxRidge`.
    """

    def __init__(self, lower: Coordinates, upper: Coordinates) -> None:
        super().__init__(lower, upper, 0.0)

    def __repr__(self) -> str:
        return f"Box(lower={self.lower!r}, upper={self.upper!r})"


@dataclass(eq=False)
class ElasticNet(Prox):
    """ψ(x) = l1 ‖x‖₁ + l2/2 ‖x‖².

    prox(z, step) = sign(z) max(|z| − step l1, 0) / (1 + step l2).

    Args:
        l1: Weight of the l1 norm, at least 0.
        l2: Weight of half the squared l2 norm, at least 0.

    Raises:
        ValueError: If a weight is negative or not finite.
    """

    separable = True

    l1: float
    l2: float

    def __post_init__(self) -> None:
        self.l1, self.l2 = nonnegative("l1", self.l1), nonnegative("l2", self.l2)

    @property
    def strong_convexity(self) -> float:
        """The weight l2."""
        return self.l2

    def _prox(self, z: torch.Tensor, step: Step) -> torch.Tensor:
        return z.sign() * (z.abs() - step * self.l1).clamp(min=0.0) / (1.0 + step * self.l2)

    def _value(self, x: torch.Tensor) -> torch.Tensor:
        return self.l1 * x.abs().sum(-1) + _half_square(x, self.l2)


class L1(ElasticNet):
    """ψ(x) = weight ‖x‖₁: prox(z, step) = sign(z) max(|z| − step weight, 0).

    Args:
        weight: At least 0 and finite; other weights raise ``ValueError``.
    """

    def __init__(self, weight: float) -> None:
        super().__init__(nonnegative("weight", weight), 0.0)

    def __repr__(self) -> str:
        return f"L1(weight={self.l1!r})"


class Ridge(ElasticNet):
    """ψ(x) = weight/2 ‖x‖²: prox(z, step) = z / (1 + step weight).

    Args:
        weight: At least 0 and finite; other weights raise ``ValueError``.
    """

    def __init__(self, weight: float) -> None:
        super().__init__(0.0, nonnegative("weight", weight))

    def __repr__(self) -> str:
        return f"Ridge(weight={self.l2!r})"


@dataclass(eq=False)
class L2Ball(Prox):
    """ψ(x) = 0 if ‖x − center‖ <= radius, and inf otherwise.

    prox(z, step) = center + (z − center) min(1, radius / ‖z − center‖). Because projections are rounded, `value` is 0
    up to the distance radius + 64 ε √d (radius + ‖center‖), with the machine epsilon ε of the point's dtype.

    Args:
        radius: Positive.
        center: A number, or one for each coordinate.

    Raises:
        ValueError: If the radius is not positive and finite or the center not finite.
    """

    radius: float
    center: Coordinates = 0.0

    def __post_init__(self) -> None:
        self.radius = positive("radius", self.radius)
        center = _coordinates("center", self.center)
        if not torch.isfinite(center).all():
            raise ValueError(f"center must be finite, got {center}")
        self.center = center

    def _prox(self, z: torch.Tensor, step: Step) -> torch.Tensor:
        center = _like(z, self.center)
        offset = z - center
        norm = _norm(offset)
        return torch.where(norm > self.radius, center + offset * (self.radius / norm), z)

    def _value(self, x: torch.Tensor) -> torch.Tensor:
        center = _like(x, self.center)
        scale = self.radius + _norm(center.expand_as(x)).squeeze(-1)
        slack = 64.0 * torch.finfo(x.dtype).eps * math.sqrt(x.shape[-1]) * scale
        return _indicator(_norm(x - center).squeeze(-1) <= self.radius + slack, x)


@dataclass(eq=False)
class Simplex(Prox):
    """ψ(x) = 0 if x >= 0 and Σ x_j = radius, and inf otherwise.

    prox(z, step) = max(z − θ, 0), with θ such that the sum is the radius; θ is found from the sorted z (Held, Wolfe and
    Crowder 1974) in float64, in time O(d log d). `value` is 0 if the sum differs from the radius by at most 64 ε √d
    radius, with the machine epsilon ε of the point's dtype.

    Args:
        radius: Positive and finite; otherwise ``ValueError``.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        self.radius = positive("radius", self.radius)

    def _prox(self, z: torch.Tensor, step: Step) -> torch.Tensor:
        wide = z.to(torch.float64)
        ordered = wide.sort(dim=-1, descending=True).values
        below = ordered - ordered[..., :1]
        counts = torch.arange(1, z.shape[-1] + 1, dtype=torch.float64, device=z.device)
        thresholds = (below.cumsum(-1) - self.radius) / counts
        support = (below > thresholds).sum(-1, keepdim=True)
        threshold = thresholds.gather(-1, support - 1)
        return (wide - ordered[..., :1] - threshold).clamp(min=0.0).to(z.dtype)

    def _value(self, x: torch.Tensor) -> torch.Tensor:
        slack = 64.0 * torch.finfo(x.dtype).eps * math.sqrt(x.shape[-1]) * self.radius
        sums = x.to(torch.float64).sum(-1)
        return _indicator((x >= 0).all(-1) & ((sums - self.radius).abs() <= slack), x)


def _half_square(x: torch.Tensor, weight: float) -> torch.Tensor:
    return 0.5 * weight * x.square().sum(-1)


def _indicator(inside: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(inside.shape).masked_fill(~inside, math.inf)


def _like(x: torch.Tensor, numbers: Coordinates) -> torch.Tensor:
    """The numbers of ψ in x's dtype and on its device; x must have as many coordinates."""
    tensor = torch.as_tensor(numbers).to(x)
    if tensor.dim() and len(tensor) != x.shape[-1]:
        raise ValueError(f"the point has {x.shape[-1]} coordinates, the prox {len(tensor)}")
    return tensor


def _norm(x: torch.Tensor) -> torch.Tensor:
    """‖x‖ over the last dimension, which is kept, without overflow or underflow of the squares."""
    largest = x.abs().amax(-1, keepdim=True)
    safe = torch.where(largest > 0, largest, 1.0)
    return safe * torch.linalg.vector_norm(x / safe, dim=-1, keepdim=True)


def _coordinates(name: str, values: Coordinates) -> torch.Tensor:
    tensor = numeric(name, values).clone()
    if tensor.dim() > 1 or tensor.isnan().any():
        raise ValueError(f"{name} must be a number, or one for each coordinate, and not NaN, got {values}")
    return tensor
