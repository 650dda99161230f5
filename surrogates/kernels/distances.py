"""Squared distances in a diagonal metric, by a matrix product where it is accurate, otherwise from differences."""

from __future__ import annotations

import torch
from torch import Tensor

# ‖a‖² + ‖b‖² − 2a·b loses log10((‖a‖² + ‖b‖²)/‖a − b‖²) digits: pairs that would lose more than four are
# evaluated again from their difference.
_CANCELLATION = 1e-4
_CHUNK = 1 << 18


def squared_distances(x1: Tensor, x2: Tensor, weights: Tensor) -> Tensor:
    """Computes Σᵢ wᵢ (xᵢ − x'ᵢ)² for every pair, ``... x q x n``, to nearly full precision (0 for equal points).

    Args:
        x1: The points x, ``... x q x d``. Center x and x' near the points of interest for the best accuracy.
        x2: The points x', ``... x n x d``.
        weights: The weights wᵢ >= 0, ``... x 1 x d`` or ``... x 1 x 1``.
    """
    weighted = x1 * weights
    norm1 = (weighted * x1).sum(-1, keepdim=True)
    norm2 = (x2 * weights * x2).sum(-1, keepdim=True).mT
    return refined(norm1 + norm2 - 2 * weighted @ x2.mT, norm1 + norm2, x1, x2, weights)


def refined(result: Tensor, scale: Tensor, x1: Tensor, x2: Tensor, weights: Tensor) -> Tensor:
    """Recomputes squared distances from the differences where they are small compared with ``scale``.

    ``result`` are the squared distances ‖x‖² + ‖x'‖² − 2x·x', and ``scale`` is ‖x‖² + ‖x'‖², both ``... x q x n``. The
    other arguments are as in ``squared_distances``.
    """
    with torch.no_grad():
        close = (result < _CANCELLATION * scale).nonzero(as_tuple=True)
    if close[0].numel() == 0:
        return result
    batch = result.shape[:-2]
    x1, x2 = x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:])
    weights = weights.expand(*batch, *weights.shape[-2:])
    step = max(1, _CHUNK // x1.shape[-1])
    exact = []
    for start in range(0, close[0].numel(), step):
        *lead, row, column = (index[start : start + step] for index in close)
        difference = x1[(*lead, row)] - x2[(*lead, column)]
        exact.append((difference * difference * weights[(*lead, torch.zeros_like(row))]).sum(-1))
    return result.index_put(close, torch.cat(exact))


def pairwise_squared_distances(x: Tensor, weights: Tensor) -> Tensor:
    """Computes Σᵢ wᵢ (xᵢ − x'ᵢ)² among the rows of x, ``... x n x n``, symmetric with a zero diagonal, in float64.

    The rows are centred at their mean in blocks of inputs, without a copy of x.

    Args:
        x: The points, ``... x n x d``.
        weights: The weights wᵢ >= 0, ``... x 1 x d`` or ``... x 1 x 1``.
    """
    n, d = x.shape[-2:]
    weights = weights.double()
    gram: Tensor | float = 0.0
    # With fewer columns the addition to the n x n result would take longer than the product.
    step = max(256, _CHUNK // max(1, n))
    for start in range(0, d, step):
        block = x[..., start : start + step].double()
        block = block - block.mean(dim=-2, keepdim=True)
        block_weights = weights if weights.shape[-1] == 1 else weights[..., start : start + step]
        gram = gram + (block * block_weights) @ block.mT
    assert isinstance(gram, Tensor)
    norm = torch.diagonal(gram, dim1=-2, dim2=-1)
    scale = norm.unsqueeze(-1) + norm.unsqueeze(-2)
    result = scale - (gram + gram.mT)
    eye = torch.eye(n, dtype=torch.bool, device=x.device)
    result = refined(result.masked_fill(eye, torch.inf), scale, x.double() if d * n <= _CHUNK else x, x, weights)
    return result.masked_fill(eye, 0.0).clamp_min(0.0)
