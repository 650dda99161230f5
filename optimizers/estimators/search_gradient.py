"""The search gradient of evolution strategies: perturbations weighted by their fitness."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import check_choice
from optimizers.directions.directions import DISTRIBUTIONS, Directions
from optimizers.estimators.estimator import GradientEstimator, check_draw, check_moved, room

Shaping = Literal["centred_ranks", "none"]


def shape_values(values: Tensor, shaping: str) -> Tensor:
    """The fitness sᵢ of finite values, shape ``n``.

    ``"centred_ranks"``: rank/(n − 1) − 1/2, from −1/2 for the least value to 1/2 for the largest; ties share their mean
    rank. ``"none"``: the values themselves.
    """
    if shaping == "none":
        return values
    ordered = values.sort().values
    below, through = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + through - 1).to(values.dtype) / 2.0 / (len(values) - 1) - 0.5


@dataclass(frozen=True)
class SearchGradient(GradientEstimator):
    """The search gradient of a distribution around x (Salimans et al., 2017).

        g = c/(nλ) Σᵢ sᵢ uᵢ,   sᵢ the fitness of f(x + λuᵢ)

    uᵢ is standard normal with c = 1, or has another distribution with c = 1/E[u_j²]; ZoRD's ES uses RGF's orthonormal
    directions. With raw values as fitness, E g = ∇f(x) + O(λ²), with a variance that grows with f(x)²/λ², unless
    ``antithetic`` pairs ±u cancel f(x). Centred ranks are invariant under increasing transformations of f, so that g
    has a direction but no scale. Failed queries and their antithetic partners are left out of the sum and of n. If a
    box confines queries, g_j is divided by ρ_j as in `FiniteDifferences`; for linear f and raw values g is unbiased.

    Args:
        directions: n, at least 2; even with ``antithetic``.
        smoothing_radius: λ, in x's units; the default is ZoRD's and suits inputs of about unit range.
        shaping: ``"centred_ranks"``, or ``"none"`` for the raw values.
        antithetic: whether directions come in n/2 opposite pairs.
        distribution: A distribution of `Directions`.
        query_center: whether x is queried first; the estimate does not use f(x).
        seed: Seed of the directions.
    """

    min_values: ClassVar[int] = 2

    directions: int
    smoothing_radius: float = 0.01
    _: KW_ONLY
    shaping: str = "centred_ranks"
    antithetic: bool = False
    distribution: str = "normal"
    query_center: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_draw(self.directions, self.smoothing_radius, self.seed)
        check_choice("shaping", self.shaping, get_args(Shaping))
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        if self.antithetic and self.directions % 2:
            raise ValueError(f"directions must be even with antithetic=True, got {self.directions}")
        if self.directions < 2:
            raise ValueError("directions must be at least 2, because a single value shows no descent direction")

    def queries_needed(self, d: int) -> int:
        """n, plus one with ``query_center``."""
        return self.directions + int(self.query_center)

    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """x if ``query_center``, then the points x + λuᵢ, antithetic pairs adjacent; see `GradientEstimator.batch`."""
        own, n = int(self.query_center), self.directions
        scales = torch.full((own + n,), self.smoothing_radius, dtype=torch.float64)
        scales[:own] = 0.0
        if self.antithetic:
            scales[own + 1 :: 2] *= -1.0
        rows = [0] * own + [i // 2 if self.antithetic else i for i in range(n)]
        addresses = tuple((step, row) for row in rows)
        return Batch(number, x, scales, addresses, self._directions(len(x)), domain=domain)

    def _directions(self, d: int) -> Directions:
        return Directions(self.seed, d, self.distribution)

    def _terms(self, batch: Batch, values: Tensor) -> Tensor:
        values = values[int(self.query_center) :]
        if self.antithetic:
            whole = values.view(-1, 2).isfinite().all(dim=1).repeat_interleave(2)
            values = torch.where(whole, values, torch.nan)
        return values

    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor:
        own, radius = int(self.query_center), self.smoothing_radius
        coefficients = torch.zeros_like(terms)
        directions = self._directions(batch.dimension)
        c = round(1.0 / directions.second_moment)
        coefficients[kept] = shape_values(terms[kept], self.shaping) * c / (int(kept.sum()) * radius)
        if batch.explicit is not None:
            moved = check_moved(batch.explicit[own:] - batch.base)
            gradient = (coefficients / radius).to(moved.dtype) @ moved
        else:
            signed = coefficients * batch.scales[own:].sign().to(terms.device)
            gradient = batch.combine(torch.cat((terms.new_zeros(own), signed)))
        faces = room(batch.base, batch.domain, directions.reach * radius)
        if faces is None:
            return gradient
        share = directions.clipped_share(*(side / radius for side in faces)).to(gradient)
        return torch.where(share > 0.0, gradient / share, 0.0)
