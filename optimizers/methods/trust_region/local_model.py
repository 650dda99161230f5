"""The model about a run's center: of which queries, in which coordinates, and with which hyper-parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.models import CompositeModel, RegionModel
from optimizers.methods.trust_region.rules import TrustRegionRules
from optimizers.methods.trust_region.state import Data, Step, TrustRegionState
from optimizers.prox import Prox
from optimizers.subproblems.region import HalfSpace
from optimizers.subproblems.span import carried_metric, coordinates, covering, extended, unit_outside
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.engine import Conditioned, PinnedData, Shape

MOST = 8
"""The most directions of candidates beside a step, and of random ones that extend a span for them."""

LEVELS = (0.25, 0.5, 1.0)
"""The distances of candidates from where the step ends, in units of the radius."""

UPHILL = 0.99
"""The weight of a candidate uphill, beside a weight of 1 downhill."""


@dataclass(frozen=True)
class LocalModel:
    """A model about a center.

    Attributes:
        numbers: the numbers of its queries, shape ``n``.
        means: the posterior means of f + ψ at them relative to the center, shape ``n``, in f's units.
        region: the model of f.
        composite: the model of f + ψ, or None.
    """

    numbers: Tensor
    means: Tensor
    region: RegionModel
    composite: CompositeModel | None


class ModelBuilder:
    """Makes models of a state's queries, and fits the hyper-parameters that the state holds.

    Args:
        box: the free variables.
        rules: the rules.
        window: the most queries in a model; None: (d + 1)(d + 2)/2 + 2d, within ``WindowRule``'s limits.
        noise: the variance of a value's noise; None: estimated.
        psi: ψ and its prox, or None.
    """

    def __init__(
        self, box: FreeBox, rules: TrustRegionRules, window: int | None, noise: float | None, psi: Prox | None
    ) -> None:
        self._box, self._rules, self._noise, self._psi, self._given = box, rules, noise, psi, window is not None
        limit = rules.window.largest if box.d <= rules.design.whole else rules.window.spanned
        self.size = window or min((box.d + 1) * (box.d + 2) // 2 + 2 * box.d, limit)
        self.flops = self.size * min(self.size, box.d) ** 2

    def totals(self, data: Data, numbers: Tensor) -> Tensor:
        """f + ψ at the queries of the given numbers, shape ``n``; inf outside of ψ's domain."""
        psi, points = self._psi, self._box.whole(data.points[numbers])
        return data.values[numbers] + (0.0 if psi is None else psi.value(points).to(data.values))

    def best(self, data: Data, first: int = 0) -> int:
        """The number of the query of least f + ψ from some number on."""
        return first + int(self.totals(data, torch.arange(first, len(data.values))).argmin())

    def center(self, state: TrustRegionState) -> int:
        """The number of the best query of the run; where the model has noise, of the present center."""
        run = state.run
        return run.center_index if run.smoothing and run.center_index >= run.first else self.best(state.data, run.first)

    def half_space(self, state: TrustRegionState, center: int) -> HalfSpace | None:
        """The half-space before the failed queries about a query; None where no plane separates them from the others."""
        data, at = state.data, state.data.points[center]
        return self._rules.failures.half_space(data.failed - at, data.points - at, state.run.radius.delta)

    def forget(self, state: TrustRegionState) -> None:
        """In a span, drops queries far from the run's best one, but never the best of all, where they are too many."""
        data, run = state.data, state.run
        if not state.fit.spanning or len(data.values) <= self._rules.window.memory * self.size:
            return
        distances = torch.linalg.vector_norm(data.points - data.points[self.center(state)], dim=1)
        near = distances <= distances.sort().values[min(self.size, len(distances) - 1)]
        near[[self.best(data), -1]] = True
        state.fit.count -= int((~near).sum())
        run.first, run.center_index = int(near[: run.first].sum()), int(near[: run.center_index].sum())
        state.data = replace(data, points=data.points[near], values=data.values[near])

    def window(self, state: TrustRegionState, center: int) -> Tensor:
        """The numbers of the queries of a model about one of them; noisy values are more, because they are averaged."""
        rule, data, run, size = self._rules.window, state.data, state.run, self.size
        distances = torch.linalg.vector_norm(data.points - data.points[center], dim=1)
        order = distances.argsort()
        if run.noisy:
            order = order[order != center]
            if not state.fit.spanning and not self._given:
                size = max(size, min(int(rule.noisy_share * len(data.values)), rule.noisy_largest))
        else:
            order = order[distances[order] > (rule.close * run.radius.rho if state.fit.spanning else 0.0)]
        order = order[:size]
        spacing = float(distances[order[: 2 * self._box.d]].max()) if len(order) else 0.0
        return order[distances[order] <= max(rule.far * run.radius.delta, rule.spacing * spacing)]

    def model(self, state: TrustRegionState, center: int, normal: Tensor) -> LocalModel | None:
        """The model of the queries about one of them, fitted anew where it is time; None without any.

        Args:
            state: the state, whose hyper-parameters are set.
            center: the number of the query.
            normal: a random vector, shape ``d_free``, for a direction outside a span.
        """
        data, fit, numbers = state.data, state.fit, self.window(state, center)
        if len(numbers) == 0:
            return None
        rows, d = data.points[numbers] - data.points[center], self._box.d
        if fit.spanning:
            basis, grown = covering(fit.basis, rows)
            fit.metric, fit.basis = carried_metric(fit.metric, fit.basis, basis, grown), basis
        every = max(5, min(d, len(rows)) // 8) if fit.spanning else max(2, d // 2)
        due = fit.shape is None or len(data.values) - fit.count >= every
        try:
            region = self._region_model(state, center, numbers, rows, due, normal)
        except NotPositiveDefiniteError:
            return None
        means, composite = region.unit * region.pinned.means(), None
        if self._psi is not None:
            composite = self._composite(region, data.points[center], self._psi)
            means = means + torch.tensor([composite.rise(s) for s in rows], dtype=torch.float64)
        return LocalModel(numbers, means, region, composite)

    def _region_model(
        self, state: TrustRegionState, center: int, numbers: Tensor, rows: Tensor, due: bool, normal: Tensor
    ) -> RegionModel:
        """The model of f; where it is due, after a fit of metric and shape."""
        fit, run, rule, values = state.fit, state.run, self._rules.model, state.data.values
        outside = None if len(fit.basis) == self._box.d else unit_outside(fit.basis, normal)
        # By a power of two division is exact.
        largest = max(float(values[numbers].abs().max()), abs(float(values[center])))
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 1)
        heights, variance = values[numbers] / unit - values[center] / unit, (self._noise or 0.0) / unit / unit

        def scaled(metric: Tensor) -> tuple[PinnedData, Tensor]:
            U = coordinates(fit.basis, rows) @ metric.mT
            R = U.square().sum(1).mean().sqrt()
            return PinnedData.of(U / R, heights, variance, rule.prior), metric / R

        data, map = scaled(fit.metric)
        shape = fit.shape or rule.search.fitted(data, None, run.smoothing)
        if due:
            metric = rule.metric(RegionModel(data.model(shape), map, unit, fit.basis, outside).hessian)
            data, map = scaled(metric)
            shape = rule.search.fitted(data, shape, None if run.noisy is None else run.smoothing)
        region = RegionModel(data.model(shape), map, unit, fit.basis, outside)
        if due:
            fit.metric, fit.shape, fit.count = metric, shape, len(values)
        return region

    def _composite(self, region: RegionModel, center: Tensor, psi: Prox) -> CompositeModel:
        """The model of f + ψ, for ψ and its prox of steps from the center."""
        exact, part = self._box.exact, self._box.part
        value = lambda s: float(psi.value(exact(center + s)))  # noqa: E731
        return CompositeModel(region, value, lambda s, size: part(psi(exact(center + s), size)) - center)

    def informative_points(self, state: TrustRegionState, pending: Tensor, random: np.random.Generator) -> Tensor:
        """Finds points beside where the planned step ends, sorted by what they teach about the gradient there.

        Under a Gaussian process covariances do not depend on values, so pending points condition them like queries. The
        points, ``m x d_free``, are end ± δu for orthonormal u along which ∇f(end) is least known, at three distances δ.
        Between two that teach the same the one downhill comes first.

        Args:
            state: the state with the plan.
            pending: the points that are out, ``p x d_free``.
            random: random numbers, for directions outside a span.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        center, metric, basis = state.data.points[state.run.center_index], state.fit.metric, state.fit.basis
        rows = state.data.points[self.window(state, state.run.center_index)] - center
        end = state.plan.points[0] - center if isinstance(state.plan, Step) else torch.zeros_like(center)
        near = torch.cat([rows, pending - center, end[None]])
        near = torch.unique(near[near.any(dim=1)], dim=0)
        if len(basis) < self._box.d:
            wider, grown = covering(basis, near)
            widest = extended(wider, torch.from_numpy(random.standard_normal((MOST, self._box.d))))
            metric = carried_metric(carried_metric(metric, basis, wider, grown), wider, widest, True)
            basis = widest
        map = metric / (coordinates(basis, rows) @ metric.mT).square().sum(1).mean().sqrt()
        z = coordinates(basis, end) @ map.mT
        given = Conditioned.on(self._rules.model.prior, coordinates(basis, near) @ map.mT, state.fit.shape or Shape())
        # The slope along what is outside the wider span is not theirs.
        unknown = (map.mT @ given.slope_covariance(z) @ map)[:-1, :-1]
        directions = torch.linalg.eigh(unknown).eigenvectors.mT.flip(0)[:MOST] @ basis
        lengths = state.run.radius.delta * torch.tensor(LEVELS, dtype=end.dtype).repeat_interleave(2 * len(directions))
        moves = torch.cat([directions, -directions]).repeat(len(LEVELS), 1) * lengths[:, None]
        points = self._box.clamped(center + end + moves)
        gains = given.gains(coordinates(basis, points - center) @ map.mT, z, map)
        return points[(gains * torch.where(moves @ end < 0.0, UPHILL, 1.0)).argsort(descending=True)]
