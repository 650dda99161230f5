"""A compiled loop for the weights α = A⁻¹(y − m) in ``WindowSurrogate.conditioning``."""

from __future__ import annotations

import numba
import numpy as np

from surrogates.reordered_numba import reordered


@numba.njit(cache=True, nogil=True)
def weights(U, y, slots, scale):  # type: ignore[no-untyped-def]
    """Computes A⁻¹(s − 1 m) for the k standardised values s in a window, with m = 1ᵀA⁻¹s/1ᵀA⁻¹1.

    Args:
        U: The upper factor, A = UᵀU, ``k x k``, contiguous.
        y: All values, ``n``.
        slots: The rows of y that are in the window, ``k``.
        scale: The number by which the window's values minus their mean are divided.
    """
    values = y[slots]
    unit = np.abs(values).max()
    if unit == 0.0:
        unit = 1.0
    values /= unit
    solved, ones = (values - values.sum() / slots.size) * (unit / scale), np.ones(slots.size)
    _solve(U, solved, ones)
    return solved - solved.sum() / ones.sum() * ones


# Four rows of U at a time, because most of the inner loops are short.
@reordered
def _solve(U, a, b):  # type: ignore[no-untyped-def]
    n = a.size
    for i in range(0, n, 4):
        end = min(i + 4, n)
        for r in range(i, end):
            a[r] /= U[r, r]
            b[r] /= U[r, r]
            for j in range(r + 1, end):
                a[j] -= a[r] * U[r, j]
                b[j] -= b[r] * U[r, j]
        if end < n:
            u0, u1, u2, u3 = U[i], U[i + 1], U[i + 2], U[i + 3]
            a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
            b0, b1, b2, b3 = b[i], b[i + 1], b[i + 2], b[i + 3]
            for j in range(end, n):
                a[j] -= a0 * u0[j] + a1 * u1[j] + a2 * u2[j] + a3 * u3[j]
                b[j] -= b0 * u0[j] + b1 * u1[j] + b2 * u2[j] + b3 * u3[j]
    for i in range((n - 1) // 4 * 4, -1, -4):
        end = min(i + 4, n)
        if end < n:
            u0, u1, u2, u3 = U[i], U[i + 1], U[i + 2], U[i + 3]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
            for j in range(end, n):
                a0, a1, a2, a3 = a0 + u0[j] * a[j], a1 + u1[j] * a[j], a2 + u2[j] * a[j], a3 + u3[j] * a[j]
                b0, b1, b2, b3 = b0 + u0[j] * b[j], b1 + u1[j] * b[j], b2 + u2[j] * b[j], b3 + u3[j] * b[j]
            a[i], a[i + 1], a[i + 2], a[i + 3] = a[i] - a0, a[i + 1] - a1, a[i + 2] - a2, a[i + 3] - a3
            b[i], b[i + 1], b[i + 2], b[i + 3] = b[i] - b0, b[i + 1] - b1, b[i + 2] - b2, b[i + 3] - b3
        for r in range(end - 1, i - 1, -1):
            for j in range(r + 1, end):
                a[r] -= U[r, j] * a[j]
                b[r] -= U[r, j] * b[j]
            a[r] /= U[r, r]
            b[r] /= U[r, r]
