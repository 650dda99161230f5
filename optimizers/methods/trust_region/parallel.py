"""Queries beside a pending step: chosen for what they teach about the gradient where the step ends.

Under a Gaussian process covariances do not depend on values. Pending points condition them like queries: whatever their
values will be, it is the covariance once they have come.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.state import Step, TrustRegionState
from optimizers.subproblems.span import carried_metric, coordinates, covering, extended
from surrogates.pinned.posterior import Conditioned
from surrogates.pinned.prior import PinnedPrior, Shape

MOST = 8
"""The most directions of candidates, and of random ones that extend a span."""

LEVELS = (0.25, 0.5, 1.0)
"""The distances of candidates from where the step ends, in units of the radius."""

UPHILL = 0.99
"""The weight of a candidate uphill, beside a weight of 1 downhill."""


def informative_points(
    state: TrustRegionState, rows: Tensor, pending: Tensor, box: FreeBox, prior: PinnedPrior, random: np.random.Generator
) -> Tensor:
    """Finds points beside where the planned step ends, sorted by what they teach about the gradient there, ``m x d``.

    They are end ± δu for orthonormal u along which ∇f(end) is least known, given all queries and pending points, at
    three distances δ. Between two that teach the same the one downhill comes first.

    Args:
        state: the state with the plan.
        rows: the steps from the center to the model's queries, ``n x d``.
        pending: the points that are out, ``p x d``.
        box: the box.
        prior: the kernel's constants.
        random: random numbers, for directions outside a span.

    Raises:
        NotPositiveDefiniteError: if the points are too near to each other.
    """
    center, metric, basis = state.data.points[state.run.center_index], state.fit.metric, state.fit.basis
    end = state.plan.points[0] - center if isinstance(state.plan, Step) else torch.zeros_like(center)
    near = torch.cat([rows, pending - center, end[None]])
    near = torch.unique(near[near.any(dim=1)], dim=0)
    if basis is not None:
        wider, grown = covering(basis, near)
        widest = extended(wider, torch.from_numpy(random.standard_normal((MOST, len(end)))))
        metric = carried_metric(carried_metric(metric, basis, wider, grown), wider, widest, True)
        basis = widest

    def seen(points: Tensor) -> Tensor:
        return points if basis is None else coordinates(basis, points)

    map = metric / (seen(rows) @ metric.mT).square().sum(1).mean().sqrt()
    z = seen(end[None])[0] @ map.mT
    given = Conditioned.on(prior, seen(near) @ map.mT, state.fit.shape or Shape())
    unknown = map.mT @ given.slope_covariance(z) @ map
    if basis is not None:
        unknown = unknown[:-1, :-1]  # the slope along what is outside the wider span is not theirs
    directions = torch.linalg.eigh(unknown).eigenvectors.mT.flip(0)[:MOST]
    if basis is not None:
        directions = directions @ basis
    lengths = torch.tensor(LEVELS, dtype=end.dtype).repeat_interleave(2 * len(directions))
    moves = torch.cat([directions, -directions]).repeat(len(LEVELS), 1) * (state.run.radius.delta * lengths[:, None])
    points = box.clamped(center + end + moves) - center
    gains = given.gains(seen(points) @ map.mT, z, map)
    order = (gains * torch.where(moves @ end < 0.0, UPHILL, 1.0)).argsort(descending=True)
    return center + points[order]
