"""Means of clients' vectors, plain and robust."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

AGGREGATIONS = ("mean", "median", "trimmed_mean")


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ pᵢ vᵢ with pᵢ = wᵢ/Σw, added in the order given, in float64, rounded once to the vectors' dtype.

    Args:
        vectors: N tensors of one shape.
        weights: N positive numbers.

    Returns:
        Tensor of that shape; for equal weights Σ vᵢ / N, rounded as that.

    Raises:
        ValueError: for no vectors or weights that are not as many.
    """
    if not vectors or len(vectors) != len(weights):
        raise ValueError(f"{len(vectors)} vectors and {len(weights)} weights are given")
    wide = torch.promote_types(vectors[0].dtype, torch.float64)
    equal = all(w == weights[0] for w in weights)
    total = torch.zeros_like(vectors[0], dtype=wide)
    for vector, weight in zip(vectors, weights, strict=True):
        total = total.add_(vector) if equal else total.add_(vector.to(wide), alpha=float(weight))
    return total.div_(len(vectors) if equal else sum(weights)).to(vectors[0].dtype)


def median(vectors: Sequence[Tensor]) -> Tensor:
    """The coordinate-wise median (Yin et al. 2018); of an even number the mean of the two in the middle."""
    stacked = torch.stack(list(vectors)).sort(dim=0).values
    n = len(stacked)
    return stacked[n // 2] if n % 2 else stacked[n // 2 - 1] / 2 + stacked[n // 2] / 2


def trimmed_mean(vectors: Sequence[Tensor], trim: float) -> Tensor:
    """The coordinate-wise mean without the ⌊trim·N⌋ least and as many greatest (Yin et al. 2018).

    Args:
        vectors: N tensors of one shape.
        trim: share that is left out at each end, from 0 to under 1/2.
    """
    stacked = torch.stack(list(vectors)).sort(dim=0).values
    cut = int(trim * len(stacked))
    kept = list(stacked[cut : len(stacked) - cut])
    return weighted_mean(kept, [1.0] * len(kept))


def combine(aggregation: str, vectors: Sequence[Tensor], weights: Sequence[float], trim: float) -> Tensor:
    """The vectors' mean by the name of one of ``AGGREGATIONS``; only ``"mean"`` heeds the weights."""
    if aggregation == "median":
        return median(vectors)
    if aggregation == "trimmed_mean":
        return trimmed_mean(vectors, trim)
    return weighted_mean(vectors, weights)
