"""Lower Cholesky factors and inverses of symmetric positive definite matrices whose rows come and go.

Everything is float64, whatever is given. A = L Lᵀ throughout; a row of A means the row and its column.

References:
    P. E. Gill, G. H. Golub, W. Murray and M. A. Saunders, Methods for modifying matrix factorizations,
    Mathematics of Computation 28, 1974 (the rank-one formulas).
    G. H. Golub and C. F. Van Loan, Matrix Computations, 4th ed., 2013, Sec. 6.5.4 (mixed downdating).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_REPLACE_KERNEL: Callable[..., Any] | None = None
with contextlib.suppress(ImportError):
    import numba
    from numpy import sqrt

    # U = Lᵀ, so that a column of L is contiguous. The update returns what the old row took from the block
    # below, the downdate takes what the new one does; both rotations of a column in one sweep.
    @numba.njit(cache=True, nogil=True)
    def _replace(U, j, row, floor):  # type: ignore[no-untyped-def]
        n = row.shape[0]
        for i in range(j):
            y = row[i] / U[i, i]
            for r in range(i + 1, j):
                row[r] -= y * U[i, r]
            for r in range(j + 1, n):
                row[r] -= y * U[i, r]
            row[j] -= y * y
            U[i, j] = y
        if not row[j] > floor:
            return False
        pivot = sqrt(row[j])
        old = U[j].copy()
        U[j, j] = pivot
        for r in range(j + 1, n):
            row[r] /= pivot
            U[j, r] = row[r]
        for i in range(j + 1, n):
            before = U[i, i]
            updated = sqrt(before * before + old[i] * old[i])
            after = (updated - row[i]) * (updated + row[i])
            if not after > floor:
                return False
            after = sqrt(after)
            c1, s1 = updated / before, old[i] / before
            c2, s2 = after / updated, row[i] / updated
            U[i, i] = after
            for r in range(i + 1, n):
                value = (U[i, r] + s1 * old[r]) / c1
                old[r] = c1 * old[r] - s1 * value
                value = (value - s2 * row[r]) / c2
                row[r] = c2 * row[r] - s2 * value
                U[i, r] = value
        return True

    _REPLACE_KERNEL = _replace

_EPS = torch.finfo(torch.float64).eps


class NotPositiveDefiniteError(ValueError):
    """A matrix that is not positive definite to working precision; what was to be changed is as it was."""


def factor(A: Tensor) -> Tensor:
    """L with L Lᵀ = A, from the lower triangle of A (n x n).

    Raises:
        NotPositiveDefiniteError: If A is not positive definite, or a pivot is within rounding error (n ε Aᵢᵢ)
            of zero.
    """
    A = A.double()
    L, info = torch.linalg.cholesky_ex(A)
    if info or not (L.diagonal().square() > A.shape[0] * _EPS * A.diagonal()).all():
        raise NotPositiveDefiniteError(
            f"the {A.shape[0]} x {A.shape[0]} matrix is not positive definite to working precision: "
            "duplicate points need a noise (or jitter) that float64 can tell from zero."
        )
    return L


def append_rows(L: Tensor, K_new_old: Tensor, K_new_new: Tensor) -> Tensor:
    """Factor of [[A, K_new_oldᵀ], [K_new_old, K_new_new]] in O(n² m).

    Args:
        L: n x n.
        K_new_old: m x n.
        K_new_new: m x m.

    Returns:
        (n + m) x (n + m).

    Raises:
        NotPositiveDefiniteError: If the larger matrix is not positive definite.
        ValueError: If shapes do not fit.
    """
    n, m = check_append(L, K_new_old, K_new_new)
    result = torch.zeros(n + m, n + m, dtype=torch.float64, device=L.device)
    result[:n, :n] = L
    below = torch.linalg.solve_triangular(result[:n, :n], K_new_old.double().mT, upper=False)
    result[n:, :n] = below.mT
    result[n:, n:] = schur_factor(below, K_new_new.double(), n + m)
    return result


def delete_row(L: Tensor, j: int) -> Tensor:
    """Factor of A without row j: the block below takes the rank-one update by the column that leaves.

    Args:
        L: n x n, n >= 2.
        j: 0 <= j < n.

    Returns:
        (n − 1) x (n − 1).

    Raises:
        ValueError: If shapes or j do not fit.
    """
    n = check_factor(L)
    _check_row(j, n)
    if n == 1:
        raise ValueError("the only row cannot be deleted.")
    L = L.double()
    keep = [i for i in range(n) if i != j]
    result = L[keep][:, keep]
    if j < n - 1:
        result[j:, j:] = rank_one_update(L[j + 1 :, j + 1 :], L[j + 1 :, j])
    return result


def replace_row(L: Tensor, j: int, row: Tensor) -> Tensor:
    """Factor of A with row and column j replaced, in O(n²).

    With l the column of L under the pivot j, and l' the new one, the block below changes by l lᵀ − l' l'ᵀ: an
    update and a downdate.

    Args:
        L: n x n.
        j: 0 <= j < n.
        row: The new row of A, n; row[j] on the diagonal.

    Returns:
        n x n.

    Raises:
        NotPositiveDefiniteError: If the new matrix is not positive definite.
        ValueError: If shapes or j do not fit.
    """
    n = check_factor(L)
    _check_row(j, n)
    if row.shape != (n,):
        raise ValueError(f"row must be of shape ({n},), got {tuple(row.shape)}.")
    floor = n * _EPS * float(row[j])
    if _REPLACE_KERNEL is not None and L.device.type == "cpu":
        U = torch.empty(n, n, dtype=torch.float64).copy_(L.detach().mT)
        if not _REPLACE_KERNEL(U.numpy(), j, row.detach().double().numpy().copy(), floor):
            raise _not_definite("replaced row", n)
        return U.mT
    result, row = L.double().clone(), row.double()
    left = torch.linalg.solve_triangular(result[:j, :j], row[:j, None], upper=False).squeeze(-1)
    pivot = row[j] - left @ left
    if not pivot > floor:
        raise _not_definite("replaced row", n)
    pivot = pivot.sqrt()
    below = (row[j + 1 :] - result[j + 1 :, :j] @ left) / pivot
    result[j, :j], result[j, j] = left, pivot
    if j < n - 1:
        block = rank_one_update(result[j + 1 :, j + 1 :], result[j + 1 :, j])
        result[j + 1 :, j + 1 :] = rank_one_downdate(block, below)
        result[j + 1 :, j] = below
    return result


def replacing_pays(n: int, rows: int, device: torch.device) -> bool:
    """Whether `replace_row`, row after row, beats a new factor: compiled, and one row in 150 or fewer."""
    return _REPLACE_KERNEL is not None and device.type == "cpu" and 150 * rows <= n


def rank_one_update(L: Tensor, v: Tensor) -> Tensor:
    """Factor of L Lᵀ + v vᵀ in O(n²).

    With p = L⁻¹v and tⱼ = 1 + Σᵢ≤ⱼ pᵢ², column j of the new factor is
    (tⱼ L·ⱼ + pⱼ Σᵢ>ⱼ pᵢ L·ᵢ) / √(tⱼ tⱼ₋₁).

    Args:
        L: n x n.
        v: n.

    Raises:
        ValueError: If shapes do not fit.
    """
    L, p = _whiten(L, v)
    t = 1 + p.square().cumsum(0)
    before = torch.cat((t.new_ones(1), t[:-1]))
    return _combine(L, p, t, before, p)


def rank_one_downdate(L: Tensor, v: Tensor) -> Tensor:
    """Factor of L Lᵀ − v vᵀ in O(n²).

    As `rank_one_update` with tⱼ = 1 − Σᵢ≤ⱼ pᵢ², summed from the end: tⱼ = (1 − ‖p‖²) + Σᵢ>ⱼ pᵢ².

    Raises:
        NotPositiveDefiniteError: If the result is not positive definite, ‖p‖² ≥ 1 − n ε.
        ValueError: If shapes do not fit.
    """
    L, p = _whiten(L, v)
    norm = torch.linalg.vector_norm(p)
    last = (1 - norm) * (1 + norm)
    if not last > p.shape[0] * _EPS:
        raise _not_definite("downdate", p.shape[0])
    before = last + p.square().flip(0).cumsum(0).flip(0)
    t = torch.cat((before[1:], last.unsqueeze(0)))
    return _combine(L, p, t, before, -p)


def append_rows_to_inverse(A_inverse: Tensor, K_new_old: Tensor, K_new_new: Tensor) -> Tensor:
    """Inverse of [[A, K_new_oldᵀ], [K_new_old, K_new_new]] by the Schur complement, in O(n² m).

    Args:
        A_inverse: n x n.
        K_new_old: m x n.
        K_new_new: m x m.

    Raises:
        NotPositiveDefiniteError: If the larger matrix is not positive definite.
        ValueError: If shapes do not fit.
    """
    n, m = check_append(A_inverse, K_new_old, K_new_new)
    A_inverse, K_new_old, K_new_new = A_inverse.double(), K_new_old.double(), K_new_new.double()
    reached = K_new_old @ A_inverse
    complement = torch.cholesky_inverse(_definite(K_new_new - reached @ K_new_old.mT, K_new_new, n + m))
    result = A_inverse.new_empty(n + m, n + m)
    result[n:, n:] = complement
    result[n:, :n] = -complement @ reached
    result[:n, n:] = result[n:, :n].mT
    result[:n, :n] = A_inverse - reached.mT @ result[n:, :n]
    return result


def replace_rows_in_inverse(A_inverse: Tensor, rows: Sequence[int], new: Tensor) -> Tensor:
    """Inverse of A with m rows (and columns) replaced, in O(n² m).

    With S the rows and P = A⁻¹, B = P − P·ₛ Pₛₛ⁻¹ Pₛ· inverts A without them (and is 0 there); with R the new
    rows off S, U = B Rᵀ and C = new·ₛ − R U the Schur complement, A'⁻¹ = B + (U − I·ₛ) C⁻¹ (U − I·ₛ)ᵀ. Errors
    of the old inverse stay in the new one: rebuild it from a factor now and then.

    Args:
        A_inverse: n x n.
        rows: m different row numbers.
        new: Those rows of the new A, m x n.

    Raises:
        NotPositiveDefiniteError: If the new matrix is not positive definite.
        ValueError: If shapes or rows do not fit.
    """
    n, m = check_factor(A_inverse), len(rows)
    for row in rows:
        _check_row(row, n)
    if not m or len(set(rows)) != m or new.shape != (m, n):
        raise ValueError(
            f"m different rows need new rows of shape m x {n}; got {list(rows)} and shape {tuple(new.shape)}."
        )
    P, new = A_inverse.double(), new.double()
    at = torch.tensor(list(rows), dtype=torch.int64, device=P.device)
    side = P[at]
    half = torch.linalg.solve_triangular(_definite(side[:, at], side[:, at], n), side, upper=False)
    corner, R = new[:, at], new.clone()
    R[:, at] = 0
    U = R @ P - (R @ half.mT) @ half
    U[:, at] = 0
    C = _definite(corner - U @ R.mT, corner, n)
    U[torch.arange(m, device=P.device), at] -= 1
    U = torch.linalg.solve_triangular(C, U, upper=False)
    kept = torch.addmm(P, half.mT, half, alpha=-1)
    kept[at] = 0
    kept[:, at] = 0
    return kept.addmm_(U.mT, U)


def _whiten(L: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    n = check_factor(L)
    if v.shape != (n,):
        raise ValueError(f"v must be of shape ({n},), got {tuple(v.shape)}.")
    L = L.double()
    return L, torch.linalg.solve_triangular(L, v.double().unsqueeze(-1), upper=False).squeeze(-1)


def _combine(L: Tensor, p: Tensor, t: Tensor, before: Tensor, sign_p: Tensor) -> Tensor:
    """Columns √(t/t₋₁) L·ⱼ ± pⱼ/√(t t₋₁) Σᵢ>ⱼ pᵢ L·ᵢ."""
    weighted = L * p
    behind = weighted.flip(1).cumsum(1).flip(1) - weighted
    return (L * (t / before).sqrt() + behind * (sign_p / (t * before).sqrt())).tril_()


def schur_factor(below: Tensor, K_new_new: Tensor, n: int) -> Tensor:
    """Factor of K_new_new − belowᵀ below, m x m, refused where it is not positive definite among n rows."""
    return _definite(K_new_new - below.mT @ below, K_new_new, n)


def _definite(S: Tensor, reference: Tensor, n: int) -> Tensor:
    """Factor of S, refused where a pivot is within n ε of zero relative to the reference's diagonal."""
    if S.numel() == 1:
        if not n * _EPS * reference < S:
            raise _not_definite("appended row", n)
        return S.sqrt()
    L, info = torch.linalg.cholesky_ex(S)
    if info or not (L.diagonal().square() > n * _EPS * reference.diagonal()).all():
        raise _not_definite("appended row", n)
    return L


def _not_definite(what: str, n: int) -> NotPositiveDefiniteError:
    return NotPositiveDefiniteError(
        f"with the {what} the {n} x {n} matrix would not be positive definite to working precision: "
        "duplicate points need a noise (or jitter) that float64 can tell from zero."
    )


def check_factor(L: Tensor) -> int:
    """n of an n x n matrix."""
    if L.ndim != 2 or L.shape[0] != L.shape[1] or not L.shape[0]:
        raise ValueError(f"a square matrix is needed, got shape {tuple(L.shape)}.")
    return int(L.shape[0])


def check_append(L: Tensor, K_new_old: Tensor, K_new_new: Tensor) -> tuple[int, int]:
    """n and m of m rows to append to an n x n matrix."""
    n = int(L.shape[-1])
    m = int(K_new_new.shape[-1]) if K_new_new.ndim else 0
    if L.shape != (n, n) or K_new_new.shape != (m, m) or K_new_old.shape != (m, n) or not m:
        raise ValueError(
            f"rows to append to {tuple(L.shape)} must be of shapes m x {n} and m x m, got "
            f"{tuple(K_new_old.shape)} and {tuple(K_new_new.shape)}."
        )
    return n, m


def _check_row(j: int, n: int) -> None:
    if not isinstance(j, int) or not 0 <= j < n:
        raise ValueError(f"a row number must be an integer in [0, {n}), got {j!r}.")
