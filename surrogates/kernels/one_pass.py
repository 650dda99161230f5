"""The gradient mean and the squared distances to the data, in one pass over the data.

The gradient mean is v ∘ Σ w_τ (x − x_τ). The weight w_τ = 2 o h'(r_τ²) α_τ of row τ depends on the distance of this row
only, so one pass suffices. Rows are read in blocks that are centred at the points; X is not copied, and an offset of
the data costs no digits. Vectors of length n are float64 for every dtype of X.

On the CPU, a single point takes the compiled loop of ``surrogates.kernels.one_pass_numba`` if numba is installed. All
other cases run in torch, on any device. In all functions here, X are the data in the kernel's inputs,
``batch x n x d``, and x are the points, which broadcast with this batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surrogates.compiled import compiled
from surrogates.kernels.distances import refined
from surrogates.kernels.stationary import StationaryKernel

if TYPE_CHECKING:
    from surrogates.kernels.one_pass_numba import Arrays

_BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
# Matrix products, which several points need, are faster in larger blocks.
_LARGER = 4


class Pass:
    """The result of one pass over the data at the points x, ``... x q x d``; it can be unpacked into mean, r2, q, c.

    Args:
        mean: J(x)ᵀ α, ``... x q x d``.
        r2: The squared distances r² to the data in the metric 1/ℓ², ``... x q x n``, float64.
        q: The squared distances to the data in the metric v², ``... x q x n``, float64.
        c: The row scales 2 o h'(r²), ``... x q x n``, float64.
    """

    __slots__ = ("_c", "_q", "_r2", "mean")

    def __init__(self, mean: Tensor, r2: Tensor | np.ndarray, q: Tensor | np.ndarray, c: Tensor | np.ndarray) -> None:
        self.mean = mean
        self._r2, self._q, self._c = r2, q, c

    @property
    def r2(self) -> Tensor:
        """The squared distances r² to the data in the metric 1/ℓ², ``... x q x n``."""
        return torch.as_tensor(self._r2)

    @property
    def q(self) -> Tensor:
        """The squared distances to the data in the metric v², ``... x q x n``."""
        return torch.as_tensor(self._q)

    @property
    def c(self) -> Tensor:
        """The row scales 2 o h'(r²), ``... x q x n``."""
        return torch.as_tensor(self._c)

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.mean, self.r2, self.q, self.c)

    def of_one_point(self) -> tuple[np.ndarray, np.ndarray] | None:
        """c and q as NumPy arrays, ``1 x n``, if there is one point on the CPU without autograd; otherwise None."""
        c, q = self._c, self._q
        if isinstance(c, np.ndarray) and isinstance(q, np.ndarray):
            return c, q
        c, q = self.c, self.q
        if c.dim() == 2 and len(c) == 1 and c.is_cpu and not (c.requires_grad or q.requires_grad):
            return c.numpy(), q.numpy()
        return None


def one_pass(
    kernel: StationaryKernel,
    X: Tensor,
    x: Tensor,
    alpha: Tensor,
    arrays: Arrays | None = None,
    distances: Tensor | None = None,
) -> Pass:
    """Computes J(x)ᵀ α, for α = A⁻¹(y − m), ``batch x n``, and the distances to the data at points ``... x q x d``.

    ``arrays``, if known, is the result of ``arrays_of`` for the same kernel, data and α. ``distances``, if known, are
    the squared Euclidean distances of one point, ``n``; for an isotropic kernel they are then not computed again.
    """
    if X.dim() == 2 and x.dim() > 2 and kernel.outputscale.dim() == 2:
        # The points of all batches share the data: one matrix product serves them.
        flat = one_pass(kernel, X, x.reshape(-1, x.shape[-1]), alpha)
        return Pass(*(part.reshape(*x.shape[:-1], part.shape[-1]) for part in flat))
    loops = compiled("surrogates.kernels.one_pass_numba")
    if loops is not None and x.dtype == X.dtype and _is_point(x):
        arrays = arrays or arrays_of(kernel, X, alpha)
        if arrays is not None:
            return Pass(*loops.one_point(arrays, x, None if distances is None else distances.numpy()))
    # The result does not depend on the centre, so that it is treated as a constant in derivatives.
    centre = x if x.shape[-2] == 1 else x.detach().mean(dim=-2, keepdim=True)
    points = x - centre
    metric, column_metric = _Metric(points, kernel.precision), _Metric(points, kernel.column_scales.square())
    mean: Tensor | None = None
    r2s, qs, cs = [], [], []
    for rows, block in _centred_blocks(X, centre, 1 if x.shape[-2] == 1 else _LARGER):
        r2 = metric.distances(block).double()
        if kernel.isotropic:
            q = r2 * (kernel.column_scales.square() / kernel.precision).double()
        else:
            q = column_metric.distances(block).double()
        c = kernel.row_scales(r2)
        weights = (c * alpha[..., None, rows].double()).to(x.dtype)
        if mean is None:
            mean = -weights @ block
        elif mean.dim() == block.dim() == 2:
            mean.addmm_(weights, block, alpha=-1)
        else:
            mean -= weights @ block
        r2s.append(r2)
        qs.append(q)
        cs.append(c)
    assert mean is not None
    r2, q, c = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1) for parts in (r2s, qs, cs))
    total = (c @ alpha.unsqueeze(-1).double()).to(x.dtype)
    return Pass(mean.addcmul_(total, points) * kernel.column_scales.to(x.dtype), r2, q, c)


def arrays_of(kernel: StationaryKernel, X: Tensor, alpha: Tensor) -> Arrays | None:
    """Prepares the data for the compiled loop; returns None unless they are one data set on the CPU."""
    loops = compiled("surrogates.kernels.one_pass_numba")
    if loops is None or X.dim() != 2 or not X.is_cpu or X.stride(-1) != 1:
        return None
    return loops.as_arrays(kernel, X, alpha) if X.dtype in (torch.float32, torch.float64) else None


def squared_distances_to(kernel: StationaryKernel, X: Tensor, x: Tensor) -> Tensor:
    """Computes r² between one point x, ``... x 1 x d``, and the data from differences, ``... x 1 x n``, float64."""
    metric = _Metric(x, kernel.precision)
    return torch.cat([metric.distances(block).double() for _, block in _centred_blocks(X, x)], dim=-1)


def weighted_differences(kernel: StationaryKernel, X: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """Computes v ∘ Σ_τ w_τ (x − x_τ), ``... x q x d``, for one point x, ``... x 1 x d``, and w, ``... x q x n``."""
    result: Tensor | float = 0.0
    for rows, block in _centred_blocks(X, x):
        result = result - weights[..., rows].to(x.dtype) @ block
    assert isinstance(result, Tensor)
    return result * kernel.column_scales.to(x.dtype)


def differences_along(kernel: StationaryKernel, X: Tensor, x: Tensor, u: Tensor) -> Tensor:
    """Computes (x − x_τ)·(v ∘ u), ``... x q x n``, float64, for one x, ``... x 1 x d``, and u, ``... x q x d``."""
    along = u * kernel.column_scales.to(u.dtype)
    return torch.cat([-(along @ block.mT).double() for _, block in _centred_blocks(X, x)], dim=-1)


def _centred_blocks(X: Tensor, centre: Tensor, larger: int = 1) -> Iterator[tuple[slice, Tensor]]:
    """Yields slices of rows, and these rows of X minus the centre, ``... x 1 x d``, a few megabytes at a time.

    ``larger`` multiplies the size of a block.
    """
    n, d = X.shape[-2:]
    batch = torch.broadcast_shapes(X.shape[:-2], centre.shape[:-2]).numel()
    budget = larger * _BLOCK_BYTES.get(X.device.type, _BLOCK_BYTES["cuda"])
    most = max(1, budget // max(1, batch * d * X.element_size()))
    step = ceil(n / ceil(n / most)) if n else 1
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        yield rows, X[..., rows, :] - centre


class _Metric:
    """Squared distances of points to blocks of data, both centred, so that a single point is 0.

    Args:
        points: The points, ``... x q x d``.
        weights: The weights of the metric, ``batch x 1 x d`` or ``batch x 1 x 1``.
    """

    def __init__(self, points: Tensor, weights: Tensor) -> None:
        self._points, self._weights = points, weights.to(points.dtype)

    def distances(self, block: Tensor) -> Tensor:
        """The squared distances to a block, ``... x q x m``."""
        norms = self._norms(block).unsqueeze(-2)
        if self._points.shape[-2] == 1:
            return norms
        weighted, own_norms = self._weighted
        scale = own_norms + norms
        product = (scale, weighted, block.mT)
        matrices = all(factor.dim() == 2 for factor in product)
        expanded = torch.addmm(*product, alpha=-2) if matrices else scale - 2 * weighted @ block.mT
        return refined(expanded, scale, self._points, block, self._weights)

    @cached_property
    def _weighted(self) -> tuple[Tensor, Tensor]:
        """The points times the weights, and the points' squared norms, ``... x q x 1``."""
        return self._points * self._weights, self._norms(self._points).unsqueeze(-1)

    def _norms(self, rows: Tensor) -> Tensor:
        """The squared norms of rows, ``... x m``."""
        if self._weights.shape[-1] > 1:
            return ((rows * rows) * self._weights).sum(-1)
        # The norm needs no temporary, but has no second derivative at 0.
        norms = (rows * rows).sum(-1) if rows.requires_grad else torch.linalg.vector_norm(rows, dim=-1).square()
        return norms * self._weights[..., 0]


def _is_point(x: Tensor) -> bool:
    """Whether there is one point, contiguous and without autograd, as the compiled loop requires."""
    return x.dim() == 2 and len(x) == 1 and x.is_contiguous() and not (x.requires_grad and torch.is_grad_enabled())
