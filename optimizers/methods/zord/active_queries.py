"""Active queries: queries that improve the estimate of a gradient, made if they gain more than a step."""

from __future__ import annotations

import torch
from torch import Tensor

from optimizers.directions.directions import Directions
from surrogates import DerivedGP
from surrogates.gradient_information import GradientInformation
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.window_surrogate import WindowSurrogate

LEVELS = 4
"""The number of distances from x at which candidates lie."""

UNCERTAIN = 8
"""Candidates lie along this many directions of large gradient uncertainty, on both sides of x."""

POWERS = 4
"""The number of power iterations that turn random directions towards those of large gradient uncertainty."""


def gainful_query(surrogate: WindowSurrogate, x: Tensor, candidates: Tensor) -> Tensor | None:
    """Returns the candidate that is most informative about ∇f(x) if its query gains more than a step, else None.

    With the posterior mean ∇μ of ∇f(x), the query gains more if I > ‖∇μ‖², where I is its reduction of trace cov ∇f(x)
    and also the expected increase of ‖∇μ‖². Since a step gains in proportion to ‖∇μ‖², k such queries and a step gain
    (‖∇μ‖² + kI)/(k + 1) per query, which then increases with k.

    Args:
        surrogate: the Gaussian process of the queries, begun at x.
        x: the point at which the gradient is estimated, shape ``d``, search coordinates.
        candidates: points where f could be queried, ``m x d``, none equal to x.
    """
    if len(candidates) == 0:
        return None
    query, information = most_informative(surrogate.model(x), x, candidates)
    slope = float(surrogate.gradient_posterior(x).mean.square().sum()) * surrogate.scale * surrogate.scale
    return query if information > slope else None


def most_informative(model: DerivedGP, x: Tensor, candidates: Tensor) -> tuple[Tensor, float]:
    """Returns the candidate, of ``m x d``, whose query would reduce trace cov ∇f(x) most, and the reduction."""
    with torch.no_grad():
        values = GradientInformation(model, x)(candidates[:, None, :])
    values = values.nan_to_num(nan=0.0)
    best = int(values.argmax())
    return candidates[best], float(values[best])


def uncertain_candidates(
    conditioning: StationaryConditioning, x: Tensor, nearest: float, farthest: float, seed: int, step: int
) -> Tensor:
    """Returns points on both sides of x along directions of large gradient uncertainty, ``m x d``.

    Their distances are from ``nearest`` to ``farthest``; the directions are drawn by ``seed`` and ``step``. With n
    queries, this takes O(n²d) time.
    """
    return around(x, uncertain_directions(conditioning, x, UNCERTAIN, seed, step), nearest, farthest)


def uncertain_directions(conditioning: StationaryConditioning, x: Tensor, count: int, seed: int, step: int) -> Tensor:
    """Returns unit vectors u of large gradient uncertainty uᵀCu, ``count x d``, float64.

    They come from random vectors by ``POWERS`` power iterations u ← Cu/‖Cu‖ with the covariance C of ∇f(x). With fewer
    queries than dimensions they are unexplored directions, otherwise they are close to C's leading eigenvectors.
    """
    W = conditioning.whitened_jacobian(x[None])[0]
    prior = conditioning.prior_variance.double()
    u = Directions(seed, len(x), "normal").block(step, count, device=x.device)
    for _ in range(POWERS):
        u = torch.nn.functional.normalize(prior * u - (u @ W.mT) @ W, dim=1)
    return u


def around(x: Tensor, u: Tensor, nearest: float, farthest: float) -> Tensor:
    """Returns x ± δu for unit vectors u, ``k x d``, and ``LEVELS`` distances δ; shape ``2k·LEVELS x d``."""
    u = torch.cat([u, -u]).to(x)
    return torch.cat([x + distance * u for distance in distances(nearest, farthest)])


def distances(nearest: float, farthest: float) -> list[float]:
    """Returns ``LEVELS`` distances in equal ratios from ``nearest`` to max(``nearest``, ``farthest``)."""
    far = max(nearest, farthest)
    return [nearest * (far / nearest) ** (level / (LEVELS - 1)) for level in range(LEVELS)]
