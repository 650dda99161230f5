"""A compiled loop for the gradient of Fourier features at one point, used by ``FourierFeatures.gradient``.

For four frequencies at a time it computes the phases, then adds the contributions to the gradient, backwards in tiles,
because the cache still holds the last entries.
"""

from __future__ import annotations

from math import cos, sin

import numba
import torch
from torch import Tensor

from surrogates.reordered_numba import reordered

_TILE = 1024


def one_point(V: Tensor, phases: Tensor | None, x: Tensor, w: Tensor, scale: float) -> Tensor:
    """∇φ(x)ᵀw, ``1 x d``, for x of ``1 x d``, frequencies V of ``h x d`` and weights w of ``M``."""
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    point = x.detach()[0].contiguous().numpy()
    weights = w.detach().contiguous().numpy()
    b = None if phases is None else phases.numpy()
    _gradient(V.numpy(), b, point, weights, point.dtype.type(scale), out.numpy()[0])
    return out


@numba.njit(cache=True, nogil=True)
def _gradient(V, b, x, w, scale, out):  # type: ignore[no-untyped-def]
    h = V.shape[0]
    fours = h - h % 4
    for i in range(0, fours, 4):
        p0, p1, p2, p3 = _phases_of_four(x, V[i], V[i + 1], V[i + 2], V[i + 3])
        q0 = _coefficient(p0, i, h, b, w, scale)
        q1 = _coefficient(p1, i + 1, h, b, w, scale)
        q2 = _coefficient(p2, i + 2, h, b, w, scale)
        q3 = _coefficient(p3, i + 3, h, b, w, scale)
        for start in range((x.shape[0] - 1) // _TILE * _TILE, -1, -_TILE):
            j = slice(start, min(start + _TILE, x.shape[0]))
            _add_four(out[j], V[i, j], V[i + 1, j], V[i + 2, j], V[i + 3, j], q0, q1, q2, q3)
    for i in range(fours, h):
        _add(out, V[i], _coefficient(_phase(x, V[i]), i, h, b, w, scale))


@numba.njit(cache=True, nogil=True)
def _coefficient(phase, i, h, b, w, scale):  # type: ignore[no-untyped-def]
    """The coefficient of frequency i: of a cosine-sine pair without phases b, of a cosine with them."""
    if b is None:
        return scale * (w[h + i] * cos(phase) - w[i] * sin(phase))
    return -scale * w[i] * sin(phase + b[i])


@reordered
def _phase(x, row):  # type: ignore[no-untyped-def]
    s = x.dtype.type(0)
    for j in range(x.shape[0]):
        s += x[j] * row[j]
    return s


@reordered
def _phases_of_four(x, a, b, c, d):  # type: ignore[no-untyped-def]
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for j in range(x.shape[0]):
        s0 += x[j] * a[j]
        s1 += x[j] * b[j]
        s2 += x[j] * c[j]
        s3 += x[j] * d[j]
    return s0, s1, s2, s3


@reordered
def _add(out, row, q):  # type: ignore[no-untyped-def]
    for j in range(out.shape[0]):
        out[j] += q * row[j]


@reordered
def _add_four(out, a, b, c, d, q0, q1, q2, q3):  # type: ignore[no-untyped-def]
    for j in range(out.shape[0]):
        out[j] += q0 * a[j] + q1 * b[j] + q2 * c[j] + q3 * d[j]
