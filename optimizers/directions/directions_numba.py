"""CPU kernels of this package, compiled by numba if it is installed.

The kernels give the numbers of `philox.words`, `normal.normals`, `fixed_order` and `metric` bit for bit; a test
compares every kernel with its torch counterpart. fastmath is off, so that LLVM neither reassociates nor contracts to
fused multiply-adds. Kernels loop over arrays that fit into a fast cache; compilers vectorize such loops for any CPU.
"""

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from optimizers.directions import normal, philox

U32, I32, U64, F32 = np.uint32, np.int32, np.uint64, np.float32
LANES, ROUNDS = philox.LANES, philox.ROUNDS
GROUP = 4 * LANES
M0, M1 = (U64(m) for m in philox.MULTIPLIERS)
W0, W1 = (U32(w) for w in philox.WEYL)
HIGH, LOW, ONE, TWO, SIGN, SWAP = U64(32), U64(philox.MASK), U32(1), U32(2), U32(1 << 31), U32(1 << 30)
OFFSET, MANTISSA, LOG2, EXPONENT = I32(normal.SQRT_HALF_BITS), I32(normal.MANTISSA), I32(normal.LARGEST_LOG2), I32(23)
F_HALF, F_ONE, F_TWO = F32(0.5), F32(1.0), F32(2.0)
LARGEST, TWO_LOG_2, ANGLE = F32(normal.LARGEST), F32(normal.TWO_LOG_2), F32(normal.ANGLE)
L0, L1, L2, L3, L4, L5, L6 = (F32(c) for c in normal.LOG)
S0, S1, S2 = (F32(c) for c in normal.SIN)
C0, C1, C2 = (F32(c) for c in normal.COS)

# Python's error model tests divisors for zero, which prevents vectorization.
compile_ = numba.njit(cache=True, nogil=True, error_model="numpy")


def _bits_of_float(typing_context: Any, x: Any) -> Any:
    """The int32 with the bits of a float32."""
    return types.int32(types.float32), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(32))


def _float_of_bits(typing_context: Any, x: Any) -> Any:
    """The float32 with the bits of an int32."""
    return types.float32(types.int32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


_bits: Any = intrinsic(_bits_of_float)
_float: Any = intrinsic(_float_of_bits)


@compile_
def _words(k0: int, k1: int, row: int, s0: int, s1: int, group: int, w: Any) -> None:
    """Writes the 256 words of a group to w, computed in 64-bit lanes whose upper halves are discarded."""
    w0, w1, w2, w3 = w[:64], w[64:128], w[128:192], w[192:256]
    first = U32(U32(group) * U32(LANES))
    second, third, fourth = U64(row), U64(s0), U64(s1)
    for i in range(LANES):
        a, b, c, d = U64(U32(first + U32(i))), second, third, fourth
        x, y = U32(k0), U32(k1)
        for _ in range(ROUNDS):
            p, q = (a & LOW) * M0, (c & LOW) * M1
            a, b, c, d = (q >> HIGH) ^ b ^ U64(x), q, (p >> HIGH) ^ d ^ U64(y), p
            x, y = U32(x + W0), U32(y + W1)
        w0[i], w1[i], w2[i], w3[i] = U32(a), U32(b), U32(c), U32(d)


@compile_
def _normals(w: Any, z: Any) -> None:
    a, b, p, q = w[:128], w[128:256], z[:128], z[128:256]
    for i in range(2 * LANES):
        f = min(F32(I32(a[i] >> ONE)) + F_HALF, LARGEST)
        n = I32(_bits(f) - OFFSET)
        x = _float(I32((n & MANTISSA) + OFFSET)) - F_ONE
        log = ((((((L6 * x + L5) * x + L4) * x + L3) * x + L2) * x + L1) * x + L0) * x + F_ONE
        r = np.sqrt((log * (x * x) - x * F_TWO) + F32(I32(LOG2 - (n >> EXPONENT))) * TWO_LOG_2)
        r = _float(I32(U32(_bits(r)) ^ U32(b[i] & SIGN)))
        t = F32(I32(U32(U32(b[i] << TWO) | TWO))) * ANGLE
        y = t * t
        sine = ((S2 * y + S1) * y + S0) * y * t + t
        cosine = (((C2 * y + C1) * y + C0) * (y * y) - y * F_HALF) + F_ONE
        swap = (b[i] & SWAP) != U32(0)
        p[i] = r * (sine if swap else cosine)
        q[i] = r * (cosine if swap else sine)


@compile_
def draw_group(
    signs: bool, k0: int, k1: int, row: int, s0: int, s1: int, group: int, stop: int, w: Any, z: Any
) -> None:
    """Writes one group of coordinates to z; those from `stop` on may be undefined."""
    _words(k0, k1, row, s0, s1, group, w)
    if signs:
        for bit in range(min(32, -(-stop // GROUP))):
            out = z[GROUP * bit : GROUP * bit + GROUP]
            shift = U32(31 - bit)
            for i in range(GROUP):
                out[i] = F_ONE - F_TWO * F32(I32(U32(U32(w[i] << shift) >> U32(31))))
    else:
        _normals(w, z)


@compile_
def fill(signs: bool, k0: int, k1: int, rows: Any, s0: int, s1: int, start: int, out: Any) -> None:
    """Sets out[i, j] to coordinate start + j of row rows[i]: signs or standard normals."""
    size = GROUP * 32 if signs else GROUP
    w, z = np.empty(GROUP, np.uint32), np.empty(size, np.float32)
    end = start + out.shape[1]
    for i in range(out.shape[0]):
        line = out[i]
        for group in range(start // size, -(-end // size)):
            low, high = max(start, group * size), min(end, group * size + size)
            draw_group(signs, k0, k1, rows[i], s0, s1, group, high - group * size, w, z)
            target, source = line[low - start : high - start], z[low - group * size : high - group * size]
            for j in range(high - low):
                target[j] = source[j]


@compile_
def add(
    signs: bool, row: int, k0: int, k1: int, s0: int, s1: int, start: int, x: Any, metric: Any, scale: float
) -> None:
    """x[j] += scale · u[start + j] / √metric[j], every operation rounded once; an empty metric is 1."""
    size = GROUP * 32 if signs else GROUP
    w, z = np.empty(GROUP, np.uint32), np.empty(size, np.float32)
    end = start + x.size
    for group in range(start // size, -(-end // size)):
        low, high = max(start, group * size), min(end, group * size + size)
        draw_group(signs, k0, k1, row, s0, s1, group, high - group * size, w, z)
        target, source = x[low - start : high - start], z[low - group * size : high - group * size]
        if metric.size > 0:
            h = metric[low - start : high - start]
            for j in range(high - low):
                target[j] = target[j] + scale * (source[j] / np.sqrt(h[j]))
        else:
            for j in range(high - low):
                target[j] = target[j] + scale * source[j]


@compile_
def halve(s: Any, size: int) -> float:
    """Sums s[:size] by repeatedly adding the upper half to the lower half; size is a power of two."""
    half = size // 2
    while half > 0:
        upper = s[half : 2 * half]
        for i in range(half):
            s[i] += upper[i]
        half //= 2
    return s[0]


@compile_
def sums_of_squares(signs: bool, row: int, k0: int, k1: int, s0: int, s1: int, d: int, metric: Any, sums: Any) -> None:
    """sums[g] = Σ uⱼ²/hⱼ over the g-th group of 256 coordinates, as `fixed_order.group_sums`; no metric: h = 1."""
    size = GROUP * 32 if signs else GROUP
    w, z, square = np.empty(GROUP, np.uint32), np.empty(size, np.float32), np.empty(GROUP, np.float64)
    for g in range(sums.size):
        low = g * GROUP
        inside = min(GROUP, d - low)
        offset = low % size
        if offset == 0:
            draw_group(signs, k0, k1, row, s0, s1, low // size, min(size, d - low), w, z)
        square[inside:] = 0.0
        for j in range(inside):
            u = np.float64(z[offset + j])
            square[j] = u * u
        if metric.size > 0:
            for j in range(inside):
                square[j] = square[j] / np.float64(metric[low + j])
        sums[g] = halve(square, GROUP)


@compile_
def _power_of_two(size: int) -> int:
    power = 1
    while power < size:
        power *= 2
    return power


@compile_
def _dot(x: Any, y: Any, product: Any, sums: Any) -> float:
    sums[:] = 0.0
    for group in range(-(-x.size // GROUP)):
        low = group * GROUP
        inside = min(GROUP, x.size - low)
        xs, ys = x[low : low + inside], y[low : low + inside]
        size = _power_of_two(inside)
        product[inside:size] = 0.0
        for i in range(inside):
            product[i] = xs[i] * ys[i]
        sums[group] = halve(product, size)
    return halve(sums, sums.size)


@compile_
def orthonormalize(v: Any, done: int) -> None:
    """Orthonormalizes the rows of v from `done` on in place, as `fixed_order.orthonormalize`."""
    product, sums = np.empty(GROUP), np.empty(_power_of_two(-(-v.shape[1] // GROUP)))
    for i in range(done, v.shape[0]):
        row = v[i]
        for _ in range(2):
            for k in range(i):
                other = v[k]
                c = _dot(other, row, product, sums)
                for j in range(row.size):
                    row[j] = row[j] - c * other[j]
        norm = math.sqrt(_dot(row, row, product, sums))
        for j in range(row.size):
            row[j] = row[j] / norm
