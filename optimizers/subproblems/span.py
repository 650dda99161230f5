"""Steps of a model that depends on inner products with a few rows only: coordinates in their span, and a box outside.

With an orthonormal basis B of the rows' span, ``k x d``, the coordinates of a step s are Bs and, beside them, its
distance ‖s − BᵀBs‖ from the span, which is 0 for the rows. They give every inner product of s with a row, and ‖s‖. A
metric is a matrix A in these k + 1 coordinates, which is c(I − BᵀB) + BᵀA_kB in the variables: its last diagonal
element, c, holds in every direction outside the span.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from optimizers.subproblems.ball_box import Derivatives, minimize_in_ball
from optimizers.subproblems.half_space import HalfSpace, confined

INSIDE = 1e-6
"""A row is in the span where its distance from it is at most this share of its length."""

SLACK = 1.25
"""The basis is made anew where it has this many times as many vectors as there are rows, and ten more."""

ROUNDS = 4
"""The most steps of ``minimize_in_span``, each with other variables held at sides of the box."""

LOST = 1e-9
"""What is added to the squares of a basis without the held variables, so that they have a Cholesky factor."""


def covering(basis: Tensor, rows: Tensor) -> tuple[Tensor, bool]:
    """Computes an orthonormal basis whose span holds all rows, ``k x d``, and whether it extends the given one.

    The given vectors stay the first ones. If they are many more than the rows, the basis is made of the rows alone.

    Args:
        basis: an orthonormal basis, ``k x d``, k ≥ 0.
        rows: ``n x d``, none of them 0.
    """
    grown = extended(basis, rows)
    if len(grown) > SLACK * len(rows) + 10:
        return extended(basis[:0], rows), False
    return grown, True


def extended(basis: Tensor, rows: Tensor) -> Tensor:
    """Extends an orthonormal basis so that its span holds all rows, ``k' x d``.

    It adds the part outside the span of the row that is farthest outside relative to its length, until none is: O(n k d)
    for the distances, and O((n + k) d) for a vector.
    """
    count, d = len(basis), rows.shape[1]
    held = torch.cat([basis, basis.new_empty(min(len(rows), d - count), d)])
    squares = rows.square().sum(1)
    outside = (squares - (rows @ basis.mT).square().sum(1)) / squares
    while count < len(held):
        j = int(outside.argmax())
        if not float(outside[j]) > INSIDE**2:
            break
        held[count] = _unit_outside(held[:count], rows[j])
        outside -= (rows @ held[count]).square() / squares
        outside[j] = 0.0
        count += 1
    return held[:count].clone()


def _unit_outside(basis: Tensor, s: Tensor) -> Tensor:
    """The unit vector along the component of s orthogonal to the basis, shape ``d``, orthogonalized twice."""
    for _ in range(2):
        s = s / s.norm()
        s = s - basis.mT @ (basis @ s)
    return s / s.norm()


def direction_outside(basis: Tensor, random: Tensor) -> Tensor | None:
    """The unit vector orthogonal to the span that is nearest to a random vector, shape ``d``; None if it holds all."""
    return None if len(basis) == len(random) else _unit_outside(basis, random)


def coordinates(basis: Tensor, rows: Tensor) -> Tensor:
    """Computes Bs of rows s, and their distance from the span, ``... x k + 1``."""
    inside = rows @ basis.mT
    return torch.cat([inside, torch.linalg.vector_norm(rows - inside @ basis, dim=-1, keepdim=True)], dim=-1)


def carried_metric(metric: Tensor, before: Tensor, after: Tensor, grown: bool) -> Tensor:
    """Expresses a metric in another basis's coordinates, ``k' + 1 x k' + 1``, as far as its span goes.

    Args:
        metric: A, ``k + 1 x k + 1``, whose last column is orthogonal to the others.
        before: its basis, ``k x d``.
        after: the other basis, ``k' x d``.
        grown: whether the other basis begins with the vectors of the first.
    """
    c = float(metric[:, -1].norm())
    if grown:
        return torch.block_diag(metric, c * torch.eye(len(after) - len(before), dtype=metric.dtype))
    turned = after @ before.mT
    seen = metric[:, :-1] @ turned.mT
    square = seen.mT @ seen + c**2 * (torch.eye(len(after), dtype=metric.dtype) - turned @ turned.mT)
    return torch.block_diag(torch.linalg.cholesky(square).mT, c * torch.eye(1, dtype=metric.dtype))


def minimize_in_span(
    value: Callable[[Tensor], float],
    derivatives: Derivatives,
    basis: Tensor,
    delta: float,
    lower: Tensor,
    upper: Tensor,
    plane: HalfSpace | None,
    newton: int,
) -> tuple[Tensor, float]:
    """Finds a low value in the ball of radius δ, the box and before a plane; gives the step, shape ``d``, and the value.

    Variables at a side of the box which the gradient leaves are held there. The others, P of them, take the step of
    least value PBᵀt + h in the ball, where h is the held part. Variables that leave the box are then held at its side
    too; where none leaves it, those whose gradient at the step points inside are freed. Of at most four such steps, cut
    to box and ball, the one of least value is taken.

    Args:
        value: the function of k + 1 coordinates.
        derivatives: its gradient, shape ``k + 1``, and Hessian in these.
        basis: B, ``k x d``.
        delta: δ.
        lower: the box's lower side less the center, shape ``d``.
        upper: the upper side less the center.
        plane: the plane, or None.
        newton: as in ``minimize_in_ball``.
    """

    def leaving(s: Tensor) -> Tensor:
        at = coordinates(basis, s)
        g, _ = derivatives(at)
        slopes = g[:-1] @ basis
        if float(at[-1]) > 0.0:
            slopes = slopes + (s - at[:-1] @ basis) * (g[-1] / at[-1])
        return ((s <= lower) & (slopes > 0.0)) | ((s >= upper) & (slopes < 0.0))

    best, least = torch.zeros_like(lower), 0.0
    held, fixed = leaving(best), best
    for _ in range(ROUNDS):
        left = delta**2 - float(fixed.square().sum())
        if left <= 0.0:
            break
        moved = _minimize_beside(value, derivatives, basis, held, fixed, left**0.5, newton)
        s = confined(moved, delta, lower, upper, plane)
        found = value(coordinates(basis, s))
        if found < least:
            best, least = s, found
        out = ~held & ((moved < lower) | (moved > upper))
        before, held = held, held | out if bool(out.any()) else leaving(s)
        if torch.equal(before, held):
            break
        fixed = torch.where(held, s.clamp(lower, upper), 0.0)
    return best, least


def _minimize_beside(
    value: Callable[[Tensor], float],
    derivatives: Derivatives,
    basis: Tensor,
    held: Tensor,
    fixed: Tensor,
    radius: float,
    newton: int,
) -> Tensor:
    """PBᵀt + h of a low value, with PBᵀt at most the radius long, shape ``d``.

    With BPBᵀ = CCᵀ and t = C⁻ᵀτ its coordinates are Cτ + Bh and its squared length is ‖τ‖² + ‖h‖²; the squared distance
    from the span is the rest of that. Nothing in the search depends on d.
    """
    B, eye = basis, torch.eye(len(basis), dtype=basis.dtype)
    some = bool(held.any())
    C = torch.linalg.cholesky((1.0 + LOST) * eye - B[:, held] @ B[:, held].mT) if some else eye
    base, square = B @ fixed, float(fixed.square().sum())

    def place(t: Tensor) -> Tensor:
        inside = C @ t + base if some else t
        return torch.cat([inside, (t @ t + square - inside @ inside).clamp_min(0.0).sqrt()[None]])

    start = value(place(torch.zeros_like(base)))

    def within(t: Tensor) -> tuple[Tensor, Tensor]:
        at = place(t)
        g, H = derivatives(at)
        if not some:
            return g[:-1], H[:-1, :-1]
        slope = float(g[-1]) / float(at[-1]) if float(at[-1]) > 0.0 else 0.0
        bent = C.mT @ (H[:-1, :-1] - slope * eye) @ C
        bent.diagonal().add_(slope)
        return C.mT @ (g[:-1] - slope * at[:-1]) + slope * t, bent

    free = torch.full_like(base, torch.inf)
    t, _ = minimize_in_ball(lambda t: value(place(t)) - start, within, radius, -free, free, newton=newton)
    t = torch.linalg.solve_triangular(C.mT, t[:, None], upper=True)[:, 0] if some else t
    return torch.where(held, fixed, t @ B)
