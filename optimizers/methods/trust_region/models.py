"""Builds the model about a run's center: selects its queries, fits it, and computes steps to a low posterior mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import cast

import numpy as np
import torch
from torch import Tensor

from optimizers.core.residuals import Loss
from optimizers.core.result import Estimate
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.constrained import ConstraintModels
from optimizers.methods.trust_region.constrained_model import ConstrainedModel
from optimizers.methods.trust_region.local_model import CompositeModel, LocalModel
from optimizers.methods.trust_region.plans import Step
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.residuals import ResidualData, ResidualModel
from optimizers.methods.trust_region.rules import TrustRegionRules
from optimizers.methods.trust_region.state import ConstraintData, TrustRegionState
from optimizers.prox import Prox
from optimizers.subproblems.region import HalfSpace
from optimizers.subproblems.span import carried_metric, coordinates, covering, extended, unit_outside
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.engine import Conditioned, PinnedData
from surrogates.pinned.prior import Hyperparameters

WINDOW, SPANNED_WINDOW, NOISY_WINDOW = 1000, 100, 300
"""Most queries in a model: for at most ``DesignRule.whole`` variables, for more, and for noisy values."""

ONE_VARIABLE = 40
"""Most queries in a model of one variable. With 5, from the general formula, a run forgets what earlier runs found."""

RIPPLES = 100.0
"""Noise is mostly ripples if its standard deviation exceeds this many times the gap of two values at one point."""

MEMORY = 3
"""Queries are dropped if the model is of a subspace and there are more than this many windows of them."""

FAR, SPACING = 30.0, 3.0
"""A model leaves out queries farther away than both 30 radii and 3 times the distance of the 2d-th nearest query."""

MOST = 8
"""Most directions of ``informative_points``, and most random directions that extend their subspace."""

APART = 1e-6
"""Multipliers ignore queries that are nearer to the center than this fraction of the first radius."""

LEVELS, UPHILL = (0.25, 0.5, 1.0), 0.99
"""Distances of ``informative_points`` from the end of the step, in radii, and the factor on an uphill point's gain."""


class ModelBuilder:
    """Makes models of a state's queries, and fits the hyper-parameters that the state holds.

    Args:
        box: the free variables.
        rules: the rules.
        window: the most queries in a model; None: (d + 1)(d + 2)/2 + 2d, at most 1000; 40 for d = 1, 100 for d > 60.
        noise: the variance of a value's noise; None: estimated.
        psi: ψ and its prox, or None.
        constraints: the constraints, or None.
        random: returns the random numbers of a stream at the present batch.
        loss: the loss of a least-squares problem, or None; the state stores residuals as it stores constraints.
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
        self.flops = self.size * min(self.size, box.d) ** 2

    def totals(self, state: TrustRegionState, numbers: Tensor) -> Tensor:
        """f + ψ, or the merit, at the queries with the given indices, shape ``n``; inf outside of ψ's domain."""
        data = state.data
        values = data.values[numbers]
        if self.constraints is not None and state.constraints is not None:
            return self.constraints.merits(state.constraints, values, numbers)
        psi, points = self.psi, data.points[numbers]
        return values if psi is None else values + psi.value(self.box.whole(points)).to(values)

    def best(self, state: TrustRegionState, first: int = 0) -> int:
        """The index of the query of least f + ψ, or merit, among those from ``first`` on that may be a center."""
        first = max(first, state.data.outside)
        return first + int(self.totals(state, torch.arange(first, len(state.data.values))).argmin())

    def center(self, state: TrustRegionState) -> int:
        """The index of the run's best query, or of the present center if the model has noise."""
        run = state.run
        return (
            run.center_index if run.smoothing and run.center_index >= run.run_start else self.best(state, run.run_start)
        )

    def half_space(self, state: TrustRegionState, center: int) -> HalfSpace | None:
        """The half-space before the failed queries near a query; None where no plane separates them from the others."""
        data, at = state.data, state.data.points[center]
        if len(data.failed) == 0:
            return None
        return self.rules.failures.half_space(data.failed - at, data.points - at, state.run.radius.delta)

    def is_evaluated(self, state: TrustRegionState, point: Tensor) -> bool:
        """Whether a point, rounded to the run's dtype, has failed before, or would give the same value again."""
        rounded, data = self.box.rounded(point), state.data
        asked = (data.failed,) if state.run.noisy else (data.failed, data.points)
        if state.constraints is not None:
            asked = (*asked, state.constraints.partial)
        return any(len(queries) and bool((queries == rounded).all(dim=1).any()) for queries in asked)

    def kept(self, state: TrustRegionState, points: Tensor, center: Tensor | None = None) -> Tensor:
        """Rounds integers, and moves points toward the center until known constraints with ``keep_feasible`` hold.

        A point is replaced by the center if rounding its integers breaks such a constraint.
        """
        points, center = self.box.on_lattice(points), state.run.center if center is None else center
        if self.constraints is None or state.constraints is None:
            return points
        sizes = state.constraints.sizes or self.constraints.known.sizes_given or ()
        points = self.constraints.pulled(center, points, sizes)
        if not self.box.has_integers:
            return points
        whole = self.box.on_lattice(points)
        kept = (self.constraints.pulled(center, whole, sizes) == whole).all(dim=1, keepdim=True)
        return torch.where(kept, whole, center)

    def forget(self, state: TrustRegionState) -> None:
        """Drops queries of a subspace far from the run's best one if there are too many, but never the best of all."""
        data, run = state.data, state.run
        # On a lattice all queries are kept, so that none is asked twice.
        if not state.fit.spanning or len(data.values) <= MEMORY * self.size or self.box.has_integers:
            return
        distances = torch.linalg.vector_norm(data.points - data.points[self.center(state)], dim=1)
        near = distances <= distances.sort().values[min(self.size, len(distances) - 1)]
        near[[self.best(state), -1]] = True
        state.fit.fitted_at -= int((~near).sum())
        run.run_start, run.center_index = int(near[: run.run_start].sum()), int(near[: run.center_index].sum())
        state.data = data.rows(near)

    def window(self, state: TrustRegionState, center: int) -> Tensor:
        """Indices of the queries in a model about one of them; noisy windows are larger, as values are averaged."""
        data, run, size = state.data, state.run, self.size
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
        """Random normal numbers of a stream, ``... x d_free``."""
        return torch.from_numpy(self.random(stream).standard_normal((*shape, self.box.d)))

    def model(self, state: TrustRegionState, center: int) -> LocalModel | None:
        """The model about the query of index ``center``, with the state's hyperparameters; None if it cannot be built.

        If a fit is due, the hyperparameters are fitted first, and the state changes.
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
        young = young and self.constraints is None and not self.box.has_integers
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
        """The model of f; its metric and hyper-parameters are fitted first if a fit is ``due``."""
        fit, run, rule, values = state.fit, state.run, self.rules.model, state.data.values
        outside = None if len(fit.basis) == self.box.d else unit_outside(fit.basis, self.normal(4))
        # By a power of two division is exact.
        largest = max(float(values[numbers].abs().max()), abs(float(values[center])))
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 1)
        heights, variance = values[numbers] / unit - values[center] / unit, (self.noise or 0.0) / unit / unit
        all_weights = state.data.weights
        weights = None if all_weights is None else all_weights[[*numbers.tolist(), center]]
        places = coordinates(fit.basis, rows)

        def scaled(metric: Tensor) -> tuple[PinnedData | ResidualData, Tensor]:
            U = places @ metric.mT
            R = U.square().sum(1).mean().sqrt()
            if self.loss is not None and state.constraints is not None:
                r = state.constraints.values
                return ResidualData(self.loss, rule.prior, U / R, r[numbers] - r[center], r[center], unit), metric / R
            return rule.data(U / R, heights, variance, weights), metric / R

        def fitted(start: Hyperparameters | None, noisy: bool | None) -> Hyperparameters:
            if self.constraints is None or isinstance(data, ResidualData):
                return rule.search.fitted(data, start, noisy)
            return self.constraints.fitted(state, data, rule.search, start, noisy, numbers, center)

        data, map = scaled(fit.metric)
        params = fit.params or fitted(None, run.smoothing)
        if due:
            first = RegionModel(data.model(params), map, unit, fit.basis, outside)
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
        """Sets the units and the price of the constraints from the queries near the center."""
        if self.constraints is None or state.constraints is None or self.loss is not None:
            return
        run = state.run
        known = run.run_start <= run.center_index < len(state.data.values)
        center = run.center_index if known else run.run_start + int(state.data.values[run.run_start :].argmin())
        self.constraints.prepare(state, self.window(state, center), center)

    def multipliers(self, state: TrustRegionState, at: Tensor, delta: float, slack: np.ndarray) -> np.ndarray | None:
        """The multipliers of the constraints by models about the query nearest to a point; None without a model.

        Args:
            state: the state.
            at: the point, shape ``d_free``.
            delta: the first radius. Queries too near to the center to tell differences of f from rounding are left out.
            slack: the distances from their bounds at which constraints bind, shape ``m``.
        """
        refitted, model = self._refitted(state, at, delta)
        if model is None or not isinstance(model.composite, ConstrainedModel):
            return None
        return model.composite.multipliers(refitted.data.points[model.numbers], slack)

    def residuals(self, state: TrustRegionState, at: Tensor, delta: float) -> tuple[Tensor, Tensor | None]:
        """The residuals expected at the query nearest to a point, shape ``m``, and their Jacobian, ``m x d``.

        The Jacobian is in user units, and 0 for a variable that is not searched; it is None without a model.
        """
        refitted, model = self._refitted(state, at, delta)
        if model is None or not isinstance(model.region.pinned, ResidualModel):
            return cast(ConstraintData, refitted.constraints).values[refitted.run.center_index], None
        r, slopes = model.region.pinned.at_pin()
        return r, self.box.user_slopes(at, (slopes @ model.region.map)[:, :-1] @ model.region.basis)

    def _refitted(
        self, state: TrustRegionState, at: Tensor, delta: float
    ) -> tuple[TrustRegionState, LocalModel | None]:
        """Fits a model about the query nearest to a point; returns the state with its queries and the model."""
        state, data, known = state.copied(), state.data, cast(ConstraintData, state.constraints)
        distances = torch.linalg.vector_norm(data.points - at, dim=1)
        kept = distances > APART * delta
        kept[center := int(distances.argmin())] = True
        state.data = data.rows(kept)
        state.constraints, state.fit.params = replace(known, values=known.values[kept]), None
        state.run.noisy = state.run.smoothing = bool(state.run.noisy)  # ripples are followed
        state.center_at(int(kept[:center].sum()))
        return state, self.model(state, state.run.center_index)

    def _composite(self, region: RegionModel, center: Tensor, psi: Prox) -> CompositeModel:
        """The model of f + ψ, for ψ and its prox of steps from the center."""
        exact, part = self.box.exact, self.box.part
        value = lambda s: float(psi.value(exact(center + s)))  # noqa: E731
        return CompositeModel(region, value, lambda s, size: part(psi(exact(center + s), size)) - center)

    def least_mean(self, state: TrustRegionState, excess: Callable[[np.ndarray], np.ndarray]) -> Estimate | None:
        """The query of least posterior mean of f + ψ, for noisy values; None if there is none.

        A model counts only if its noise comes from the values, and is not mostly ripples. The query is in the window
        about the run's center, or in the window about the query of least value if its mean plus its standard deviation
        is lower there: an earlier run may have ended at a better place. With constraints a query of less excess is
        always preferred.

        Args:
            state: the state, which does not change.
            excess: how far the constraints of points, ``n x m``, exceed what is tolerated, shape ``n``.

        Returns:
            The point, ``1 x d_free``, the mean and standard deviation of f there, and the means of the constraints.
        """
        found, known, gap = [], state.constraints, state.run.repeated_gap
        for center in {state.run.center_index, self.best(state)} if len(state.data.values) > state.data.outside else ():
            copied = state.copied()
            if center != state.run.center_index:
                copied.fit.params = None
            model = self.model(copied, center)
            if model is None:
                continue
            noise_std = model.region.unit * math.sqrt(model.region.pinned.noise)
            # If f has no noise, the constraints have.
            if not (noise_std <= RIPPLES * gap or (known is not None and gap == 0.0)):
                continue
            numbers = torch.cat([model.numbers, torch.tensor([center])])
            noise, std = (model.region.unit * part for part in model.region.pinned.noise_posterior())
            c, worse = None, np.zeros(len(numbers))
            if known is not None and isinstance(model.composite, ConstrainedModel):
                means, c = state.data.values[numbers] - noise, model.composite.expected(known.values[model.numbers])
                worse = excess(c)
            else:
                means = self.totals(state, numbers) - noise
            outside = numbers < state.data.outside
            means[outside], worse[outside.numpy()] = math.inf, math.inf
            least = int(np.lexsort((means.numpy(), worse))[0])
            point = state.data.points[numbers[least]][None]
            estimate = Estimate(point, float(means[least]), float(std[least]), None if c is None else c[least])
            found.append((float(worse[least]), estimate.fun + estimate.fun_std, estimate))
        return min(found, key=itemgetter(0, 1), default=(0.0, 0.0, None))[-1]

    def informative_points(self, state: TrustRegionState, pending: Tensor) -> Tensor:
        """Finds points about the end of the planned step, the most informative about the gradient there first.

        Under a Gaussian process covariances do not depend on values, so pending points condition them like queries. The
        points, ``m x d_free``, are end ± δu for orthonormal u along which ∇f(end) is least known, at three distances δ.
        If two points are equally informative, the one downhill comes first.

        Args:
            state: the state with the plan.
            pending: the points being evaluated, ``p x d_free``.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
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
        given = Conditioned.on(self.rules.model.prior, coordinates(basis, near) @ map.mT, params)
        # Only slopes inside the wider subspace count, because candidates lie in it.
        unknown = (map.mT @ given.slope_covariance(z) @ map)[:-1, :-1]
        directions = torch.linalg.eigh(unknown).eigenvectors.mT.flip(0)[:MOST] @ basis
        lengths = state.run.radius.delta * torch.tensor(LEVELS, dtype=end.dtype).repeat_interleave(2 * len(directions))
        moves = torch.cat([directions, -directions]).repeat(len(LEVELS), 1) * lengths[:, None]
        points = self.box.on_lattice(self.box.clamped(center + end + moves))
        gains = given.gains(coordinates(basis, points - center) @ map.mT, z, map)
        return points[(gains * torch.where(moves @ end < 0.0, UPHILL, 1.0)).argsort(descending=True)]
