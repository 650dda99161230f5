"""Builds the model about a run's center: selects the queries, fits hyper-parameters and conditions the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from optimizers.core.residuals import Loss
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.constrained import ConstraintModels
from optimizers.methods.trust_region.local_model import CompositeModel, LocalModel
from optimizers.methods.trust_region.plans import Step
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.residuals import ResidualData
from optimizers.methods.trust_region.rules import TrustRegionRules
from optimizers.methods.trust_region.state import TrustRegionState
from optimizers.prox import Prox
from optimizers.subproblems.region import HalfSpace
from optimizers.subproblems.span import carried_metric, coordinates, covering, extended, unit_outside
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.engine import Conditioned, PinnedData
from surrogates.pinned.prior import Hyperparameters

WINDOW, SPANNED_WINDOW, NOISY_WINDOW = 1000, 100, 300
"""The most queries in a model: with at most ``DesignRule.whole`` variables, with more, and for noisy values."""

ONE_VARIABLE = 40
"""The most queries in a model of one variable; with fewer, a run would forget what earlier runs found."""

MEMORY = 3
"""With a model of a subspace, far queries are dropped if there are more than this multiple of the window's size."""

FAR, SPACING = 30.0, 3.0
"""A model leaves out queries farther away than both 30 radii and 3 times the distance of the 2d-th nearest query."""

MOST = 8
"""The most directions in ``informative_points``, and the most random directions that extend their subspace."""

LEVELS, UPHILL = (0.25, 0.5, 1.0), 0.99
"""The distances in ``informative_points``, in radii, and a factor that ranks uphill points lower."""


class ModelBuilder:
    """Builds models from the queries in a run's state, and fits the hyper-parameters in the state.

    Args:
        box: the box of the free variables.
        rules: the rules of the method.
        window: the most queries in a model; None: (d + 1)(d + 2)/2 + 2d, at most 1000; 40 for d = 1; 100 for d > 60,
            or d/8 but at most ``NoiseRule.window`` with noise in the model.
        noise: the variance of a value's noise; None: it is estimated.
        psi: the prox of ψ, with a method ``value``, or None.
        constraints: the constraints, or None.
        random: returns the random generator of a stream for the present batch.
        loss: the loss of a least-squares problem, or None; the state stores residuals like constraints.
    """

    def __init__(
        self,
        box: FreeBox,
        rules: TrustRegionRules,
        window: int | None,
        noise: float | None,
        psi: Prox | None,
        constraints: ConstraintModels | None,
        random: Callable[[int], np.random.Generator],
        loss: Loss | None = None,
    ) -> None:
        self.box, self.rules, self.noise, self.psi, self._given = box, rules, noise, psi, window is not None
        self.constraints, self.random, self.loss = constraints, random, loss
        limit = WINDOW if box.d <= rules.design.whole else SPANNED_WINDOW
        number = (box.d + 1) * (box.d + 2) // 2 + 2 * box.d
        self.size = window or (min(number, limit) if box.d > 1 else ONE_VARIABLE)
        self.smoothed_size = window or max(self.size, min(box.d // 8, rules.noise.window))
        self.flops = self.size * min(self.size, box.d) ** 2

    def totals(self, state: TrustRegionState, numbers: Tensor) -> Tensor:
        """Returns f + ψ, or the merit, at the queries of the given indices, shape ``n``; inf outside ψ's domain."""
        data = state.data
        values = data.values[numbers]
        if self.constraints is not None and state.constraints is not None:
            return self.constraints.merits(state.constraints, values, numbers)
        psi, points = self.psi, data.points[numbers]
        return values if psi is None else values + psi.value(self.box.whole(points)).to(values)

    def best(self, state: TrustRegionState, first: int = 0) -> int:
        """Returns the index of the best query, from index ``first`` on, among the queries that may be a center."""
        first = max(first, state.data.outside)
        return first + int(self.totals(state, torch.arange(first, len(state.data.values))).argmin())

    def center(self, state: TrustRegionState) -> int:
        """Returns the index of the run's best query or, if the model has noise, of the present center."""
        run = state.run
        return (
            run.center_index if run.smoothing and run.center_index >= run.run_start else self.best(state, run.run_start)
        )

    def half_space(self, state: TrustRegionState, center: int) -> HalfSpace | None:
        """Returns a half-space without the failed queries near a center; None if no plane separates them."""
        data, at = state.data, state.data.points[center]
        if len(data.failed) == 0:
            return None
        return self.rules.failures.half_space(data.failed - at, data.points - at, state.run.radius.delta)

    def is_evaluated(self, state: TrustRegionState, point: Tensor) -> bool:
        """Whether a query of a point is useless: f has failed there, or has no noise and was evaluated there."""
        rounded, data = self.box.rounded(point), state.data
        asked = (data.failed,) if state.run.noisy else (data.failed, data.points)
        if state.constraints is not None:
            asked = (*asked, state.constraints.partial)
        return any(len(queries) and bool((queries == rounded).all(dim=1).any()) for queries in asked)

    def kept(self, state: TrustRegionState, points: Tensor, center: Tensor | None = None) -> Tensor:
        """Rounds integers, and moves points toward the center until known constraints with ``keep_feasible`` hold.

        If rounding the integers of a point violates such a constraint, the center replaces the point.
        """
        points, center = self.box.on_lattice(points), state.run.center if center is None else center
        if self.constraints is None or state.constraints is None:
            return points
        points = self.constraints.pulled(center, points)
        if not self.box.has_integers:
            return points
        whole = self.box.on_lattice(points)
        kept = (self.constraints.pulled(center, whole) == whole).all(dim=1, keepdim=True)
        return torch.where(kept, whole, center)

    def forget(self, state: TrustRegionState) -> None:
        """Drops queries far from the run's best one if there are too many for a model of a subspace."""
        data, run = state.data, state.run
        size = self.smoothed_size if run.noisy or run.repeated_gap == 0.0 else self.size
        # On a lattice all queries are kept, so that none is asked twice.
        if not state.fit.spanning or len(data.values) <= MEMORY * size or self.box.has_integers:
            return
        distances = torch.linalg.vector_norm(data.points - data.points[self.center(state)], dim=1)
        near = distances <= distances.sort().values[min(size, len(distances) - 1)]
        near[[self.best(state), -1]] = True
        state.fit.fitted_at -= int((~near).sum())
        run.run_start, run.center_index, run.designed = (
            int(near[:count].sum()) for count in (run.run_start, run.center_index, run.designed)
        )
        state.data = data.rows(near)

    def window(self, state: TrustRegionState, center: int) -> Tensor:
        """Returns the indices of the queries in a model about a center, the nearest first."""
        data, run = state.data, state.run
        size = self.smoothed_size if run.smoothing else self.size
        lattice = self.box.has_integers and not self._given and not state.fit.spanning
        distances = torch.linalg.vector_norm(data.points - data.points[center], dim=1)
        order = distances.argsort()
        if run.noisy:
            order = order[order != center]
            if not state.fit.spanning and not self._given:
                size = max(size, min(len(data.values) // 2, NOISY_WINDOW))
        else:
            order = order[distances[order] > (self.rules.model.close * run.radius.rho if state.fit.spanning else 0.0)]
        if lattice:  # queries with other integers are never near, and tell how f varies with these
            return order[: max(size, NOISY_WINDOW)]
        order = order[:size]
        spacing = float(distances[order[: 2 * self.box.d]].max()) if len(order) else 0.0
        return order[distances[order] <= max(FAR * run.radius.delta, SPACING * spacing)]

    def normal(self, stream: int, *shape: int) -> Tensor:
        """Draws normal numbers from a random stream, ``... x d_free``."""
        return torch.from_numpy(self.random(stream).standard_normal((*shape, self.box.d)))

    def model(self, state: TrustRegionState, center: int) -> LocalModel | None:
        """Builds the model about the query of index ``center``; None if it cannot be built.

        If a fit is due, the hyper-parameters in the state are fitted first.
        """
        data, fit, numbers = state.data, state.fit, self.window(state, center)
        if len(numbers) == 0:
            return None
        rows, d = data.points[numbers] - data.points[center], self.box.d
        if fit.spanning:
            failed = data.failed - data.points[center] if d <= self.rules.design.whole else rows[:0]
            # Where queries fail, steps would explore one direction after another without an end.
            basis, grown = covering(fit.basis, torch.cat([rows, failed[failed.any(dim=1)]]))
            fit.metric, fit.basis = carried_metric(fit.metric, fit.basis, basis, grown), basis
            fit.spanning = len(basis) < d or d > self.rules.design.whole
        every = max(5, min(d, len(rows)) // 8) if fit.spanning else max(2, d // 2)
        young = len(data.values) <= self.rules.model.young * d and d <= self.rules.design.whole
        young = young and fit.params is None and self.constraints is None and not self.box.has_integers
        due = not young and (fit.params is None or len(data.values) - fit.fitted_at >= every)
        try:
            region = self._region_model(state, center, numbers, rows, due)
        except NotPositiveDefiniteError:
            return None
        if self.constraints is not None and state.constraints is not None and self.loss is None:
            constrained = self.constraints.model(state, region, numbers, center)
            return LocalModel(numbers, constrained.merits(state.constraints.values[numbers]), region, constrained)
        means, composite = region.unit * region.pinned.means(), None
        if self.psi is not None:
            composite = self._composite(region, data.points[center], self.psi)
            means = means + torch.tensor([composite.rise(s) for s in rows], dtype=torch.float64)
        return LocalModel(numbers, means, region, composite)

    def _region_model(
        self, state: TrustRegionState, center: int, numbers: Tensor, rows: Tensor, due: bool
    ) -> RegionModel:
        """The model of f; its metric and hyper-parameters are fitted first if a fit is ``due`` or noise evident."""
        fit, run, rule, values = state.fit, state.run, self.rules.model, state.data.values
        outside = None if len(fit.basis) == self.box.d else unit_outside(fit.basis, self.normal(4))
        # By a power of two division is exact.
        largest = max(float(values[numbers].abs().max()), abs(float(values[center])))
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 1)
        heights, variance = values[numbers] / unit - values[center] / unit, (self.noise or 0.0) / unit / unit
        all_weights = state.data.weights
        weights = None if all_weights is None else all_weights[[*numbers.tolist(), center]]
        places = coordinates(fit.basis, rows)
        follows = run.follows and self.constraints is None
        may_be_kinked = follows and self.rules.noise.may_be_kinked(heights, self.box.d)

        def scaled(metric: Tensor) -> tuple[PinnedData | ResidualData, Tensor]:
            U = places @ metric.mT
            R = U.square().sum(1).mean().sqrt()
            if self.loss is not None and state.constraints is not None:
                r = state.constraints.values
                return ResidualData(self.loss, rule.prior, U / R, r[numbers] - r[center], r[center], unit), metric / R
            if kinked:
                return rule.data(U / R, heights, 0.0, self.rules.noise.kink_weights(U / R)), metric / R
            return rule.data(U / R, heights, variance, weights), metric / R

        def fitted(start: Hyperparameters | None, noisy: bool | None) -> Hyperparameters:
            if kinked and start is not None and isinstance(data, PinnedData):
                return self.rules.noise.kinks_fitted(data, start, rule.search)
            if self.constraints is None or isinstance(data, ResidualData):
                return rule.search.fitted(data, start, noisy)
            return self.constraints.fitted(state, data, rule.search, start, noisy, numbers, center)

        # The parameters of a model that was smoothed until now have noise that is the same everywhere.
        kinked = may_be_kinked and fit.fitted_at > 0
        data, map = scaled(fit.metric)
        params = fit.params or fitted(None, run.smoothing)
        young = fit.params is None and not due
        if young and run.noisy is None and self.loss is None and len(values) > rule.few:
            due = self.rules.noise.needs(data.model(fitted(None, None)), rule.search, young)
        if due:
            kinked, first = may_be_kinked, RegionModel(data.model(params), map, unit, fit.basis, outside)
            hessian = first.hessian
            if self.constraints is not None and self.loss is None:
                hessian = self.constraints.model(state, first, numbers, center).hessian()
            metric = rule.metric(hessian)
            data, map = scaled(metric)
            # As many points as there are variables determine any linear residuals, and say nothing of noise.
            undecided = run.noisy is None and (self.loss is None or len(numbers) > self.box.d + 1)
            params = fitted(params, None if undecided else run.smoothing)
        region = RegionModel(data.model(params), map, unit, fit.basis, outside)
        if due:
            fit.metric, fit.params, fit.fitted_at = metric, params, len(values)
        return region

    def prepare(self, state: TrustRegionState) -> None:
        """Computes the slopes of the constraints and their first price from the queries near the center."""
        if self.constraints is None or state.constraints is None or self.loss is not None:
            return
        run = state.run
        known = run.run_start <= run.center_index < len(state.data.values)
        center = run.center_index if known else run.run_start + int(state.data.values[run.run_start :].argmin())
        self.constraints.prepare(state, self.window(state, center), center)

    def _composite(self, region: RegionModel, center: Tensor, psi: Prox) -> CompositeModel:
        """The model of f + ψ, for ψ and its prox of steps from the center."""
        exact, part = self.box.exact, self.box.part
        value = lambda s: float(psi.value(exact(center + s)))  # noqa: E731
        return CompositeModel(region, value, lambda s, size: part(psi(exact(center + s), size)) - center)

    def informative_points(self, state: TrustRegionState, pending: Tensor) -> Tensor:
        """Returns points around the planned step's end z, ``m x d_free``, the most informative about ∇f(z) first.

        The points are z ± δu at three distances δ, for orthonormal directions u along which ∇f(z) is most uncertain,
        given the queries and the pending points. If two points are equally informative, the downhill point comes first.

        Raises:
            NotPositiveDefiniteError: if the queries and pending points are too near to each other.
        """
        center, metric, basis = state.data.points[state.run.center_index], state.fit.metric, state.fit.basis
        rows = state.data.points[self.window(state, state.run.center_index)] - center
        end = state.plan.points[0] - center if isinstance(state.plan, Step) else torch.zeros_like(center)
        near = torch.cat([rows, pending - center, end[None]])
        near = torch.unique(near[near.any(dim=1)], dim=0)
        if len(basis) < self.box.d:
            wider, grown = covering(basis, near)
            widest = extended(wider, self.normal(5, MOST))
            metric = carried_metric(carried_metric(metric, basis, wider, grown), wider, widest, True)
            basis = widest
        map = metric / (coordinates(basis, rows) @ metric.mT).square().sum(1).mean().sqrt()
        z = coordinates(basis, end) @ map.mT
        params = state.fit.params or Hyperparameters()
        if state.run.follows:  # errors due to kinks are not noise of the queries
            params = replace(params, noise=0.0)
        given = Conditioned.on(self.rules.model.prior, coordinates(basis, near) @ map.mT, params)
        # Only slopes inside the wider subspace count, because candidates lie in it.
        unknown = (map.mT @ given.slope_covariance(z) @ map)[:-1, :-1]
        directions = torch.linalg.eigh(unknown).eigenvectors.mT.flip(0)[:MOST] @ basis
        lengths = state.run.radius.delta * torch.tensor(LEVELS, dtype=end.dtype).repeat_interleave(2 * len(directions))
        moves = torch.cat([directions, -directions]).repeat(len(LEVELS), 1) * lengths[:, None]
        points = self.box.on_lattice(self.box.clamped(center + end + moves))
        gains = given.gains(coordinates(basis, points - center) @ map.mT, z, map)
        return points[(gains * torch.where(moves @ end < 0.0, UPHILL, 1.0)).argsort(descending=True)]
