"""A plane between a trust region's centre and the queries about it that failed, which its steps do not cross.

References:
    C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, 1974, Ch. 23 (least distance programming).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from optimizers.methods.trust_region.step import minimize_in_ball

SHARE = 0.25
"""How much of the way to the plane steps may go: the plane is where failures begin or farther."""

REACH = 4.0
"""Queries of the plane are at most so many radii away."""


def cut_of(failed: Tensor, rows: Tensor, delta: float) -> Tensor | None:
    """n of the plane nᵀs = 1 that is farthest from 0, has failed queries behind it, and others not; None without one.

    It solves min ‖n‖ subject to nᵀs ≥ 1 for failed queries and nᵀs ≤ 1 for others, for those within ``REACH`` radii,
    by non-negative least squares; there is no such plane where these are inseparable.

    Args:
        failed: s of failed queries, ``m x d``.
        rows: s of those that succeeded, ``n x d``.
        delta: the radius.
    """
    near = [part[torch.linalg.vector_norm(part, dim=1) <= REACH * delta] / delta for part in (failed, rows)]
    if len(near[0]) == 0:
        return None
    signs = np.concatenate([np.ones(len(near[0])), -np.ones(len(near[1]))])
    E = np.vstack([torch.cat(near).numpy().T * signs, signs])
    target = np.zeros(len(E))
    target[-1] = 1.0
    try:
        residual = E @ nnls(E, target)[0] - target
    except RuntimeError:
        return None
    if -residual[-1] <= 1e-9:
        return None
    return torch.from_numpy(residual[:-1] / -residual[-1]) / delta


def confined(s: Tensor, delta: float, lower: Tensor, upper: Tensor, cut: Tensor | None) -> Tensor:
    """A step, shape ``d``, clipped to the box, and drawn back to 0 into the ball of radius δ and before a cut."""
    s = torch.minimum(torch.maximum(s, lower), upper)
    s = s * min(1.0, delta / max(float(s.norm()), 1e-300))
    return s if cut is None else s * min(1.0, SHARE / max(float(cut @ s), SHARE))


def minimize_before(
    value: Callable[[Tensor], float],
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]],
    radius: float,
    lower: Tensor,
    upper: Tensor,
    cut: Tensor,
) -> tuple[Tensor, float]:
    """``minimize_in_ball`` on the plane nᵀs = ``SHARE``; the step is shortened where it leaves the box."""
    foot = cut * (SHARE / float(cut.square().sum()))
    Z = torch.linalg.qr(cut[:, None], mode="complete").Q[:, 1:]
    left = float((radius**2 - foot.square().sum()).clamp_min(0.0).sqrt())
    start = value(foot)

    def within(t: Tensor) -> tuple[Tensor, Tensor]:
        g, H = derivatives(foot + Z @ t)
        return Z.mT @ g, Z.mT @ H @ Z

    free = torch.full((Z.shape[1],), torch.inf, dtype=Z.dtype)
    t, _ = minimize_in_ball(lambda t: value(foot + Z @ t) - start, within, left, -free, free)
    s = torch.clamp(foot + Z @ t, lower, upper)
    s = s * min(1.0, SHARE / max(float(cut @ s), SHARE))
    return s, value(s)
