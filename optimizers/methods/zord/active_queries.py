"""Active queries: made to learn the gradient at a point, where that is worth more than a step of descent."""

from __future__ import annotations

import torch
from torch import Tensor

from optimizers.directions.directions import Directions
from surrogates import DerivedGP, GradientInformation
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.window_surrogate import WindowSurrogate

LEVELS = 4
"""Number of distances at which candidates lie."""

UNCERTAIN = 8
"""Number of directions in which the gradient is least known that candidates lie along, on both sides."""

POWERS = 4
"""Products with the gradient covariance that turn random directions towards those."""


def gainful_query(surrogate: WindowSurrogate, x: Tensor, candidates: Tensor) -> Tensor | None:
    """The candidate that tells most of ∇f(x), where it is expected to gain more than a step; else None.

    The drop I in trace ∂σ²(x) that a query brings is what it is expected to add to ‖∇μ(x)‖², whatever its value will
    be: E‖∇μ'‖² + trace ∂σ'² = ‖∇μ‖² + trace ∂σ². To first order a step gains in proportion to ‖∇μ‖², so that k queries
    and a step gain (‖∇μ‖² + kI)/(k + 1) a query, which rises with k where I > ‖∇μ‖²: that is the gate.

    Args:
        surrogate: the Gaussian process of the queries, whose iteration began at x.
        x: where the gradient is wanted, shape ``d``, search coordinates.
        candidates: points where f could be queried, ``m x d``; none of them x.
    """
    if len(candidates) == 0:
        return None
    query, information = most_informative(surrogate.model(x), x, candidates)
    slope = float(surrogate.gradient_posterior(x).mean.square().sum()) * surrogate.scale * surrogate.scale
    return query if information > slope else None


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
    return around(x, uncertain_directions(conditioning, x, UNCERTAIN, seed, step), nearest, farthest)


def uncertain_directions(conditioning: StationaryConditioning, x: Tensor, count: int, seed: int, step: int) -> Tensor:
    """Unit vectors, ``count x d``, float64, that ``POWERS`` products with ∇f(x)'s covariance made of normal ones."""
    W = conditioning.whitened_jacobian(x[None])[0]
    prior = conditioning.prior_variance.double()
    u = Directions(seed, len(x), "normal").block(step, count, device=x.device)
    for _ in range(POWERS):
        u = torch.nn.functional.normalize(prior * u - (u @ W.mT) @ W, dim=1)
    return u


def around(x: Tensor, u: Tensor, nearest: float, farthest: float) -> Tensor:
    """x + δu and x − δu for unit vectors u, ``k x d``, and ``LEVELS`` distances δ, ``2k·LEVELS x d``."""
    u = torch.cat([u, -u]).to(x)
    return torch.cat([x + distance * u for distance in distances(nearest, farthest)])


def distances(nearest: float, farthest: float) -> list[float]:
    """``LEVELS`` distances in equal ratios, the farthest not under the nearest."""
    far = max(nearest, farthest)
    return [nearest * (far / nearest) ** (level / (LEVELS - 1)) for level in range(LEVELS)]
