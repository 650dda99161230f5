"""Draws CobBO's blocks of coordinates, and projects observations onto their subspaces."""

from __future__ import annotations

import logging
import math

import numpy as np
import torch
from scipy.interpolate import RBFInterpolator
from torch import Tensor

logger = logging.getLogger(__name__)

CLUSTER_RADIUS = 1e-3
"""The interpolation leaves out a point within this distance of a better one (root mean square over coordinates)."""

REWARD, PENALTY = 2.0, 1.1
"""α and β in CobBO's eq. 2: a weight is multiplied by α after a success, and divided by β after a failure."""

ROUNDING = 1e-6
"""Coordinates that differ by at most this fraction of the box's width are equal (float32 rounds by less)."""


def updated_weights(log_weights: Tensor, block: Tensor, improved: bool) -> Tensor:
    """Updates the coordinates' log-weights, shape ``d``, after a query in a block (CobBO's eq. 2).

    The weight w_j of each coordinate in the block is multiplied by α = 2 after an improvement, and divided by β = 1.1
    otherwise. Then all weights are scaled so that the largest is 1.
    """
    updated = log_weights.clone()
    updated[block] += math.log(REWARD) if improved else -math.log(PENALTY)
    return updated - updated.max()


def sample_block(log_weights: Tensor, size: int, generator: np.random.Generator) -> Tensor:
    """Draws ``size`` coordinates without replacement with probabilities w_j/Σw (CobBO's Theorem 2).

    The drawn indices, in ascending order, have the largest ln w_j + G_j, where G_j are standard Gumbel numbers.
    """
    noise = torch.from_numpy(generator.gumbel(size=len(log_weights))).to(log_weights)
    return (log_weights + noise).topk(size).indices.sort().values


def spread_out(X: Tensor, y: Tensor, radius: float) -> Tensor:
    """Selects points, the best first, that are at least ``radius`` apart; returns their indices in ascending order."""
    distances, kept = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist"), []
    free = torch.ones(len(y), dtype=torch.bool, device=X.device)
    for i in y.argsort(stable=True).tolist():
        if bool(free[i]):
            kept.append(i)
            free &= distances[i] >= radius
    return torch.tensor(sorted(kept), device=X.device)


def interpolate(X: Tensor, y: Tensor, queries: Tensor) -> Tensor:
    """Interpolates values y at points X of the unit cube, ``n x d``, by multiquadrics at ``queries``, ``q x d``.

    The radial function is φ(r) = √(1 + (r/s)²), plus a constant, with the spacing s = n^(−1/d) of n points in the unit
    cube, as in ``scipy.interpolate.Rbf``, which CobBO's paper cites. If the points are too close to each other for the
    system to be solved, the value of the nearest point is used.
    """
    kept = spread_out(X, y, CLUSTER_RADIUS * math.sqrt(X.shape[1]))
    X, y = X[kept], y[kept]
    if len(y) == 1:
        return y.expand(len(queries)).clone()
    spacing, shift = len(y) ** (-1.0 / X.shape[1]), y.median()
    scale = (y - shift).abs().max().clamp(min=torch.finfo(y.dtype).tiny)
    try:
        nodes, heights = X.cpu().numpy(), ((y - shift) / scale).cpu().numpy()
        surface = RBFInterpolator(nodes, heights, kernel="multiquadric", epsilon=1.0 / spacing, degree=0)
        values = shift + scale * torch.from_numpy(surface(queries.cpu().numpy())).to(y)
    except np.linalg.LinAlgError:
        logger.info("CobBO cannot interpolate %d points that nearly coincide; it uses the nearest values", len(y))
        values = torch.full_like(queries[:, 0], math.nan)
    nearest = y[torch.cdist(queries, X).argmin(dim=1)]
    return torch.where(torch.isfinite(values), values, nearest)


def virtual_points(X: Tensor, y: Tensor, pivot: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Projects observations onto the subspace of a block of coordinates through the pivot (CobBO's eq. 1).

    A projection that was itself observed gets the mean of its observed values, any other an interpolated value. Equal
    projections are merged.

    Args:
        X: the observed points of the unit cube, ``n x d``.
        y: the observed values, shape ``n``.
        pivot: the pivot V, shape ``d``.
        block: the indices of the block's c coordinates.

    Returns:
        The projections in the block's coordinates, ``v x c``, and their values, shape ``v``.
    """
    projected = pivot.expand_as(X).clone()
    projected[:, block] = X[:, block]
    observed = ((projected - X).abs() <= ROUNDING).all(dim=1)
    distinct, group = torch.unique(projected, dim=0, return_inverse=True)
    values = interpolate(X, y, distinct)
    count = torch.zeros_like(values).index_add_(0, group[observed], torch.ones_like(y[observed]))
    total = torch.zeros_like(values).index_add_(0, group[observed], y[observed])
    return distinct[:, block], torch.where(count > 0, total / count.clamp(min=1.0), values)
