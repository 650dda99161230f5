"""Lower Cholesky factors L Lᵀ = A, in float64 whatever is given, refused where a pivot is only rounding error.

LAPACK returns a factor without a word where a pivot is within n ε of zero relative to its diagonal entry. What is
solved with such a factor is rounding error, so every function here counts the pivot as lost.
"""

from __future__ import annotations

import warnings

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from surrogates.threads import small_algebra

EPS = torch.finfo(torch.float64).eps
_JITTERS = (0.0, 1e-10, 1e-8, 1e-6)


class NotPositiveDefiniteError(ValueError):
    """A matrix is not positive definite to working precision; what was to be changed is as it was."""


def factor(A: Tensor) -> Tensor:
    """The factor of A, ``n x n``, read from its lower triangle.

    Raises:
        NotPositiveDefiniteError: If A is not positive definite.
    """
    A = A.double()
    with small_algebra(A.shape[0] ** 3):
        L, info = torch.linalg.cholesky_ex(A)
    if info or not _pivots_hold(L, A.diagonal(), A.shape[0]):
        raise not_definite(A.shape[0])
    return L


def schur_factor(S: Tensor, diagonal: Tensor, n: int) -> Tensor:
    """The factor of the Schur complement S = C − B Bᵀ of the last m rows of an ``n x n`` matrix.

    Args:
        S: The complement, ``m x m``, float64.
        diagonal: The diagonal of C, ``m``, which pivots are compared with.
        n: The order of the whole matrix.

    Raises:
        NotPositiveDefiniteError: If the whole matrix is not positive definite.
    """
    if S.numel() == 1:
        if not n * EPS * diagonal < S:
            raise not_definite(n)
        return S.sqrt()
    L, info = torch.linalg.cholesky_ex(S)
    if info or not _pivots_hold(L, diagonal, n):
        raise not_definite(n)
    return L


def jittered_factor(A: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """The factor of A + jitter, the jitter being 0 unless A is singular to working precision.

    Args:
        A: ``batch x n x n``.
        diagonal: ``batch x n``, what pivots and jitter are relative to. None stands for A's own diagonal.

    Returns:
        The factor, ``batch x n x n``, float64.

    Raises:
        NotPositiveDefiniteError: If a jitter of 1e-6 of the mean diagonal does not help either.
    """
    A = A.double()
    diagonal = torch.diagonal(A, dim1=-2, dim2=-1) if diagonal is None else diagonal
    scale = diagonal.mean(-1)[..., None, None]
    n = A.shape[-1]
    eye = torch.eye(n, dtype=A.dtype, device=A.device)
    for jitter in _JITTERS:
        L, info = torch.linalg.cholesky_ex(A + jitter * scale * eye if jitter else A)
        if not bool(info.any()) and _pivots_hold(L, diagonal, n):
            if jitter:
                warnings.warn(
                    f"The covariance of the {n} observations is singular to working precision (duplicate points with "
                    f"almost no noise?): added a jitter of {jitter:g} times its mean diagonal. A larger noise says "
                    "what is meant.",
                    NumericalWarning,
                    stacklevel=2,
                )
            return L
    raise NotPositiveDefiniteError(
        f"The covariance of the {n} observations is not positive definite, with a jitter of {_JITTERS[-1]:g} times "
        "its mean diagonal neither. Remove duplicate points or raise the noise."
    )


def extended_factor(L: Tensor, rows: Tensor) -> Tensor:
    """The factor of a matrix whose leading block has the factor L already, in O(n² m).

    Args:
        L: ``batch x n x n``. Its leading dimensions broadcast with those of the rows.
        rows: The last m rows of the matrix, ``batch x m x (n + m)``.

    Returns:
        The factor, ``batch x (n + m) x (n + m)``, float64.

    Raises:
        NotPositiveDefiniteError: As in ``jittered_factor``, which the new rows' Schur complement goes to.
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


def not_definite(n: int) -> NotPositiveDefiniteError:
    """The error for an ``n x n`` matrix of which a pivot is lost."""
    return NotPositiveDefiniteError(
        f"The {n} x {n} matrix is not positive definite to working precision: duplicate points need a noise (or "
        "jitter) that float64 can tell from zero."
    )


def _pivots_hold(L: Tensor, diagonal: Tensor, n: int) -> bool:
    """Whether no pivot is within n ε of zero relative to its diagonal entry, nor NaN."""
    return bool((torch.diagonal(L, dim1=-2, dim2=-1).square() > n * EPS * diagonal).all())
