"""Lower Cholesky factors L Lᵀ = A in float64, rejected if a pivot is only rounding error.

LAPACK returns a factor without an error even if a pivot is at most n ε times its diagonal entry, so that a solve would
return rounding errors. Every function here treats such a pivot as zero. For a covariance that may be singular,
increasing jitters are tried, in units of its mean diagonal.
"""

from __future__ import annotations

import warnings

import torch
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from surrogates.threads import small_algebra

EPS = torch.finfo(torch.float64).eps

JITTERS = (1e-10, 1e-8, 1e-6, 1e-4)
"""The jitters that are tried for a singular covariance, in this order, in units of its mean diagonal."""


class NotPositiveDefiniteError(NotPSDError, ValueError):
    """A matrix is not positive definite to working precision; the object that was to change is unchanged.

    BoTorch's fits and optimizers recover from its base class, GPyTorch's ``NotPSDError``.
    """


def factor(A: Tensor) -> Tensor:
    """Computes the factor of A, ``n x n``, from the lower triangle of A.

    Raises:
        NotPositiveDefiniteError: If A is not positive definite.
    """
    A, n = A.double(), A.shape[0]
    with small_algebra(n**3):
        return schur_factor(A, A.diagonal(), n)


def schur_factor(S: Tensor, diagonal: Tensor, n: int) -> Tensor:
    """Computes the factor of the Schur complement S = C − B Bᵀ of the last m rows of an ``n x n`` matrix.

    Args:
        S: The complement, ``m x m``, float64.
        diagonal: The diagonal of C, ``m``; pivots that are rounding errors relative to it are rejected.
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


def laddered_factor(A: Tensor, diagonal: Tensor | None = None, nugget: float = 0.0) -> tuple[Tensor, float]:
    """Computes the factor of A plus the smallest jitter that makes A positive definite.

    Args:
        A: The matrix, ``batch x n x n``.
        diagonal: The scale of pivots and jitter, ``batch x n``; the diagonal of A by default.
        nugget: The jitter that is tried first, before ``JITTERS``.

    Returns:
        The factor, ``batch x n x n``, float64, and the jitter, in units of the mean diagonal.

    Raises:
        NotPositiveDefiniteError: If the largest jitter is not enough.
    """
    A = A.double()
    diagonal = torch.diagonal(A, dim1=-2, dim2=-1) if diagonal is None else diagonal
    n = A.shape[-1]
    for jitter in (nugget, *JITTERS):
        raised = A
        if jitter:
            raised = A.clone()
            raised.diagonal(dim1=-2, dim2=-1).add_(jitter * diagonal.mean(-1, keepdim=True))
        L, info = torch.linalg.cholesky_ex(raised)
        if not bool(info.any()) and _pivots_hold(L, diagonal, n):
            return L, jitter
    raise NotPositiveDefiniteError(
        f"The {n} x {n} covariance is not positive definite, even with a jitter of {JITTERS[-1]:g} times its mean "
        "diagonal. Remove duplicate points or raise the noise."
    )


def jittered_factor(A: Tensor, diagonal: Tensor | None = None) -> Tensor:
    """Computes the factor of a covariance of observations; warns if ``laddered_factor`` needs a jitter."""
    L, jitter = laddered_factor(A, diagonal)
    if jitter:
        warnings.warn(
            f"The covariance of the {A.shape[-1]} observations is singular to working precision, perhaps because of "
            f"duplicate points: added a jitter of {jitter:g} times its mean diagonal. Set a larger noise "
            "to avoid this.",
            NumericalWarning,
            stacklevel=2,
        )
    return L


def correlation_factor(K: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of the correlations of a covariance K, ``n x n``, and the standard deviations, ``n``; overwrites K."""
    deviations = K.diagonal().sqrt()
    inverses = deviations.reciprocal()
    K.mul_(inverses[:, None]).mul_(inverses)
    return laddered_factor(K)[0], deviations


def covariance_root(K: Tensor) -> Tensor:
    """Computes a root R of a covariance, R Rᵀ = K, ``batch x n x n``, float64; R scales with the units of the data.

    R is the Cholesky factor if K has one. If K is singular by rounding, (C + jI)/(1 + j) is factored, where C are the
    correlations and j is the smallest sufficient jitter, so that R Rᵀ has the variances of K. Rows of R are 0 for
    variances that are not positive, and NaN for variances that are NaN.

    Args:
        K: The covariance, ``batch x n x n``. Each element of the batch has its own jitter.
    """
    K, n = K.double(), K.shape[-1]
    unknown = torch.diagonal(K, dim1=-2, dim2=-1).isnan()
    if bool(unknown.any()):
        known = K.masked_fill(unknown.unsqueeze(-1) | unknown.unsqueeze(-2), 0.0)
        return covariance_root(known).masked_fill(unknown.unsqueeze(-1), torch.nan)
    L, failed = torch.linalg.cholesky_ex(K)
    if not bool(failed.any()):
        return L
    variances = torch.diagonal(K, dim1=-2, dim2=-1)
    positive = variances > 0
    deviations = torch.where(positive, variances, 1.0).sqrt()
    moves = positive / deviations
    correlations = (K * moves.unsqueeze(-1) * moves.unsqueeze(-2)).clamp(-1.0, 1.0)
    eye, jitter = torch.eye(n, dtype=K.dtype, device=K.device), torch.zeros_like(failed, dtype=K.dtype)
    correlations = torch.where(eye > 0, 1.0, correlations)
    still = failed
    for step in (*JITTERS, 1e-2, 1.0, n):
        jitter = torch.where(still > 0, step, jitter)
        raised = correlations + jitter[..., None, None] * eye
        R, still = torch.linalg.cholesky_ex(raised / (1.0 + jitter)[..., None, None])
        if not bool(still.any()):
            break
    R = R * torch.where(positive, deviations, 0.0).unsqueeze(-1)
    singular = (failed > 0)[..., None, None]
    # The factor that failed is left out, because its derivatives are not finite.
    return torch.where(singular, R, torch.linalg.cholesky_ex(torch.where(singular, eye, K))[0])


def extended_factor(L: Tensor, rows: Tensor) -> Tensor:
    """Extends the factor L of an ``n x n`` block to that of a matrix with m more rows, in O(n² m), float64.

    The batches of L, ``batch x n x n``, and of the new rows, ``batch x m x (n + m)``, broadcast.

    Raises:
        NotPositiveDefiniteError: As ``jittered_factor``, which factors the Schur complement of the new rows.
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
    """The error for an ``n x n`` matrix with a pivot that is only rounding error."""
    return NotPositiveDefiniteError(
        f"The {n} x {n} matrix is not positive definite to working precision. Remove duplicate points or set a larger "
        "noise."
    )


def _pivots_hold(L: Tensor, diagonal: Tensor, n: int) -> bool:
    """Whether no pivot is NaN or within n ε of zero relative to its diagonal entry."""
    return bool((torch.diagonal(L, dim1=-2, dim2=-1).square() > n * EPS * diagonal).all())
