"""Models of f − f(x_b) about a center x_b: the mean, its derivatives, and a step to a low mean in a region."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from optimizers.methods.trust_region.rules import ExplorationRule, GeometryRule
from optimizers.subproblems.composite import Prox, Quadratic, minimize_composite, prox_gradient
from optimizers.subproblems.region import Region
from optimizers.subproblems.span import coordinates, minimize_in_span
from surrogates.pinned.engine import PinnedModel


class RegionModel:
    """The posterior of f(x_b + s) − f(x_b) by a ``PinnedModel`` of u = A c/R, c the coordinates of s in a span.

    Args:
        pinned: the model of u.
        map: A/R, ``k + 1 x k + 1``.
        unit: what the value 1 of the model is in f's units.
        basis: B of ``optimizers.subproblems.span``, ``k x d``.
        outside: a unit vector orthogonal to the span, shape ``d``; None where the span is of all variables.
    """

    def __init__(self, pinned: PinnedModel, map: Tensor, unit: float, basis: Tensor, outside: Tensor | None) -> None:
        self.pinned, self.map, self.unit, self.basis, self.outside = pinned, map, unit, basis, outside
        self.gradient, self.hessian = self.inside_derivatives(torch.zeros(len(map), dtype=map.dtype))

    def inside_mean(self, at: Tensor) -> float:
        """The posterior mean at coordinates, shape ``k + 1``."""
        return self.pinned.mean(self.map @ at)

    def inside_derivatives(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The mean's gradient, shape ``k + 1``, and Hessian in coordinates."""
        g, H = self.pinned.derivatives(self.map @ at)
        return self.map.mT @ g, self.map.mT @ H @ self.map

    def mean(self, s: Tensor) -> float:
        """The posterior mean at a step, shape ``d``, in the model's unit."""
        return self.inside_mean(coordinates(self.basis, s))

    def quadratic(self, s: Tensor) -> Quadratic:
        """The mean's quadratic at a step; a step outside the span is taken for the nearest one inside."""
        B, at = self.basis, coordinates(self.basis, s)
        at[-1] = 0.0
        g, H = self.inside_derivatives(at)
        H, outside = H[:-1, :-1], float(H[-1, -1])

        def product(v: Tensor) -> Tensor:
            inside = B @ v
            return (H @ inside - outside * inside) @ B + outside * v

        return g[:-1] @ B, product, max(float(torch.linalg.eigvalsh(H).abs().max()), abs(outside))

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """A step to a low mean in a region, shape ``d``, and the mean there in f's units."""
        s, mean = minimize_in_span(self.inside_mean, self.inside_derivatives, self.basis, region, newton)
        return s, self.unit * mean

    def geometry_direction(self, rule: GeometryRule, slope: Tensor | None, region: Region) -> Tensor | None:
        """The rule's unit vector, shape ``d``, away from the plane; None where the gradient is known well enough.

        ``slope`` stands for the mean's gradient where it is given. The direction outside stands for all that are.
        """
        k = len(self.basis)
        used = k + (self.outside is not None)
        seen = self.gradient if slope is None else coordinates(self.basis, slope)
        covariance = self.map.mT @ self.pinned.gradient_covariance() @ self.map
        e = rule.direction(self.hessian[:used, :used], covariance[:used, :used], seen[:used], region.delta)
        if e is None:
            return None
        v = e[:k] @ self.basis
        return region.away(v if self.outside is None else v + e[-1] * self.outside)

    def explored(self, rule: ExplorationRule, s: Tensor, region: Region) -> tuple[Tensor, float]:
        """Moves a step by ±ηe, e the direction outside the span, so that the query also learns f's slope along it.

        η is ``rule.gain`` σ/h for σ the slope's standard deviation and h the mean's curvature along e, at most δ and
        the step's length; the sign is that of the lower mean in the box. Where nothing is outside the step stays.

        Returns:
            The step, shape ``d``, and ση in f's units, the standard deviation that e's slope adds to f there.
        """
        if self.outside is None:
            return s, 0.0
        curvature, plane = float(self.hessian[-1, -1]), region.half_space
        variance = float((self.map.mT @ self.pinned.gradient_covariance() @ self.map)[-1, -1])
        deviation = math.sqrt(max(0.0, variance))  # rounding may make it negative
        most = min(region.delta, float(s.norm()))
        eta = min(most, rule.gain * deviation / curvature) if curvature > 0.0 else most
        moved = [torch.clamp(s + sign * eta * self.outside, region.lower, region.upper) for sign in (1.0, -1.0)]
        if plane is not None:
            share = max(plane.allowed(region.delta), float(plane.normal @ s))
            moved = [trial for trial in moved if float(plane.normal @ trial) <= share] or [s]
        explored = min(moved, key=self.mean)
        return explored, self.unit * deviation * float(((explored - s) @ self.outside).abs())


class CompositeModel:
    """A model of f + ψ, given a model of f.

    Args:
        model: of f.
        psi: ψ(x_b + s) of a step s, shape ``d``, in f's units.
        prox: the prox of ψ(x_b + ·) in f's units: a step and a step size to a step.
    """

    def __init__(
        self, model: RegionModel, psi: Callable[[Tensor], float], prox: Callable[[Tensor, float], Tensor]
    ) -> None:
        self.model, self._zero = model, torch.zeros(model.basis.shape[1], dtype=model.basis.dtype)
        at_center = psi(self._zero)
        self.rise = lambda s: psi(s) - at_center if math.isfinite(at_center) else psi(s)
        # The step size 1/L in f's units stays within what a prox takes: that of a flat and small f would be infinite.
        self._prox: Prox = lambda s, L: prox(s, 1.0 / min(max(L * model.unit, 1e-300), 1e300))

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """A step to a low mean of f + ψ in a region, shape ``d``, and the mean there in f's units."""
        model = self.model
        value = lambda s: model.mean(s) + self.rise(s) / model.unit  # noqa: E731
        s, mean = minimize_composite(value, model.quadratic, self._prox, region)
        return s, model.unit * mean

    def slope(self, delta: float) -> Tensor:
        """The prox-gradient mapping at the center, shape ``d``, which stands for the gradient."""
        return prox_gradient(self.model.quadratic(self._zero), self._prox, delta)
