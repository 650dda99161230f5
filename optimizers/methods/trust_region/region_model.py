"""The model of f about a run's center, in the coordinates of the span of its queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optimizers.methods.trust_region.residuals import ResidualModel
from optimizers.methods.trust_region.rules import ExplorationRule, GeometryRule
from optimizers.subproblems.composite import Quadratic
from optimizers.subproblems.region import Region
from optimizers.subproblems.span import coordinates, minimize_in_span
from surrogates.pinned.engine import PinnedModel


class RegionModel:
    """The posterior of f(x_b + s) − f(x_b) by a ``PinnedModel`` of u = A c/R, for coordinates c of s.

    Args:
        pinned: the model of u, of f itself or of residuals whose cost f is.
        map: A/R, ``k + 1 x k + 1``.
        unit: what the value 1 of the model is in f's units.
        basis: B of ``optimizers.subproblems.span``, ``k x d``.
        outside: a unit vector orthogonal to the span, shape ``d``; None where the span is of all variables.
    """

    def __init__(
        self, pinned: PinnedModel | ResidualModel, map: Tensor, unit: float, basis: Tensor, outside: Tensor | None
    ) -> None:
        self.pinned, self.map, self.unit, self.basis, self.outside = pinned, map, unit, basis, outside
        g, H = pinned.derivatives(torch.zeros(len(map), dtype=map.dtype))
        self.gradient, self.hessian = map.mT @ g, map.mT @ H @ map

    def inside_mean(self, at: Tensor) -> float:
        """The posterior mean at coordinates, shape ``k + 1``."""
        return self.pinned.mean(self.map @ at)

    def inside_derivatives(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The mean's gradient, shape ``k + 1``, and Hessian in coordinates."""
        if not bool(at.any()):
            return self.gradient, self.hessian
        g, H = self.pinned.derivatives(self.map @ at)
        return self.map.mT @ g, self.map.mT @ H @ self.map

    def mean(self, s: Tensor) -> float:
        """The posterior mean at a step, shape ``d``, in the model's unit."""
        return self.inside_mean(coordinates(self.basis, s))

    def quadratic(self, s: Tensor) -> Quadratic:
        """The mean's quadratic at a step, which is projected onto the span."""
        B, at = self.basis, coordinates(self.basis, s)
        at[-1] = 0.0
        g, H = self.inside_derivatives(at)
        H, outside = H[:-1, :-1], float(H[-1, -1])

        def product(v: Tensor) -> Tensor:
            inside = B @ v
            return (H @ inside - outside * inside) @ B + outside * v

        return g[:-1] @ B, product, max(float(torch.linalg.eigvalsh(H).abs().max()), abs(outside))

    def gradient_covariance(self) -> Tensor:
        """cov ∇f(x_b) in coordinates and the model's unit, ``k + 1 x k + 1``."""
        return self.map.mT @ self.pinned.gradient_covariance() @ self.map

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """A step to a low mean in a region, shape ``d``, and the mean there in f's units."""
        s, mean = minimize_in_span(self.inside_mean, self.inside_derivatives, self.basis, region, newton)
        return s, self.unit * mean

    def geometry_direction(self, rule: GeometryRule, region: Region, slope: Tensor | None = None) -> Tensor | None:
        """The rule's unit vector, shape ``d``, away from the plane; None where the gradient is known well enough.

        ``slope`` replaces the mean's gradient if it is given. ``outside`` represents all directions outside the span.
        """
        k = len(self.basis)
        used = k + (self.outside is not None)
        seen = self.gradient if slope is None else coordinates(self.basis, slope)
        covariance = self.gradient_covariance()
        free = region.free if k == len(region.free) else None
        e = rule.direction(self.hessian[:used, :used], covariance[:used, :used], seen[:used], region.delta, free)
        if e is None:
            return None
        v = e[:k] @ self.basis
        return region.away(v if self.outside is None else v + e[-1] * self.outside)

    def explored(self, rule: ExplorationRule, s: Tensor, region: Region) -> tuple[Tensor, float]:
        """Moves a step by ηe, e the direction outside the span, so that the query also measures f's slope along e.

        η is ``rule.gain`` σ/h for σ the slope's standard deviation and h the mean's curvature along e, at most δ and
        the step's length. Where nothing is outside, or the plane is too near, the step stays.

        Returns:
            The step, shape ``d``, and ση in f's units, the standard deviation of f there due to its slope along e.
        """
        if self.outside is None:
            return s, 0.0
        curvature, most = float(self.hessian[-1, -1]), min(region.delta, float(s.norm()))
        deviation = math.sqrt(max(0.0, float(self.gradient_covariance()[-1, -1])))  # rounding may make it negative
        eta = min(most, rule.gain * deviation / curvature) if curvature > 0.0 else most
        explored = torch.clamp(s + eta * self.outside, region.lower, region.upper)
        if (plane := region.half_space) is not None and float(plane.normal @ explored) > plane.allowed(region.delta):
            return s, 0.0
        return explored, self.unit * deviation * float((explored - s) @ self.outside)
