"""Queries beside a pending step: chosen for what they teach about the gradient where the step ends.

Under a Gaussian process covariances do not depend on values. Points that are out condition them like queries: whatever
their values will be, it is the covariance when they have come. With P the queries and the points that are out, and the
pinned kernel k with its noise, everything here is conditioned on f at P.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.trust_region.pinned_model import CURVATURE, LINEAR, RATE, SHARED, Shape, matern
from optimizers.methods.trust_region.span import carried_metric, coordinates, covering, extended
from surrogates.linalg.cholesky import correlation_factor

MOST = 8
"""The most directions of candidates, and of those outside of a span that are looked at."""

LEVELS = (0.25, 0.5, 1.0)
"""The distances of candidates from where the step ends, in units of the radius."""

LEAST = 1e-9
"""The least variance of f at a candidate, in units of its prior one: differences below are rounding."""

UPHILL = 0.99
"""What a candidate uphill is worth of one downhill that teaches as much."""


def kernel(U: Tensor, V: Tensor, shape: Shape) -> Tensor:
    """k of points u and v, with the noise of the pin's value, ``n x m``."""
    a, noise = shape
    inner, squares = U @ V.mT, [points.square().sum(1) for points in (U, V)]
    distances = torch.cdist(U, V, compute_mode="donot_use_mm_for_euclid_dist")
    norms = [matern(part.sqrt()) for part in squares]
    bent = matern(distances) - norms[0][:, None] - norms[1] + 1.0
    return inner * (LINEAR + 0.5 * inner) + SHARED * LINEAR * torch.outer(*squares) + a * bent + noise


def slopes(U: Tensor, z: Tensor, shape: Shape) -> Tensor:
    """∂k(u, v)/∂v at v = z, ``n x d``: cov(f(u), ∇f(z))."""

    def bend(lengths: Tensor) -> Tensor:
        s = RATE * lengths
        return shape.amplitude * CURVATURE * (1.0 + s) * torch.exp(-s)

    from_z = U - z
    linear = (LINEAR + U @ z)[:, None] * U + 2.0 * SHARED * LINEAR * U.square().sum(1, keepdim=True) * z
    return linear + bend(torch.linalg.vector_norm(from_z, dim=1))[:, None] * from_z + bend(z.norm()) * z


def slope_covariance(z: Tensor, shape: Shape) -> Tensor:
    """∂²k(u, v)/∂u∂v at u = v = z, ``d x d``: cov ∇f(z)."""
    covariance = (1.0 + LINEAR) * torch.outer(z, z)
    covariance.diagonal().add_(LINEAR + z.square().sum() + shape.amplitude * CURVATURE)
    return covariance


class Known:
    """Covariances given f at some points, in the coordinates u of the pinned model.

    Args:
        P: the points, ``n x d``, the place where the gradient is wanted among them.
        z: that place, shape ``d``.
        shape: the kernel's hyper-parameters.

    Raises:
        NotPositiveDefiniteError: if the points are too near to each other.
    """

    def __init__(self, P: Tensor, z: Tensor, shape: Shape) -> None:
        self._P, self._z, self._shape = P, z, shape
        K = kernel(P, P, shape)
        K.diagonal().add_(shape.noise)
        self._factor, self._deviations = correlation_factor(K)
        self._white_slopes = self._white(slopes(P, z, shape))

    def _white(self, columns: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._factor, columns / self._deviations[:, None], upper=False)

    def slope_covariance(self) -> Tensor:
        """cov ∇f(z) given f at P, ``d x d``."""
        return slope_covariance(self._z, self._shape) - self._white_slopes.mT @ self._white_slopes

    def gains(self, candidates: Tensor, map: Tensor) -> Tensor:
        """What f at each candidate takes off the trace of cov ∇f(z) in the variables u = map s, shape ``m``.

        It is ‖Rⱼ‖²/(Vⱼ + s²), R = cov(f(candidates), ∇f(z)) and V the variances of f there, given f at P.
        """
        white = self._white(kernel(self._P, candidates, self._shape))
        R = (slopes(candidates, self._z, self._shape) - white.mT @ self._white_slopes) @ map
        prior = kernel(candidates, candidates, self._shape).diagonal()
        V = torch.maximum(prior - white.square().sum(0), LEAST * prior)
        return R.square().sum(1) / (V + self._shape.noise)


@dataclass(frozen=True)
class Place:
    """What is known about a pending step, relative to the model's centre.

    Attributes:
        rows: the model's queries, ``n x d``.
        asked: the points that are out, ``p x d``.
        end: where the step ends, shape ``d``.
        metric: A of the model, and of the coordinates of ``basis`` where there is one.
        basis: of the span of its rows, ``k x d``, or None.
        shape: the kernel's hyper-parameters.
        radius: δ.
        lower: the box's lower side, shape ``d``.
        upper: its upper side.
    """

    rows: Tensor
    asked: Tensor
    end: Tensor
    metric: Tensor
    basis: Tensor | None
    shape: Shape
    radius: float
    lower: Tensor
    upper: Tensor

    def informative(self, generator: np.random.Generator) -> Tensor:
        """Points beside where the step ends, those first that teach most about the gradient there, ``m x d``.

        They are end ± δu for orthonormal u along which ∇f(end) is least known, given all queries and points that are
        out, and three distances δ; of two that teach as much the one on the side of x_b is the later one.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        metric, basis = self.metric, self.basis
        near = torch.cat([self.rows, self.asked, self.end[None]])
        near = torch.unique(near[near.any(dim=1)], dim=0)
        if basis is not None:
            wider, grown = covering(basis, near)
            fresh = torch.from_numpy(generator.standard_normal((MOST, len(self.end))))
            widest = extended(wider, fresh)
            metric = carried_metric(carried_metric(metric, basis, wider, grown), wider, widest, True)
            basis = widest
        inside = self._seen(near, basis)
        map = metric / (self._seen(self.rows, basis) @ metric.mT).square().sum(1).mean().sqrt()
        known = Known(inside @ map.mT, self._seen(self.end[None], basis)[0] @ map.mT, self.shape)
        unknown = map.mT @ known.slope_covariance() @ map
        if basis is not None:
            unknown = unknown[:-1, :-1]  # the slope along what is outside of the wider span is not theirs
        directions = torch.linalg.eigh(unknown).eigenvectors.mT.flip(0)[:MOST]
        if basis is not None:
            directions = directions @ basis
        lengths = self.radius * torch.tensor(LEVELS, dtype=self.end.dtype).repeat_interleave(2 * len(directions))
        moves = torch.cat([directions, -directions]).repeat(len(LEVELS), 1) * lengths[:, None]
        points = torch.clamp(self.end + moves, self.lower, self.upper)
        gains = known.gains(self._seen(points, basis) @ map.mT, map)
        return points[(gains * torch.where(moves @ self.end < 0.0, UPHILL, 1.0)).argsort(descending=True)]

    def _seen(self, points: Tensor, basis: Tensor | None) -> Tensor:
        return points if basis is None else coordinates(basis, points)
