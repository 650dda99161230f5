"""The model that a trust region's state has: of which queries, in which coordinates, with which hyper-parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias, cast

import torch
from torch import Tensor

from optimizers.methods.trust_region.beside import Place
from optimizers.methods.trust_region.composite import CompositeModel
from optimizers.methods.trust_region.cut import cut_of
from optimizers.methods.trust_region.free_box import FreeBox
from optimizers.methods.trust_region.local_data import LocalData
from optimizers.methods.trust_region.metric import metric_of
from optimizers.methods.trust_region.pinned_model import Shape
from optimizers.methods.trust_region.radius import FAILED
from optimizers.methods.trust_region.region_model import RegionModel, scaled_data
from optimizers.methods.trust_region.region_state import TrustRegionState
from optimizers.methods.trust_region.span import carried_metric, coordinates, covering, direction_outside
from optimizers.methods.trust_region.span_model import SpanModel
from optimizers.methods.trust_region.spanning import SPANNED_WINDOW, WHOLE, nearest
from optimizers.prox import Prox
from surrogates.linalg.cholesky import NotPositiveDefiniteError

LARGEST_WINDOW = 1000
"""The most queries of a window, whatever d."""

NOISY_SHARE, NOISY_WINDOW = 0.5, 300
"""Where values have noise a window is of this share of all queries, if that is more, and so many at most."""

CLOSE = 1e-2
"""In a span a run without noise leaves out queries nearer to the centre than this many ρ: those of a finer scale."""

MEMORY = 3
"""Where the model is of a span, at most so many windows of queries are kept."""

AnyModel: TypeAlias = RegionModel | SpanModel | CompositeModel


class Modeller:
    """What makes models of a state's queries, and what of the state is fitted to them.

    Args:
        box: the free coordinates.
        window: the most queries in a model; None: (d + 1)(d + 2)/2 + 2d, at most 1000, and 100 for d > 60; where values
            have noise also half of all queries, up to 300 of them.
        noise: variance of a value's noise; None: estimated.
        psi: ψ and its prox, or None.
    """

    def __init__(self, box: FreeBox, window: int | None, noise: float | None, psi: Prox | None) -> None:
        self._box, self._noise, self._psi, self._given = box, noise, psi, window is not None
        most = (box.d + 1) * (box.d + 2) // 2 + 2 * box.d
        self.size = window or min(most, LARGEST_WINDOW if box.d <= WHOLE else SPANNED_WINDOW)

    @property
    def flops(self) -> int:
        """About how many operations the largest of a model's products takes."""
        return self.size * min(self.size, self._box.d) ** 2

    def totals(self, state: TrustRegionState, numbers: Tensor) -> Tensor:
        """f + ψ at the queries of the given numbers, shape ``n``; inf outside of ψ's domain."""
        values = state.values[numbers.to(state.values.device)]
        if self._psi is None:
            return values
        points = state.points[numbers.to(state.points.device)]
        return values + self._psi.value(self._box.whole(points)).to(values)

    def best(self, state: TrustRegionState) -> int:
        """The number of the best query since the last restart; where values have noise, that of least mean."""
        if state.smoothing and state.pin >= state.first:
            return state.pin
        return self.lowest(state, state.first)

    def lowest(self, state: TrustRegionState, first: int = 0) -> int:
        """The number of the query of the least value from some number on."""
        return first + int(self.totals(state, torch.arange(first, len(state.values))).argmin())

    def cut(self, state: TrustRegionState, best: int) -> Tensor | None:
        """The plane before the failed queries near the best one, see ``cut_of``."""
        if len(state.failed) == 0:
            return None
        center = state.points[best]
        return cut_of((state.failed - center).cpu(), (state.points - center).cpu(), state.radius.delta)

    def forget(self, now: TrustRegionState) -> None:
        """In a span, drops queries far from the run's best one, but never the best, as soon as they are too many."""
        if now.basis is None or len(now.values) <= MEMORY * self.size:
            return
        always = torch.tensor([self.lowest(now), len(now.values) - 1], device=now.values.device)
        kept = torch.cat([nearest(now.points, self.best(now), self.size), always]).unique()
        now.fitted -= len(now.values) - len(kept)
        now.first, now.pin = int((kept < now.first).sum()), int((kept < now.pin).sum())
        now.points, now.values = now.points[kept], now.values[kept]

    def model(self, now: TrustRegionState, best: int, normal: Tensor) -> AnyModel | None:
        """The model of the queries near the best one, its hyper-parameters fitted where it is time; None without any.

        Of points that are too near to each other it is a model of half of them.

        Args:
            now: the state, whose hyper-parameters, metric and basis are set.
            best: the number of the query at the centre.
            normal: a random vector, shape ``d_free``, for a direction outside of a span.
        """
        data = self._window(now, best)
        cut = self.cut(now, best)
        every = max(2, self._box.d // 2) if now.basis is None else max(5, min(self._box.d, len(data)) // 8)
        due = now.shape is None or len(now.values) - now.fitted >= every
        while len(data):
            try:
                model = self._fitted(now, data, due) if now.basis is None else self._spanned(now, data, due, normal)
                model.cut, model.numbers = cut, data.numbers
                return model if self._psi is None else self._composed(now, model, best, data.rows)
            except NotPositiveDefiniteError:
                data = data.halved()
        return None

    def settled(
        self, now: TrustRegionState, best: int, model: AnyModel, stepped: bool, normal: Tensor
    ) -> tuple[int, AnyModel, bool]:
        """The query of least posterior mean, the model pinned there, and whether a step to the last one has failed.

        The radius follows the ratio of the fall of the mean, given the new value, to the one that was predicted.

        Args:
            now: the state, whose radius is set.
            best: the number of the query at the centre.
            model: the model about it.
            stepped: whether the last value is that of a step.
            normal: as ``model`` has it.
        """
        means, numbers, failed = model.means(), model.numbers, False
        last = (numbers == len(now.values) - 1).nonzero().flatten()
        if stepped and len(last):
            length = float((now.points[-1] - now.points[best]).norm())
            ratio = -float(means[last[0]]) / max(now.predicted, 1e-300)
            failed, now.lessons = not ratio > FAILED, 0
            now.radius = now.radius.after(ratio, length)
        means = torch.where(numbers >= now.first, means, math.inf)
        place = int(means.argmin())
        if not float(means[place]) < 0.0:
            return best, model, failed
        lower = int(numbers[place])
        found = self.model(now, lower, normal)
        return (best, model, failed) if found is None else (lower, found, failed)

    def place(self, state: TrustRegionState, asked: Tensor) -> Place:
        """What is known about the planned query, given points that are out, ``p x d_free``."""
        center = state.points[state.pin].cpu()
        return Place(
            rows=self._window(state, state.pin).rows,
            asked=asked - center,
            end=state.plan[0].cpu() - center if state.kind == "step" else torch.zeros_like(center),
            metric=state.metric.cpu(),
            basis=None if state.basis is None else state.basis.cpu(),
            shape=Shape(*state.shape or Shape()),
            radius=state.radius.delta,
            lower=self._box.lower - center,
            upper=self._box.upper - center,
        )

    def _window(self, state: TrustRegionState, center: int) -> LocalData:
        """The queries of a model about one of them; where values have noise they are more, for it to average out."""
        size, close = self.size, None if state.noisy else 0.0
        if state.basis is None and state.noisy and not self._given:
            size = max(size, min(int(NOISY_SHARE * len(state.values)), NOISY_WINDOW))
        elif state.basis is not None and not state.noisy:
            close = CLOSE * state.radius.rho
        points, values = state.points.cpu(), state.values.cpu()
        return LocalData.about(points, values, center, size, state.radius.delta, close)

    def _fitted(self, now: TrustRegionState, data: LocalData, due: bool) -> RegionModel:
        """The model of the data; where it is due, after a fit of metric and shape."""
        variance = (self._noise or 0.0) / data.unit / data.unit
        scaled, map = scaled_data(data.rows, data.heights, now.metric.cpu(), variance)
        before = Shape(*now.shape) if now.shape is not None else None
        if not due and before is not None:
            return RegionModel(scaled.model(before), map, data.unit)
        shape = before or scaled.fitted(None, now.smoothing)
        metric = metric_of(RegionModel(scaled.model(shape), map, 1.0).hessian)
        scaled, map = scaled_data(data.rows, data.heights, metric, variance)
        shape = scaled.fitted(shape, None if now.noisy is None else now.smoothing)
        model = RegionModel(scaled.model(shape), map, data.unit)
        now.metric, now.fitted = self._box.kept(metric), len(now.values)
        now.shape = (shape.amplitude, shape.noise)
        return model

    def _spanned(self, now: TrustRegionState, data: LocalData, due: bool, normal: Tensor) -> SpanModel:
        """The model of the data in the span of their rows, which the state's basis is made to cover."""
        basis = cast(Tensor, now.basis).cpu()
        wider, grown = covering(basis, data.rows)
        now.metric = self._box.kept(carried_metric(now.metric.cpu(), basis, wider, grown))
        now.basis = self._box.kept(wider)
        inside = replace(data, rows=coordinates(wider, data.rows))
        return SpanModel(self._fitted(now, inside, due), wider, direction_outside(wider, normal))

    def _composed(
        self, now: TrustRegionState, model: RegionModel | SpanModel, best: int, rows: Tensor
    ) -> CompositeModel:
        """The model of f + ψ, for ψ and its prox of steps from the best point."""
        center, psi = now.points[best].cpu(), cast(Prox, self._psi)

        def at(s: Tensor) -> Tensor:
            return self._box.exact(center + s)

        def prox(s: Tensor, size: float) -> Tensor:
            return self._box.part(psi(at(s), size)) - center

        return CompositeModel(model, lambda s: float(psi.value(at(s))), prox, rows)
