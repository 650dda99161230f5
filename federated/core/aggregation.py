"""Means of the clients' vectors, plain and robust."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

AGGREGATIONS = ("mean", "median", "trimmed_mean")
"""Values of the option ``aggregation``."""


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ pᵢ vᵢ with pᵢ = wᵢ/Σw, summed in the given order in float64 and rounded once to the vectors' dtype.

    Equal weights give Σ vᵢ / N, whatever they are, to the last bit.

    Args:
        vectors: N tensors of one shape.
        weights: N positive numbers.

    Returns:
        A tensor of that shape.

    Raises:
        ValueError: if there are no vectors, or not as many weights.
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
    """The coordinate-wise median of N vectors (Yin et al. 2018); for even N the mean of the two middle values."""
    stacked = torch.stack(list(vectors)).sort(dim=0).values
    n = len(stacked)
    return stacked[n // 2] if n % 2 else stacked[n // 2 - 1] / 2 + stacked[n // 2] / 2


def trimmed_mean(vectors: Sequence[Tensor], trim: float) -> Tensor:
    """The coordinate-wise mean without the ⌊trim·N⌋ smallest and as many largest values (Yin et al. 2018).

    Args:
        vectors: N tensors of one shape.
        trim: the share left out at each end, in [0, 1/2).
    """
    stacked = torch.stack(list(vectors)).sort(dim=0).values
    cut = int(trim * len(stacked))
    kept = list(stacked[cut : len(stacked) - cut])
    return weighted_mean(kept, [1.0] * len(kept))


def combine(aggregation: str, vectors: Sequence[Tensor], weights: Sequence[float], trim: float) -> Tensor:
    """The mean of the vectors by one of ``AGGREGATIONS``; only ``"mean"`` uses the weights."""
    if aggregation == "median":
        return median(vectors)
    if aggregation == "trimmed_mean":
        return trimmed_mean(vectors, trim)
    return weighted_mean(vectors, weights)
