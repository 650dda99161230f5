"""TuRBO's trust regions: their state, the rule by which they change, and the candidates in one."""

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
        number: number of the region in its run, from 0; a region that replaces an ended one has a new number.
        length: base side length L.
        best: the least value found in the region.
        successes: successful batches in a row since L last changed.
        failures: unsuccessful queries in a row since L last changed.
    """

    number: int
    length: float
    best: float = math.inf
    successes: int = 0
    failures: int = 0


@dataclass(frozen=True, kw_only=True)
class TrustRegionRule:
    """When a trust region grows, shrinks and ends (Eriksson et al., 2019, Sec. 2).

    After ``success_tolerance`` successful batches in a row, L becomes min(2L, ``length_max``); after
    ``failure_tolerance`` unsuccessful queries in a row, L becomes L/2. Both counters restart when L changes; a success
    resets the count of failures, and a failure the count of successes. A region ends at L < ``length_min``.

    We count failures in queries, because regions share batches. A batch succeeds if its least value is below the
    region's ``best`` by more than ``improvement`` times |best|. The paper asks for any improvement, its published code
    for 1e-3.

    Attributes:
        failure_tolerance: None: the number d of variables (the paper's ⌈d/q⌉ batches of q queries), at least 4.
        success_tolerance: number of batches.
        length_init: L of a new region, in units of the box's width.
        length_min: L below which a region ends.
        length_max: the largest L.
        improvement: the relative improvement that makes a batch successful.
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
            raise ValueError(f"a trust region needs 0 < length_min <= length_init <= length_max, got {given}")

    def start(self, number: int, best: float = math.inf) -> TrustRegion:
        """A new region of length ``length_init``."""
        return TrustRegion(number, self.length_init, best)

    def update(self, region: TrustRegion, value: float, queries: int) -> TrustRegion:
        """The region after a batch.

        Args:
            region: the region before.
            value: the least value of the batch in the region; inf if all queries failed.
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
        """Whether the region is smaller than ``length_min``."""
        return region.length < self.length_min


def region_bounds(center: Tensor, lengthscales: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Lower and upper corners of a trust region in the unit cube (Eriksson et al., 2019, Sec. 2), shape ``d`` each.

    Side i has length L_i = L ℓ_i / (Π_j ℓ_j)^(1/d), so that the volume is L^d before the region is cut to the cube.

    Args:
        center: center of the region, shape ``d``.
        lengthscales: ℓ, shape ``d``.
        length: L.
    """
    logarithms = lengthscales.log()
    half = 0.5 * length * (logarithms - logarithms.mean()).exp()
    return (center - half).clamp(0.0, 1.0), (center + half).clamp(0.0, 1.0)


def perturbed_candidates(
    center: Tensor, lower: Tensor, upper: Tensor, points: Tensor, uniforms: Tensor, probability: float
) -> Tensor:
    """Candidates that differ from the center in some coordinates only (Eriksson et al., 2019, Supp. D), ``num x d``.

    Coordinate j of candidate i comes from point i, scaled into the region, if ``uniforms[i, j]`` is below the
    probability, and otherwise from the center. At least the coordinate with the least uniform number comes from the
    point.

    Args:
        center: center of the region, shape ``d``.
        lower: lower corner of the region, shape ``d``.
        upper: upper corner, shape ``d``.
        points: points of the unit cube (the paper: Sobol'), ``num x d``.
        uniforms: uniform numbers on [0, 1), ``num x d``.
        probability: p, the paper's min(20/d, 1).
    """
    mask = uniforms < probability
    forced = torch.zeros_like(mask).scatter_(1, uniforms.argmin(dim=1, keepdim=True), True)
    return torch.where(mask | forced, lower + (upper - lower) * points, center)
