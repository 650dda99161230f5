"""Queries made to learn the gradient at a point, rather than to descend."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optimizers.designs import local_cloud
from optimizers.directions.directions import Directions
from surrogates import DerivedGP, GradientInformation
from surrogates.stationary_conditioning import StationaryConditioning

CANDIDATES = 100
"""Points of a cloud."""

LEVELS = 4
"""Distances that candidates have."""

UNCERTAIN = 8
"""Directions in which the gradient is least known that are looked at, each with its opposite."""

POWERS = 4
"""Products with the gradient covariance that turn random directions towards these."""


def distances(nearest: float, farthest: float) -> list[float]:
    """``LEVELS`` distances in equal ratios."""
    far = max(nearest, farthest)
    return [nearest * (far / nearest) ** (level / (LEVELS - 1)) for level in range(LEVELS)]


def candidate_cloud(x: Tensor, nearest: float, farthest: float, seed: int, step: int) -> Tensor:
    """Points about x in normal directions, at ``LEVELS`` root mean square distances in equal ratios, ``m x d``.

    Args:
        x: the point, shape ``d``.
        nearest: the least distance.
        farthest: the largest distance.
        seed: seed of the directions.
        step: their address.
    """
    offsets = local_cloud(torch.zeros_like(x), CANDIDATES, 1.0, seed, distribution="normal", step=step)
    scales = torch.tensor(distances(nearest, farthest), dtype=x.dtype, device=x.device)
    return x + scales.repeat(math.ceil(CANDIDATES / LEVELS))[:CANDIDATES, None] * offsets


def uncertain_candidates(
    conditioning: StationaryConditioning, x: Tensor, nearest: float, farthest: float, seed: int, step: int
) -> Tensor:
    """Points about x, on both sides of it, along directions in which ∇f(x) is least known, ``m x d``.

    Directions are ``POWERS`` steps u ← Cu/‖Cu‖ from normal ones, C = D − WᵀW the gradient covariance with W = L⁻¹J(x):
    unknown directions where there are fewer queries than dimensions, and nearly C's leading eigenvectors else.
    O(n²d) for n queries.

    Args:
        conditioning: on the queries.
        x: the point, shape ``d``.
        nearest: the least distance.
        farthest: the largest distance.
        seed: seed of the normal directions.
        step: their address.
    """
    W = conditioning.whitened_jacobian(x[None])[0]
    prior = conditioning.prior_variance.double()
    u = Directions(seed, len(x), "normal").block(step, UNCERTAIN, device=x.device)
    for _ in range(POWERS):
        u = torch.nn.functional.normalize(prior * u - (u @ W.mT) @ W, dim=1)
    u = torch.cat([u, -u]).to(x)
    return torch.cat([x + distance * u for distance in distances(nearest, farthest)])


def most_informative(model: DerivedGP, x: Tensor, candidates: Tensor) -> tuple[Tensor, float]:
    """The candidate whose value would lower the trace of ∇f(x)'s covariance most, and by how much.

    Args:
        model: in the coordinates of x.
        x: where the gradient is wanted, shape ``d``.
        candidates: ``m x d``.

    Returns:
        The point and the drop, in squared units of f per squared unit of x; 0 where no candidate lowers it.
    """
    with torch.no_grad():
        values = GradientInformation(model, x)(candidates[:, None, :])
    values = values.nan_to_num(nan=0.0)
    best = int(values.argmax())
    return candidates[best], float(values[best])
