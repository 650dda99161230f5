"""Compiled CPU kernels of `optimizers.directions.hessian_update`, the same numbers as its torch routines, bit for bit.

Imported only where numba is installed; no fastmath, as in `optimizers.directions.directions_numba`. A group of
coordinates is drawn, combined and applied while it is in the fastest cache, so that x, H and the momentum
are read and written once and nothing of size d is made.
"""

from typing import Any

import numba
import numpy as np

from optimizers.directions.directions_numba import GROUP, _group, _halve

# Under Python's error model a division tests for zero, which keeps its loop from becoming vector code.
_compile = numba.njit(cache=True, nogil=True, error_model="numpy")


@_compile
def update(
    signs: bool,
    k0: int,
    k1: int,
    rows: Any,
    s0: Any,
    s1: Any,
    coefficients: Any,
    start: int,
    size: int,
    x: Any,
    hessian: Any,
    momentum: Any,
    learns: bool,
    rate: float,
    decay: float,
    gain: float,
    keep: float,
    weight: float,
    epsilon: float,
    lower: float,
    upper: float,
) -> None:
    """One update of coordinates start … start + size − 1; an empty x, hessian or momentum is absent."""
    width = GROUP * 32 if signs else GROUP
    w, z = np.empty(GROUP, np.uint32), np.empty(width, np.float32)
    delta = np.empty(width, coefficients.dtype)
    moves, scaled, carried = x.size > 0, hessian.size > 0, momentum.size > 0
    end = start + size
    for group in range(start // width, -(-end // width)):
        low, high = max(start, group * width), min(end, group * width + width)
        count, first, last = high - low, low - start, high - start
        source, d = z[low - group * width : high - group * width], delta[:count]
        for t in range(rows.size):
            _group(signs, k0, k1, rows[t], s0[t], s1[t], group, high - group * width, w, z)
            c = coefficients[t]
            if t == 0:
                for j in range(count):
                    d[j] = c * source[j]
            else:
                for j in range(count):
                    d[j] = d[j] + c * source[j]
        if scaled:
            h = hessian[first:last]
            for j in range(count):
                d[j] = d[j] / np.sqrt(h[j])
            if learns:
                _learn(h, d, keep, weight, epsilon, lower, upper)
        if carried:
            m = momentum[first:last]
            for j in range(count):
                d[j] = decay * m[j] + gain * d[j]
                m[j] = d[j]
        if moves:
            target = x[first:last]
            for j in range(count):
                target[j] = target[j] - rate * d[j]


@_compile
def _learn(h: Any, d: Any, keep: float, weight: float, epsilon: float, lower: float, upper: float) -> None:
    for j in range(h.size):
        value = keep * h[j] + weight * (d[j] * d[j] + epsilon)
        value = lower if value < lower else value
        h[j] = upper if value > upper else value


@_compile
def sums_of_squares(signs: bool, row: int, k0: int, k1: int, s0: int, s1: int, d: int, hessian: Any, sums: Any) -> None:
    """sums[g] = Σ uⱼ²/hⱼ over the g-th 256 coordinates, added as by `directions.group_sums`; no hessian: 1."""
    width = GROUP * 32 if signs else GROUP
    w, z, square = np.empty(GROUP, np.uint32), np.empty(width, np.float32), np.empty(GROUP, np.float64)
    for g in range(sums.size):
        low = g * GROUP
        inside = min(GROUP, d - low)
        offset = low % width
        if offset == 0:
            _group(signs, k0, k1, row, s0, s1, low // width, min(width, d - low), w, z)
        square[inside:] = 0.0
        for j in range(inside):
            u = np.float64(z[offset + j])
            square[j] = u * u
        if hessian.size > 0:
            for j in range(inside):
                square[j] = square[j] / np.float64(hessian[low + j])
        sums[g] = _halve(square, GROUP)
