"""A compiled loop that replaces queries of a window, with their distances and covariances, and updates the factor."""

from __future__ import annotations

import numba
import numpy as np

from surrogates.kernels.one_pass_numba import h
from surrogates.linalg.cholesky import EPS
from surrogates.linalg.replace_row_numba import replace_row
from surrogates.reordered_numba import reordered
from surrogates.window.nearest_search import evaluate_rows

# Largest allowed difference of L Lᵀz and A z, in units of n ε max Aᵢᵢ.
_DRIFT = 8.0


@numba.njit(cache=True, nogil=True)
def replace_rows(history, slots, rows, X, D, A, U, z, profile, precision, noise):  # type: ignore[no-untyped-def]
    """Writes rows of ``history`` into slots of X, and updates D, A and the factor.

    Args:
        history: All queries, ``n x d``.
        slots: The slots that change.
        rows: The row of ``history`` for each of these slots.
        X: The window's queries, ``k x d``.
        D: The squared distances of the queries, at least ``k x k``.
        A: The covariance h(D/ℓ²) plus the noise, at least ``k x k``.
        U: The factor, A = UᵀU, ``k x k``.
        z: A fixed vector, ``k``; UᵀU z is compared with A z.
        profile: The number and the exponent of the profile h.
        precision: 1/ℓ².
        noise: The variance on the diagonal of A.

    Returns:
        Whether A is positive definite to working precision, and whether U is its factor up to rounding.
    """
    k = U.shape[0]
    squared, every = np.empty(k), np.arange(k)
    for i in range(slots.size):
        slot = slots[i]
        X[slot] = history[rows[i]]
        evaluate_rows(X, X[slot], every, squared)
        for j in range(k):
            D[slot, j] = D[j, slot] = squared[j]
            A[slot, j] = A[j, slot] = h(profile[0], profile[1], precision * squared[j])
        A[slot, slot] += noise
        if not replace_row(U, slot, A[slot, :k]):
            return False, False
    return True, _is_factor(U, A, z)


@reordered
def _is_factor(U, A, z):  # type: ignore[no-untyped-def]
    k = U.shape[0]
    residual, largest = -(U.T @ (U @ z)), 0.0  # U is zero under its diagonal
    for i in range(k):
        largest = max(largest, A[i, i])
        total = 0.0
        for j in range(k):
            total += A[i, j] * z[j]
        residual[i] += total
    return np.abs(residual).max() <= _DRIFT * k * EPS * largest
