"""The radius of a trust region, and the lower one that says at which scale the search is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FAILED, POOR = 0.1, 0.7
"""The ratios of actual to predicted decrease up to which the radius falls, and up to which it does not grow."""

SHORT = 0.5
"""A step is short under this share of the lower radius."""


@dataclass(frozen=True)
class Radius:
    """The radius Δ, the lower radius ρ ≤ Δ as in Powell's methods, and the largest Δ.

    Attributes:
        delta: Δ.
        rho: ρ.
        largest: the most that Δ may be.
    """

    delta: float
    rho: float
    largest: float

    def after(self, ratio: float, length: float) -> Radius:
        """The radius after a step.

        A ratio of at most 0.1 halves Δ, one of at most 0.7 makes it max(Δ/2, ‖s‖), a larger one
        min(max(Δ, 2‖s‖), the largest); it stays at least ρ.

        Args:
            ratio: actual over predicted decrease; NaN where the query failed, which also brings Δ and ρ under the
                step's length, so that the point is not asked again.
            length: ‖s‖.
        """
        if math.isnan(ratio):
            delta = 0.5 * min(self.delta, length)
            return replace(self, delta=delta, rho=min(self.rho, delta))
        if ratio <= FAILED:
            delta = 0.5 * self.delta
        elif ratio <= POOR:
            delta = max(0.5 * self.delta, length)
        else:
            delta = min(max(self.delta, 2.0 * length), self.largest)
        return replace(self, delta=max(delta, self.rho))

    def lowered(self) -> Radius:
        """The radius at the next scale: ρ is a quarter, Δ half of what ρ was."""
        return replace(self, delta=0.5 * self.rho, rho=0.25 * self.rho)

    def raised(self) -> Radius:
        """The radius at a coarser scale: ρ is doubled, and Δ at least that."""
        rho = min(2.0 * self.rho, self.largest)
        return replace(self, delta=max(self.delta, rho), rho=rho)

    def is_short(self, length: float) -> bool:
        """Whether a step is too short to be worth a query at this scale."""
        return length < SHORT * self.rho
