"""Compiled CPU kernels of `optimizers.directions.metric`, bit for bit equal to its torch routines.

Imported only if numba is installed; no fastmath, as in `optimizers.directions.directions_numba`.
"""

from typing import Any

import numba
import numpy as np

from optimizers.directions.directions_numba import GROUP, draw_group, halve

# Python's error model tests divisors for zero, which prevents vectorization.
compile_ = numba.njit(cache=True, nogil=True, error_model="numpy")


@compile_
def add(
    signs: bool, row: int, k0: int, k1: int, s0: int, s1: int, start: int, x: Any, metric: Any, scale: float
) -> None:
    """x[j] += scale · u[start + j] / √metric[j], every operation rounded once."""
    width = GROUP * 32 if signs else GROUP
    w, z = np.empty(GROUP, np.uint32), np.empty(width, np.float32)
    end = start + x.size
    for group in range(start // width, -(-end // width)):
        low, high = max(start, group * width), min(end, group * width + width)
        draw_group(signs, k0, k1, row, s0, s1, group, high - group * width, w, z)
        target, h = x[low - start : high - start], metric[low - start : high - start]
        source = z[low - group * width : high - group * width]
        for j in range(high - low):
            target[j] = target[j] + scale * (source[j] / np.sqrt(h[j]))


@compile_
def sums_of_squares(signs: bool, row: int, k0: int, k1: int, s0: int, s1: int, d: int, metric: Any, sums: Any) -> None:
    """sums[g] = Σ uⱼ²/hⱼ over the g-th 256 coordinates, as `fixed_order.group_sums`; h = 1 without a metric."""
    width = GROUP * 32 if signs else GROUP
    w, z, square = np.empty(GROUP, np.uint32), np.empty(width, np.float32), np.empty(GROUP, np.float64)
    for g in range(sums.size):
        low = g * GROUP
        inside = min(GROUP, d - low)
        offset = low % width
        if offset == 0:
            draw_group(signs, k0, k1, row, s0, s1, low // width, min(width, d - low), w, z)
        square[inside:] = 0.0
        for j in range(inside):
            u = np.float64(z[offset + j])
            square[j] = u * u
        if metric.size > 0:
            for j in range(inside):
                square[j] = square[j] / np.float64(metric[low + j])
        sums[g] = halve(square, GROUP)
