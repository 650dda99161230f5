"""TuRBO's trust regions: their state, the rule that updates them, their bounds and their candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimizers.core.options import nonnegative, optional, positive_integer


@dataclass(frozen=True)
class TrustRegion:
    """One trust region in the unit cube.

    Attributes:
        number: the number of the region in its run, from 0; a region that replaces an ended one has a new number.
        length: base side length L, in units of the cube's side.
        best: the least value found in the region.
        successes: the number of consecutive successful batches since L last changed.
        failures: the number of consecutive unsuccessful queries since L last changed.
    """

    number: int
    length: float
    best: float = math.inf
    successes: int = 0
    failures: int = 0


@dataclass(frozen=True, kw_only=True)
class TrustRegionRule:
    """Decides when a trust region grows, shrinks and ends (Eriksson et al., 2019, Sec. 2).

    A batch is successful if its least value in the region is below the region's ``best`` by more than ``improvement``
    times |best|. After ``success_tolerance`` consecutive successful batches, the region's length L becomes
    min(2L, ``length_max``). After ``failure_tolerance`` consecutive unsuccessful queries, L becomes L/2. Both counts
    restart when L changes. A region ends at L < ``length_min``.

    Attributes:
        failure_tolerance: the number of consecutive unsuccessful queries that halves L; None: d, at least 4. (The paper
            counts batches of q queries, because its regions do not share batches, and has ⌈d/q⌉.)
        success_tolerance: the number of consecutive successful batches that doubles L.
        length_init: L of a new region, in units of the box's width.
        length_min: the least L of a region that has not ended.
        length_max: the largest L.
        improvement: the relative improvement of a successful batch: any in the paper, 1e-3 in its published code.
    """

    failure_tolerance: int | None = None
    success_tolerance: int = 3
    length_init: float = 0.8
    length_min: float = 0.5**7
    length_max: float = 1.6
    improvement: float = 1e-3

    def __post_init__(self) -> None:
        positive_integer("success_tolerance", self.success_tolerance)
        optional(positive_integer, "failure_tolerance", self.failure_tolerance)
        nonnegative("improvement", self.improvement)
        if not 0 < self.length_min <= self.length_init <= self.length_max:
            given = f"{self.length_min}, {self.length_init}, {self.length_max}"
            raise ValueError(f"the lengths must satisfy 0 < length_min <= length_init <= length_max, got {given}")

    def start(self, number: int, best: float = math.inf) -> TrustRegion:
        """Returns a new region of length ``length_init`` with the given number and least value."""
        return TrustRegion(number, self.length_init, best)

    def update(self, region: TrustRegion, value: float, queries: int) -> TrustRegion:
        """Updates a region after a batch.

        Args:
            region: the region before the batch.
            value: the least value of the batch in the region; inf if all its queries there failed.
            queries: the number of the batch's queries in the region; 0 leaves the region as it is.
        """
        if queries == 0:
            return region
        best = min(region.best, value)
        margin = 0.0 if math.isinf(region.best) else self.improvement * abs(region.best)
        if value < region.best - margin:
            successes, failures = region.successes + 1, 0
        else:
            successes, failures = 0, region.failures + queries
        if successes >= self.success_tolerance:
            return TrustRegion(region.number, min(2.0 * region.length, self.length_max), best)
        if self.failure_tolerance and failures >= self.failure_tolerance:
            return TrustRegion(region.number, region.length / 2.0, best)
        return replace(region, best=best, successes=successes, failures=failures)

    def ended(self, region: TrustRegion) -> bool:
        """Whether the region's length is below ``length_min``."""
        return region.length < self.length_min


def region_bounds(center: Tensor, lengthscales: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Computes the lower and the upper corner of a trust region in the unit cube, shape ``d`` each.

    Side i has length L ℓ_i / (Π_j ℓ_j)^(1/d) before the region is clipped to the cube (Eriksson et al., 2019, Sec. 2),
    where ℓ are ``lengthscales`` and L is ``length``.
    """
    logarithms = lengthscales.log()
    half = 0.5 * length * (logarithms - logarithms.mean()).exp()
    return (center - half).clamp(0.0, 1.0), (center + half).clamp(0.0, 1.0)


def perturbed_candidates(
    center: Tensor, lower: Tensor, upper: Tensor, points: Tensor, uniforms: Tensor, probability: float
) -> Tensor:
    """Perturbs some coordinates of the center (Eriksson et al., 2019, Supp. D), giving candidates of shape ``num x d``.

    Coordinate j of candidate i comes from point i, scaled into the region, if ``uniforms[i, j]`` is below
    ``probability`` or is the least of row i; otherwise it comes from the center.

    Args:
        center: the center of the region, shape ``d``.
        lower: the lower corner of the region, shape ``d``.
        upper: the upper corner of the region, shape ``d``.
        points: points of the unit cube (Sobol' points in the paper), ``num x d``.
        uniforms: uniform numbers on [0, 1), ``num x d``.
        probability: the probability that a coordinate is perturbed, min(20/d, 1) in the paper.
    """
    mask = uniforms < probability
    forced = torch.zeros_like(mask).scatter_(1, uniforms.argmin(dim=1, keepdim=True), True)
    return torch.where(mask | forced, lower + (upper - lower) * points, center)
