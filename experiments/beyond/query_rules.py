"""Rejected rules for ZoRD's active queries, as optimizers.

All accept ZoRD's options. ``zord-fig3`` runs ``ProbabilityGate`` and ``beyond-zord`` runs ``RandomQueries``, both with
``active="gated"``; ``beyond-parallel`` runs ``RandomBatch``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optimizers import ZoRD
from optimizers.designs import local_cloud
from optimizers.methods.zord.active_queries import LEVELS, distances, most_informative

CANDIDATES = 100
"""Number of candidate points."""


class ProbabilityGate(ZoRD):
    """ZoRD with active queries while descent is improbable, the first rule that was tried.

    While −∇μ(x) is a descent direction with probability below 0.9, the method queries f at the candidate near x with
    the largest ``GradientInformation`` about ∇f(x), if it is positive.
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
    """ZoRD with the library's gate but random active queries: the control for informed queries.

    Each active query is at a random point near x, at a different distance each time.
    """

    method = "zord_random_queries"

    def _active_query(self, x: Tensor) -> Tensor | None:
        cloud = self._new(candidate_cloud(x, *self._candidates_address()), x)
        if super()._active_query(x) is None or len(cloud) == 0:
            return None
        return cloud[self.iterations % len(cloud)]


def candidate_cloud(x: Tensor, nearest: float, farthest: float, seed: int, step: int) -> Tensor:
    """Returns candidates in normal directions around x at ``LEVELS`` root mean square distances, ``m x d``."""
    offsets = local_cloud(torch.zeros_like(x), CANDIDATES, 1.0, seed, distribution="normal", step=step)
    scales = torch.tensor(distances(nearest, farthest), dtype=x.dtype, device=x.device)
    return x + scales.repeat(math.ceil(CANDIDATES / LEVELS))[:CANDIDATES, None] * offsets


class RandomBatch(ZoRD):
    """ZoRD with random instead of informative queries around an iterate, at the radius of the design."""

    method = "zord_random_batch"

    def _informative(self, z: Tensor, pending: Tensor, count: int) -> Tensor:
        return self._around(z, count + 1)[1:]
