"""α = A⁻¹(y − m) of a window's values, compiled: the accelerator of ``WindowSurrogate.conditioning``."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def weights(U, y, slots, scale):  # type: ignore[no-untyped-def]
    """A⁻¹(s − 1 m) for the values s standardised by ``scale`` and their best m = 1ᵀA⁻¹s/1ᵀA⁻¹1.

    Args:
        U: The upper factor, A = UᵀU, ``k x k``, contiguous.
        y: All values, ``n``.
        slots: Those of the window, ``k``.
        scale: What the values less their mean are divided by.
    """
    values = y[slots]
    unit = np.abs(values).max()
    if unit == 0.0:
        unit = 1.0
    values /= unit
    solved, ones = (values - values.sum() / slots.size) * (unit / scale), np.ones(slots.size)
    _solve(U, solved, ones)
    return solved - solved.sum() / ones.sum() * ones


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
def _solve(U, a, b):  # type: ignore[no-untyped-def]
    n = b.size
    for i in range(n):
        a[i] /= U[i, i]
        b[i] /= U[i, i]
        for j in range(i + 1, n):
            a[j] -= a[i] * U[i, j]
            b[j] -= b[i] * U[i, j]
    for i in range(n - 1, -1, -1):
        of_a, of_b = a[i], b[i]
        for j in range(i + 1, n):
            of_a -= U[i, j] * a[j]
            of_b -= U[i, j] * b[j]
        a[i], b[i] = of_a / U[i, i], of_b / U[i, i]
