"""Rules for ZoRD's active queries that lost to the library's gate, runnable as methods of their own.

Both take ``active="gated"`` and have ZoRD's other options, and its limit of active queries in a row. ``zord-fig3`` runs
the first, ``beyond-zord`` the second.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optimizers import ZoRD
from optimizers.designs import local_cloud
from optimizers.methods.zord.active_queries import LEVELS, distances, most_informative

CANDIDATES = 100
"""Points of a cloud."""


class ProbabilityGate(ZoRD):
    """ZoRD with the gate that was tried first.

    While −∇μ(x) is a descent direction with a probability under 0.9, f is queried where ``GradientInformation`` about
    ∇f(x) is largest among a cloud about x, if it is positive there.
    """

    method = "zord_probability_gate"

    def _active_query(self, x: Tensor) -> Tensor | None:
        surrogate = self.surrogate
        surrogate.begin(x)
        if float(surrogate.gradient_posterior(x).descent_probability()) >= 0.9:
            return None
        cloud = self._new(candidate_cloud(x, *self._candidates_address()), x)
        if len(cloud) == 0:
            return None
        query, information = most_informative(surrogate.model(x), x, cloud)
        return query if information > 0 else None


class RandomQueries(ZoRD):
    """ZoRD with the library's gate and a query that teaches whatever it may: the control of aimed queries.

    Where the gate is open, f is queried at a point of a cloud about x, another one at another distance each time.
    """

    method = "zord_random_queries"

    def _active_query(self, x: Tensor) -> Tensor | None:
        cloud = self._new(candidate_cloud(x, *self._candidates_address()), x)
        if super()._active_query(x) is None or len(cloud) == 0:
            return None
        return cloud[self.iterations % len(cloud)]


def candidate_cloud(x: Tensor, nearest: float, farthest: float, seed: int, step: int) -> Tensor:
    """Points about x in normal directions, at ``LEVELS`` root mean square distances in equal ratios, ``m x d``."""
    offsets = local_cloud(torch.zeros_like(x), CANDIDATES, 1.0, seed, distribution="normal", step=step)
    scales = torch.tensor(distances(nearest, farthest), dtype=x.dtype, device=x.device)
    return x + scales.repeat(math.ceil(CANDIDATES / LEVELS))[:CANDIDATES, None] * offsets


class RandomBatch(ZoRD):
    """ZoRD whose queries beside an iterate are at the design's radius from it in random directions, not aimed."""

    method = "zord_random_batch"

    def _informative(self, z: Tensor, pending: Tensor, count: int) -> Tensor:
        return self._around(z, count + 1)[1:]
