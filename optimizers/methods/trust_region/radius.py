"""Powell's two radii, and the rule by which they change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox


@dataclass(frozen=True)
class Radius:
    """Powell's two radii.

    Attributes:
        delta: Δ, the radius of the trust region.
        rho: ρ ≤ Δ, the scale at which the run searches.
        largest: the most that Δ may be.
        finest: the run ends when ρ falls below it.
    """

    delta: float
    rho: float
    largest: float
    finest: float = 0.0


@dataclass(frozen=True)
class RadiusRule:
    """Powell's rules of two radii: Δ bounds a step, ρ ≤ Δ is the scale of the search.

    Attributes:
        initial: the first Δ in units of the box's least side.
        growth: the largest Δ relative to the first, if a side is infinite. In a finite box it is half the largest side.
        alike: for d above this, the first and the largest Δ in a finite box are multiplied by √(d/alike), because
            distances in a box grow with √d.
        failed: the ratio of actual to predicted decrease up to which a step has failed, and Δ falls.
        poor: the ratio up to which Δ does not grow.
        short: a step under this share of ρ is too short for a query.
        finest: the ρ that ends a run, in units of the first radius (with a box: 1e-8 of its least side).
        cap: the largest first Δ where a side is infinite.
        expansion: Δ after a good step, in units of the step's length.
    """

    initial: float = 0.2
    growth: float = 1e3
    alike: float = 20
    failed: float = 0.1
    poor: float = 0.7
    short: float = 0.5
    finest: float = 5e-8
    cap: float = 1.0
    expansion: float = 2.0

    def first(self, box: FreeBox, center: Tensor, given: float | None) -> Radius:
        """Computes the initial radii, from ``given`` if it is set; Δ is at least the dtype's resolution."""
        bounded = bool(torch.isfinite(box.sides).all())
        wider = max(1.0, math.sqrt(box.d / self.alike)) if bounded else 1.0
        delta = given or min(wider * self.initial * float(box.sides.min()), math.inf if bounded else self.cap)
        delta = max(delta, box.resolution(center))
        largest = wider * 0.5 * float(box.sides.max()) if bounded else self.growth * delta
        return self.begun(min(delta, largest), largest)

    def begun(self, delta: float, largest: float) -> Radius:
        """The radii of a run that begins with ρ = Δ."""
        return Radius(delta, delta, largest, self.finest * delta)

    def after(self, radius: Radius, ratio: float, length: float) -> Radius:
        """The radii after a step.

        Where the ratio is at most ``failed``, Δ ← Δ/2; where it is at most ``poor``, Δ ← max(Δ/2, ‖s‖); else
        Δ ← max(Δ, ``expansion`` ‖s‖), up to the largest. Δ is at least ρ.

        Args:
            radius: the radii before.
            ratio: actual over predicted decrease; NaN where the query failed, which also brings Δ and ρ below the
                step's length, so that the point is not asked again.
            length: ‖s‖.
        """
        if math.isnan(ratio):
            delta = 0.5 * min(radius.delta, length)
            return replace(radius, delta=delta, rho=min(radius.rho, delta))
        if ratio <= self.failed:
            delta = 0.5 * radius.delta
        elif ratio <= self.poor:
            delta = max(0.5 * radius.delta, length)
        else:
            delta = min(max(radius.delta, self.expansion * length), radius.largest)
        return replace(radius, delta=max(delta, radius.rho))

    def lowered(self, radius: Radius) -> Radius:
        """The radii at the next finer scale: Δ ← ρ/2, ρ ← ρ/4."""
        return replace(radius, delta=0.5 * radius.rho, rho=0.25 * radius.rho)

    def raised(self, radius: Radius) -> Radius:
        """The radii at a coarser scale: ρ ← 2ρ, and Δ at least that."""
        rho = min(2.0 * radius.rho, radius.largest)
        return replace(radius, delta=max(radius.delta, rho), rho=rho)

    def is_short(self, radius: Radius, length: float) -> bool:
        """Whether a step is too short to be worth a query at this scale."""
        return length < self.short * radius.rho

    def ends(self, radius: Radius, resolution: float) -> bool:
        """Whether the scale is finer than the finest one, or than what the dtype resolves."""
        return radius.rho < max(radius.finest, resolution)
