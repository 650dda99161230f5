"""Cholesky factor of a covariance that may be singular to working precision."""

from __future__ import annotations

import warnings

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from surrogates.linalg.cholesky import NotPositiveDefiniteError

_TRIES = (0.0, 1e-10, 1e-8, 1e-6)


def jittered_factor(A: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """L with L Lᵀ = A + jitter, jitter 0 unless A is singular to working precision.

    A pivot counts as lost where it is within n ε of zero relative to its diagonal entry: LAPACK would return
    such a factor without a word and α would be rounding error.

    Args:
        A: ``batch x n x n``.
        diagonal: ``batch x n``, what pivots and jitter are relative to; A's own if omitted.

    Returns:
        Lower, ``batch x n x n``, float64.

    Raises:
        NotPositiveDefiniteError: Where 1e-6 of the mean diagonal does not help either.
    """
    A = A.double()
    diagonal = torch.diagonal(A, dim1=-2, dim2=-1) if diagonal is None else diagonal
    floor = A.shape[-1] * torch.finfo(torch.float64).eps * diagonal
    scale = diagonal.mean(-1)[..., None, None]
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for jitter in _TRIES:
        L, info = torch.linalg.cholesky_ex(A + jitter * scale * eye if jitter else A)
        if not bool(info.any()) and bool((torch.diagonal(L, dim1=-2, dim2=-1).square() > floor).all()):
            if jitter:
                warnings.warn(
                    f"The covariance of the {A.shape[-1]} observations is singular to working precision "
                    "(duplicate points with almost no noise?): added a jitter of "
                    f"{jitter:g} times its mean diagonal. A larger noise says what is meant.",
                    NumericalWarning,
                    stacklevel=2,
                )
            return L
    raise NotPositiveDefiniteError(
        f"The covariance of the {A.shape[-1]} observations is not positive definite, with a jitter of "
        f"{_TRIES[-1]:g} times its mean diagonal neither. Remove duplicate points or raise the noise."
    )


def extended_factor(L: Tensor, rows: Tensor) -> Tensor:
    """Factor of a matrix whose leading n x n block has the factor L already, in O(n² m).

    Args:
        L: ``batch x n x n``; its leading dimensions broadcast with those of the rows.
        rows: The last m rows of the matrix, ``batch x m x (n + m)``.

    Returns:
        ``batch x (n + m) x (n + m)``, float64.

    Raises:
        NotPositiveDefiniteError: As in ``jittered_factor``.
    """
    n, m = L.shape[-1], rows.shape[-2]
    batch = torch.broadcast_shapes(L.shape[:-2], rows.shape[:-2])
    rows = rows.double()
    below = torch.linalg.solve_triangular(L, rows[..., :n].mT, upper=False).mT
    result = L.new_zeros(*batch, n + m, n + m)
    result[..., :n, :n], result[..., n:, :n] = L, below
    corner = rows[..., n:]
    result[..., n:, n:] = jittered_factor(corner - below @ below.mT, torch.diagonal(corner, dim1=-2, dim2=-1))
    return result
