"""Plain and robust means of N vectors of one shape, with N positive weights.

References:
    P. Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, NeurIPS 2017 (Krum).
    D. Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, ICML 2018.
    Z. Sun et al., Can you really backdoor federated learning?, 2019 (norm clipping).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from statistics import median as median_of

import torch
from torch import Tensor

from federated.core.gate import lengths_of

WEIGHTED = ("mean", "norm_clipping", "multi_krum")
"""Values of the option ``aggregation`` that use the clients' weights."""

AGGREGATIONS = (*WEIGHTED, "median", "trimmed_mean")
"""Values of the option ``aggregation``."""


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Returns Σ pᵢ vᵢ with pᵢ = wᵢ/Σw, summed in the given order in float64 and rounded once to the vectors' dtype.

    Equal weights give Σ vᵢ / N exactly. ``ValueError`` for no vectors, or another number of weights.
    """
    if not vectors or len(vectors) != len(weights):
        raise ValueError(f"each vector needs a weight, got {len(vectors)} vectors and {len(weights)} weights")
    equal = all(w == weights[0] for w in weights)
    total = weighted_sum(vectors, None if equal else weights)
    return total.div_(len(vectors) if equal else sum(weights)).to(vectors[0].dtype)


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[float] | None) -> Tensor:
    """Returns Σ wᵢ vᵢ, or Σ vᵢ if ``weights`` is None, summed in the given order in float64."""
    total = torch.zeros_like(vectors[0], dtype=torch.promote_types(vectors[0].dtype, torch.float64))
    for vector, weight in zip(vectors, weights or repeat(None), strict=False):
        total = total.add_(vector) if weight is None else total.add_(vector.to(total.dtype), alpha=float(weight))
    return total


def median(vectors: Sequence[Tensor]) -> Tensor:
    """Returns the coordinate-wise median of N vectors (Yin et al. 2018), averaging the two middle values for even N."""
    stacked = torch.stack(list(vectors)).sort(dim=0).values
    n = len(stacked)
    return stacked[n // 2] if n % 2 else stacked[n // 2 - 1] / 2 + stacked[n // 2] / 2


def trimmed_mean(vectors: Sequence[Tensor], trim: float) -> Tensor:
    """Returns the coordinate-wise mean without the ⌊trim·N⌋ smallest and ⌊trim·N⌋ largest values (Yin et al. 2018)."""
    stacked = torch.stack(list(vectors)).sort(dim=0).values
    cut = int(trim * len(stacked))
    kept = list(stacked[cut : len(stacked) - cut])
    return weighted_mean(kept, [1.0] * len(kept))


def norm_clipping(vectors: Sequence[Tensor], weights: Sequence[float], about: Tensor | None) -> Tensor:
    """Returns the mean after clipping the distances from ``about`` at their median (Sun et al. 2019).

        a + Σ pᵢ min(1, τ/‖vᵢ − a‖) (vᵢ − a),    τ the median of the nonzero ‖vᵢ − a‖

    a is ``about``, or 0 if ``about`` is None.
    """
    lengths = lengths_of(vectors, about)
    limit = median_of([length for length in lengths if length > 0.0] or [0.0])
    origin = torch.zeros_like(vectors[0]) if about is None else about
    factors = [limit / length if length > limit else 1.0 for length in lengths]
    moves = [(vector - origin) * factor for vector, factor in zip(vectors, factors, strict=True)]
    return origin + weighted_mean(moves, weights)


def multi_krum(vectors: Sequence[Tensor], weights: Sequence[float], trim: float) -> Tensor:
    """Returns the mean of the N − f vectors with the lowest scores, f = ⌊trim·N⌋ (multi-Krum, Blanchard et al. 2017).

    The score of a vector is the sum of its squared distances to its max(1, N − f − 2) nearest neighbours. The cost is
    O(N²d); f adversarial vectors are tolerated if N > 2f + 2.
    """
    n = len(vectors)
    left_out = int(trim * n)
    stacked = torch.stack(list(vectors)).flatten(1).double()
    distances = torch.cdist(stacked, stacked, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = distances.sort(dim=1).values[:, 1 : 1 + max(1, n - left_out - 2)]
    kept = nearest.sum(1).sort(stable=True).indices[: n - left_out].sort().values.tolist()
    return weighted_mean([vectors[i] for i in kept], [weights[i] for i in kept])


def combine(
    aggregation: str, vectors: Sequence[Tensor], weights: Sequence[float], trim: float, about: Tensor | None = None
) -> Tensor:
    """Aggregates vectors by a rule in ``AGGREGATIONS``; only the rules in ``WEIGHTED`` use the weights."""
    if aggregation == "median":
        return median(vectors)
    if aggregation == "trimmed_mean":
        return trimmed_mean(vectors, trim)
    if aggregation == "norm_clipping":
        return norm_clipping(vectors, weights, about)
    if aggregation == "multi_krum":
        return multi_krum(vectors, weights, trim)
    return weighted_mean(vectors, weights)
