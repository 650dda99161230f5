"""Normals and signs on a CUDA device by one kernel, compiled by Triton, which torch for CUDA brings along on Linux.

The kernel gives the numbers of `philox.words` and `normal.normals` bit for bit: it has the same operations in the same
order, and fused multiply-adds are turned off. A thread computes a Philox block and the coordinates made from it.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from optimizers.directions import normal, philox

LANES, ROUNDS = tl.constexpr(philox.LANES), tl.constexpr(philox.ROUNDS)
OFFSET, MANTISSA, LOG2 = (tl.constexpr(n) for n in (normal.SQRT_HALF_BITS, normal.MANTISSA, normal.LARGEST_LOG2))
LARGEST, TWO_LOG_2, ANGLE = (tl.constexpr(c) for c in (normal.LARGEST, normal.TWO_LOG_2, normal.ANGLE))
L0, L1, L2, L3, L4, L5, L6 = (tl.constexpr(c) for c in normal.LOG)
S0, S1, S2 = (tl.constexpr(c) for c in normal.SIN)
C0, C1, C2 = (tl.constexpr(c) for c in normal.COS)
BLOCK, MOST_ROWS = 256, 65535  # CUDA's limit for the second axis of a grid


@triton.jit
def _pair(a, b):  # type: ignore[no-untyped-def]
    """Two normals from two words, as `normal.normal_pairs`."""
    f = (a >> 1).to(tl.int32).to(tl.float32) + 0.5
    f = tl.where(f < LARGEST, f, LARGEST)
    n = f.to(tl.int32, bitcast=True) - OFFSET
    x = ((n & MANTISSA) + OFFSET).to(tl.float32, bitcast=True) - 1.0
    log = ((((((x * L6 + L5) * x + L4) * x + L3) * x + L2) * x + L1) * x + L0) * x + 1.0
    r = tl.sqrt_rn((log * (x * x) - x * 2.0) - ((n >> 23) - LOG2).to(tl.float32) * TWO_LOG_2)
    r = tl.where((b >> 31) == 1, -r, r)
    t = ((b << 2) | 2).to(tl.int32, bitcast=True).to(tl.float32) * ANGLE
    y = t * t
    sine = ((y * S2 + S1) * y + S0) * y * t + t
    cosine = (((y * C2 + C1) * y + C0) * (y * y) - y * 0.5) + 1.0
    swap = ((b >> 30) & 1) == 1
    return r * tl.where(swap, sine, cosine), r * tl.where(swap, cosine, sine)


@triton.jit
def _store(line, at, width, z):  # type: ignore[no-untyped-def]
    tl.store(line + at, z.to(line.dtype.element_ty), mask=(at >= 0) & (at < width))


@triton.jit
def _fill(out, words, low, first, start, width, signs: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Fills row low + program_id(1) of out; words has the key, two words of the counter, and the rows' numbers."""
    i = low + tl.program_id(1)
    number = first + tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    line, row = out + i.to(tl.int64) * width, tl.load(words + 4 + i).to(tl.uint32)
    k0, k1 = tl.load(words).to(tl.uint32), tl.load(words + 1).to(tl.uint32)
    s0, s1 = tl.load(words + 2).to(tl.uint32), tl.load(words + 3).to(tl.uint32)
    zero = tl.zeros((block,), tl.uint32)
    a, b, c, d = tl.philox_impl(number.to(tl.uint32), zero + row, zero + s0, zero + s1, k0, k1, ROUNDS)
    slot = number % LANES
    if signs:
        at = number // LANES * (4 * LANES * 32) + slot - start
        for bit in range(32):
            _store(line, at, width, 1.0 - 2.0 * ((a >> bit) & 1).to(tl.float32))
            _store(line, at + LANES, width, 1.0 - 2.0 * ((b >> bit) & 1).to(tl.float32))
            _store(line, at + 2 * LANES, width, 1.0 - 2.0 * ((c >> bit) & 1).to(tl.float32))
            _store(line, at + 3 * LANES, width, 1.0 - 2.0 * ((d >> bit) & 1).to(tl.float32))
            at += 4 * LANES
    else:
        at = number // LANES * (4 * LANES) + slot - start
        u, v = _pair(a, c)
        _store(line, at, width, u)
        _store(line, at + 2 * LANES, width, v)
        u, v = _pair(b, d)
        _store(line, at + LANES, width, u)
        _store(line, at + 3 * LANES, width, v)


def fill(
    signs: bool, key: tuple[int, int], rows: Sequence[int], stream: tuple[int, int], start: int, out: torch.Tensor
) -> None:
    """Sets out[i, j] to coordinate start + j of row rows[i]: signs or standard normals.

    Args:
        signs: whether coordinates are signs.
        key: two 32-bit words.
        rows: row numbers below 2^32, one for each row of out.
        stream: the counter's third and fourth words.
        start: the first coordinate.
        out: contiguous floating tensor on a CUDA device, ``r x size``.
    """
    per_group, width = 4 * philox.LANES * (32 if signs else 1), out.shape[1]
    first, last = start // per_group * philox.LANES, -(-(start + width) // per_group) * philox.LANES
    words = torch.tensor([*key, *stream, *rows], dtype=torch.int64, device=out.device)
    blocks = triton.cdiv(last - first, BLOCK)
    with torch.cuda.device_of(out):
        for low in range(0, len(rows), MOST_ROWS):
            grid = (blocks, min(MOST_ROWS, len(rows) - low))
            _fill[grid](out, words, low, first, start, width, signs, BLOCK, enable_fp_fusion=False)
