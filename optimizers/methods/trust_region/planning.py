"""Plans the next batch of a trust-region run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimizers.methods.trust_region.constrained_model import ConstrainedModel
from optimizers.methods.trust_region.lattice import Lattice, unique_rows
from optimizers.methods.trust_region.local_model import LocalModel
from optimizers.methods.trust_region.models import ModelBuilder
from optimizers.methods.trust_region.outcomes import NO_STEP, StepOutcome, settle_by_mean
from optimizers.methods.trust_region.plans import Design, GeometryQuery, Plan, Repeat, Restart, Sample, Step
from optimizers.methods.trust_region.radius import Radius
from optimizers.methods.trust_region.scales import Parabolas
from optimizers.methods.trust_region.state import Run, TrustRegionState
from optimizers.subproblems.region import Region

TRIALS = 32
"""The number of random points in a ball from which a new lattice point is chosen."""

LEAST = 1e-9
"""Expected improvements up to this fraction of the largest difference of values in the model are ignored."""

ROUNDED = 1e-12
"""Values that differ by less than this fraction of the largest value in the model may repeat because of rounding."""

FINE = 0.1
"""Before ρ falls below this fraction of the distance between two integers, the center's neighbours are evaluated."""


@dataclass(frozen=True)
class Planner:
    """Plans the next batch: a design, a step, a geometry-improving query, the center again, or a restart.

    Attributes:
        models: the model builder.
        first: the initial radii of a run.
        queries: the number of evaluations so far, including given ones.
        remaining: the number of queries left in the budget.
        pending: the lattice points being evaluated, ``p x d_free``; empty without integers.
        rescale: whether the values of a design may change the scales.
    """

    models: ModelBuilder
    first: Radius
    queries: int
    remaining: int
    pending: Tensor
    rescale: bool

    def design(self, state: TrustRegionState, center: Tensor, delta: float) -> Tensor:
        """Returns the points of a design about a center; the center is the first point."""
        box, rule = self.models.box, self.models.rules.design
        few = self.models.loss is not None or (self.models.constraints is None and box.d <= rule.directions)
        random = None if few or self._has_both_sides() else self.models.random(3)
        return self._allowed(state, rule.points(box, center, delta, random))

    def _allowed(self, state: TrustRegionState, points: Tensor) -> Tensor:
        """Moves the points of a design, whose first is its center, to where constraints and integers allow them."""
        points = self.models.kept(state, points, points[0])
        if not self.models.box.has_integers:
            return points
        rest = [point for point in unique_rows(points)[1:] if not self._is_asked(state, point[None])]
        return torch.stack([points[0], *rest])

    def another_design(self, state: TrustRegionState, told: Design, values: Tensor) -> Design | None:
        """Plans the opposite points of a design, or a smaller design, or None; may change the scales.

        The opposite points are evaluated if all points of the design are worse than its center, or if the design may
        change the scales. If all parabolas through the points on both sides have their minima near the center, the box
        is too wide: a smaller design, whose radius is the distance to the farthest minimum, replaces the present one.
        """
        run, data, models, rules = state.run, state.data, self.models, self.models.rules
        n = (2 if told.opposite else 1) * (len(values) - told.begins)
        # With failures, evaluations from outside or several workers, the run's points are not those of the design.
        alone = len(data.values) - run.run_start == n + 1
        if not alone or run.noisy or models.psi is not None or models.constraints is not None:
            return None
        state.center_at(run.run_start)
        points, heights = data.points[-n:], data.values[-n:] - data.values[run.center_index]
        if not told.opposite:
            wanted = self._has_both_sides() or rules.design.wants_opposite(heights)
            sides = torch.cat([run.center[None], points])
            opposite = self._allowed(state, rules.design.opposite(models.box, run.center, sides))[1:]
            return Design(opposite, begins=False, opposite=True) if wanted and len(opposite) else None
        if models.box.has_integers:
            return None
        found = Parabolas.of(points - run.center, heights)
        if (delta := rules.scales.narrowed(found, run.radius.delta)) is not None:
            state.data = data.rows(torch.arange(run.center_index + 1))
            run.radius = rules.radius.begun(delta, run.radius.largest)
            return Design(self.design(state, run.center, delta)[1:], begins=False)
        if self._has_both_sides():
            state.rescale(rules.scales.factors(models.box, found, run.radius.delta))
        return None

    def _has_both_sides(self) -> bool:
        """Whether a design has both sides of each variable: with integers, or if it may change the scales."""
        models, box = self.models, self.models.box
        few = box.d <= models.rules.design.whole and models.constraints is None
        infinite = self.rescale and not bool(torch.isfinite(box.sides).all())
        return few and (infinite or box.has_integers)

    def next_plan(self, state: TrustRegionState, told: Plan | None, outcome: StepOutcome) -> Plan:
        """Sets the center, fits the model, and plans the next batch after the values of the plan ``told`` arrived."""
        run, models = state.run, self.models
        if self._is_exhausted(state):
            return Design(run.center[None][:0], begins=False)
        if run.run_start == len(state.data.values):  # no query of this run has succeeded
            return self._restart(state)
        models.forget(state)
        models.prepare(state)
        self._note_progress(state, told, outcome)
        if self._is_fruitless(run):
            return self._restart(state)
        if isinstance(told, Restart):
            state.center_at(models.center(state))
            if len(points := self.design(state, run.center, run.radius.delta)[1:]):
                return Design(points, begins=False)
        while True:
            center = models.center(state)
            if models.constraints is not None and models.loss is None:
                models.constraints.widen(state, center)
            model = models.model(state, center)
            if run.smoothing and model is not None:
                center, model, outcome = settle_by_mean(models, state, center, model, told, outcome)
            state.center_at(center)
            if model is None:  # no other query is in the window, or the covariance is singular
                query = self._random_query(state)
                return self._restart(state) if self._is_asked(state, query.points) else query
            if run.noisy is None and model.noisy:
                return Repeat(run.center[None])
            if self._has_portfolio(run) and self._wants_sample(state):
                return self._sample(state)
            if (plan := self._by_powell(state, model, *outcome)) is not None:
                return plan
            told, outcome = None, NO_STEP  # smoothing has ended: the model is fitted without noise, and follows ripples

    def _by_powell(self, state: TrustRegionState, model: LocalModel, failed: bool, at_rho: bool) -> Plan | None:
        """Plans a step, a geometry-improving query or a restart; None if the model must be fitted again without noise.

        This is Powell's loop. A step is worthwhile if it is long enough for ρ, predicts a decrease and leads to a new
        point. It is the next query unless the last step failed. Otherwise, the next query is geometry-improving if the
        model needs one. If it does not, ρ falls if the step is not worthwhile or the last step failed at Δ = ρ; after
        the finest ρ there is a restart. In the remaining case, the step within the reduced Δ is the next query.

        Args:
            state: the state, whose radii and counts change.
            model: the model about the center.
            failed: whether the last query was a step, and it failed.
            at_rho: whether that step was made with Δ = ρ.
        """
        run, rules, box = state.run, self.models.rules, self.models.box
        # If noise hides how f varies within ρ, the search goes on at a coarser scale.
        # In a subspace, ripples do not show that a much coarser scale is better: slopes outside it are unknown.
        coarsest = rules.noise.coarsest * self.first.rho if self._never_spans(state) and not run.noisy else math.inf
        if 2.0 * run.radius.rho <= coarsest and self._noise_hides_rho(state, model):
            run.radius = rules.radius.raised(run.radius)
        half_space = self.models.half_space(state, run.center_index)
        region = Region(run.radius.delta, box.lower - run.center, box.upper - run.center, half_space)
        step, mean = Lattice(model, box, run.center, region).step(rules.model.newton)
        if (query := self._lattice_query(state, model, region, step, -mean)) is not None:
            return query
        while True:
            length, point = float(step.norm()), box.on_lattice(box.clamped(run.center + step)[None])
            long_enough = not rules.radius.is_short(run.radius, length)
            worthwhile = long_enough and mean < 0.0 and not self._is_asked(state, point)
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
                if self._is_on_plateau(state, model, region.delta):
                    if run.radius.rho >= self.first.rho:
                        return self._restart(state)
                    run.radius = rules.radius.raised(run.radius)
                    return self._beyond_plateau(state, model, replace(region, delta=run.radius.delta))
                before, run.radius = run.radius, rules.radius.lowered(run.radius)
                ended = rules.radius.ends(run.radius, box.resolution(run.center)) or self._is_fine(state)
                fine = ended or run.radius.rho < FINE * box.finest_spacing(run.center)
                if fine and (query := self._neighbour(state, model, region, step)) is not None:
                    run.radius = before
                    return query
                if ended:
                    return self._grown(state, model, before) or self._restart(state)
                region = replace(region, delta=run.radius.delta)
                # A step that fits into the smaller ball is still the best one, unless it may now go nearer to a plane.
                # Residuals that vary too much for the model leave no decrease at the larger radius.
                lost = self.models.loss is not None and not mean < 0.0
                if length > region.delta or region.half_space is not None or lost:
                    step, mean = Lattice(model, box, run.center, region).step(rules.model.newton)
            failed = at_rho = False  # the failure has been dealt with

    def _step(self, state: TrustRegionState, model: LocalModel, region: Region, step: Tensor, predicted: float) -> Step:
        """Plans the step. In a subspace it also explores a direction outside, unless it is the last query."""
        explored, std, expected = step, 0.0, None
        if isinstance(model.composite, ConstrainedModel):
            expected = torch.from_numpy(model.composite.expected_at(step.numpy())[1])
        if model.composite is None and self.remaining > 1:
            explored, std = model.region.explored(self.models.rules.exploration, step, region)
        point = self._at(state, explored)
        if self.models.box.has_integers and self._is_asked(state, point):
            point, std = self._at(state, step), 0.0
        return Step(point, predicted, std, expected)

    def _at(self, state: TrustRegionState, step: Tensor) -> Tensor:
        """The point at a step from the center that bounds, integers and constraints allow, ``1 x d_free``."""
        return self.models.kept(state, self.models.box.clamped(state.run.center + step)[None])

    def _lattice_query(
        self, state: TrustRegionState, model: LocalModel, region: Region, step: Tensor, predicted: float
    ) -> GeometryQuery | None:
        """Queries other integers if their expected improvement exceeds the decrease that the step predicts."""
        run, box = state.run, self.models.box
        if not box.has_integers or model.composite is not None:
            return None
        found = Lattice(model, box, run.center, region)
        if len(found.near(torch.zeros_like(step))) == 0:
            return None
        steps, gains = found.improvement(step)
        for index in gains.argsort(descending=True).tolist():
            if not float(gains[index]) > max(predicted, LEAST * model.region.unit * model.region.pinned.data.unit):
                return None
            if not self._is_asked(state, point := self._at(state, steps[index])):
                return GeometryQuery(point)
        return None

    def _geometry_query(self, state: TrustRegionState, model: LocalModel, region: Region) -> GeometryQuery | None:
        """Plans a geometry-improving query; None at the limit, or if the gradient or the point's value is known."""
        run, rules = state.run, self.models.rules
        limit = rules.geometry.limit
        if self.models.constraints is not None:
            limit = min(limit, rules.constraint.geometry)
        if run.model_queries >= limit:
            return None
        box = self.models.box
        if box.has_integers:  # integers whose values are farther apart than the ball's diameter do not change
            moves = box.spacing(run.center) <= 2.0 * region.delta
            region = replace(
                region, lower=torch.where(moves, region.lower, 0.0), upper=torch.where(moves, region.upper, 0.0)
            )
        direction = (model.composite or model.region).geometry_direction(rules.geometry, region)
        kinked = run.follows and model.region.pinned.params.noise > 0.0
        if direction is None and kinked and not state.fit.spanning:
            rows = state.data.points[model.numbers] - run.center
            direction = rules.geometry.uncovered(rows, model.region.gradient[:-1] @ model.region.basis, region)
        if direction is None:
            return None
        point = self.models.kept(state, box.along(run.center, direction, region.delta))
        if self._is_asked(state, point):
            return None
        run.model_queries += 1
        return GeometryQuery(point)

    def _random_query(self, state: TrustRegionState) -> GeometryQuery:
        point = self.models.box.along(state.run.center, self.models.normal(1), state.run.radius.delta)
        return GeometryQuery(self.models.kept(state, point))

    def _at_noise(self, state: TrustRegionState, model: LocalModel, point: Tensor) -> GeometryQuery | None:
        """Queries the short step, because noise averages out; ends smoothing (None) if only ripples are left."""
        run = state.run
        run.model_queries = 0
        if run.noisy or self.smooths_on(model):
            return self._random_query(state) if self._is_asked(state, point) else GeometryQuery(point)
        run.smoothing, state.fit.fitted_at = False, 0
        return None

    def smooths_on(self, model: LocalModel) -> bool:
        """Whether the model continues to treat ripples as noise: early in a run, while the values require noise."""
        rules = self.models.rules
        early = self.queries < rules.noise.early * self.models.box.d
        return early and rules.noise.needs(model.region.pinned, rules.model.search)

    def _beyond_plateau(self, state: TrustRegionState, model: LocalModel, region: Region) -> Step | GeometryQuery:
        """Queries the step at a coarser scale, or a random point if the model predicts no decrease there."""
        run, box, rules = state.run, self.models.box, self.models.rules
        step, mean = Lattice(model, box, run.center, region).step(rules.model.newton)
        point = box.on_lattice(box.clamped(run.center + step)[None])
        if rules.radius.is_short(run.radius, float(step.norm())) or not mean < 0.0 or self._is_asked(state, point):
            return self._random_query(state)
        return self._step(state, model, region, step, -mean)

    def _note_progress(self, state: TrustRegionState, told: Plan | None, outcome: StepOutcome) -> None:
        """Records the last lower value and successful step; ends smoothing over ripples without lower values."""
        run = state.run
        lowest = float(self.models.totals(state, torch.tensor([self.models.best(state, run.run_start)])))
        counts = run.lowest < math.inf and self._has_portfolio(run)
        search = ("wide" if isinstance(told, Sample) else "local") if counts else None
        decrease = max(0.0, run.lowest - lowest)
        run.portfolio = self.models.rules.portfolio.noted(run.portfolio, decrease, self.queries, search)
        if lowest < run.lowest:
            run.lowest, run.lowest_at = lowest, self.queries
        stepped = isinstance(told, Step) and not outcome.failed
        if stepped or run.smoothing or isinstance(told, Design | Restart | Repeat):
            run.stepped_at = self.queries
        if isinstance(told, Design):
            run.designed = len(state.data.values)
        if run.smoothing and run.noisy is False and self._stalled(run.lowest_at, self.models.rules.noise.patience):
            run.smoothing, state.fit.fitted_at = False, 0

    def _has_portfolio(self, run: Run) -> bool:
        """Whether the model smooths over ripples of a plain function of a finite box."""
        models = self.models
        plain = models.constraints is None and models.psi is None and run.smoothing and run.repeated_gap == 0.0
        return plain and models.rules.portfolio.holds(models.box)

    def _wants_sample(self, state: TrustRegionState) -> bool:
        values, run = state.data.values[state.run.run_start :], state.run
        mean_decrease = float(values[0] - values.min()) / len(values)
        return self.models.rules.portfolio.wants_sample(run.portfolio, mean_decrease)

    def _sample(self, state: TrustRegionState) -> Sample:
        data, models, run = state.data, self.models, state.run
        points, values = data.points[run.run_start :], data.values[run.run_start :]
        rule, random = models.rules.portfolio, models.random(8)
        return Sample(rule.sample(models.box, points, values, run.portfolio.region, random))

    def _stalled(self, since: int, patience: float) -> bool:
        """Whether ``patience`` queries for each of the model's variables were made after the first ``since``."""
        rules = self.models.rules
        variables = min(self.models.box.d, rules.design.whole)
        return self.queries - since >= max(rules.model.few, patience * variables)

    def _is_fruitless(self, run: Run) -> bool:
        """Whether the model has followed exact values for long without a successful step: f is rough at this scale."""
        return self._follows(run) and self._stalled(run.stepped_at, self.models.rules.noise.fruitless)

    def _is_fine(self, state: TrustRegionState) -> bool:
        """Whether ρ is so small that a new run should search at coarser scales: f has ripples, in many variables."""
        run, finest = state.run, self.models.rules.noise.descent ** (state.run.restarts + 1)
        rippled = self._never_spans(state) and run.repeated_gap == 0.0 and self._follows(run)
        return rippled and run.radius.rho < finest * self.first.rho

    def _never_spans(self, state: TrustRegionState) -> bool:
        """Whether the model covers only the subspace of its steps, however many there are."""
        return state.fit.spanning and self.models.box.d > self.models.rules.design.whole

    def _follows(self, run: Run) -> bool:
        """Whether the model follows exact values, of variables without constraints, residuals or integers."""
        return run.follows and self.models.constraints is None and not self.models.box.has_integers

    def _is_on_plateau(self, state: TrustRegionState, model: LocalModel, delta: float) -> bool:
        """Whether many queries from ρ/2 to 2Δ have exactly the center's value, so that a finer scale is useless."""
        run, data, rule = state.run, state.data, self.models.rules.noise
        if run.noisy or rule.plateaus == 0 or self.models.constraints is not None or self.models.box.has_integers:
            return False
        # Near a minimum that is known to the last digit, values repeat because they are rounded.
        hessian = model.region.hessian
        if bool(hessian.any()) and not rule.sees(hessian, ROUNDED**2, 2.0 * delta):
            return False
        distances = torch.linalg.vector_norm(data.points - run.center, dim=1)
        near = ((distances >= 0.5 * run.radius.rho) & (distances <= 2.0 * delta)).nonzero()[:, 0]
        totals, own = (self.models.totals(state, numbers) for numbers in (near, torch.tensor([run.center_index])))
        equal = near[totals == own]
        # Values of a design's points may be equal because f is symmetric.
        symmetric = run.center_index > run.run_start and not bool((equal >= run.designed).any())
        return len(equal) > 1 and len(equal) >= rule.plateaus * len(near) and not symmetric

    def _is_asked(self, state: TrustRegionState, point: Tensor) -> bool:
        """Whether a point was evaluated or, with integers, is pending."""
        pending = len(self.pending) > 0 and bool((self.pending == point).all(dim=1).any())
        return pending or self.models.is_evaluated(state, point)

    def _is_exhausted(self, state: TrustRegionState) -> bool:
        """Whether all points were asked, which is possible only for integers, and values have no noise."""
        known = state.constraints
        asked = [state.data.points, state.data.failed, self.pending, *([] if known is None else [known.partial])]
        return not state.run.noisy and sum(map(len, asked)) >= self.models.box.lattice_size

    def _neighbour(
        self, state: TrustRegionState, model: LocalModel, region: Region, step: Tensor
    ) -> GeometryQuery | None:
        """Queries the neighbour of least mean whose integers no query has had; None if there is none.

        A neighbour changes one integer of the center by 1. The search must know the effect of these changes before it
        becomes finer than the integers.
        """
        run, box, newton = state.run, self.models.box, self.models.rules.model.newton
        if not box.has_integers or run.noisy:
            return None
        wide = replace(region, delta=max(region.delta, self.first.delta))
        found = Lattice(model, box, run.center, wide)
        asked = torch.cat([state.data.points, state.data.failed, self.pending])[:, box.integers]
        near = found.near(torch.zeros_like(step))
        ends = box.on_lattice(run.center + near)[:, box.integers]
        near = near[[not bool((asked == end).all(dim=1).any()) for end in ends]]
        if len(near) == 0:
            return None
        steps = found.steps(near, step)
        for index in model.values(steps).argsort().tolist():
            end = steps[index] if model.composite is None else found.polished(near[index], newton)[0]
            point = self._at(state, end)
            # A point that is moved inside the known constraints may have other integers.
            if bool((asked != point[:, box.integers]).any(dim=1).all()):
                return GeometryQuery(point)
        return None

    def _grown(self, state: TrustRegionState, model: LocalModel, radius: Radius) -> GeometryQuery | None:
        """Queries the new lattice point of least mean in a ball that grows until there is one.

        If all variables are integers, a run cannot search at a finer scale. Returns None if the largest ball has no new
        point, and always if there are other variables or noise.
        """
        run, box = state.run, self.models.box
        if not math.isfinite(box.lattice_size) or run.noisy:
            return None
        delta, random = radius.delta, self.models.random(6)
        while (delta := 2.0 * delta) <= radius.largest:
            moves = torch.from_numpy(random.standard_normal((TRIALS, box.d)))
            moves *= delta / torch.linalg.vector_norm(moves, dim=1, keepdim=True)
            near = self.models.kept(state, box.clamped(run.center + moves))
            if len(near := near[[not self._is_asked(state, point[None]) for point in near]]):
                run.radius = replace(radius, delta=delta)
                return GeometryQuery(near[int(model.values(near - run.center).argmin())][None])
        return None

    def _restart(self, state: TrustRegionState) -> Restart:
        """Begins a new run at a random point, moved into ψ's domain; if all variables are integers, at a new point."""
        data, box, psi = state.data, self.models.box, self.models.psi
        best = data.points[self.models.best(state)] if len(data.values) > data.outside else state.run.center
        where = (box, best, self.first.delta, data.points, data.failed)
        point = self.models.kept(state, self.models.rules.restart.point(*where, self.models.random(2)))
        if math.isfinite(box.lattice_size) and self._is_asked(state, point):
            others = box.lattice_points(self.models.random(7))
            point = next((other[None] for other in others if not self._is_asked(state, other[None])), point)
        return Restart(point if psi is None else box.clamped(box.part(psi(box.whole(point), 1.0))))

    def _noise_hides_rho(self, state: TrustRegionState, model: LocalModel) -> bool:
        """Whether noise exceeds the mean's variation over ρ/2, the shortest step, and no query within 2ρ has failed.

        Near failed queries ρ falls nevertheless, because failures are informative in spite of the noise.
        """
        run, rule, region = state.run, self.models.rules.noise, model.region
        if not run.smoothing or rule.sees(region.hessian, region.pinned.noise, 0.5 * run.radius.rho):
            return False
        distances = torch.linalg.vector_norm(state.data.failed - run.center, dim=1)
        return not bool((distances <= 2.0 * run.radius.rho).any())
