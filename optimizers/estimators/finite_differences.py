"""Averaged differences along random directions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import check_choice
from optimizers.directions.directions import DISTRIBUTIONS, Directions
from optimizers.estimators.estimator import GradientEstimator, check_draw, check_moved, inward, room

SCHEMES = ("forward", "central")


@dataclass(frozen=True)
class FiniteDifferences(GradientEstimator):
    """Averaged finite differences along random directions u_i with smoothing radius λ.

    Forward, n + 1 queries (x first): g = c/n Σ (f(x + λu_i) − f(x))/λ · u_i. Central, 2n queries (all x + λu_i, then
    all x − λu_i): g = c/n Σ (f(x + λu_i) − f(x − λu_i))/(2λ) · u_i. c is 1/E[u_j²]: 1 for normal and Rademacher
    directions, d for unit vectors. The papers use forward differences: ZoRD's eq. 2 omits c/n, FZooS's eq. 7 has 1/n,
    and Katyusha's eq. 2 is n = 1 with c = d. With c/n, E g = ∇f(x) + O(λ²), and E g = ∇f(x) for quadratic f. (Forward
    differences along coordinates, which have no random sign, have bias λ/2 ∂²f/∂x_j², as in `CoordinateDifferences`.)

    For linear f with gradient a, E‖g − a‖²/‖a‖² is (d + 1)/n for normal directions, (d − 1)/n for Rademacher, sphere
    and coordinate directions, and d/n − 1 for n <= d orthonormal directions.

    **Box.** If a box confines the queries, the displacement of coordinate j is λu_j clipped to the box. For linear f
    the mean of g_j is then a_j ρ_j with ρ_j = E[u_j clip(λu_j)]/(λ E[u_j²]) (`Directions.clipped_share`); the terms of
    other coordinates cancel because their signs are independent. Near a bound g_j is therefore divided by ρ_j, which
    multiplies its standard deviation by 1/ρ_j; g_j is 0 if there is no room at all. A forward query along e_j goes
    along −e_j instead if that side has more room.

    If m differences fail, n − m replaces n; g stays unbiased if failures do not depend on the direction.

    Args:
        directions: n.
        smoothing_radius: λ, in x's units; the default is ZoRD's and suits inputs of about unit range.
        distribution: A distribution of `Directions`.
        scheme: ``"forward"`` or ``"central"``.
        seed: Seed of the directions.
    """

    directions: int
    smoothing_radius: float = 0.01
    _: KW_ONLY
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
        """The points, in the order given above; see `GradientEstimator.batch`."""
        n, r = self.directions, self.smoothing_radius
        scales, rows = ([0.0] + [r] * n, [0]) if self.scheme == "forward" else ([r] * n + [-r] * n, [*range(n)])
        addresses = tuple((step, row) for row in (*rows, *range(n)))
        directions = Directions(self.seed, len(x), self.distribution)
        multiples = torch.tensor(scales, dtype=torch.float64)
        if self.distribution == "coordinate" and self.scheme == "forward":
            multiples[1:] *= inward(x, [directions.axis(step, row) for row in range(n)], r, domain)
        return Batch(number, x, multiples, addresses, directions, domain=domain)

    def _terms(self, batch: Batch, values: Tensor) -> Tensor:
        if self.scheme == "forward":
            return (values[1:] - values[0]) / self.smoothing_radius
        plus, minus = values.chunk(2)
        return (plus - minus) / (2.0 * self.smoothing_radius)

    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor:
        # 1/E[u_j²] is an integer, but 1/(1/d) is not for some d.
        directions = Directions(self.seed, batch.dimension, self.distribution)
        c = round(1.0 / directions.second_moment)
        coefficients = terms * (c / int(kept.sum()))
        forward = self.scheme == "forward"
        if batch.explicit is not None:
            plus, minus = (batch.explicit[1:], batch.base) if forward else batch.explicit.chunk(2)
            moved = check_moved(plus - minus) / (1 if forward else 2)
            gradient = (coefficients / self.smoothing_radius).to(moved.dtype) @ moved
        elif forward:
            signed = coefficients * batch.scales[1:].sign().to(coefficients)
            gradient = batch.combine(torch.cat((signed.new_zeros(1), signed)))
        else:
            gradient = batch.combine(torch.cat((coefficients, torch.zeros_like(coefficients))))
        faces = room(batch.base, batch.domain, directions.reach * self.smoothing_radius)
        if faces is None:
            return gradient
        share = self._travelled(directions, *faces).to(gradient)
        return torch.where(share > 0.0, gradient / share, 0.0)

    def _travelled(self, directions: Directions, below: Tensor, above: Tensor) -> Tensor:
        """ρ for these distances to the bounds, shape ``d``."""
        a, b = below / self.smoothing_radius, above / self.smoothing_radius
        if self.scheme == "central":
            return (directions.clipped_share(a, b) + directions.clipped_share(b, a)) / 2.0
        return directions.clipped_share(a, torch.maximum(a, b) if self.distribution == "coordinate" else b)
