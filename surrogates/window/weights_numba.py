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
    solved = np.ones((2, slots.size))
    solved[0] = (values - values.sum() / slots.size) * (unit / scale)
    for row in solved:
        _solve(U, row)
    return solved[0] - solved[0].sum() / solved[1].sum() * solved[1]


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
def _solve(U, b):  # type: ignore[no-untyped-def]
    n = b.size
    for i in range(n):
        b[i] /= U[i, i]
        for j in range(i + 1, n):
            b[j] -= b[i] * U[i, j]
    for i in range(n - 1, -1, -1):
        total = b[i]
        for j in range(i + 1, n):
            total -= U[i, j] * b[j]
        b[i] = total / U[i, i]
