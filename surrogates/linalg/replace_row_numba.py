"""A compiled O(n²) update of a Cholesky factor when one row and column of the matrix are replaced.

References:
    P. E. Gill, G. H. Golub, W. Murray and M. A. Saunders, Methods for modifying matrix factorizations,
    Mathematics of Computation 28, 1974 (the rank-one formulas).
    G. H. Golub and C. F. Van Loan, Matrix Computations, 4th ed., 2013, Sec. 6.5.4 (mixed downdating).
"""

from __future__ import annotations

from math import sqrt

import numba

from surrogates.linalg.cholesky import EPS


# With l the column of L below the pivot j, and l' the new one, the block below changes by l lᵀ − l' l'ᵀ. One sweep over
# its columns applies the update by l and the downdate by l'. U = Lᵀ, so that a column of L is contiguous.
@numba.njit(cache=True, nogil=True)
def replace_row(U, j, new_row):  # type: ignore[no-untyped-def]
    """Updates U = Lᵀ for a new row and column j of the matrix.

    Args:
        U: The upper factor, ``n x n``, float64 and contiguous; updated in place.
        j: The index of the row, 0 <= j < n.
        new_row: The new row, ``n``. Its element j is the diagonal entry.

    Returns:
        Whether the new matrix is positive definite to working precision; if not, U holds no valid factor.
    """
    n, row = new_row.shape[0], new_row.copy()
    floor = n * EPS * row[j]
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
