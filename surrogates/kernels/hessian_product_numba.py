"""Products with n signed outer products of differences, compiled: the accelerator of ``StationaryHessian.times``.

A row's contribution needs the row's product with the vector first. Contributions are added in tiles from the end
backwards, where the cache still has the row, so that the data are read from memory once.
"""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from surrogates.reordered_numba import reordered

_TILE = 1024
# ``one_pass_numba`` repeats the loops that add differences: numba's cache does not notice changes of another file.


def plus_outer_products(vector: Tensor, X: Tensor, x: Tensor, weights: Tensor, u: Tensor) -> Tensor:
    """Adds Σ_τ w_τ (x − x_τ)(x − x_τ)·u to a vector, ``1 x d``, in place.

    Args:
        vector: The vector, ``1 x d``, which is changed.
        X: The data, ``n x d``.
        x: The point, ``1 x d``.
        weights: w, ``1 x n``.
        u: The vector that the outer products are multiplied by, ``1 x d``.
    """
    product, data, point, w, along = (t.detach().numpy() for t in (vector[0], X, x[0], weights[0], u[0]))
    _add_outer_products(product, data, point, w, along)
    return vector


@numba.njit(cache=True, nogil=True)
def _add_outer_products(product, X, x, weights, u):  # type: ignore[no-untyped-def]
    n, d = X.shape
    w = np.empty(4, dtype=x.dtype)
    fours = n - n % 4
    for i in range(0, fours, 4):
        a0, a1, a2, a3 = _along_of_four(x, u, X[i], X[i + 1], X[i + 2], X[i + 3])
        w[0], w[1], w[2], w[3] = weights[i] * a0, weights[i + 1] * a1, weights[i + 2] * a2, weights[i + 3] * a3
        for start in range((d - 1) // _TILE * _TILE, -1, -_TILE):
            j = slice(start, min(start + _TILE, d))
            _add_four(product[j], x[j], X[i, j], X[i + 1, j], X[i + 2, j], X[i + 3, j], w)
    for i in range(fours, n):
        _add(product, x, X[i], weights[i] * _along(x, u, X[i]))


@reordered
def _along(x, u, a):  # type: ignore[no-untyped-def]
    s = x.dtype.type(0)
    for j in range(x.shape[0]):
        s += (x[j] - a[j]) * u[j]
    return s


@reordered
def _along_of_four(x, u, a0, a1, a2, a3):  # type: ignore[no-untyped-def]
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for j in range(x.shape[0]):
        s0 += (x[j] - a0[j]) * u[j]
        s1 += (x[j] - a1[j]) * u[j]
        s2 += (x[j] - a2[j]) * u[j]
        s3 += (x[j] - a3[j]) * u[j]
    return s0, s1, s2, s3


@reordered
def _add(product, x, a, w):  # type: ignore[no-untyped-def]
    for j in range(product.shape[0]):
        product[j] += w * (x[j] - a[j])


@reordered
def _add_four(product, x, a0, a1, a2, a3, w):  # type: ignore[no-untyped-def]
    w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
    for j in range(product.shape[0]):
        product[j] += w0 * (x[j] - a0[j]) + w1 * (x[j] - a1[j]) + w2 * (x[j] - a2[j]) + w3 * (x[j] - a3[j])
