"""Active queries: queries that improve the gradient estimate at a point, made if they gain more than a step."""

from __future__ import annotations

import torch
from torch import Tensor

from optimizers.directions.directions import Directions
from surrogates import DerivedGP
from surrogates.gradient_information import GradientInformation
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.window_surrogate import WindowSurrogate

LEVELS = 4
"""The number of distances at which candidates lie."""

UNCERTAIN = 8
"""The number of directions of largest gradient uncertainty along which candidates lie, on both sides."""

POWERS = 4
"""The number of power iterations by which random directions turn towards the most uncertain ones."""


def gainful_query(surrogate: WindowSurrogate, x: Tensor, candidates: Tensor) -> Tensor | None:
    """The most informative candidate about ∇f(x) if it is expected to gain more than a step; otherwise None.

    The condition is I > ‖∇μ(x)‖², where I is the decrease of trace ∂σ²(x) from the query. I is also the expected
    increase of ‖∇μ(x)‖², because E‖∇μ'‖² + trace ∂σ'² = ‖∇μ‖² + trace ∂σ². To first order a step gains in proportion to
    ‖∇μ‖²; k queries and a step gain (‖∇μ‖² + kI)/(k + 1) per query, which increases with k under the condition.

    Args:
        surrogate: the Gaussian process of the queries, whose iteration began at x.
        x: the point at which the gradient is estimated, shape ``d``, search coordinates.
        candidates: points where f could be queried, ``m x d``, none equal to x.
    """
    if len(candidates) == 0:
        return None
    query, information = most_informative(surrogate.model(x), x, candidates)
    slope = float(surrogate.gradient_posterior(x).mean.square().sum()) * surrogate.scale * surrogate.scale
    return query if information > slope else None


def most_informative(model: DerivedGP, x: Tensor, candidates: Tensor) -> tuple[Tensor, float]:
    """The candidate whose value would reduce the trace of ∇f(x)'s covariance most, and the reduction.

    Args:
        model: the model, in the coordinates of x.
        x: the point at which the gradient is estimated, shape ``d``.
        candidates: ``m x d``.

    Returns:
        The point and the reduction, in squared units of f per squared unit of x; 0 if no candidate reduces it.
    """
    with torch.no_grad():
        values = GradientInformation(model, x)(candidates[:, None, :])
    values = values.nan_to_num(nan=0.0)
    best = int(values.argmax())
    return candidates[best], float(values[best])


def uncertain_candidates(
    conditioning: StationaryConditioning, x: Tensor, nearest: float, farthest: float, seed: int, step: int
) -> Tensor:
    """Points on both sides of x along directions in which ∇f(x) is most uncertain, ``m x d``.

    The directions come from ``POWERS`` steps u ← Cu/‖Cu‖, started at normal vectors, with the gradient covariance C = D
    − WᵀW, W = L⁻¹J(x). With fewer queries than dimensions they are unexplored directions, otherwise they are close to
    C's leading eigenvectors. O(n²d) for n queries.

    Args:
        conditioning: the Gaussian process conditioned on the queries.
        x: the point, shape ``d``.
        nearest: the least distance.
        farthest: the largest distance.
        seed: seed of the normal directions.
        step: their address.
    """
    return around(x, uncertain_directions(conditioning, x, UNCERTAIN, seed, step), nearest, farthest)


def uncertain_directions(conditioning: StationaryConditioning, x: Tensor, count: int, seed: int, step: int) -> Tensor:
    """Unit vectors of large gradient uncertainty, ``count x d``, float64: ``POWERS`` products with C, see above."""
    W = conditioning.whitened_jacobian(x[None])[0]
    prior = conditioning.prior_variance.double()
    u = Directions(seed, len(x), "normal").block(step, count, device=x.device)
    for _ in range(POWERS):
        u = torch.nn.functional.normalize(prior * u - (u @ W.mT) @ W, dim=1)
    return u


def around(x: Tensor, u: Tensor, nearest: float, farthest: float) -> Tensor:
    """x + δu and x − δu for unit vectors u, ``k x d``, and ``LEVELS`` distances δ; shape ``2k·LEVELS x d``."""
    u = torch.cat([u, -u]).to(x)
    return torch.cat([x + distance * u for distance in distances(nearest, farthest)])


def distances(nearest: float, farthest: float) -> list[float]:
    """``LEVELS`` distances in equal ratios; the farthest is at least the nearest."""
    far = max(nearest, farthest)
    return [nearest * (far / nearest) ** (level / (LEVELS - 1)) for level in range(LEVELS)]
