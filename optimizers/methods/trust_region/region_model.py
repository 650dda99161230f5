"""The model of f about a run's center, in the subspace spanned by its queries."""

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
    """The posterior of f(x_b + s) − f(x_b) about the center x_b.

    The coordinates c of a step s are the vector Bs and the distance of s from the subspace. The model's inputs are
    u = A c/R, with the metric A and the root mean square R of ‖A c‖ over the queries.

    Args:
        pinned: the model in u, of f itself or of residuals whose cost is f.
        map: A/R, ``k + 1 x k + 1``.
        unit: the model's unit in f's units.
        basis: the orthonormal basis B of the subspace, ``k x d``.
        outside: a unit vector orthogonal to the subspace, shape ``d``; None if the subspace has all variables.
    """

    def __init__(
        self, pinned: PinnedModel | ResidualModel, map: Tensor, unit: float, basis: Tensor, outside: Tensor | None
    ) -> None:
        self.pinned, self.map, self.unit, self.basis, self.outside = pinned, map, unit, basis, outside
        g, H = pinned.derivatives(torch.zeros(len(map), dtype=map.dtype))
        self.gradient, self.hessian = map.mT @ g, map.mT @ H @ map

    def inside_mean(self, at: Tensor) -> float:
        """Computes the posterior mean at coordinates, shape ``k + 1``, in the model's unit."""
        return self.pinned.mean(self.map @ at)

    def inside_derivatives(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Computes gradient, shape ``k + 1``, and Hessian of the posterior mean at coordinates."""
        if not bool(at.any()):
            return self.gradient, self.hessian
        g, H = self.pinned.derivatives(self.map @ at)
        return self.map.mT @ g, self.map.mT @ H @ self.map

    def mean(self, s: Tensor) -> float:
        """Computes the posterior mean at a step, shape ``d``, in the model's unit."""
        return self.inside_mean(coordinates(self.basis, s))

    def quadratic(self, s: Tensor) -> Quadratic:
        """Expands the posterior mean to second order at a step, projected onto the subspace."""
        B, at = self.basis, coordinates(self.basis, s)
        at[-1] = 0.0
        g, H = self.inside_derivatives(at)
        H, outside = H[:-1, :-1], float(H[-1, -1])

        def product(v: Tensor) -> Tensor:
            inside = B @ v
            return (H @ inside - outside * inside) @ B + outside * v

        return g[:-1] @ B, product, max(float(torch.linalg.eigvalsh(H).abs().max()), abs(outside))

    def gradient_covariance(self) -> Tensor:
        """Computes the posterior covariance of ∇f(x_b) in coordinates and the model's unit, ``k + 1 x k + 1``."""
        return self.map.mT @ self.pinned.gradient_covariance() @ self.map

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """Finds a step to a low posterior mean in a region, shape ``d``, and the mean at its end in f's units."""
        s, mean = minimize_in_span(self.inside_mean, self.inside_derivatives, self.basis, region, newton)
        return s, self.unit * mean

    def geometry_direction(self, rule: GeometryRule, region: Region, slope: Tensor | None = None) -> Tensor | None:
        """Returns the direction of a geometry-improving query, shape ``d``; None if ∇f is known well enough.

        ``slope`` replaces the gradient of the posterior mean if it is given.
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
        """Extends a step s to s + ηe, so that its query also measures the slope along the direction e = ``outside``.

        η is ``rule.gain`` σ/h, where σ is the standard deviation of the slope and h the curvature of the mean along e,
        but at most Δ and ‖s‖. Without ``outside``, or near a plane of failed queries, the step does not change.

        Returns:
            The step, shape ``d``, and the standard deviation ση of f at its end due to the slope, in f's units.
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
