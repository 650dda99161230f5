"""The least value of a function in a ball, cut by a box: exact for a quadratic in the ball, by Newton steps otherwise.

References:
    A. R. Conn, N. I. M. Gould and P. L. Toint, Trust-Region Methods, 2000, Secs. 7.2 and 7.3.
    J. J. Moré and D. C. Sorensen, Computing a trust region step, SIAM J. Sci. Stat. Comput. 4, 1983.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import torch
from torch import Tensor

NEWTON = 6
"""The most Newton steps of ``minimize_in_ball`` after the first one."""

HALVINGS, DOWNHILL = 3, 10
"""The most halvings of a Newton step, and of a gradient step where no Newton step lowers the function."""

ENOUGH = 1e-3
"""A step must gain this share of the decrease so far, or it is the last one."""

Derivatives = Callable[[Tensor], tuple[Tensor, Tensor]]


def ball_minimizer(gradient: Tensor, hessian: Tensor, radius: float) -> Tensor:
    """Computes argmin gᵀs + ½ sᵀHs over ‖s‖ ≤ radius, shape ``d``; H may have negative eigenvalues. O(d³).

    With H = QΛQᵀ and b = Qᵀg the solution is −Q(Λ + μ)⁻¹b, where μ ≥ max(0, −λ₁) is the root of
    1/‖(Λ + μ)⁻¹b‖ = 1/radius, or 0 where the ball holds the minimum. If g has no part along the lowest eigenvectors,
    one of them is added to reach the sphere (the hard case).
    """
    if len(gradient) == 0 or radius <= 0.0:
        return torch.zeros_like(gradient)
    eigenvalues, Q = torch.linalg.eigh(hessian)
    values, b = eigenvalues.numpy(), (Q.mT @ gradient).numpy()
    lowest, size = float(values[0]), float(np.sqrt((b * b).sum()))
    largest = max(abs(lowest), abs(float(values[-1])), size / radius, 1e-300)

    def step(mu: float) -> tuple[np.ndarray, float]:
        s = -b / np.maximum(values + mu, 1e-18 * largest)
        return s, math.sqrt((s * s).sum())

    if lowest > 0.0:
        inside, length = step(0.0)
        if length <= radius:
            return Q @ torch.from_numpy(inside)
    low = max(0.0, -lowest)
    high = low + size / radius
    mu = low + 1e-12 * largest
    s, length = step(mu)
    if length < radius:
        if lowest < 0.0:
            s[0] += math.copysign(math.sqrt(max(0.0, radius**2 - length**2)), -b[0])
            s *= radius / math.sqrt((s * s).sum())
        return Q @ torch.from_numpy(s)
    for _ in range(60):
        if abs(length - radius) <= 1e-10 * radius:
            break
        low, high = (mu, high) if length > radius else (low, mu)
        slope = float((s * s / np.maximum(values + mu, 1e-18 * largest)).sum())
        trial = mu + (length / radius - 1.0) * length**2 / slope if slope > 0.0 else math.inf
        mu = trial if low < trial < high else 0.5 * (low + high)
        s, length = step(mu)
    return Q @ torch.from_numpy(s * min(1.0, radius / length))


def box_ball_minimizer(
    gradient: Tensor, hessian: Tensor, radius: float, lower: Tensor, upper: Tensor, held: Tensor, start: Tensor
) -> Tensor:
    """Computes a point of ball and box at which a quadratic is low, shape ``d``; it is exact where no side holds.

    Variables that are not held take the solution in the ball. Those that leave the box are then held at its side, and
    the others take the solution in the rest of the ball, until none leaves.

    Args:
        gradient: g, shape ``d``.
        hessian: H, ``d x d``.
        radius: the ball's radius; its center is 0.
        lower: the box's lower side, shape ``d``, at most 0.
        upper: its upper side, at least 0.
        held: which variables stay where ``start`` has them, shape ``d``.
        start: a point of ball and box, shape ``d``.
    """
    s, some = torch.where(held, start, 0.0), bool(held.any())
    while not (some and bool(held.all())):
        if some:
            free = ~held
            left = radius**2 - float(s[held].square().sum())
            if left <= 0.0:
                break
            part = gradient[free] + hessian[free][:, held] @ s[held]
            s[free] = ball_minimizer(part, hessian[free][:, free], math.sqrt(left))
        else:
            s = ball_minimizer(gradient, hessian, radius)
        inside = torch.clamp(s, lower, upper)
        out = inside != s
        if not bool(out.any()):
            break
        held, some = held | out, True
        s = torch.where(held, inside, 0.0)
    return shortened(s, radius)


def minimize_in_ball(
    value: Callable[[Tensor], float],
    derivatives: Derivatives,
    radius: float,
    lower: Tensor,
    upper: Tensor,
    first: tuple[Tensor, Tensor] | None = None,
    newton: int = NEWTON,
) -> tuple[Tensor, float]:
    """Finds a low value of a function that is 0 at 0, in a ball and a box about 0; gives the step and the value.

    The quadratic about s, gᵀ(p − s) + ½(p − s)ᵀH(p − s), is one about 0 with gradient g − Hs, so that each Newton step
    is solved in the same ball. It is halved until the function falls.

    Args:
        value: the function of a step, shape ``d``.
        derivatives: its gradient, shape ``d``, and its Hessian, ``d x d``.
        radius: the ball's radius.
        lower: the box's lower side less the center, shape ``d``; −inf for none.
        upper: the upper side less the center.
        first: the derivatives at 0, where they are known.
        newton: the most Newton steps after the first one.
    """
    known = [first] if first is not None else []

    def trials(s: Tensor) -> Iterable[Tensor]:
        g, H = known.pop() if known else derivatives(s)
        held = ((s <= lower) & (g > 0)) | ((s >= upper) & (g < 0))
        target = box_ball_minimizer(g - H @ s, H, radius, lower, upper, held, s)
        size = max(float(g.norm()), 1e-300)
        downhill = (torch.clamp(s - g * (0.5**k * radius / size), lower, upper) for k in range(DOWNHILL + 1))
        return chain(halved(s, target, HALVINGS), (shortened(trial, radius) for trial in downhill))

    return descend(value, trials, torch.zeros_like(lower), 1 + newton)


def descend(
    value: Callable[[Tensor], float], trials: Callable[[Tensor], Iterable[Tensor]], start: Tensor, rounds: int
) -> tuple[Tensor, float]:
    """Lowers a function that is 0 at the start: each round takes the first of its trials that is lower.

    Args:
        value: the function.
        trials: the points to try from the present one.
        start: the first point, shape ``d``.
        rounds: the most rounds. A round that gains less than ``ENOUGH`` of the decrease so far is the last one.
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
    """Yields the target and the points ½, ¼, … of the way from s to it."""
    return (s + 0.5**k * (target - s) for k in range(halvings + 1))


def shortened(s: Tensor, radius: float) -> Tensor:
    """The step s, or the part of it that lies in the ball."""
    norm = float(s.norm())
    return s * (radius / norm) if norm > radius else s
