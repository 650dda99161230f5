"""Minimizes by a trust region on a derived Gaussian process whose value is pinned at the best point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.constraints import ConstraintSet, ConstraintsLike, parse_constraints
from optimizers.core.feasibility import FEASIBILITY_TOL
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_integer, nonnegative, optional, positive
from optimizers.core.state import load_fields, save_fields
from optimizers.core.values import parse_point
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.constrained import ConstrainedModel, ConstraintModels
from optimizers.methods.trust_region.models import LocalModel, ModelBuilder
from optimizers.methods.trust_region.rules import ConstraintRule, TrustRegionRules
from optimizers.methods.trust_region.scales import Parabolas, parse_scale, power_of_two
from optimizers.methods.trust_region.state import (
    PLANS,
    ConstraintData,
    Data,
    Design,
    Fit,
    GeometryQuery,
    Plan,
    Repeat,
    Restart,
    Run,
    Step,
    TrustRegionState,
)
from optimizers.prox import Prox
from optimizers.subproblems.region import Region
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.prior import Hyperparameters
from surrogates.threads import small_algebra

PATIENCE = 2
"""A planned query is awaited until more than this many answers per pending point have arrived since it was asked."""


class StepOutcome(NamedTuple):
    """The outcome of the last query as far as it was a step.

    Attributes:
        failed: whether the last query was a step, and it failed.
        at_rho: whether ρ may fall: the step was made with Δ = ρ.
    """

    failed: bool = False
    at_rho: bool = False


NO_STEP = StepOutcome()


class SurrogateTrustRegion(Optimizer):
    """Minimizes a function by steps to the least mean of a Gaussian process near the best point found so far.

    The method is a trust region, as in Powell's NEWUOA and BOBYQA and in COBYQA. Its model is a derived Gaussian
    process (``surrogates.pinned``), not a quadratic. It interpolates the queries about the best point, the center.
    After the initial design, which is one batch, the method evaluates one point at a time, or several with ``workers``.
    It is the default of ``minimize``.

    **A run.** A run begins with a design: x0 and two points along each variable. With more than 60 variables, a budget
    under six queries a variable, or constraints, it is x0 and a point along each of at most eight random directions.
    Then each query is a step to the least mean within a radius Δ of the center, or, if the model is poor, a
    geometry-improving query. Δ grows if steps do as well as predicted, and falls otherwise. When the scale of the
    search falls below 5e-8 of the first radius, a new run begins at a random point; with many variables it continues
    from the best query unless the random point is better than x0. ``best_x`` is the best of all runs.

    **Failed queries** (NaN, or exceptions) do not enter the model. A plane that separates them from the successful
    ones bounds the steps.

    **Noise.** If a fit suggests noise, the center is evaluated a second time. If the two values differ, or the second
    evaluation fails, f is treated as noisy. If they agree, f has ripples, which the model smooths over until the search
    reaches their scale. While the model smooths, ``x`` is the query of least posterior mean; ``best_x`` is always the
    query of the least value. When noise hides how f varies within the scale of the search, the run goes on for 20
    queries a variable, which averages noise out, and then a new run begins elsewhere.

    **Prox.** Given the prox of ψ, the method minimizes f + ψ; steps stay in ψ's domain.

    **Scales.** The radius is in units of a scale for each variable: ``x_scale`` if it is given, a tenth of its side for
    a variable with two finite bounds, and otherwise its magnitude in x0 (``ScaleRule``). If the values of the design
    suggest a scale that differs by more than a factor of 32 from the one that x0 gave, it takes effect. If they suggest
    that the minimum is much nearer than the points of the design, a smaller design follows.

    **When to set an option.** Set ``x_scale`` to the change of each variable that matters, if x0 is 0 and variables
    have different units, or if f varies over a much smaller scale than the width of the box. Set ``radius`` to begin
    with smaller or larger steps. Set ``noise`` if you know the variance of a value's noise; with 0 the center is never
    evaluated twice, and small-scale variation is smoothed over as ripples. Set ``window`` to make a query cheaper: its
    time grows with the cube of the window. ``docs/trust_region.md`` has the formulas and rules, and links to the gain
    from each.

    Args:
        x0: the initial point, shape ``d``. With a prox, a point outside ψ's domain is moved into it.
        radius: the first Δ in units of the variables' scales. At most half of the largest side (more for d > 20). None:
            2 in a finite box, times √(d/20) for d > 20; 1 with ``x_scale`` or where a side is infinite. With
            ``rescale=False`` it is in x's units, by default a fifth of the least side.
        window: the most queries in a model. None: (d + 1)(d + 2)/2 + 2d, at most 1,000, or 100 for more than
            60 variables; 40 for one variable. For noisy values at least half of all queries, up to 300.
        noise: the variance of a value's noise, in f's units squared; None: estimated.
        x_scale: the change that matters, one for each variable or for all; rounded to a power of two. None: see above.
        constraints: lower ≤ c(x) ≤ upper: SciPy's ``LinearConstraint``, ``NonlinearConstraint`` and dictionaries,
            ``CheapConstraint``, ``ReturnedConstraints``, or a list of these. Nonlinear ones are evaluated with f, and
            f and c at one point are one query; linear and cheap ones cost none.
        feasibility_tol: the largest relative violation of a feasible query. A violation is relative to the first
            distance of the constraint from its bound that is not 0.
        feasibility_probability: the probability, from 0.5 to below 1, with which each evaluated inequality must hold
            under its model where a step ends. None: its posterior mean must satisfy it.
        rules: the rules and their options, for experiments with the method; None: ``TrustRegionRules()``.
        **common: see ``Optimizer``. Bounds may be finite or not; a prox needs a method ``value``.

    Raises:
        ValueError: if the prox has no ``value``, bounds leave nothing to search, an option is out of range, or
            ``x_scale`` is given with ``rescale=True`` or a prox.

    References:
        M. J. D. Powell, The NEWUOA software for unconstrained optimization without derivatives, 2006.
        T. M. Ragonneau and Z. Zhang, COBYQA, a derivative-free trust-region SQP method, 2022.
    """

    method = "trust_region"
    version = 5
    state: TrustRegionState

    def __init__(
        self,
        x0: Any,
        *,
        radius: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        x_scale: float | Sequence[float] | np.ndarray | Tensor | None = None,
        rules: TrustRegionRules | None = None,
        constraints: ConstraintsLike | None = None,
        feasibility_tol: float = FEASIBILITY_TOL,
        feasibility_probability: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        groups = () if constraints is None else parse_constraints(constraints)
        if groups and common.get("prox") is not None:
            raise ValueError("a prox does not go with constraints: give what it says as constraints, or bounds")
        if groups:
            self.constraint_set = ConstraintSet(groups, parse_point(x0).double().cpu().numpy())
        self.feasibility_tol = nonnegative("feasibility_tol", feasibility_tol)
        self.feasibility_probability = feasibility_probability
        if feasibility_probability is not None and not 0.5 <= feasibility_probability < 1.0:
            raise ValueError(
                f"feasibility_probability must be a probability from 0.5 to below 1, got {feasibility_probability!r}"
            )
        self.radius = optional(positive, "radius", radius)
        self.window = optional(check_integer, "window", window, 2)
        self.noise = optional(nonnegative, "noise", noise)
        self.x_scale = optional(parse_scale, "x_scale", x_scale)
        if x_scale is not None:
            if common.get("rescale") or common.get("prox") is not None:
                raise ValueError("x_scale does not go with rescale=True, nor with a prox, which is in x's units")
            common["rescale"] = False
        self.rules = rules or TrustRegionRules()
        super().__init__(x0, **common)

    def _start(self) -> None:
        psi = cast("Prox | None", self.prox)
        if psi is not None:
            if not hasattr(psi, "value"):
                raise ValueError("SurrogateTrustRegion compares values of f + ψ: its prox needs a method value(x)")
            if not math.isfinite(float(psi.value(self._x))):
                self._x = self._prox(self._x, 1.0)
        box = FreeBox(self._x, self.domain)
        if box.d == 0:
            raise ValueError("SurrogateTrustRegion has nothing to search: every coordinate has equal bounds")
        scale = box.scale
        if self.x_scale is not None:
            if self.x_scale.shape not in ((), (1,), self._x.shape):
                raise ValueError(
                    f"x_scale must be a number or one for each of {self.dimension} variables, got {len(self.x_scale)}"
                )
            scale = power_of_two(box.part(self.x_scale.to(self._x.device).expand(self.dimension)))
        elif self.rescale:
            scale = self.rules.scales.first(box, box.part(self._x))
        self._builder = self._build(box.scaled(scale))
        center, none = self._box.part(self._x), scale.new_empty(0, box.d)
        first = self.radius or (None if self.x_scale is None else 1.0)
        self._opening, self._placed = self.rules.radius.first(self._box, center, first), (center, self._x)
        noisy = None if self.noise is None else self.noise > 0.0
        data, run = Data(none, none[:, 0], none), Run(self._opening, center, noisy, self.rules.noise.smooths(noisy))
        fit, constraints = Fit(none, torch.eye(1, dtype=torch.float64), False), None
        if self._models.constraints is not None:
            self._models.constraints.check_start(center)
            constraints = ConstraintData(none, none, none[:, :1], none[0:0, 0], none[:, 0], none[:, 0])
        self.state = TrustRegionState(data, run, fit, Design(center[None]), scale, constraints=constraints)

    def _build(self, box: FreeBox) -> ModelBuilder:
        known, prior = self.constraint_set, self.rules.model.prior
        constraints = None if known is None else ConstraintModels(known, box, self._constraint_rule(), prior)
        return ModelBuilder(box, self.rules, self.window, self.noise, cast("Prox | None", self.prox), constraints)

    @property
    def _models(self) -> ModelBuilder:
        """The builder of models in the state's scales."""
        if self.state is not None and self._builder.box.scale is not self.state.scale:
            self._builder = self._build(self._builder.box.scaled(self.state.scale))
        return self._builder

    @property
    def _box(self) -> FreeBox:
        return self._models.box

    def _is_spanning(self) -> bool:
        """Whether the model is of a subspace, which the budget decides at the first batch."""
        if self.constraint_set is not None:
            return False  # constraints are modelled in all variables
        if self.state.plan_id:
            return self.state.fit.spanning
        return self.rules.design.is_spanning(self._box.d, self.max_queries)

    def _state(self) -> dict[str, Any]:
        return {"plan_kind": type(self.state.plan).__name__} | save_fields(self.state)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        ours = {name: value for name, value in state.items() if name != "plan_kind"}
        plan = PLANS[state["plan_kind"]](self.state.plan.points)
        like = replace(self.state, fit=replace(self.state.fit, params=Hyperparameters()), plan=plan)
        self.state = load_fields(like, ours, torch.device("cpu"))

    def _options(self) -> dict[str, Any]:
        scale = None if self.x_scale is None else self.x_scale.tolist()
        return super()._options() | {"rules": repr(self.rules), "x_scale": scale}

    def _estimate(self) -> tuple[Tensor, float, float] | None:
        if not self.state.run.noisy:
            return None
        with small_algebra(self._models.flops):
            found = self._models.least_mean(self.state, self._outside_direction())
        return None if found is None else (self._box.whole(found[0])[0], *found[1:])

    # Asking.

    def _planned(self) -> Plan:
        """The plan of the next batch; a design at the start, and where ``restart`` has moved the iterate."""
        if self.state.plan_id and torch.equal(self._x, self._iterate(self.state)):
            return self.state.plan
        return Design(self._design(self._box.part(self._x), self._opening.delta))

    def _iterate(self, state: TrustRegionState) -> Tensor:
        center = state.run.center
        if self._placed[0] is not center:
            self._placed = center, self._box.whole(center[None])[0]
        return self._placed[1]

    def _design(self, center: Tensor, delta: float) -> Tensor:
        # With constraints a run begins with few queries too, as slopes of all functions come from each of them.
        few = self._is_spanning() or self.constraint_set is not None
        points = self.rules.design.points(self._box, center, delta, self._generator(3) if few else None)
        return self._kept(self.state, points, center)

    def _kept(self, state: TrustRegionState, points: Tensor, center: Tensor | None = None) -> Tensor:
        """Points moved toward the center until they keep the known constraints with ``keep_feasible``."""
        if self._models.constraints is None or state.constraints is None:
            return points
        sizes = state.constraints.sizes or self._models.constraints.known.sizes_given or ()
        return self._models.constraints.pulled(state.run.center if center is None else center, points, sizes)

    def _next_queries(self) -> int:
        plan = self._planned()
        return min(len(plan.points), max(1, (self.remaining + 1) // 2)) if isinstance(plan, Design) else 1

    def _ask(self) -> Batch:
        plan = self._planned()
        info: dict[str, Any] = {"kind": type(plan).__name__, "plan_id": self.state.plan_id, "told": self.queries}
        info |= {"design": isinstance(plan, Design) and plan.begins, "spanning": self._is_spanning()}
        return self._points_batch(self._box.whole(plan.points[: self._next_queries()]), info=info)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        state, box = self.state, self._box
        if any(batch.info["kind"] in ("Design", "Restart", "Repeat") for batch in pending):
            return None
        if not any(batch.info["plan_id"] == state.plan_id for batch in pending):
            return self._ask() if isinstance(self._planned(), Step | GeometryQuery) else None
        out = torch.cat([box.part(cast(Tensor, batch.explicit)) for batch in pending])
        try:
            points = box.rounded(self._models.informative_points(state, out, self._generator(5)))
        except NotPositiveDefiniteError:
            return None
        for point in points:
            if not self._is_evaluated(state, point[None]) and not bool((out == point).all(dim=1).any()):
                return self._points_batch(box.whole(point[None]), info={"kind": "Beside", "plan_id": -1})
        return None

    def _is_awaited(self) -> bool:
        """Whether the planned query is pending, and not for so long that another one takes its place."""
        planned = [batch for batch in self.pending if batch.info["plan_id"] == self.state.plan_id]
        return any(self.queries - batch.info["told"] <= PATIENCE * len(self.pending) for batch in planned)

    # Learning from answers.

    def _tell(self, batch: Batch, values: Tensor) -> None:
        state, values = self.state.copied(), values.cpu()
        plan = self._planned() if batch.info["plan_id"] == state.plan_id else None
        self.state = state  # if this raises, the base class restores the former state
        asked, explained = self._box.part(cast(Tensor, batch.explicit)), torch.zeros(len(batch), dtype=torch.bool)
        if (models := self._models.constraints) is not None and state.constraints is not None:
            sizes = None if self._feasibility is None else self._feasibility.sizes
            state.constraints, values, explained = models.told(state.constraints, asked, values, sizes)
        succeeded = torch.isfinite(values)
        if state.plan_id == 0:
            state.fit.spanning = batch.info["spanning"]
            state.fit.basis = asked[:0] if state.fit.spanning else torch.eye(self._box.d, dtype=torch.float64)
            state.fit.metric = torch.eye(len(state.fit.basis) + 1, dtype=torch.float64)
        # A point that once succeeded does not mark an infeasible region.
        failed = asked[:0] if isinstance(plan, Repeat) else asked[~succeeded & ~explained]
        state.data = Data(
            torch.cat([state.data.points, asked[succeeded]]),
            torch.cat([state.data.values, values[succeeded]]),
            torch.cat([state.data.failed, failed]),
        )
        # Plan anew when the planned query is answered, or has been awaited for too long.
        if plan is not None or not self._is_awaited():
            with small_algebra(self._models.flops):
                outcome = self._update_run(state, plan, asked, values)
                designed = isinstance(plan, Design) and state.constraints is None
                another = self._rescale(state, asked, values) if designed else None
                state.plan, state.plan_id = another or self._next_plan(state, plan, outcome), state.plan_id + 1
            self._x = self._iterate(state)

    def _update_run(self, state: TrustRegionState, plan: Plan | None, asked: Tensor, values: Tensor) -> StepOutcome:
        """Updates the run by the values of a plan: its start, its radii, and whether values are noisy."""
        run, data, succeeded = state.run, state.data, bool(torch.isfinite(values).all())
        known = state.constraints
        if isinstance(plan, Step) and succeeded and plan.constraints is not None and known is not None:
            known.errors = (known.values[-1] - plan.constraints).abs()
            known.error_length = float((asked[0] - data.points[run.center_index]).norm())
        match plan:
            case Restart() | Design(begins=True):
                self._begin(state, plan, values)
            case Repeat():
                run.noisy = not succeeded or bool(values[0] != data.values[run.center_index])
                run.repeated_gap = float((values[0] - data.values[run.center_index]).abs()) if succeeded else math.inf
                if not run.noisy and known is not None:
                    run.noisy = not torch.equal(known.values[-1], known.values[run.center_index])
                run.smoothing, state.fit.fitted_at = self.rules.noise.smooths(run.noisy), 0  # a fit is due
                if not run.noisy:
                    state.data = replace(data, points=data.points[:-1], values=data.values[:-1])
                    if known is not None:
                        state.constraints = replace(known, values=known.values[:-1])
            # With noise in the model, ``_settle_by_mean`` judges a step, by the posterior mean of the next model.
            case Step() if not (run.smoothing and succeeded):
                return self._update_radius(state, plan, asked[0], succeeded)
            case GeometryQuery() if not succeeded:
                # With one value, or if no plane separates the failures from the others, the radius is too large.
                if len(data.values) == 1 or self._models.half_space(state, self._models.center(state)) is None:
                    run.radius = self.rules.radius.after(run.radius, math.nan, run.radius.delta)
        return NO_STEP

    def _begin(self, state: TrustRegionState, plan: Design | Restart, values: Tensor) -> None:
        """Begins a run at the first point of a design, or at a random one."""
        run, data = state.run, state.data
        run.run_start = len(data.values) - int(torch.isfinite(values).sum())
        run.radius, run.model_queries, run.hidden_since, state.fit.params = self._opening, 0, None, None
        run.smoothing, value_at_start = self.rules.noise.smooths(run.noisy), math.inf
        if state.constraints is not None:
            state.constraints = replace(state.constraints, price=0.0, wanted=())
        if bool(torch.isfinite(values[0])):
            value_at_start = float(self._models.totals(state, torch.tensor([run.run_start])))
        if isinstance(plan, Design):
            run.start_value = value_at_start
        elif len(data.values) and self.rules.restart.begins_at_best(
            value_at_start, run.start_value, state.fit.spanning
        ):
            # The run continues from the best query: all queries belong to it.
            run.run_start, run.center_index = 0, self._models.best(state)

    def _update_radius(self, state: TrustRegionState, plan: Step, point: Tensor, succeeded: bool) -> StepOutcome:
        """Moves the radius by the ratio of a step's actual to its predicted decrease."""
        run, data, rules, model_queries = state.run, state.data, self.rules, state.run.model_queries
        # If the step failed to give a value, the last value is another query's, and NaN replaces it.
        before, after = self._models.totals(state, torch.tensor([run.center_index, -1])).tolist()
        ratio, run.model_queries = _ratio(before, after if succeeded else math.nan, plan.predicted), 0
        by_chance = after - before + plan.predicted <= rules.exploration.deviations * plan.exploration_std
        # Chance explains a step that explores and falls short by little, but not several in a row.
        if ratio <= rules.radius.failed and by_chance and model_queries < rules.exploration.limit:
            ratio, run.model_queries = rules.exploration.ratio, model_queries + 1
        plane = None if succeeded else self._models.half_space(state, run.center_index)
        # If a plane excludes the failed point, Δ falls and ρ stays (a ratio of −∞); without one (NaN) ρ falls too.
        may_lower_rho = succeeded or (plane is not None and rules.failures.is_near(plane, run.radius.delta))
        outcome = StepOutcome(not ratio > rules.radius.failed, may_lower_rho and run.radius.delta <= run.radius.rho)
        length = float((point - data.points[run.center_index]).norm())
        # A failure that a constraint explains needs no plane: the constraint's model excludes the point.
        explained = not succeeded and not self._has_failed(state, point)
        run.radius = rules.radius.after(run.radius, -math.inf if explained or plane is not None else ratio, length)
        return outcome

    def _rescale(self, state: TrustRegionState, asked: Tensor, values: Tensor) -> Design | None:
        """Changes scales by the values of a design; returns a smaller design if this one is too wide.

        A box may be far wider than the scale at which f varies. Then all points of the design are worse than its
        center, and the parabolas through them have minima near it. The next design is as wide as the farthest minimum,
        and the values of the wide design do not enter the model.
        """
        run, data, rule, n = state.run, state.data, self.rules.scales, 2 * self._box.d
        if (
            state.fit.spanning
            or run.noisy
            or self.prox is not None
            or self.constraint_set is not None
            or len(asked) < n
            or bool(values.isnan().any())
        ):
            return None
        center = len(data.values) - n - 1
        found = Parabolas.of(data.points[-n:] - data.points[center], data.values[-n:] - data.values[center])
        if (delta := rule.narrowed(found, run.radius.delta)) is not None:
            state.data = Data(data.points[:-n], data.values[:-n], data.failed)
            run.radius = self.rules.radius.begun(delta, run.radius.largest)
            self._center(state, center)
            return Design(self._design(run.center, delta)[1:], begins=False)
        if self.rescale:
            state.rescale(rule.factors(self._box, found, run.radius.delta))
        return None

    # Planning.

    def _next_plan(self, state: TrustRegionState, told: Plan | None, outcome: StepOutcome) -> Plan:
        """Sets the center, fits the model, and plans the next batch; ``told`` is the plan just answered, if any."""
        run, models = state.run, self._models
        if run.run_start == len(state.data.values):  # no query of this run has succeeded
            return self._plan_restart(state)
        models.forget(state)
        models.prepare(state)
        if isinstance(told, Restart):
            self._center(state, models.center(state))
            return Design(self._design(run.center, run.radius.delta)[1:], begins=False)
        outside_direction = self._outside_direction()
        while True:
            center = models.center(state)
            if self._models.constraints is not None:
                self._models.constraints.widen(state, center)
            model = models.model(state, center, outside_direction)
            if run.smoothing and model is not None:
                center, model, outcome = self._settle_by_mean(state, center, model, told, outcome, outside_direction)
            self._center(state, center)
            if model is None:  # no other query is in the window, or the covariance is singular
                query = self._random_query(state)
                return self._plan_restart(state) if self._is_evaluated(state, query.points) else query
            if run.noisy is None and model.region.pinned.params.noise > 0.0:
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
        run, rules, box, newton = state.run, self.rules, self._box, self.rules.model.newton
        # If noise hides how f varies within ρ, the search goes on at a coarser scale.
        if self._noise_hides_rho(state, model):
            run.radius = rules.radius.raised(run.radius)
        region = self._region(state)
        step, mean = (model.composite or model.region).step(region, newton)
        while True:
            length, point = float(step.norm()), box.clamped(run.center + step)[None]
            long_enough = not rules.radius.is_short(run.radius, length)
            worthwhile = long_enough and mean < 0.0 and not self._is_evaluated(state, point)
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
                        return self._plan_restart(state)
                    return self._at_noise(state, model, point)
                run.radius = rules.radius.lowered(run.radius)
                if rules.radius.ends(run.radius, box.resolution(run.center)):
                    return self._plan_restart(state)
                region = replace(region, delta=run.radius.delta)
                # A step that fits into the smaller ball is still the best one, unless it may now go nearer to a plane.
                if length > region.delta or region.half_space is not None:
                    step, mean = (model.composite or model.region).step(region, newton)
            failed = at_rho = False  # the failure has been dealt with

    def _step(self, state: TrustRegionState, model: LocalModel, region: Region, step: Tensor, predicted: float) -> Step:
        """Plans the step. In a subspace it also explores a direction outside, unless it is the last query."""
        std, expected = 0.0, None
        if isinstance(model.composite, ConstrainedModel):
            expected = torch.from_numpy(model.composite.components(step.numpy()))
        if model.composite is None and self.remaining > 1:
            step, std = model.region.explored(self.rules.exploration, step, region)
        point = self._kept(state, self._box.clamped(state.run.center + step)[None])
        return Step(point, predicted, std, expected)

    def _geometry_query(self, state: TrustRegionState, model: LocalModel, region: Region) -> GeometryQuery | None:
        """Plans a geometry-improving query; None at the limit, or if the gradient or the point's value is known."""
        run, rule = state.run, self.rules.geometry
        most = rule.limit if self.constraint_set is None else min(rule.limit, self.rules.constraint.geometry)
        if run.model_queries >= most:
            return None
        direction = (model.composite or model.region).geometry_direction(rule, region)
        if direction is None:
            return None
        point = self._kept(state, self._box.along(run.center, direction, region.delta))
        if self._is_evaluated(state, point):
            return None
        run.model_queries += 1
        return GeometryQuery(point)

    def _outside_direction(self) -> Tensor:
        return torch.from_numpy(self._generator(4).standard_normal(self._box.d))

    def _random_query(self, state: TrustRegionState) -> GeometryQuery:
        direction = torch.from_numpy(self._generator(1).standard_normal(self._box.d))
        point = self._box.along(state.run.center, direction, state.run.radius.delta)
        return GeometryQuery(self._kept(state, point))

    def _at_noise(self, state: TrustRegionState, model: LocalModel, point: Tensor) -> GeometryQuery | None:
        """Queries the short step, because noise averages out; ends smoothing (None) if only ripples are left."""
        run, rule = state.run, self.rules.noise
        early, run.model_queries = self.queries < min(rule.early * self._box.d, self.remaining), 0
        if run.noisy or (early and rule.needs(model.region.pinned, self.rules.model.search)):
            return self._random_query(state) if self._is_evaluated(state, point) else GeometryQuery(point)
        run.smoothing, state.fit.fitted_at = False, 0
        return None

    def _settle_by_mean(
        self,
        state: TrustRegionState,
        center: int,
        model: LocalModel,
        told: Plan | None,
        outcome: StepOutcome,
        outside_direction: Tensor,
    ) -> tuple[int, LocalModel, StepOutcome]:
        """Moves the radii by the ratio of the posterior mean's decrease to the predicted one, and then the center.

        The center moves to the run's query of least posterior mean. A failed step has already moved the radii.
        """
        run, data, rule = state.run, state.data, self.rules.radius
        last = model.means[model.numbers == len(data.values) - 1]
        if isinstance(told, Step) and not outcome.failed and len(last):
            ratio, run.model_queries = -float(last) / max(told.predicted, 1e-300), 0
            if not ratio > rule.failed:
                outcome = StepOutcome(True, run.radius.delta <= run.radius.rho)
            run.radius = rule.after(run.radius, ratio, float((data.points[-1] - data.points[center]).norm()))
        means = torch.where(model.numbers >= run.run_start, model.means, math.inf)
        lowest = int(model.numbers[means.argmin()])
        new_model = self._models.model(state, lowest, outside_direction) if float(means.min()) < 0.0 else None
        return (center, model, outcome) if new_model is None else (lowest, new_model, outcome)

    def _has_failed(self, state: TrustRegionState, point: Tensor) -> bool:
        return bool((state.data.failed == point).all(dim=1).any())

    def _constraint_rule(self) -> ConstraintRule:
        """The rule, with the standard deviations that the asked probability of feasibility needs."""
        if self.feasibility_probability is None:
            return self.rules.constraint
        return replace(self.rules.constraint, deviations=float(ndtri(self.feasibility_probability)))

    def _multipliers(self) -> np.ndarray | None:
        known = self._feasibility
        if known is None or known.scales is None or not len(self.state.data.points):
            return None
        at, slack = self._box.part(self._to_search(self.best_x)), self.feasibility_tol * known.scales.numpy()
        return self._models.multipliers(self.state, at, self._opening.delta, slack)

    def _center(self, state: TrustRegionState, center: int) -> None:
        state.run.center, state.run.center_index = state.data.points[center], center

    def _region(self, state: TrustRegionState) -> Region:
        run, box = state.run, self._box
        half_space = self._models.half_space(state, run.center_index)
        return Region(run.radius.delta, box.lower - run.center, box.upper - run.center, half_space)

    def _plan_restart(self, state: TrustRegionState) -> Restart:
        """A random point, moved into ψ's domain, at which a new run begins."""
        data, box = state.data, self._box
        where = (box, state.run.center, self._opening.delta, data.points, data.failed)
        point = self._kept(state, self.rules.restart.point(*where, self._generator(2)))
        return Restart(point if self.prox is None else box.part(self._prox(box.whole(point), 1.0)))

    def _noise_hides_rho(self, state: TrustRegionState, model: LocalModel) -> bool:
        """Whether noise exceeds the mean's variation over ρ/2, the shortest step, and no query within 2ρ has failed.

        Near failed queries ρ falls all the same: they say more about f than its noise hides.
        """
        run, rule, region = state.run, self.rules.noise, model.region
        if not run.smoothing or rule.sees(region.hessian, region.pinned.noise, 0.5 * run.radius.rho):
            return False
        distances = torch.linalg.vector_norm(state.data.failed - run.center, dim=1)
        return not bool((distances <= 2.0 * run.radius.rho).any())

    def _is_evaluated(self, state: TrustRegionState, point: Tensor) -> bool:
        """Whether a point, rounded to the run's dtype, has failed before, or would give the same value again."""
        rounded, data = self._box.rounded(point), state.data
        asked = (data.failed,) if state.run.noisy else (data.failed, data.points)
        if state.constraints is not None:
            asked = (*asked, state.constraints.partial)
        return any(bool((queries == rounded).all(dim=1).any()) for queries in asked)


def _ratio(before: float, after: float, predicted: float) -> float:
    """Actual over predicted decrease; NaN for a failed query, inf for the first value in ψ's domain."""
    if not after < math.inf or before == math.inf:
        return math.inf if after < before else math.nan
    unit = max(abs(before), abs(after), 1e-300)
    return (before / unit - after / unit) / max(predicted / unit, 1e-300)
