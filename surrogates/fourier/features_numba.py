"""The gradient of Fourier features at one point, compiled: the accelerator of ``FourierFeatures.gradient``.

Four frequencies at a time: their phases first, then their share of the gradient, in tiles from the far end back, so
that every frequency is read from memory once.
"""

from __future__ import annotations

from math import cos, sin

import numba
import torch
from torch import Tensor

_TILE = 1024
# Sums may be reordered for the vector units; NaN and inf keep their meaning.
_REORDER = {"reassoc", "nsz", "contract"}


def one_point(V: Tensor, phases: Tensor | None, x: Tensor, w: Tensor, scale: float) -> Tensor:
    """∇φ(x)ᵀw, ``1 x d``, for x of ``1 x d``."""
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    point = x.detach()[0].contiguous().numpy()
    weights = w.detach().contiguous().numpy()
    if phases is None:
        _pairs(V.numpy(), point, weights, point.dtype.type(scale), out.numpy()[0])
    else:
        _cosines(V.numpy(), phases.numpy(), point, weights, point.dtype.type(scale), out.numpy()[0])
    return out


@numba.njit(cache=True, nogil=True)
def _pairs(V, x, w, scale, out):  # type: ignore[no-untyped-def]
    h = V.shape[0]
    for first in range(0, h - h % 4, 4):
        p = _phases_of_four(x, V[first], V[first + 1], V[first + 2], V[first + 3])
        i, j = first, h + first
        q0 = scale * (w[j] * cos(p[0]) - w[i] * sin(p[0]))
        q1 = scale * (w[j + 1] * cos(p[1]) - w[i + 1] * sin(p[1]))
        q2 = scale * (w[j + 2] * cos(p[2]) - w[i + 2] * sin(p[2]))
        q3 = scale * (w[j + 3] * cos(p[3]) - w[i + 3] * sin(p[3]))
        _add_tiles(out, V[first], V[first + 1], V[first + 2], V[first + 3], q0, q1, q2, q3)
    for i in range(h - h % 4, h):
        phase = _phase(x, V[i])
        _add(out, V[i], scale * (w[h + i] * cos(phase) - w[i] * sin(phase)))


@numba.njit(cache=True, nogil=True)
def _cosines(V, b, x, w, scale, out):  # type: ignore[no-untyped-def]
    h = V.shape[0]
    for i in range(0, h - h % 4, 4):
        p = _phases_of_four(x, V[i], V[i + 1], V[i + 2], V[i + 3])
        q0 = -scale * w[i] * sin(p[0] + b[i])
        q1 = -scale * w[i + 1] * sin(p[1] + b[i + 1])
        q2 = -scale * w[i + 2] * sin(p[2] + b[i + 2])
        q3 = -scale * w[i + 3] * sin(p[3] + b[i + 3])
        _add_tiles(out, V[i], V[i + 1], V[i + 2], V[i + 3], q0, q1, q2, q3)
    for i in range(h - h % 4, h):
        _add(out, V[i], -scale * w[i] * sin(_phase(x, V[i]) + b[i]))


@numba.njit(cache=True, nogil=True, fastmath=_REORDER)
def _phase(x, row):  # type: ignore[no-untyped-def]
    s = x.dtype.type(0)
    for j in range(x.shape[0]):
        s += x[j] * row[j]
    return s


@numba.njit(cache=True, nogil=True, fastmath=_REORDER)
def _phases_of_four(x, a, b, c, d):  # type: ignore[no-untyped-def]
    s0 = x.dtype.type(0)
    s1 = x.dtype.type(0)
    s2 = x.dtype.type(0)
    s3 = x.dtype.type(0)
    for j in range(x.shape[0]):
        s0 += x[j] * a[j]
        s1 += x[j] * b[j]
        s2 += x[j] * c[j]
        s3 += x[j] * d[j]
    return s0, s1, s2, s3


@numba.njit(cache=True, nogil=True, fastmath=_REORDER)
def _add(out, row, q):  # type: ignore[no-untyped-def]
    for j in range(out.shape[0]):
        out[j] += q * row[j]


@numba.njit(cache=True, nogil=True, fastmath=_REORDER)
def _add_four(out, a, b, c, d, q0, q1, q2, q3):  # type: ignore[no-untyped-def]
    for j in range(out.shape[0]):
        out[j] += q0 * a[j] + q1 * b[j] + q2 * c[j] + q3 * d[j]


@numba.njit(cache=True, nogil=True)
def _add_tiles(out, a, b, c, d, q0, q1, q2, q3):  # type: ignore[no-untyped-def]
    size = out.shape[0]
    if size <= _TILE:
        _add_four(out, a, b, c, d, q0, q1, q2, q3)
        return
    for start in range((size - 1) // _TILE * _TILE, -1, -_TILE):
        stop = min(start + _TILE, size)
        tile = (a[start:stop], b[start:stop], c[start:stop], d[start:stop])
        _add_four(out[start:stop], tile[0], tile[1], tile[2], tile[3], q0, q1, q2, q3)
