"""Powell's two radii Δ and ρ, and the rule that updates them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox


@dataclass(frozen=True)
class Radius:
    """Powell's two radii Δ and ρ, and their limits.

    Attributes:
        delta: Δ, the radius of the trust region.
        rho: ρ ≤ Δ, the scale at which the run searches.
        largest: the largest Δ.
        finest: the run ends when ρ falls below this value.
    """

    delta: float
    rho: float
    largest: float
    finest: float = 0.0


@dataclass(frozen=True)
class RadiusRule:
    """Updates Powell's two radii: Δ bounds a step, and ρ ≤ Δ is the scale of the search.

    Attributes:
        initial: the first Δ, in units of the box's least side.
        growth: the largest Δ relative to the first if a side is infinite. (In a finite box, it is half the largest
            side.)
        alike: if d exceeds this number, the first and the largest Δ in a finite box are multiplied by √(d/alike).
        failed: a step fails, and Δ falls, if the ratio of actual to predicted decrease is at most this number.
        poor: Δ does not grow if the ratio is at most this number.
        short: a step that is shorter than this fraction of ρ is not evaluated.
        finest: a run ends when ρ falls below this fraction of the first Δ.
        cap: the largest first Δ if a side is infinite.
        expansion: Δ after a good step is at least this multiple of the step's length.
    """

    initial: float = 0.2
    growth: float = 1e3
    alike: float = 20
    failed: float = 0.1
    poor: float = 0.7
    short: float = 0.5
    finest: float = 5e-8
    cap: float = 0.25
    expansion: float = 2.0

    def first(self, box: FreeBox, center: Tensor, given: float | None) -> Radius:
        """Computes the initial radii; ``given`` is the user's first Δ, or None."""
        bounded = bool(torch.isfinite(box.sides).all())
        wider = max(1.0, math.sqrt(box.d / self.alike)) if bounded else 1.0
        delta = given or min(wider * self.initial * float(box.sides.min()), math.inf if bounded else self.cap)
        delta = max(delta, box.resolution(center))
        largest = wider * 0.5 * float(box.sides.max()) if bounded else self.growth * delta
        return self.begun(min(delta, largest), largest)

    def begun(self, delta: float, largest: float) -> Radius:
        """Returns the radii of a run that begins with ρ = Δ = ``delta``."""
        return Radius(delta, delta, largest, self.finest * delta)

    def after(self, radius: Radius, ratio: float, length: float) -> Radius:
        """Updates the radii after a step s with a ratio of actual to predicted decrease.

        If the ratio is at most ``failed``, Δ ← Δ/2. If it is at most ``poor``, Δ ← max(Δ/2, ‖s‖). Otherwise Δ ←
        max(Δ, ``expansion`` ‖s‖), up to the largest Δ. Δ stays at least ρ. If the query failed, the ratio is NaN, and
        both radii fall below ‖s‖, so that the point is not queried again.
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
        """Returns the radii at the next finer scale: Δ ← ρ/2, ρ ← ρ/4."""
        return replace(radius, delta=0.5 * radius.rho, rho=0.25 * radius.rho)

    def raised(self, radius: Radius) -> Radius:
        """Returns the radii at a coarser scale: ρ ← 2ρ, Δ ← max(Δ, 2ρ)."""
        rho = min(2.0 * radius.rho, radius.largest)
        return replace(radius, delta=max(radius.delta, rho), rho=rho)

    def is_short(self, radius: Radius, length: float) -> bool:
        """Whether a step of the given length is too short to be evaluated at the present ρ."""
        return length < self.short * radius.rho

    def ends(self, radius: Radius, resolution: float) -> bool:
        """Whether ρ is below the finest scale of the run, or below ``resolution``."""
        return radius.rho < max(radius.finest, resolution)
