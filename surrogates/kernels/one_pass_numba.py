"""A compiled pass over the data for one point, used by ``surrogates.kernels.one_pass``.

The contribution of a row to the mean needs the row's distance first. If eight rows fit in the cache, the contributions
of four rows are added while the distances of the next four are summed. Otherwise contributions are added backwards in
tiles, because the cache still holds the end of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from surrogates.kernels.stationary import RadialProfile, StationaryKernel
from surrogates.reordered_numba import exact, reordered

_TILE = 1024
_WIDE = 4096
_NEAR = 1 << 20
_SHORT = 256
_PROFILES = {"rbf": 0, "rq": 1, "matern12": 2, "matern32": 3, "matern52": 4}


class Arrays(NamedTuple):
    """Data and a kernel, converted for the compiled loops.

    Attributes:
        loop: The loop over the data.
        given: The loop for known squared distances, or None if the kernel is not isotropic.
        arguments: The loop's arguments that do not depend on the point.
        n: The number of data.
        dtype: The dtype of the mean.
    """

    loop: Callable[..., None]
    given: Callable[..., None] | None
    arguments: tuple[Any, ...]
    n: int
    dtype: np.dtype[Any]


def as_arrays(kernel: StationaryKernel, X: Tensor, alpha: Tensor) -> Arrays | None:
    """Converts the data X, ``n x d``, and α, ``n``, for ``one_point`` without copying X.

    It returns None for a registered kernel, because h' is compiled for the built-in kernels only.
    """
    profile = _PROFILES.get(kernel.profile.name)
    if profile is None:
        return None
    n, d = X.shape
    data = X.numpy()
    exponent, outputscale, p, v = kernel.numbers
    if kernel.isotropic:
        return Arrays(
            _isotropic, _isotropic_given, (data, alpha.numpy(), profile, exponent, outputscale, p, v), n, data.dtype
        )
    ps, vs = (m.expand(1, d).contiguous().double().numpy()[0] for m in (kernel.precision, kernel.column_scales))
    return Arrays(_ard, None, (data, alpha.numpy(), profile, exponent, outputscale, ps, vs), n, data.dtype)


def one_point(arrays: Arrays, x: Tensor, distances: np.ndarray | None = None) -> tuple[Any, ...]:
    """Computes the arguments of ``one_pass.Pass`` for one point x, ``1 x d``; ``distances`` is as in ``one_pass``."""
    # Creating small NumPy arrays, and tensors that share their storage, takes half the time of small tensors.
    mean = np.empty(x.shape, arrays.dtype)
    n_vectors = np.empty((3, 1, arrays.n))
    loop = arrays.loop
    if distances is not None and arrays.given is not None:
        n_vectors[0, 0], loop = distances, arrays.given
    loop(*arrays.arguments, (x.detach() if x.requires_grad else x).numpy(), mean, n_vectors)
    return torch.from_numpy(mean), *n_vectors


def numbers_of(profile: RadialProfile) -> tuple[int, float]:
    """The arguments of ``h`` for a built-in profile: the profile's number and exponent."""
    return _PROFILES[profile.name], 1.0 if profile.alpha is None else profile.alpha.item()


@numba.njit(cache=True, nogil=True)
def correlations(profile, D, precision, out):  # type: ignore[no-untyped-def]
    """Writes h(D/ℓ²) for squared distances D, ``m x k``, to ``out``; ``profile`` is a result of ``numbers_of``."""
    for i in range(D.shape[0]):
        for j in range(D.shape[1]):
            out[i, j] = h(profile[0], profile[1], precision * D[i, j])


@numba.njit(cache=True, nogil=True)
def h(profile, exponent, r2):  # type: ignore[no-untyped-def]
    """The profile h(r²) with number ``profile``."""
    if profile == 0:
        return exp(-0.5 * r2)
    if profile == 1:
        return (1 + r2 / (2 * exponent)) ** -exponent
    r = sqrt(r2)
    if profile == 2:
        return exp(-r)
    if profile == 3:
        a = sqrt(3.0) * r
        return (1 + a) * exp(-a)
    a = sqrt(5.0) * r
    return (1 + a + a * a / 3) * exp(-a)


@exact
def h1(profile, exponent, r2):  # type: ignore[no-untyped-def]
    """The derivative h'(r²) of the profile with number ``profile``."""
    if profile == 0:
        return -0.5 * exp(-0.5 * r2)
    if profile == 1:
        return -0.5 * (1 + r2 / (2 * exponent)) ** (-exponent - 1)
    r = sqrt(r2)
    if profile == 2:
        return -exp(-r) / (2 * r) if r > 0 else -np.inf
    if profile == 3:
        return -1.5 * exp(-sqrt(3.0) * r)
    a = sqrt(5.0) * r
    return (-5.0 / 6.0) * (1 + a) * exp(-a)


@numba.njit(cache=True, nogil=True)
def _isotropic(X, alpha, profile, exponent, outputscale, p, v, point, means, n_vectors):  # type: ignore[no-untyped-def]
    n, d = X.shape
    x, mean, r2, q, c = point[0], means[0], n_vectors[0, 0], n_vectors[1, 0], n_vectors[2, 0]
    mean[:] = 0
    weight = np.empty(n, dtype=x.dtype)
    kernel = (alpha, profile, exponent, outputscale, p, v)
    if d <= _SHORT and n * d * x.itemsize <= _NEAR:
        _squares_of_all(x, X, r2)
        _weigh(0, n, *kernel, r2, q, c, weight)
        _add_all(mean, x, X, weight)
        return
    fours = n - n % 4
    if 8 * d * x.itemsize <= _NEAR and fours >= 8:
        r2[0], r2[1], r2[2], r2[3] = _squares_of_four(x, X[0], X[1], X[2], X[3])
        _weigh(0, 4, *kernel, r2, q, c, weight)
        for i in range(0, fours - 4, 4):
            j = i + 4
            r2[j], r2[j + 1], r2[j + 2], r2[j + 3] = _add_four_and_squares_of_four(
                mean, x, X[i], X[i + 1], X[i + 2], X[i + 3], weight[i:j], X[j], X[j + 1], X[j + 2], X[j + 3]
            )
            _weigh(j, j + 4, *kernel, r2, q, c, weight)
        i = fours - 4
        _add_four(mean, x, X[i], X[i + 1], X[i + 2], X[i + 3], weight[i:fours])
    else:
        for i in range(0, fours, 4):
            r2[i], r2[i + 1], r2[i + 2], r2[i + 3] = _squares_of_four(x, X[i], X[i + 1], X[i + 2], X[i + 3])
            _weigh(i, i + 4, *kernel, r2, q, c, weight)
            for start in range((d - 1) // _TILE * _TILE, -1, -_TILE):
                j = slice(start, min(start + _TILE, d))
                _add_four(mean[j], x[j], X[i, j], X[i + 1, j], X[i + 2, j], X[i + 3, j], weight[i : i + 4])
    for i in range(fours, n):
        r2[i] = _squares(x, X[i])
        _weigh(i, i + 1, *kernel, r2, q, c, weight)
        _add(mean, x, X[i], weight[i])


@numba.njit(cache=True, nogil=True)
def _isotropic_given(X, alpha, profile, exponent, outputscale, p, v, point, means, n_vectors):  # type: ignore[no-untyped-def]
    n, d = X.shape
    x, mean, r2, q, c = point[0], means[0], n_vectors[0, 0], n_vectors[1, 0], n_vectors[2, 0]
    mean[:] = 0
    weight = np.empty(n, dtype=x.dtype)
    _weigh(0, n, alpha, profile, exponent, outputscale, p, v, r2, q, c, weight)
    fours = n - n % 4
    for start in range(0, d, _WIDE):  # the cache keeps this part of the mean while all rows are added to it
        j = slice(start, min(start + _WIDE, d))
        for i in range(0, fours, 4):
            _add_four(mean[j], x[j], X[i, j], X[i + 1, j], X[i + 2, j], X[i + 3, j], weight[i : i + 4])
        for i in range(fours, n):
            _add(mean[j], x[j], X[i, j], weight[i])


@numba.njit(cache=True, nogil=True)
def _weigh(first, last, alpha, profile, exponent, outputscale, p, v, r2, q, c, weight):  # type: ignore[no-untyped-def]
    """Computes r², q, c and each row's weight in the mean from Σ(x − x_τ)², which r2 contains."""
    for i in range(first, last):
        r2[i] *= p
        q[i] = r2[i] * (v * v / p)
        c[i] = 2 * outputscale * h1(profile, exponent, r2[i])
        weight[i] = c[i] * alpha[i] * v


@reordered
def _squares_of_all(x, X, r2):  # type: ignore[no-untyped-def]
    for i in range(X.shape[0]):
        s = x.dtype.type(0)
        for j in range(x.shape[0]):
            difference = x[j] - X[i, j]
            s += difference * difference
        r2[i] = s


@reordered
def _add_all(mean, x, X, weight):  # type: ignore[no-untyped-def]
    for i in range(X.shape[0]):
        w = weight[i]
        for j in range(x.shape[0]):
            mean[j] += w * (x[j] - X[i, j])


@reordered
def _squares(x, a):  # type: ignore[no-untyped-def]
    s = x.dtype.type(0)
    for j in range(x.shape[0]):
        difference = x[j] - a[j]
        s += difference * difference
    return s


@reordered
def _squares_of_four(x, a0, a1, a2, a3):  # type: ignore[no-untyped-def]
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for j in range(x.shape[0]):
        difference = x[j] - a0[j]
        s0 += difference * difference
        difference = x[j] - a1[j]
        s1 += difference * difference
        difference = x[j] - a2[j]
        s2 += difference * difference
        difference = x[j] - a3[j]
        s3 += difference * difference
    return s0, s1, s2, s3


@reordered
def _add(mean, x, a, w):  # type: ignore[no-untyped-def]
    for j in range(mean.shape[0]):
        mean[j] += w * (x[j] - a[j])


@reordered
def _add_four(mean, x, a0, a1, a2, a3, weight):  # type: ignore[no-untyped-def]
    w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
    for j in range(mean.shape[0]):
        mean[j] += w0 * (x[j] - a0[j]) + w1 * (x[j] - a1[j]) + w2 * (x[j] - a2[j]) + w3 * (x[j] - a3[j])


@reordered
def _add_four_and_squares_of_four(mean, x, a0, a1, a2, a3, weight, b0, b1, b2, b3):  # type: ignore[no-untyped-def]
    w0, w1, w2, w3 = weight[0], weight[1], weight[2], weight[3]
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for j in range(mean.shape[0]):
        xj = x[j]
        mean[j] += w0 * (xj - a0[j]) + w1 * (xj - a1[j]) + w2 * (xj - a2[j]) + w3 * (xj - a3[j])
        difference = xj - b0[j]
        s0 += difference * difference
        difference = xj - b1[j]
        s1 += difference * difference
        difference = xj - b2[j]
        s2 += difference * difference
        difference = xj - b3[j]
        s3 += difference * difference
    return s0, s1, s2, s3


@reordered
def _ard(X, alpha, profile, exponent, outputscale, p, v, point, means, n_vectors):  # type: ignore[no-untyped-def]
    n, d = X.shape
    x, mean, r2, q, c = point[0], means[0], n_vectors[0, 0], n_vectors[1, 0], n_vectors[2, 0]
    mean[:] = 0
    for i in range(n):
        row = X[i]
        s = t = x.dtype.type(0)
        for j in range(d):
            a = x[j] - row[j]
            s += a * a * p[j]
            t += (a * v[j]) * (a * v[j])
        r2[i] = s
        q[i] = t
        c[i] = 2 * outputscale * h1(profile, exponent, r2[i])
        w = x.dtype.type(c[i] * alpha[i])
        for j in range(d):
            mean[j] += w * (x[j] - row[j])
    for j in range(d):
        mean[j] *= v[j]


@reordered
def trace_explained(cs, qs, inverse, weighted):  # type: ignore[no-untyped-def]
    """Computes (c∘q)ᵀ A⁻¹ c − ½ cᵀ (A⁻¹∘E) c for c and q of one point, ``1 x n``, and the matrices A⁻¹ and A⁻¹∘E."""
    # Both matrices are symmetric, and the diagonal of the second is 0: one triangle is read.
    c, q = cs[0], qs[0]
    explained = 0.0
    for i in range(len(c)):
        row = q[i] * inverse[i, i] * c[i]
        for j in range(i):
            row += ((q[i] + q[j]) * inverse[i, j] - weighted[i, j]) * c[j]
        explained += c[i] * row
    return explained
