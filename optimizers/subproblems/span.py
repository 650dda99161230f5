"""Minimizes a function that depends only on inner products with a few rows, in coordinates of their span.

With an orthonormal basis B of the rows' span, ``k x d``, a step s has the k coordinates Bs and, as the last one, its
distance ‖s − BᵀBs‖ from the span, which is 0 for the rows. These coordinates give ‖s‖ and every inner product of s with
a row. A metric is a matrix A in these k + 1 coordinates, which is c(I − BᵀB) + BᵀA_kB in the variables: A's last
diagonal element, c, holds in every direction outside the span. If the span is the whole space, B = I and the last
coordinate is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from optimizers.subproblems.region import Derivatives, Region, Value, minimize_in_ball

INSIDE = 1e-6
"""A row counts as inside the span if its distance from the span is at most this share of its length."""

SLACK = 1.25
"""The basis is rebuilt from the rows if it has more vectors than ten plus this many times the number of rows."""

ROUNDS = 4
"""The most steps of ``minimize_in_span``, each with other variables held at sides of the box."""

LOST = 1e-9
"""Directions are dropped if their part in the free variables has at most this squared length."""


def covering(basis: Tensor, rows: Tensor) -> tuple[Tensor, bool]:
    """Computes an orthonormal basis, ``k x d``, whose span contains all rows, and whether it extends ``basis``.

    An extended basis begins with the given vectors; if it had many more vectors than rows, it is made from the rows
    alone.

    Args:
        basis: an orthonormal basis, ``k x d``, k ≥ 0.
        rows: ``n x d``, none of them 0.
    """
    grown = extended(basis, rows)
    if len(grown) > SLACK * len(rows) + 10:
        return extended(basis[:0], rows), False
    return grown, True


def extended(basis: Tensor, rows: Tensor) -> Tensor:
    """Extends an orthonormal basis so that its span contains all rows, ``k' x d``.

    While a row is outside, the row farthest from the span, relative to its length, adds its part outside. O(nkd) for
    the distances, and O((n + k)d) for each vector.
    """
    count, d = len(basis), rows.shape[1]
    held = torch.cat([basis, basis.new_empty(min(len(rows), d - count), d)])
    squares = rows.square().sum(1)
    outside = (squares - (rows @ basis.mT).square().sum(1)) / squares
    while count < len(held) and float(outside[j := int(outside.argmax())]) > INSIDE**2:
        held[count] = unit_outside(held[:count], rows[j])
        outside -= (rows @ held[count]).square() / squares
        outside[j] = 0.0
        count += 1
    return held[:count].clone()


def unit_outside(basis: Tensor, s: Tensor) -> Tensor:
    """The unit vector along the component of s orthogonal to the basis, shape ``d``, orthogonalized twice."""
    for _ in range(2):
        s = s / s.norm()
        s = s - basis.mT @ (basis @ s)
    return s / s.norm()


def coordinates(basis: Tensor, rows: Tensor) -> Tensor:
    """Computes Bs and the distance from the span for each row s, ``... x k + 1``."""
    inside = rows @ basis.mT
    if len(basis) == basis.shape[1]:
        return torch.cat([inside, torch.zeros_like(inside[..., :1])], dim=-1)
    return torch.cat([inside, torch.linalg.vector_norm(rows - inside @ basis, dim=-1, keepdim=True)], dim=-1)


def carried_metric(metric: Tensor, before: Tensor, after: Tensor, grown: bool) -> Tensor:
    """Expresses a metric in the coordinates of another basis, ``k' + 1 x k' + 1``, restricted to that basis's span.

    Args:
        metric: A, ``k + 1 x k + 1``, whose last column is orthogonal to the others.
        before: the basis of A, ``k x d``.
        after: the other basis, ``k' x d``.
        grown: whether ``after`` begins with the vectors of ``before``.
    """
    c, eye = float(metric[:, -1].norm()), torch.eye(len(after), dtype=metric.dtype)
    if grown:
        return torch.block_diag(metric, c * eye[len(before) :, len(before) :])
    turned = after @ before.mT
    seen = metric[:, :-1] @ turned.mT
    square = seen.mT @ seen + c**2 * (eye - turned @ turned.mT)
    return torch.block_diag(torch.linalg.cholesky(square).mT, c * eye[:1, :1])


def minimize_in_span(
    value: Value, derivatives: Derivatives, basis: Tensor, region: Region, newton: int
) -> tuple[Tensor, float]:
    """Finds a low value of a function in a region; returns the step, shape ``d``, and the value.

    A variable at a side of the box is held there if descent would leave the box. With P the projection on the other
    variables and h the held part, the step is the PBᵀt + h of least value in the ball. If variables leave the box in
    this step, they are then held at its sides too; otherwise the held variables that descent would move inside are
    released. The result is the best of at most four such steps, each confined to the region. Variables with equal
    bounds are always held; if that excludes 0, the result is 0 unless a value below 0 is found.

    Args:
        value: the function of k + 1 coordinates, 0 at 0.
        derivatives: the function's gradient and Hessian.
        basis: B, ``k x d``.
        region: the region.
        newton: as in ``minimize_in_ball``.
    """
    lower, upper, still = region.lower, region.upper, ~region.free

    def leaving(s: Tensor) -> Tensor:
        if not bool(((s <= lower) | (s >= upper)).any()):
            return still
        at = coordinates(basis, s)
        g, _ = derivatives(at)
        outside = (s - at[:-1] @ basis) * (g[-1] / at[-1]) if float(at[-1]) > 0.0 else 0.0
        slopes = g[:-1] @ basis + outside
        return ((s <= lower) & (slopes > 0.0)) | ((s >= upper) & (slopes < 0.0)) | still

    best, least = torch.zeros_like(lower), 0.0
    held, fixed = leaving(best), torch.where(still, lower, best)
    for _ in range(ROUNDS):
        if float(fixed.norm()) >= region.delta:
            break
        moved, found = _minimize_beside(value, derivatives, basis, held, fixed, region, newton)
        s = region.confined(moved)
        found = found if torch.equal(s, moved) else value(coordinates(basis, s))
        if found < least:
            best, least = s, found
        out = ~held & ((moved < lower) | (moved > upper))
        before, held = held, held | out if bool(out.any()) else leaving(s)
        if torch.equal(before, held):
            break
        fixed = torch.where(held, s.clamp(lower, upper), 0.0)
    return best, least


def _minimize_beside(
    value: Value, derivatives: Derivatives, basis: Tensor, held: Tensor, fixed: Tensor, region: Region, newton: int
) -> tuple[Tensor, float]:
    """Finds PBᵀt + h of a low value in the ball, or on the plane if it lies beyond that, shape ``d``; and the value.

    With BPBᵀ = VΛVᵀ and t = VΛ^(−½)τ its coordinates are Cτ + Bh, C = VΛ^½, and its squared length is ‖τ‖² + ‖h‖²; the
    squared distance from the span is the rest of that. Nothing in the search depends on d.
    """
    C = back = eye = torch.eye(len(basis), dtype=basis.dtype)
    if some := bool(held.any()):
        kept, V = torch.linalg.eigh(eye - basis[:, held] @ basis[:, held].mT)
        V, kept = V[:, kept > LOST], kept[kept > LOST].sqrt()
        C, back = V * kept, V / kept
    base, square = basis @ fixed, float(fixed.square().sum())

    def place(t: Tensor) -> Tensor:
        if not some:
            return torch.cat([t, torch.zeros(1, dtype=t.dtype)])
        inside = C @ t + base
        return torch.cat([inside, (t @ t + square - inside @ inside).clamp_min(0.0).sqrt()[None]])

    def within(t: Tensor) -> tuple[Tensor, Tensor]:
        at = place(t)
        g, H = derivatives(at)
        if not some:
            return g[:-1], H[:-1, :-1]
        # The last coordinate follows from the others.
        slope = float(g[-1]) / float(at[-1]) if float(at[-1]) > 0.0 else 0.0
        bent = C.mT @ (H[:-1, :-1] - slope * eye) @ C
        bent.diagonal().add_(slope)
        return C.mT @ (g[:-1] - slope * at[:-1]) + slope * t, bent

    zero = torch.zeros(C.shape[1], dtype=C.dtype)
    start, radius = value(place(zero)) if some else 0.0, (region.delta**2 - square) ** 0.5
    t, fall = minimize_in_ball(lambda t: value(place(t)) - start, within, radius, zero, newton)
    if (plane := region.half_space) is not None:
        n, share = plane.normal, plane.allowed(region.delta) - float(plane.normal @ fixed)
        m = back.mT @ (basis @ torch.where(held, 0.0, n))
        if float(m @ t) > share:  # along the plane
            foot, Z = m * (share / float(m.square().sum())), torch.linalg.qr(m[:, None], mode="complete").Q[:, 1:]
            at_foot, left = value(place(foot)), max(0.0, radius**2 - float(foot.square().sum())) ** 0.5

            def along(p: Tensor) -> tuple[Tensor, Tensor]:
                g, H = within(foot + Z @ p)
                return Z.mT @ g, Z.mT @ H @ Z

            p, fall = minimize_in_ball(lambda p: value(place(foot + Z @ p)) - at_foot, along, left, zero[1:], newton)
            t, start = foot + Z @ p, at_foot
    return torch.where(held, fixed, (back @ t if some else t) @ basis), start + fall
