"""Stores each client's latest vector and updates their mean incrementally."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from federated.core.aggregation import weighted_sum
from federated.core.messages import MessageError, TensorSpec
from federated.core.restoring import check_integers

BRANCHES = 32
"""Number of terms in a sum: vectors, or sums of the level below."""

Sums = Mapping[int, tuple[Tensor, float]]
"""For each group of consecutive clients, by its number: Σ wᵢ vᵢ and Σ wᵢ."""


class LatestVectors:
    """An immutable collection of each client's latest vector vᵢ, with the mean Σ wᵢ vᵢ / Σ wᵢ.

    A tree of sums makes updates cheap: a sum of level 1 is over ``BRANCHES`` clients, a sum of level l + 1 over
    ``BRANCHES`` sums of level l. Replacing k vectors costs at most k · BRANCHES · log N vector additions. Sums are in
    the order of the clients and nothing is subtracted, so the mean depends on the present vectors only. For up to
    ``BRANCHES`` clients the mean equals ``aggregation.weighted_mean`` bitwise.

    Args:
        weights: wᵢ, one for each of N clients; equal weights are treated as 1.
        vector: specification of a vector.
    """

    def __init__(self, weights: Sequence[float], vector: TensorSpec) -> None:
        self.weights, self.vector = weights, vector
        self._equal = all(w == weights[0] for w in weights)
        self._vectors: Mapping[int, Tensor] = {}
        self._levels: list[Sums] = [{}]
        while BRANCHES ** len(self._levels) < len(weights):
            self._levels.append({})

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, client: int) -> bool:
        return client in self._vectors

    def __getitem__(self, client: int) -> Tensor:
        return self._vectors[client]

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Iterates over clients, in ascending order, and their vectors."""
        return ((client, self._vectors[client]) for client in sorted(self._vectors))

    def replaced(self, vectors: Mapping[int, Tensor]) -> Self:
        """Returns a collection with new vectors of some clients."""
        made, changed = copy.copy(self), set(vectors)
        made._vectors, made._levels = {**self._vectors, **vectors}, []
        for level in self._levels:
            changed = {number // BRANCHES for number in changed}
            made._levels.append({**level, **{group: made._sum(group) for group in changed}})
        return made

    def mean(self) -> Tensor:
        """Returns Σ wᵢ vᵢ / Σ wᵢ of one or more vectors, summed in float64 and rounded once to their dtype."""
        total, weight = self._levels[-1][0]
        return total.div(len(self) if self._equal else weight).to(self.vector.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Returns the clients and their vectors, from which the sums are computed again."""
        return {"clients": sorted(self._vectors), "vectors": [vector for _, vector in self.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the vectors; ``MessageError`` if clients do not ascend or a vector does not fit."""
        clients, vectors = state["clients"], state["vectors"]
        check_integers("clients", clients, len(self.weights))
        if not isinstance(vectors, list) or len(vectors) != len(clients) or sorted(set(clients)) != clients:
            raise MessageError(f"{len(vectors)} vectors do not match {len(clients)} ascending clients")
        for client, vector in zip(clients, vectors, strict=True):
            if not isinstance(vector, Tensor):
                raise MessageError(f"the vector of client {client} must be a tensor, got {type(vector).__name__}")
            self.vector.check_layout(f"the vector of client {client}", vector.dtype, tuple(vector.shape))
        empty = LatestVectors(self.weights, self.vector)
        vars(self).update(vars(empty.replaced(dict(zip(clients, vectors, strict=True)))))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a copy that shares the vectors and sums, which are immutable."""
        return copy.copy(self)

    def _sum(self, group: int) -> tuple[Tensor, float]:
        """Returns a sum of the level after those in ``_levels``."""
        numbers = range(group * BRANCHES, (group + 1) * BRANCHES)
        if self._levels:
            parts = [self._levels[-1][number] for number in numbers if number in self._levels[-1]]
            return weighted_sum([total for total, _ in parts], None), sum(weight for _, weight in parts)
        clients = [number for number in numbers if number in self._vectors]
        vectors, weights = [self._vectors[c] for c in clients], [self.weights[c] for c in clients]
        return weighted_sum(vectors, None if self._equal else weights), sum(weights)


def among(client: int | None, clients: Sequence[int]) -> bool:
    """Whether a client is in an ascending sequence, by bisection; False for None."""
    if client is None:
        return False
    at = bisect_left(clients, client)
    return at < len(clients) and clients[at] == client
