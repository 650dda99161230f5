"""Steps on one side of a plane, and the plane that separates given points from others.

References:
    C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, 1974, Ch. 23 (least distance programming).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from optimizers.subproblems.ball_box import Derivatives, minimize_in_ball

STILL = 1e-6
"""The least share that a step is drawn back to: a step along the plane does not lose its length to rounding."""


@dataclass(frozen=True)
class HalfSpace:
    """The side of the plane nᵀs = 1 that holds 0.

    Attributes:
        normal: n, shape ``d``.
        share: how much of the way to the plane steps may go at most.
    """

    normal: Tensor
    share: float = 0.25

    def allowed(self, delta: float) -> float:
        """The largest nᵀs of a step: it stays a radius δ away from the plane, or goes no nearer to it.

        Behind the plane lies a region whose border may be curved. A step of length δ along a border of curvature κ
        meets it if it began nearer than κδ²/2, so the distance has to shrink no faster than the radius: a run whose
        steps always go to the plane ends where every long step fails.
        """
        return min(self.share, max(0.0, 1.0 - delta * float(self.normal.norm())))

    def allows(self, s: Tensor, delta: float) -> bool:
        """Whether nᵀs is at most what a step may have."""
        return float(self.normal @ s) <= self.allowed(delta)

    def away(self, e: Tensor, delta: float) -> Tensor:
        """A direction e, or −e where a step of δ along e goes too far to the plane."""
        return -e if delta * float(self.normal @ e) > self.share else e

    def drawn_back(self, s: Tensor, share: float) -> Tensor:
        """A step, shape ``d``, drawn back to 0 until nᵀs is at most the share."""
        share = max(share, STILL)
        return s * min(1.0, share / max(float(self.normal @ s), share))

    def minimize(
        self,
        value: Callable[[Tensor], float],
        derivatives: Derivatives,
        radius: float,
        lower: Tensor,
        upper: Tensor,
        newton: int,
    ) -> tuple[Tensor, float]:
        """As ``minimize_in_ball``, on the plane nᵀs = ``allowed``; the step is shortened where it leaves the box."""
        n, share = self.normal, self.allowed(radius)
        foot = n * (share / float(n.square().sum()))
        Z = torch.linalg.qr(n[:, None], mode="complete").Q[:, 1:]
        left = float((radius**2 - foot.square().sum()).clamp_min(0.0).sqrt())
        start = value(foot)

        def within(t: Tensor) -> tuple[Tensor, Tensor]:
            g, H = derivatives(foot + Z @ t)
            return Z.mT @ g, Z.mT @ H @ Z

        free = torch.full((Z.shape[1],), torch.inf, dtype=Z.dtype)
        t, _ = minimize_in_ball(lambda t: value(foot + Z @ t) - start, within, left, -free, free, newton=newton)
        s = self.drawn_back(torch.clamp(foot + Z @ t, lower, upper), share)
        return s, value(s)


def separating_plane(behind: Tensor, before: Tensor) -> Tensor | None:
    """Computes n of the plane nᵀs = 1 that is farthest from 0 and separates points; None where there is none.

    It solves min ‖n‖ subject to nᵀs ≥ 1 for the points behind and nᵀs ≤ 1 for those before, by non-negative least
    squares.

    Args:
        behind: s of points behind the plane, ``m x d``.
        before: s of points on the side of 0, ``n x d``.
    """
    if len(behind) == 0:
        return None
    signs = np.concatenate([np.ones(len(behind)), -np.ones(len(before))])
    E = np.vstack([torch.cat([behind, before]).numpy().T * signs, signs])
    target = np.zeros(len(E))
    target[-1] = 1.0
    try:
        residual = E @ nnls(E, target)[0] - target
    except RuntimeError:
        return None
    return torch.from_numpy(residual[:-1] / -residual[-1]) if -residual[-1] > 1e-9 else None


def confined(s: Tensor, delta: float, lower: Tensor, upper: Tensor, plane: HalfSpace | None) -> Tensor:
    """A step, shape ``d``, clipped to the box, and drawn back to 0 into the ball of radius δ and before a plane."""
    s = torch.minimum(torch.maximum(s, lower), upper)
    s = s * min(1.0, delta / max(float(s.norm()), 1e-300))
    return s if plane is None else plane.drawn_back(s, plane.allowed(delta))
