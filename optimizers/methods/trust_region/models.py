"""Models of f − f(x_b) about a center x_b: the mean, its derivatives, and a step to a low mean in a region."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from optimizers.methods.trust_region.rules import ExplorationRule, GeometryRule
from optimizers.subproblems.ball_box import minimize_in_ball
from optimizers.subproblems.composite import Prox, Quadratic, minimize_composite, prox_gradient
from optimizers.subproblems.half_space import HalfSpace
from optimizers.subproblems.span import coordinates, minimize_in_span
from surrogates.pinned.posterior import PinnedModel


class Steps(Protocol):
    """What a run needs of a model to plan a step."""

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """A step to a low mean in the ball of radius δ and the box, shape ``d``, and the mean there in f's units."""


class RegionModel:
    """The posterior of f(x_b + s) − f(x_b) by a ``PinnedModel`` of u = As/R.

    Args:
        pinned: the model of u.
        map: A/R, ``d x d``.
        unit: what the value 1 of the model is in f's units.
        plane: the plane that steps do not cross, or None.
        newton: the most Newton steps of ``step`` after the first one.
    """

    def __init__(self, pinned: PinnedModel, map: Tensor, unit: float, plane: HalfSpace | None, newton: int) -> None:
        self.pinned, self.map, self.unit, self.plane, self.newton = pinned, map, unit, plane, newton
        self.gradient, self.hessian = self.derivatives(torch.zeros(len(map), dtype=map.dtype))

    def mean(self, s: Tensor) -> float:
        """The posterior mean at a step, shape ``d``."""
        return self.pinned.mean(self.map @ s)

    def derivatives(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The mean's gradient, shape ``d``, and Hessian, ``d x d``, at a step."""
        g, H = self.pinned.derivatives(self.map @ s)
        return self.map.mT @ g, self.map.mT @ H @ self.map

    def quadratic(self, s: Tensor) -> Quadratic:
        """The mean's gradient at a step, shape ``d``, products with its Hessian, and the largest |curvature|."""
        g, H = self.derivatives(s)
        return g, lambda v: H @ v, float(torch.linalg.eigvalsh(H).abs().max())

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """As ``Steps``; it stops before the plane."""
        first = (self.gradient, self.hessian)
        s, mean = minimize_in_ball(self.mean, self.derivatives, delta, lower, upper, first, self.newton)
        if self.plane is not None and not self.plane.allows(s, delta):
            s, mean = self.plane.minimize(self.mean, self.derivatives, delta, lower, upper, self.newton)
        return s, self.unit * mean

    def geometry_direction(self, rule: GeometryRule, slope: Tensor | None, delta: float) -> Tensor | None:
        """The rule's unit vector, shape ``d``, away from the plane; None where the gradient is known well enough.

        ``slope`` stands for the mean's gradient where it is given.
        """
        slope = self.gradient if slope is None else slope
        e = rule.direction(self.hessian, self.gradient_covariance(), slope, delta)
        return e if e is None or self.plane is None else self.plane.away(e, delta)

    def gradient_covariance(self) -> Tensor:
        """cov ∇f(x_b) in the model's unit, ``d x d``."""
        return self.map.mT @ self.pinned.gradient_covariance() @ self.map

    def slope_variance(self, e: Tensor) -> float:
        """The variance of eᵀ∇f(x_b), e of shape ``d``; 0 where rounding makes it less."""
        return max(0.0, float(self.pinned.slope_covariance((self.map @ e)[:, None])))


class SpanModel:
    """A ``RegionModel`` in the coordinates of ``optimizers.subproblems.span``, for steps in the variables.

    Args:
        inner: the model in k + 1 coordinates.
        basis: B, ``k x d``.
        outside: a unit vector orthogonal to the span, shape ``d``; None where the span is of all variables.
        plane: the plane that steps do not cross, or None.
    """

    def __init__(self, inner: RegionModel, basis: Tensor, outside: Tensor | None, plane: HalfSpace | None) -> None:
        self.inner, self.basis, self.outside, self.plane, self.unit = inner, basis, outside, plane, inner.unit

    def mean(self, s: Tensor) -> float:
        """The posterior mean at a step, shape ``d``."""
        return self.inner.mean(coordinates(self.basis, s))

    def quadratic(self, s: Tensor) -> Quadratic:
        """As ``RegionModel.quadratic``; a step outside the span is taken for the nearest one inside."""
        at, B = coordinates(self.basis, s), self.basis
        at[-1] = 0.0
        g, H = self.inner.derivatives(at)
        H, outside = H[:-1, :-1], float(H[-1, -1])

        def product(v: Tensor) -> Tensor:
            inside = B @ v
            return (H @ inside - outside * inside) @ B + outside * v

        return g[:-1] @ B, product, max(float(torch.linalg.eigvalsh(H).abs().max()), abs(outside))

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """As ``Steps``; it stops before the plane."""
        inner, plane = self.inner, self.plane
        region = (self.basis, delta, lower, upper, plane, inner.newton)
        s, mean = minimize_in_span(inner.mean, inner.derivatives, *region)
        return s, self.unit * mean

    def geometry_direction(self, rule: GeometryRule, slope: Tensor | None, delta: float) -> Tensor | None:
        """As ``RegionModel.geometry_direction``; the direction outside stands for all that are."""
        k, inner = len(self.basis) + (self.outside is not None), self.inner
        seen = inner.gradient if slope is None else coordinates(self.basis, slope)
        e = rule.direction(inner.hessian[:k, :k], inner.gradient_covariance()[:k, :k], seen[:k], delta)
        if e is None:
            return None
        v = e[: len(self.basis)] @ self.basis
        v = v if self.outside is None else v + e[-1] * self.outside
        return v if self.plane is None else self.plane.away(v, delta)

    def explored(
        self, rule: ExplorationRule, s: Tensor, delta: float, lower: Tensor, upper: Tensor
    ) -> tuple[Tensor, float]:
        """Moves a step by ±ηe, e the direction outside the span, so that the query also learns f's slope along it.

        η is ``rule.gain`` σ/h for σ the slope's standard deviation and h the mean's curvature along e, at most δ and
        the step's length; the sign is that of the lower mean. Where the span is of all variables the step stays.

        Returns:
            The step, shape ``d``, and ση in f's units, the standard deviation that e's slope adds to f there.
        """
        if self.outside is None:
            return s, 0.0
        e = torch.zeros_like(self.inner.gradient)
        e[-1] = 1.0
        curvature, deviation = float(self.inner.hessian[-1, -1]), self.inner.slope_variance(e) ** 0.5
        most = min(delta, float(s.norm()))
        eta = min(most, rule.gain * deviation / curvature) if curvature > 0.0 else most
        moved = [torch.clamp(s + sign * eta * self.outside, lower, upper) for sign in (1.0, -1.0)]
        if self.plane is not None:
            share = max(self.plane.allowed(delta), float(self.plane.normal @ s))
            moved = [trial for trial in moved if float(self.plane.normal @ trial) <= share] or [s]
        explored = min(moved, key=self.mean)
        return explored, self.unit * deviation * float(((explored - s) @ self.outside).abs())


class CompositeModel:
    """A model of f + ψ, given a model of f.

    Args:
        model: of f.
        psi: ψ(x_b + s) of a step s, shape ``d``, in f's units.
        prox: the prox of ψ(x_b + ·) in f's units: a step and a step size to a step.
        zero: the step 0, shape ``d``.
    """

    def __init__(
        self,
        model: RegionModel | SpanModel,
        psi: Callable[[Tensor], float],
        prox: Callable[[Tensor, float], Tensor],
        zero: Tensor,
    ) -> None:
        self.model, self.zero, at_center = model, zero, psi(zero)
        self.rise = lambda s: psi(s) - at_center if math.isfinite(at_center) else psi(s)
        # The step size 1/L in f's units stays within what a prox takes: that of a flat and small f would be infinite.
        self.prox: Prox = lambda s, L: prox(s, 1.0 / min(max(L * model.unit, 1e-300), 1e300))

    def mean(self, s: Tensor) -> float:
        """The posterior mean of f + ψ at a step, shape ``d``, in the model's unit."""
        return self.model.mean(s) + self.rise(s) / self.model.unit

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """As ``Steps``."""
        model, region = self.model, (delta, lower, upper, self.model.plane)
        s, mean = minimize_composite(self.mean, model.quadratic, self.prox, *region)
        return s, model.unit * mean

    def slope(self, delta: float) -> Tensor:
        """The prox-gradient mapping at the center, shape ``d``, which stands for the gradient."""
        return prox_gradient(self.model.quadratic(self.zero), self.prox, delta)
