"""Stores each client's latest vector and updates their mean incrementally."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from federated.core.messages import MessageError, TensorSpec
from federated.core.restoring import check_integers

BRANCHES = 32
"""Number of children of a tree node."""


@dataclass(frozen=True, eq=False, slots=True)
class _Node:
    """A tree node: its children (vectors, nodes or None), Σ wᵢ vᵢ, Σ wᵢ, and the number of vectors below it."""

    children: tuple[Any, ...]
    total: Tensor
    weight: float
    count: int


class LatestVectors:
    """An immutable collection of each client's latest vector vᵢ, with the mean Σ wᵢ vᵢ / Σ wᵢ.

    The vectors are the leaves of a tree with ``BRANCHES`` children per node; a node stores the sum of the vectors below
    it. Replacing k vectors rebuilds only the nodes above them, at most k · BRANCHES · log N vector additions; the other
    nodes are shared with the previous collection. Sums are always taken in the order of the clients and nothing is
    subtracted, so the mean depends on the present vectors only. For up to ``BRANCHES`` clients it equals
    ``aggregation.weighted_mean`` bitwise.

    Args:
        weights: wᵢ, one for each of N clients; equal weights are treated as 1.
        vector: specification of a vector.
    """

    def __init__(self, weights: Sequence[float], vector: TensorSpec) -> None:
        self.weights, self.vector = weights, vector
        self._equal = all(w == weights[0] for w in weights)
        self._span = 1
        while self._span * BRANCHES < len(weights):
            self._span *= BRANCHES
        self._root: _Node | None = None

    def __len__(self) -> int:
        return 0 if self._root is None else self._root.count

    def __contains__(self, client: int) -> bool:
        return self._find(client) is not None

    def __getitem__(self, client: int) -> Tensor:
        found = self._find(client)
        if found is None:
            raise KeyError(client)
        return found

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Iterates over clients, in ascending order, and their vectors."""
        return _leaves(self._root, 0, self._span)

    def replaced(self, vectors: Mapping[int, Tensor]) -> Self:
        """Returns a collection with new vectors of some clients."""
        made = copy.copy(self)
        if vectors:
            made._root = self._rebuilt(self._root, 0, self._span, vectors)
        return made

    def mean(self) -> Tensor:
        """Returns Σ wᵢ vᵢ / Σ wᵢ of one or more vectors, summed in float64 and rounded once to their dtype."""
        root = self._root
        assert root is not None
        return root.total.div(root.count if self._equal else root.weight).to(self.vector.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Returns the clients and their vectors, from which the tree is rebuilt."""
        clients, vectors = [], []
        for client, vector in self.items():
            clients.append(client)
            vectors.append(vector)
        return {"clients": clients, "vectors": vectors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the vectors by those of a ``state_dict``.

        Raises:
            MessageError: if the clients are not ascending, or a vector does not fit; the collection is then unchanged.
        """
        clients, vectors = state["clients"], state["vectors"]
        check_integers("clients", clients, len(self.weights))
        if not isinstance(vectors, list) or len(vectors) != len(clients) or sorted(set(clients)) != clients:
            raise MessageError(f"{len(vectors)} vectors do not match {len(clients)} ascending clients")
        for client, vector in zip(clients, vectors, strict=True):
            if not isinstance(vector, Tensor):
                raise MessageError(f"the vector of client {client} must be a tensor, got {type(vector).__name__}")
            self.vector.check_layout(f"the vector of client {client}", vector.dtype, tuple(vector.shape))
        self._root = None
        self._root = self.replaced(dict(zip(clients, vectors, strict=True)))._root

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a copy that shares the nodes, which are immutable."""
        return copy.copy(self)

    def _find(self, client: int) -> Tensor | None:
        node, span = self._root, self._span
        while node is not None:
            child = node.children[client // span]
            if span == 1:
                return child
            node, client, span = child, client % span, span // BRANCHES
        return None

    def _rebuilt(self, node: _Node | None, first: int, span: int, vectors: Mapping[int, Tensor]) -> _Node:
        """Returns a node with new vectors: its first client is ``first``, and each child covers ``span`` clients."""
        children = [None] * BRANCHES if node is None else list(node.children)
        groups: dict[int, dict[int, Tensor]] = {}
        for client, vector in vectors.items():
            groups.setdefault((client - first) // span, {})[client] = vector
        for i, below in groups.items():
            at = first + i * span
            children[i] = below[at] if span == 1 else self._rebuilt(children[i], at, span // BRANCHES, below)
        return self._node_of(children, first, span)

    def _node_of(self, children: list[Any], first: int, span: int) -> _Node:
        there = [(first + i, child) for i, child in enumerate(children) if child is not None]
        leaf = there[0][1] if span == 1 else there[0][1].total
        total = torch.zeros_like(leaf, dtype=torch.promote_types(leaf.dtype, torch.float64))
        if span > 1:
            for _, child in there:
                total.add_(child.total)
            weight, count = sum(child.weight for _, child in there), sum(child.count for _, child in there)
            return _Node(tuple(children), total, weight, count)
        for client, vector in there:
            if self._equal:
                total.add_(vector)
            else:
                total.add_(vector.to(total.dtype), alpha=float(self.weights[client]))
        return _Node(tuple(children), total, sum(self.weights[client] for client, _ in there), len(there))


def _leaves(node: _Node | None, first: int, span: int) -> Iterator[tuple[int, Tensor]]:
    for i, child in enumerate(() if node is None else node.children):
        if child is not None and span == 1:
            yield first + i, child
        elif child is not None:
            yield from _leaves(child, first + i * span, span // BRANCHES)


def among(client: int | None, clients: Sequence[int]) -> bool:
    """Whether a client is in an ascending sequence, by bisection; False for None."""
    if client is None:
        return False
    at = bisect_left(clients, client)
    return at < len(clients) and clients[at] == client
