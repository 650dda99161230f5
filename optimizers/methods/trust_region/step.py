"""The least value of a function in a ball, cut by a box: exact for quadratics in the ball, by Newton steps else.

References:
    A. R. Conn, N. I. M. Gould and P. L. Toint, Trust-Region Methods, 2000, Secs. 7.2 and 7.3.
    J. J. Moré and D. C. Sorensen, Computing a trust region step, SIAM J. Sci. Stat. Comput. 4, 1983.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

import numpy as np
import torch
from torch import Tensor

NEWTON = 6
"""The most Newton steps of ``minimize_in_ball`` after the first one."""

HALVINGS, DOWNHILL = 3, 10
"""The most halvings of a Newton step, and of a step along the gradient where that does not fall."""

ENOUGH = 1e-3
"""The share of the decrease so far that a Newton step has to gain for another one."""


def ball_minimizer(gradient: Tensor, hessian: Tensor, radius: float) -> Tensor:
    """argmin gᵀs + ½ sᵀHs over ‖s‖ ≤ radius, shape ``d``; H may have negative eigenvalues. O(d³).

    With H = QΛQᵀ and b = Qᵀg the solution is −Q(Λ + μ)⁻¹b, μ ≥ max(0, −λ₁) the root of 1/‖(Λ + μ)⁻¹b‖ = 1/radius,
    or 0 where the ball holds the minimum. Where g has no part along the lowest eigenvectors, one of these is added to
    reach the sphere (the hard case).
    """
    if len(gradient) == 0 or radius <= 0.0:
        return torch.zeros_like(gradient)
    eigenvalues, Q = torch.linalg.eigh(hessian)
    values, b = eigenvalues.numpy(), (Q.mT @ gradient).numpy()
    lowest, size = float(values[0]), float(np.sqrt((b * b).sum()))
    largest = max(abs(lowest), abs(float(values[-1])), size / radius, 1e-300)
    floor = max(0.0, -lowest)

    def step(mu: float) -> np.ndarray:
        return -b / np.maximum(values + mu, 1e-18 * largest)

    if lowest > 0.0:
        inside = step(0.0)
        if math.sqrt((inside * inside).sum()) <= radius:
            return Q @ torch.from_numpy(inside)
    low, high = floor, floor + size / radius
    mu = low + 1e-12 * largest
    s = step(mu)
    length = math.sqrt((s * s).sum())
    if length < radius:
        if lowest < 0.0:
            s[0] += math.copysign(math.sqrt(max(0.0, radius**2 - length**2)), -b[0])
            s *= radius / math.sqrt((s * s).sum())
        return Q @ torch.from_numpy(s)
    for _ in range(60):
        if abs(length - radius) <= 1e-10 * radius:
            break
        if length > radius:
            low = mu
        else:
            high = mu
        slope = float((s * s / np.maximum(values + mu, 1e-18 * largest)).sum())
        trial = mu + (length / radius - 1.0) * length**2 / slope if slope > 0.0 else math.inf
        mu = trial if low < trial < high else 0.5 * (low + high)
        s = step(mu)
        length = math.sqrt((s * s).sum())
    return Q @ torch.from_numpy(s * min(1.0, radius / length))


def box_ball_minimizer(
    gradient: Tensor, hessian: Tensor, radius: float, lower: Tensor, upper: Tensor, held: Tensor, start: Tensor
) -> Tensor:
    """A point of ball and box at which a quadratic is low, shape ``d``.

    Variables that are not held take the solution in the ball. Those that leave the box are held at its side, and the
    others take the solution in what is left of the ball, as long as one leaves. It is exact where no side holds.

    Args:
        gradient: g, shape ``d``.
        hessian: H, ``d x d``.
        radius: the ball's radius, its centre 0.
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
    norm = float(s.norm())
    return s * (radius / norm) if norm > radius else s


def minimize_in_ball(
    value: Callable[[Tensor], float],
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]],
    radius: float,
    lower: Tensor,
    upper: Tensor,
    first: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, float]:
    """A step to a low value of a function that is 0 at 0, in a ball and a box about 0, and the function there.

    It begins with the quadratic of the derivatives at 0, and goes on with those at each point reached. The quadratic
    about s, gᵀ(p − s) + ½(p − s)ᵀH(p − s), is one about 0 of gradient g − Hs, so that each Newton step is solved in the
    same ball; it is halved until the function falls.

    Args:
        value: the function of a step, shape ``d``.
        derivatives: its gradient, shape ``d``, and its Hessian, ``d x d``.
        radius: the ball's radius.
        lower: the box's lower side less the centre, shape ``d``; −inf for none.
        upper: the upper side less the centre.
        first: the derivatives at 0, where they are known.
    """
    s, best = torch.zeros_like(lower), 0.0
    for _ in range(1 + NEWTON):
        g, H = first or derivatives(s)
        first = None
        held = ((s <= lower) & (g > 0)) | ((s >= upper) & (g < 0))
        target = box_ball_minimizer(g - H @ s, H, radius, lower, upper, held, s)
        trials = chain(
            (s + 0.5**k * (target - s) for k in range(HALVINGS + 1)),
            (_downhill(s, g, 0.5**k * radius, radius, lower, upper) for k in range(DOWNHILL + 1)),
        )
        found = next(((trial, fall) for trial in trials if (fall := value(trial)) < best), None)
        if found is None:
            break
        gained, (s, best) = best - found[1], found
        if gained <= -ENOUGH * best:
            break
    return s, best


def _downhill(s: Tensor, g: Tensor, length: float, radius: float, lower: Tensor, upper: Tensor) -> Tensor:
    """A point of ball and box at about a length from s against the gradient."""
    moved = torch.clamp(s - g * (length / max(float(g.norm()), 1e-300)), lower, upper)
    norm = float(moved.norm())
    return moved * (radius / norm) if norm > radius else moved
