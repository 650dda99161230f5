"""The span of a window's rows: coordinates in which a model of fewer queries than variables is small.

The pinned model depends on inner products only. With an orthonormal basis B of the rows' span, ``k x d``, it is the
same model in the coordinates Bs, and beside them the distance ‖s − BᵀBs‖ from the span, which is 0 at all rows: they
give every inner product of a step with the rows, and its length. A metric is a matrix A in these k + 1 coordinates,
which is c(I − BᵀB) + BᵀA_kB in the variables: the last diagonal element, c, holds in every direction outside.
"""

from __future__ import annotations

import torch
from torch import Tensor

INSIDE = 1e-6
"""A row is in the span where its distance from it is at most this share of its length."""

SLACK = 1.25
"""The basis is made anew where it has this many times as many vectors as there are rows, and ten more."""


def covering(basis: Tensor, rows: Tensor) -> tuple[Tensor, bool]:
    """An orthonormal basis whose span holds all rows, ``k x d``, and whether it is one that only grew.

    The vectors that it had stay the first ones, unless they are many more than the rows; then it is made of the rows
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
    """An orthonormal basis, ``k' x d``, that begins with another one's vectors, and whose span holds all rows.

    It grows by what is outside of it of the row that is farthest outside for its length, until none is: O(n k d) for
    the distances, and O((n + k) d) for a vector.
    """
    count, d = len(basis), rows.shape[1]
    held = torch.cat([basis, basis.new_empty(min(len(rows), d - count), d)])
    squares = rows.square().sum(1)
    outside = (squares - (rows @ basis.mT).square().sum(1)) / squares
    while count < len(held):
        j = int(outside.argmax())
        if not float(outside[j]) > INSIDE**2:
            break
        rest = _rest(held[:count], rows[j] / rows[j].norm())
        rest = _rest(held[:count], rest / rest.norm())
        held[count] = rest / rest.norm()
        outside -= (rows @ held[count]).square() / squares
        outside[j] = 0.0
        count += 1
    return held[:count].clone()


def _rest(basis: Tensor, s: Tensor) -> Tensor:
    """What of a vector is orthogonal to the basis, shape ``d``."""
    return s - basis.mT @ (basis @ s)


def coordinates(basis: Tensor, rows: Tensor) -> Tensor:
    """Bs of rows s, and their distance from the span, ``... x k + 1``."""
    inside = rows @ basis.mT
    return torch.cat([inside, torch.linalg.vector_norm(rows - inside @ basis, dim=-1, keepdim=True)], dim=-1)


def carried_metric(metric: Tensor, before: Tensor, after: Tensor, grown: bool) -> Tensor:
    """The same metric in another basis's coordinates, ``k' + 1 x k' + 1``, as far as its span goes.

    Args:
        metric: A, ``k + 1 x k + 1``, whose last column is orthogonal to the others.
        before: its basis, ``k x d``.
        after: the other basis, ``k' x d``.
        grown: whether the other one begins with the vectors of the first.
    """
    c = float(metric[:, -1].norm())
    if grown:
        return torch.block_diag(metric, c * torch.eye(len(after) - len(before), dtype=metric.dtype))
    turned = after @ before.mT
    square = (metric[:, :-1] @ turned.mT).mT @ (metric[:, :-1] @ turned.mT)
    square += c**2 * (torch.eye(len(after), dtype=metric.dtype) - turned @ turned.mT)
    return torch.block_diag(torch.linalg.cholesky(square).mT, c * torch.eye(1, dtype=metric.dtype))


def direction_outside(basis: Tensor, random: Tensor) -> Tensor | None:
    """The unit vector orthogonal to the span that is nearest to a random vector, shape ``d``; None if it holds all."""
    if len(basis) == len(random):
        return None
    rest = _rest(basis, random / random.norm())
    rest = _rest(basis, rest / rest.norm())
    return rest / rest.norm()
