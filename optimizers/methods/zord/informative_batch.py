"""Chooses the queries that, together with the iterate z, are most informative about ∇f(z).

The covariance of ∇f(z) under a Gaussian process does not depend on values. Therefore the process can be conditioned on
pending points, including z, before their values arrive.
"""

from __future__ import annotations

import torch
from torch import Tensor

from optimizers.methods.zord.active_queries import UNCERTAIN, around, uncertain_directions
from surrogates.kernels.blocks import kernel_values, snapshot
from surrogates.linalg.cholesky import factor
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.window_surrogate import WindowSurrogate


def covariance_given(surrogate: WindowSurrogate, z: Tensor, pending: Tensor) -> StationaryConditioning:
    """Conditions the process on the queries nearest to z and on pending points, ``p x d``, for covariances only.

    The mean of the result is meaningless, because pending values are unknown. Covariances are in float64 and in units
    of the outputscale. The surrogate does not change. With n queries the cost is O((n + p)³ + (n + p)² d).
    """
    trajectory, h = surrogate.trajectory, surrogate.hyperparameters
    rows = trajectory.nearest(z, surrogate.size)
    X = torch.cat([trajectory.X[rows], pending]).double()
    kernel = snapshot(surrogate.kernel(h.lengthscale).to(X.device))
    A = kernel_values(kernel, X, X)
    A.diagonal().add_(h.noise_ratio)
    return StationaryConditioning(kernel, None, X, factor(A), X.new_zeros(len(X)))


def batch_candidates(
    conditioning: StationaryConditioning, z: Tensor, count: int, nearest: float, farthest: float, seed: int, step: int
) -> Tensor:
    """Returns candidates z ± δu, ``m x d``, for orthonormal u of large gradient uncertainty and four distances δ.

    ``count`` is the number of candidates that will be queried. There are max(8, ``count``) directions, at most d, drawn
    by ``seed`` and ``step``. The distances are from ``nearest`` to ``farthest``.
    """
    u = uncertain_directions(conditioning, z.double(), max(UNCERTAIN, count), seed, step)
    return around(z, torch.linalg.qr(u.mT).Q.mT, nearest, farthest)


def most_informative_set(
    conditioning: StationaryConditioning, z: Tensor, candidates: Tensor, noise: float, count: int
) -> list[int]:
    """Chooses candidates greedily that together reduce trace cov ∇f(z) most, and returns their indices.

    With R = cov(f(candidates), ∇f(z)) and V = cov f(candidates), candidate j reduces the trace by ‖Rⱼ‖²/(Vⱼⱼ + s²). The
    candidate of largest reduction is chosen, and the process is conditioned on it:

        R ← R − V·ⱼ Rⱼ/(Vⱼⱼ + s²),   V ← V − V·ⱼ Vⱼ·/(Vⱼⱼ + s²).

    The cost is O(n² m + n m d + count (m d + m²)) for a process conditioned on n points.

    Args:
        conditioning: the result of ``covariance_given``, with z among its points.
        z: the iterate, shape ``d``.
        candidates: points where f could be queried, ``m x d``.
        noise: the noise variance s², in units of the outputscale.
        count: the largest number of candidates to choose.
    """
    points = candidates.double()
    R = conditioning.value_gradient_covariance(points, z[None].double())[:, 0]
    V = conditioning.value_covariance(points, points)
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        drop = R.square().sum(1) / (V.diagonal().clamp_min(0.0) + noise)
        drop[chosen] = -torch.inf
        j = int(drop.argmax())
        chosen.append(j)
        share = V[:, j] / (V[j, j].clamp_min(0.0) + noise)
        R, V = R - torch.outer(share, R[j]), V - torch.outer(share, V[j])
    return chosen
