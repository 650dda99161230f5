"""Queries in addition to an iterate z, chosen jointly for their information about ∇f(z) given f(z).

Under a Gaussian process the covariance of ∇f(z) does not depend on values. Pending points, including z, can therefore
be conditioned on before their values arrive.
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
    """The GP conditioned on the queries nearest to z and on pending points, for covariances only.

    Values do not affect covariances, so α is 0 and the mean is meaningless. The conditioning is in float64 and in units
    of √o, and does not move the surrogate's window. With n queries and p points the cost is O((n + p)³ + (n + p)² d).

    Args:
        surrogate: the queries and the kernel.
        z: a point, shape ``d``, search coordinates.
        pending: the pending points, ``p x d``.
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
    """z ± δu for max(8, count) orthonormal u (at most d) of large gradient uncertainty and four δ, ``m x d``.

    Args:
        conditioning: the result of ``covariance_given``.
        z: the iterate, shape ``d``.
        count: the number of candidates that will be queried.
        nearest: the least δ.
        farthest: the largest δ.
        seed: seed of the random start of the directions.
        step: its address.
    """
    u = uncertain_directions(conditioning, z.double(), max(UNCERTAIN, count), seed, step)
    return around(z, torch.linalg.qr(u.mT).Q.mT, nearest, farthest)


def most_informative_set(
    conditioning: StationaryConditioning, z: Tensor, candidates: Tensor, noise: float, count: int
) -> list[int]:
    """The indices of candidates chosen greedily so that together they reduce trace cov ∇f(z) most.

    With R = cov(f(candidates), ∇f(z)) and V = cov f(candidates), candidate j reduces the trace by ‖Rⱼ‖²/(Vⱼⱼ + s²). The
    candidate of largest reduction is chosen and conditioned on:

        R ← R − V·ⱼ Rⱼ/(Vⱼⱼ + s²),   V ← V − V·ⱼ Vⱼ·/(Vⱼⱼ + s²).

    O(n² m + n m d + count (m d + m²)) for n points that are conditioned on.

    Args:
        conditioning: the result of ``covariance_given``, with z among its points.
        z: the iterate, shape ``d``.
        candidates: points where f could be queried, ``m x d``.
        noise: s², in units of o.
        count: how many to choose; at most m are.
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
