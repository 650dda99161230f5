"""The region of a step: a ball, a box and a half-space about 0; and the plane that separates given points.

References:
    C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, 1974, Ch. 23 (least distance programming).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from optimizers.subproblems.ball import shortened

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


@dataclass(frozen=True)
class Region:
    """Where a step may end.

    Attributes:
        delta: δ, the radius of the ball.
        lower: the box's lower side less the center, shape ``d``, at most 0; −inf for none.
        upper: the upper side less the center, at least 0.
        half_space: the half-space, or None.
    """

    delta: float
    lower: Tensor
    upper: Tensor
    half_space: HalfSpace | None = None

    def confined(self, s: Tensor) -> Tensor:
        """A step, shape ``d``, clipped to the box, and drawn back to 0 into the ball and before the plane."""
        s = shortened(torch.clamp(s, self.lower, self.upper), self.delta)
        if self.half_space is None:
            return s
        share = max(self.half_space.allowed(self.delta), STILL)
        return s * min(1.0, share / max(float(self.half_space.normal @ s), share))

    def away(self, e: Tensor) -> Tensor:
        """A unit vector e, or −e where a step of δ along e goes too far to the plane."""
        plane = self.half_space
        return -e if plane is not None and self.delta * float(plane.normal @ e) > plane.share else e


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
    target = np.eye(len(E))[-1]
    try:
        residual = E @ nnls(E, target)[0] - target
    except RuntimeError:
        return None
    return torch.from_numpy(residual[:-1] / -residual[-1]) if -residual[-1] > 1e-9 else None
