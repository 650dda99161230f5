"""Steps to a low value of a function in a region: the intersection of a ball, a box and a half-space.

References:
    A. R. Conn, N. I. M. Gould and P. L. Toint, Trust-Region Methods, 2000, Secs. 7.2 and 7.3.
    J. J. Moré and D. C. Sorensen, Computing a trust region step, SIAM J. Sci. Stat. Comput. 4, 1983.
    C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, 1974, Ch. 23 (least distance programming).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from scipy.optimize import brentq, nnls
from torch import Tensor

NEWTON = 6
"""The most Newton steps of ``minimize_in_ball`` after the first one."""

HALVINGS, DOWNHILL = 3, 10
"""The most halvings of a Newton step, and of the gradient step that is tried if no Newton step lowers the function."""

ENOUGH = 1e-3
"""The search ends after a step that gains less than this share of the decrease so far."""

STILL = 1e-6
"""The half-space allows at least this nᵀs, so that rounding does not shorten a step along the plane to zero."""

Value = Callable[[Tensor], float]
Derivatives = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps a point, shape ``d``, to the gradient, shape ``d``, and the Hessian, ``d x d``."""


def ball_minimizer(gradient: Tensor, hessian: Tensor, radius: float) -> Tensor:
    """Computes argmin gᵀs + ½ sᵀHs over ‖s‖ ≤ radius, shape ``d``; H may have negative eigenvalues. O(d³).

    With H = QΛQᵀ and b = Qᵀg the solution is −Q(Λ + μ)⁻¹b, where μ ≥ max(0, −λ₁) is the root of
    1/‖(Λ + μ)⁻¹b‖ = 1/radius, or μ = 0 if the ball contains the minimum. If g has no component along the lowest
    eigenvectors, one of them is added to reach the sphere (the hard case).
    """
    if len(gradient) == 0 or radius <= 0.0:
        return torch.zeros_like(gradient)
    eigenvalues, Q = torch.linalg.eigh(hessian)
    values, b = eigenvalues.numpy(), (Q.mT @ gradient).numpy()
    lowest, size = float(values[0]), math.sqrt(b @ b)
    least = 1e-18 * max(abs(lowest), abs(float(values[-1])), size / radius, 1e-300)

    def step(mu: float) -> np.ndarray:
        return -b / np.maximum(values + mu, least)

    def excess(mu: float) -> float:
        s = step(mu)
        return 1.0 / math.sqrt(max(s @ s, 1e-300)) - 1.0 / radius

    start = 0.0 if lowest > 0.0 else -lowest + 1e6 * least
    if excess(start) >= 0.0:
        s = step(start)
        if lowest < 0.0:
            s[0] += math.copysign(math.sqrt(max(0.0, radius**2 - s @ s)), -b[0])
    else:
        s = step(brentq(excess, start, max(0.0, -lowest) + (1.0 + 1e-6) * size / radius, xtol=least, rtol=1e-10))
    return Q @ torch.from_numpy(s * min(1.0, radius / max(math.sqrt(s @ s), 1e-300)))


def minimize_in_ball(
    value: Value, derivatives: Derivatives, radius: float, start: Tensor, newton: int = NEWTON
) -> tuple[Tensor, float]:
    """Finds a low value of a function in a ball about 0, given that it is 0 at ``start``; returns point and value.

    The quadratic about s, gᵀ(p − s) + ½(p − s)ᵀH(p − s), is a quadratic about 0 with gradient g − Hs, so that each
    Newton step is solved in the same ball. A step is halved until the function falls; if it never falls, gradient steps
    are tried.

    Args:
        value: the function of a point, shape ``d``.
        derivatives: the function's gradient, shape ``d``, and Hessian, ``d x d``.
        radius: the ball's radius.
        start: a point of the ball, shape ``d``.
        newton: the most Newton steps after the first one.
    """

    def trials(s: Tensor) -> Iterable[Tensor]:
        g, H = derivatives(s)
        size = max(float(g.norm()), 1e-300)
        downhill = (shortened(s - g * (0.5**k * radius / size), radius) for k in range(DOWNHILL + 1))
        return chain(halved(s, ball_minimizer(g - H @ s, H, radius), HALVINGS), downhill)

    return descend(value, trials, start, 1 + newton)


def descend(
    value: Value, trials: Callable[[Tensor], Iterable[Tensor]], start: Tensor, rounds: int
) -> tuple[Tensor, float]:
    """Lowers a function that is 0 at ``start``: each round moves to the first trial point with a lower value.

    Args:
        value: the function.
        trials: maps the current point to the points to try.
        start: the first point, shape ``d``.
        rounds: the most rounds; ``ENOUGH`` may end the search earlier.
    """
    s, least = start, 0.0
    for _ in range(rounds):
        found = next(((trial, fall) for trial in trials(s) if (fall := value(trial)) < least), None)
        if found is None:
            break
        gained, (s, least) = least - found[1], found
        if gained <= -ENOUGH * least:
            break
    return s, least


def halved(s: Tensor, target: Tensor, halvings: int) -> Iterable[Tensor]:
    """Yields the target and the points ½, ¼, … of the way from s to the target."""
    return (s + 0.5**k * (target - s) for k in range(halvings + 1))


def shortened(s: Tensor, radius: float) -> Tensor:
    """The step s, shortened to the radius if s is longer."""
    return s * min(1.0, radius / max(float(s.norm()), 1e-300))


@dataclass(frozen=True)
class HalfSpace:
    """The half-space nᵀs ≤ 1, which contains 0.

    Attributes:
        normal: n, shape ``d``.
        share: the largest part of the way to the plane that a step may go.
    """

    normal: Tensor
    share: float = 0.25

    def allowed(self, delta: float) -> float:
        """The largest nᵀs of a step, which ends at least δ away from the plane or, if 0 is nearer, no nearer than 0.

        The plane approximates the border of an infeasible region. A step of length δ along a border of curvature κ
        crosses it if the step begins nearer than κδ²/2. If every step went to the plane, all long steps would soon
        fail, so the distance to the plane must not shrink faster than δ.
        """
        return min(self.share, max(0.0, 1.0 - delta * float(self.normal.norm())))


@dataclass(frozen=True)
class Region:
    """The set of steps that are allowed.

    Attributes:
        delta: δ, the radius of the ball.
        lower: the box's lower bounds minus the center, shape ``d``, at most 0; −inf for none.
        upper: the upper bounds minus the center, at least 0; inf for none.
        half_space: the half-space, or None.
    """

    delta: float
    lower: Tensor
    upper: Tensor
    half_space: HalfSpace | None = None

    @property
    def free(self) -> Tensor:
        """Which variables may move, shape ``d``: those whose bounds differ."""
        return self.lower < self.upper

    def confined(self, s: Tensor) -> Tensor:
        """A step, shape ``d``, clipped to the box, then shortened to lie in the ball and before the plane."""
        s = shortened(torch.clamp(s, self.lower, self.upper), self.delta)
        if self.half_space is None:
            return s
        share = max(self.half_space.allowed(self.delta), STILL)
        return s * min(1.0, share / max(float(self.half_space.normal @ s), share))

    def away(self, e: Tensor) -> Tensor:
        """A unit vector e, or −e if a step of δ along e comes too near to the plane."""
        plane = self.half_space
        return -e if plane is not None and self.delta * float(plane.normal @ e) > plane.share else e


def separating_plane(behind: Tensor, before: Tensor) -> Tensor | None:
    """Computes n of the plane nᵀs = 1 farthest from 0 that separates two sets of points; None if there is none.

    n minimizes ‖n‖ subject to nᵀs ≥ 1 for points behind and nᵀs ≤ 1 for points before, by non-negative least squares.

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
