"""The model about a run's center: of which queries, in which coordinates, and with which hyper-parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.models import CompositeModel, RegionModel, SpanModel
from optimizers.methods.trust_region.rules import TrustRegionRules, WindowRule
from optimizers.methods.trust_region.state import Data, TrustRegionState
from optimizers.prox import Prox
from optimizers.subproblems.half_space import HalfSpace
from optimizers.subproblems.span import carried_metric, coordinates, covering, direction_outside
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.posterior import PinnedData
from surrogates.pinned.prior import Shape


@dataclass(frozen=True)
class Window:
    """Queries relative to a center, and their values relative to the value there.

    Attributes:
        rows: the steps s to them, ``n x d``.
        numbers: the numbers of the queries, shape ``n``.
        heights: (f(x_b + s) − f(x_b))/unit, shape ``n``.
        unit: a power of two, by which division is exact: at most the largest |f| of the window, and over half of it.
    """

    rows: Tensor
    numbers: Tensor
    heights: Tensor
    unit: float

    @classmethod
    def about(
        cls, data: Data, center: int, size: int, delta: float, close: float | None, rule: WindowRule
    ) -> Window:
        """Takes the queries nearest to one of them.

        Args:
            data: all queries.
            center: the number of the query at the center.
            size: the most queries of the window.
            delta: the radius.
            close: the distance from the center up to which other queries are left out; None: all are data, as where
                values are noisy.
            rule: its distances.
        """
        rows = data.points - data.points[center]
        distances = torch.linalg.vector_norm(rows, dim=1)
        order = distances.argsort()
        order = order[order != center] if close is None else order[distances[order] > close]
        order = order[:size]
        if len(order):
            spacing = float(distances[order[min(2 * rows.shape[1], len(order)) - 1]])
            order = order[distances[order] <= max(rule.far * delta, rule.spacing * spacing)]
        least = float(data.values[center])
        largest = max(float(data.values[order].abs().max()) if len(order) else 0.0, abs(least))
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 1)
        return cls(rows[order], order, data.values[order] / unit - least / unit, unit)

    def halved(self) -> Window:
        """Every second query; none of a single one."""
        kept = slice(None, None, 2) if len(self.rows) > 1 else slice(0, 0)
        return Window(self.rows[kept], self.numbers[kept], self.heights[kept], self.unit)


@dataclass(frozen=True)
class LocalModel:
    """A model and the queries that it is of.

    Attributes:
        window: the queries.
        region: the Gaussian process, in the variables or in the coordinates of a span.
        base: the model of f in the variables: ``region``, or its ``SpanModel``.
        steps: what steps are planned with: ``base``, or its ``CompositeModel``.
    """

    window: Window
    region: RegionModel
    base: RegionModel | SpanModel
    steps: RegionModel | SpanModel | CompositeModel

    def means(self) -> Tensor:
        """The posterior means of f + ψ at the queries relative to the center, shape ``n``, in f's units."""
        means = self.region.unit * self.region.pinned.means()
        if isinstance(self.steps, CompositeModel):
            means = means + torch.tensor([self.steps.rise(s) for s in self.window.rows], dtype=torch.float64)
        return means


class ModelBuilder:
    """Makes models of a state's queries, and fits the hyper-parameters that the state holds.

    Args:
        box: the free variables.
        rules: the rules.
        window: the most queries in a model; None: as ``WindowRule`` has it.
        noise: the variance of a value's noise; None: estimated.
        psi: ψ and its prox, or None.
    """

    def __init__(
        self, box: FreeBox, rules: TrustRegionRules, window: int | None, noise: float | None, psi: Prox | None
    ) -> None:
        self._box, self._rules, self._noise, self._psi, self._given = box, rules, noise, psi, window is not None
        self.size = window or rules.window.size(box.d, box.d <= rules.design.whole)

    @property
    def flops(self) -> int:
        """About how many operations the largest of a model's products takes."""
        return self.size * min(self.size, self._box.d) ** 2

    def totals(self, data: Data, numbers: Tensor) -> Tensor:
        """f + ψ at the queries of the given numbers, shape ``n``; inf outside of ψ's domain."""
        values = data.values[numbers]
        return values if self._psi is None else values + self._psi.value(self._box.whole(data.points[numbers])).to(values)

    def lowest(self, data: Data, first: int = 0) -> int:
        """The number of the query of least f + ψ from some number on."""
        return first + int(self.totals(data, torch.arange(first, len(data.values))).argmin())

    def best(self, state: TrustRegionState) -> int:
        """The number of the best query of the run; where the model has noise, of the center."""
        run = state.run
        smoothed = run.smoothing and run.center_index >= run.first
        return run.center_index if smoothed else self.lowest(state.data, run.first)

    def half_space(self, state: TrustRegionState, best: int) -> HalfSpace | None:
        """The half-space before the failed queries about the best one."""
        data = state.data
        if len(data.failed) == 0:
            return None
        center, rule = data.points[best], self._rules.failures
        return rule.half_space(data.failed - center, data.points - center, state.run.radius.delta)

    def forget(self, state: TrustRegionState) -> None:
        """In a span, drops queries far from the run's best one, but never the best of all, where they are too many."""
        data, run = state.data, state.run
        if state.fit.basis is None or len(data.values) <= self._rules.window.memory * self.size:
            return
        distances = torch.linalg.vector_norm(data.points - data.points[self.best(state)], dim=1)
        near = distances <= distances.sort().values[min(self.size, len(distances) - 1)]
        near[[self.lowest(data), -1]] = True
        state.fit.count -= int((~near).sum())
        run.first, run.center_index = int(near[: run.first].sum()), int(near[: run.center_index].sum())
        state.data = replace(data, points=data.points[near], values=data.values[near])

    def window(self, state: TrustRegionState, center: int) -> Window:
        """The queries of a model about one of them; noisy values are more, because they are averaged."""
        rule, size, noisy = self._rules.window, self.size, state.run.noisy
        close = None if noisy else 0.0
        if state.fit.basis is None and noisy and not self._given:
            size = max(size, min(int(rule.noisy_share * len(state.data.values)), rule.noisy_largest))
        elif state.fit.basis is not None and not noisy:
            close = rule.close * state.run.radius.rho
        return Window.about(state.data, center, size, state.run.radius.delta, close, rule)

    def model(self, state: TrustRegionState, best: int, normal: Tensor) -> LocalModel | None:
        """The model of the queries near the best one, fitted anew where it is time; None without any.

        If points are too near to each other, every second one is dropped.

        Args:
            state: the state, whose hyper-parameters are set.
            best: the number of the query at the center.
            normal: a random vector, shape ``d_free``, for a direction outside a span.
        """
        window, plane, fit = self.window(state, best), self.half_space(state, best), state.fit
        d, n = self._box.d, len(window.rows)
        every = max(2, d // 2) if fit.basis is None else max(5, min(d, n) // 8)
        due = fit.shape is None or len(state.data.values) - fit.count >= every
        while len(window.rows):
            try:
                region, base = self._in_variables(state, window, due, plane, normal)
            except NotPositiveDefiniteError:
                window = window.halved()
                continue
            return LocalModel(window, region, base, self._composed(base, state.data.points[best]))
        return None

    def _in_variables(
        self, state: TrustRegionState, window: Window, due: bool, plane: HalfSpace | None, normal: Tensor
    ) -> tuple[RegionModel, RegionModel | SpanModel]:
        """The Gaussian process, and the model in the variables; the basis of a span is made to cover the rows."""
        fit = state.fit
        if fit.basis is None:
            region = self._fitted(state, window, window.rows, due, plane)
            return region, region
        basis, grown = covering(fit.basis, window.rows)
        fit.metric, fit.basis = carried_metric(fit.metric, fit.basis, basis, grown), basis
        region = self._fitted(state, window, coordinates(basis, window.rows), due, None)
        return region, SpanModel(region, basis, direction_outside(basis, normal), plane)

    def _fitted(
        self, state: TrustRegionState, window: Window, rows: Tensor, due: bool, plane: HalfSpace | None
    ) -> RegionModel:
        """The Gaussian process of rows in some coordinates; where it is due, after a fit of metric and shape."""
        fit, run, rule = state.fit, state.run, self._rules.model
        variance = (self._noise or 0.0) / window.unit / window.unit

        def scaled(metric: Tensor) -> tuple[PinnedData, Tensor]:
            U = rows @ metric.mT
            R = U.square().sum(1).mean().sqrt()
            return PinnedData.of(U / R, window.heights, variance, rule.prior), metric / R

        data, map = scaled(fit.metric)
        if due or fit.shape is None:
            shape = fit.shape or rule.search.fitted(data, None, run.smoothing)
            metric = rule.metric(RegionModel(data.model(shape), map, 1.0, None, 0).hessian)
            data, map = scaled(metric)
            shape = rule.search.fitted(data, shape, None if run.noisy is None else run.smoothing)
            model = RegionModel(data.model(shape), map, window.unit, plane, rule.newton)
            fit.metric, fit.shape, fit.count = metric, shape, len(state.data.values)
            return model
        return RegionModel(data.model(fit.shape), map, window.unit, plane, rule.newton)

    def _composed(self, base: RegionModel | SpanModel, center: Tensor) -> RegionModel | SpanModel | CompositeModel:
        """The model of f + ψ, for ψ and its prox of steps from the center."""
        if self._psi is None:
            return base
        box, psi = self._box, self._psi
        return CompositeModel(
            base,
            lambda s: float(psi.value(box.exact(center + s))),
            lambda s, size: box.part(psi(box.exact(center + s), size)) - center,
            torch.zeros_like(center),
        )
