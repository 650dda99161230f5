"""Plans the next batch of a run: a design, a step, a geometry-improving query, the center again, or a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.trust_region.constrained_model import ConstrainedModel
from optimizers.methods.trust_region.models import LocalModel, ModelBuilder
from optimizers.methods.trust_region.outcomes import NO_STEP, StepOutcome, settle_by_mean
from optimizers.methods.trust_region.state import (
    Design,
    GeometryQuery,
    Plan,
    Radius,
    Repeat,
    Restart,
    Step,
    TrustRegionState,
)
from optimizers.subproblems.region import Region


@dataclass(frozen=True)
class Planner:
    """Plans the next batch of a run.

    Attributes:
        models: the builder of models.
        first: the first radii of a run.
        random: returns the random numbers of a stream.
        queries: how many queries were told, given evaluations included.
        remaining: how many queries are left.
    """

    models: ModelBuilder
    first: Radius
    random: Callable[[int], np.random.Generator]
    queries: int
    remaining: int

    def design(self, state: TrustRegionState, center: Tensor, delta: float) -> Tensor:
        """The points of a design about a center, the first of them."""
        # With constraints a run begins with few queries too, as slopes of all functions come from each of them.
        few = state.fit.spanning or self.models.constraints is not None
        points = self.models.rules.design.points(self.models.box, center, delta, self.random(3) if few else None)
        return self.models.kept(state, points, center)

    def design_around(self, state: TrustRegionState) -> Design:
        """A design about the run's center, which was evaluated already."""
        return Design(self.design(state, state.run.center, state.run.radius.delta)[1:], begins=False)

    def next_plan(self, state: TrustRegionState, told: Plan | None, outcome: StepOutcome) -> Plan:
        """Sets the center, fits the model, and plans the next batch; ``told`` is the plan just answered, if any."""
        run, models = state.run, self.models
        if run.run_start == len(state.data.values):  # no query of this run has succeeded
            return self._restart(state)
        models.forget(state)
        models.prepare(state)
        if isinstance(told, Restart):
            state.center_at(models.center(state))
            return self.design_around(state)
        outside_direction = self.outside_direction()
        while True:
            center = models.center(state)
            if models.constraints is not None:
                models.constraints.widen(state, center)
            model = models.model(state, center, outside_direction)
            if run.smoothing and model is not None:
                center, model, outcome = settle_by_mean(models, state, center, model, told, outcome, outside_direction)
            state.center_at(center)
            if model is None:  # no other query is in the window, or the covariance is singular
                query = self._random_query(state)
                return self._restart(state) if models.is_evaluated(state, query.points) else query
            if run.noisy is None and model.noisy:
                return Repeat(run.center[None])
            if (plan := self._by_powell(state, model, *outcome)) is not None:
                return plan
            told, outcome = None, NO_STEP  # smoothing has ended: the model is fitted without noise, and follows ripples

    def _by_powell(self, state: TrustRegionState, model: LocalModel, failed: bool, at_rho: bool) -> Plan | None:
        """Plans a step, a geometry-improving query or a restart; None if the model must be fitted again without noise.

        This is Powell's loop. A step is worthwhile if it is long enough for ρ, predicts a decrease and leads to a new
        point. It is the next query unless the last step failed. Otherwise a geometry-improving query is, if the model
        needs one. If it does not, ρ falls if the step is not worthwhile or the last one failed at Δ = ρ, and a restart
        follows the finest ρ; else the step within the reduced Δ is the next query.

        Args:
            state: the state, whose radii and counts change.
            model: the model about the center.
            failed: whether the last query was a step, and it failed.
            at_rho: whether that step was made with Δ = ρ.
        """
        run, rules, box = state.run, self.models.rules, self.models.box
        # If noise hides how f varies within ρ, the search goes on at a coarser scale.
        if self._noise_hides_rho(state, model):
            run.radius = rules.radius.raised(run.radius)
        half_space = self.models.half_space(state, run.center_index)
        region = Region(run.radius.delta, box.lower - run.center, box.upper - run.center, half_space)
        step, mean = (model.composite or model.region).step(region, rules.model.newton)
        while True:
            length, point = float(step.norm()), box.clamped(run.center + step)[None]
            long_enough = not rules.radius.is_short(run.radius, length)
            worthwhile = long_enough and mean < 0.0 and not self.models.is_evaluated(state, point)
            if worthwhile and not failed:
                return self._step(state, model, region, step, -mean)
            if (query := self._geometry_query(state, model, region)) is not None:
                return query
            if not worthwhile or at_rho:
                # A finer scale would only fit the noise: the query is made at this one.
                if self._noise_hides_rho(state, model):
                    if run.hidden_since is None:
                        run.hidden_since = self.queries
                    if run.noisy and self.queries - run.hidden_since >= rules.noise.averaging * box.d:
                        return self._restart(state)
                    return self._at_noise(state, model, point)
                run.radius = rules.radius.lowered(run.radius)
                if rules.radius.ends(run.radius, box.resolution(run.center)):
                    return self._restart(state)
                region = replace(region, delta=run.radius.delta)
                # A step that fits into the smaller ball is still the best one, unless it may now go nearer to a plane.
                if length > region.delta or region.half_space is not None:
                    step, mean = (model.composite or model.region).step(region, rules.model.newton)
            failed = at_rho = False  # the failure has been dealt with

    def _step(self, state: TrustRegionState, model: LocalModel, region: Region, step: Tensor, predicted: float) -> Step:
        """Plans the step. In a subspace it also explores a direction outside, unless it is the last query."""
        std, expected = 0.0, None
        if isinstance(model.composite, ConstrainedModel):
            expected = torch.from_numpy(model.composite.components(step.numpy()))
        if model.composite is None and self.remaining > 1:
            step, std = model.region.explored(self.models.rules.exploration, step, region)
        point = self.models.kept(state, self.models.box.clamped(state.run.center + step)[None])
        return Step(point, predicted, std, expected)

    def _geometry_query(self, state: TrustRegionState, model: LocalModel, region: Region) -> GeometryQuery | None:
        """Plans a geometry-improving query; None at the limit, or if the gradient or the point's value is known."""
        run, rules = state.run, self.models.rules
        most = rules.geometry.limit if self.models.constraints is None else rules.constraint.geometry
        if run.model_queries >= min(most, rules.geometry.limit):
            return None
        direction = (model.composite or model.region).geometry_direction(rules.geometry, region)
        if direction is None:
            return None
        point = self.models.kept(state, self.models.box.along(run.center, direction, region.delta))
        if self.models.is_evaluated(state, point):
            return None
        run.model_queries += 1
        return GeometryQuery(point)

    def outside_direction(self) -> Tensor:
        """A random vector, shape ``d_free``, for a direction outside a subspace."""
        return torch.from_numpy(self.random(4).standard_normal(self.models.box.d))

    def _random_query(self, state: TrustRegionState) -> GeometryQuery:
        direction = torch.from_numpy(self.random(1).standard_normal(self.models.box.d))
        point = self.models.box.along(state.run.center, direction, state.run.radius.delta)
        return GeometryQuery(self.models.kept(state, point))

    def _at_noise(self, state: TrustRegionState, model: LocalModel, point: Tensor) -> GeometryQuery | None:
        """Queries the short step, because noise averages out; ends smoothing (None) if only ripples are left."""
        run = state.run
        run.model_queries = 0
        if run.noisy or self.smooths_on(model):
            return self._random_query(state) if self.models.is_evaluated(state, point) else GeometryQuery(point)
        run.smoothing, state.fit.fitted_at = False, 0
        return None

    def smooths_on(self, model: LocalModel) -> bool:
        """Whether the model goes on smoothing over ripples: early in a run, while values need its noise."""
        rules, early = self.models.rules, self.models.rules.noise.early * self.models.box.d
        needed = self.queries < min(early, self.remaining)
        return needed and rules.noise.needs(model.region.pinned, rules.model.search)

    def _restart(self, state: TrustRegionState) -> Restart:
        """A random point, moved into ψ's domain, at which a new run begins."""
        data, box, psi = state.data, self.models.box, self.models.psi
        where = (box, state.run.center, self.first.delta, data.points, data.failed)
        point = self.models.kept(state, self.models.rules.restart.point(*where, self.random(2)))
        return Restart(point if psi is None else box.clamped(box.part(psi(box.whole(point), 1.0))))

    def _noise_hides_rho(self, state: TrustRegionState, model: LocalModel) -> bool:
        """Whether noise exceeds the mean's variation over ρ/2, the shortest step, and no query within 2ρ has failed.

        Near failed queries ρ falls all the same: they say more about f than its noise hides.
        """
        run, rule, region = state.run, self.models.rules.noise, model.region
        if not run.smoothing or rule.sees(region.hessian, region.pinned.noise, 0.5 * run.radius.rho):
            return False
        distances = torch.linalg.vector_norm(state.data.failed - run.center, dim=1)
        return not bool((distances <= 2.0 * run.radius.rho).any())
