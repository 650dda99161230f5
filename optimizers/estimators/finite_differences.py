"""Averaged differences along random directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import check_choice
from optimizers.directions.directions import DISTRIBUTIONS, Directions
from optimizers.estimators.estimator import GradientEstimator, check_draw, check_moved

SCHEMES = ("forward", "central")


@dataclass(frozen=True)
class FiniteDifferences(GradientEstimator):
    """Averaged differences along random directions u_i at a smoothing radius λ (ZoRD eq. 2; Katyusha eq. 2).

    Forward, n + 1 queries (x first): g = c/n Σ (f(x + λu_i) − f(x))/λ · u_i. Central, 2n queries (all
    x + λu_i, then all x − λu_i): g = c/n Σ (f(x + λu_i) − f(x − λu_i))/(2λ) · u_i. c is 1/E[u_j²]: 1 for
    normal and Rademacher directions, d for unit vectors. ZoRD prints the sum without c/n; with it
    E g = ∇f(x) + O(λ²), and exactly ∇f(x) for quadratic f. (Forward coordinate differences, whose
    directions have no random sign, are off by λ/2 ∂²f/∂x_j², as `CoordinateDifferences` are.)

    For linear f with gradient a, E‖g − a‖²/‖a‖² is (d + 1)/n for normal directions, (d − 1)/n for
    Rademacher, sphere and coordinate ones, and d/n − 1 for n <= d orthonormal ones.

    With m failed differences n − m takes n's place, which is unbiased where failures do not depend on the
    direction. `estimate` reads λu_i back from the points as they were rounded.

    Args:
        directions: n.
        smoothing_radius: λ, in x's units.
        distribution: One of `Directions`'.
        scheme: ``"forward"`` or ``"central"``.
        seed: Of the directions.
    """

    directions: int
    smoothing_radius: float = 0.01
    distribution: str = "orthonormal"
    scheme: str = "forward"
    seed: int = 0

    def __post_init__(self) -> None:
        check_draw(self.directions, self.smoothing_radius, self.seed)
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        check_choice("scheme", self.scheme, SCHEMES)

    def queries_needed(self, d: int) -> int:
        """n + 1 forward, 2n central."""
        return self.directions + 1 if self.scheme == "forward" else 2 * self.directions

    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """The points in the class's order; see `GradientEstimator.batch`."""
        n, r = self.directions, self.smoothing_radius
        scales, rows = ([0.0] + [r] * n, [0]) if self.scheme == "forward" else ([r] * n + [-r] * n, [*range(n)])
        addresses = tuple((step, row) for row in (*rows, *range(n)))
        directions = Directions(self.seed, len(x), self.distribution)
        return Batch(number, x, torch.tensor(scales, dtype=torch.float64), addresses, directions, domain=domain)

    def _terms(self, batch: Batch, values: Tensor) -> Tensor:
        if self.scheme == "forward":
            return (values[1:] - values[0]) / self.smoothing_radius
        plus, minus = values.chunk(2)
        return (plus - minus) / (2.0 * self.smoothing_radius)

    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor:
        # 1/E[u_j²] is a whole number, which 1/(1/d) misses for some d.
        c = round(1.0 / Directions(self.seed, batch.dimension, self.distribution).second_moment)
        coefficients = terms * (c / int(kept.sum()))
        forward = self.scheme == "forward"
        if batch.explicit is not None:
            plus, minus = (batch.explicit[1:], batch.base) if forward else batch.explicit.chunk(2)
            moved = check_moved(plus - minus) / (1 if forward else 2)
            return (coefficients / self.smoothing_radius).to(moved.dtype) @ moved
        none = torch.zeros_like(coefficients)
        return batch.combine(torch.cat((none[:1], coefficients) if forward else (coefficients, none)))
