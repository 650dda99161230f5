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
"""How much of the way to the plane steps may go at most: the plane is where failures begin or farther."""

STILL = 1e-6
"""The least share that a step is drawn back to: one along the plane does not lose its length to rounding."""

AT = 0.05
"""A plane is near at this many radii: a border of curvature 1/(10δ) bends as far in a step of δ along it."""

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


def share_of(cut: Tensor, delta: float) -> float:
    """The largest nᵀs of a step: it stays a radius δ away from the plane, or goes no nearer to it.

    Failures begin before the plane, on a border that may be curved. A step of length δ along a border of curvature κ
    meets it if it began nearer than κδ²/2, so that the distance has to shrink no faster than the radius: steps that
    are always drawn to the plane end where every long one fails.
    """
    return min(SHARE, max(0.0, 1.0 - delta * float(cut.norm())))


def is_at(cut: Tensor, delta: float) -> bool:
    """Whether the plane is so near that a step of δ along it may end behind a border that bends a little (``AT``)."""
    return AT * delta * float(cut.norm()) > 1.0


def drawn_back(s: Tensor, share: float, cut: Tensor) -> Tensor:
    """A step, shape ``d``, drawn back to 0 until nᵀs is at most the share."""
    share = max(share, STILL)
    return s * min(1.0, share / max(float(cut @ s), share))


def confined(s: Tensor, delta: float, lower: Tensor, upper: Tensor, cut: Tensor | None) -> Tensor:
    """A step, shape ``d``, clipped to the box, and drawn back to 0 into the ball of radius δ and before a cut."""
    s = torch.minimum(torch.maximum(s, lower), upper)
    s = s * min(1.0, delta / max(float(s.norm()), 1e-300))
    return s if cut is None else drawn_back(s, share_of(cut, delta), cut)


def minimize_before(
    value: Callable[[Tensor], float],
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]],
    radius: float,
    lower: Tensor,
    upper: Tensor,
    cut: Tensor,
) -> tuple[Tensor, float]:
    """``minimize_in_ball`` on the plane nᵀs = ``share_of``; the step is shortened where it leaves the box."""
    share = share_of(cut, radius)
    foot = cut * (share / float(cut.square().sum()))
    Z = torch.linalg.qr(cut[:, None], mode="complete").Q[:, 1:]
    left = float((radius**2 - foot.square().sum()).clamp_min(0.0).sqrt())
    start = value(foot)

    def within(t: Tensor) -> tuple[Tensor, Tensor]:
        g, H = derivatives(foot + Z @ t)
        return Z.mT @ g, Z.mT @ H @ Z

    free = torch.full((Z.shape[1],), torch.inf, dtype=Z.dtype)
    t, _ = minimize_in_ball(lambda t: value(foot + Z @ t) - start, within, left, -free, free)
    s = drawn_back(torch.clamp(foot + Z @ t, lower, upper), share, cut)
    return s, value(s)
