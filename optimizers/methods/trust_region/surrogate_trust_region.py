"""The default method: Powell's trust region with a Gaussian process that is pinned at the best point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.constraint_set import ConstraintSet
from optimizers.core.constraints import ConstraintsLike, parse_constraints
from optimizers.core.feasibility import FEASIBILITY_TOL
from optimizers.core.history import DataAtHand, reference_point
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_boolean, check_integer, nonnegative, optional, positive
from optimizers.core.residuals import Loss, described_least_squares
from optimizers.core.result import Estimate
from optimizers.core.state import load_fields, save_fields
from optimizers.core.stopping import StopReason
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.constrained import ConstraintModels
from optimizers.methods.trust_region.estimates import least_mean, multipliers, residuals
from optimizers.methods.trust_region.given import add_evaluations, begin, fit_radius
from optimizers.methods.trust_region.models import ModelBuilder
from optimizers.methods.trust_region.outcomes import NO_STEP, update_run
from optimizers.methods.trust_region.planning import Planner
from optimizers.methods.trust_region.plans import PLANS, Design, GeometryQuery, Plan, Repeat, Sample, Step
from optimizers.methods.trust_region.rules import RESIDUAL_RULES, ConstraintRule, TrustRegionRules
from optimizers.methods.trust_region.scales import parse_scale, power_of_two
from optimizers.methods.trust_region.state import ConstraintData, Data, Fit, Run, TrustRegionState
from optimizers.prox import Prox
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.prior import Hyperparameters
from surrogates.threads import small_algebra

PATIENCE = 2
"""The value of a planned query is awaited until more than this many other values per pending point have arrived."""


class SurrogateTrustRegion(Optimizer):
    """Minimizes a function by steps to the least posterior mean of a Gaussian process near the best point.

    This is the default method of ``minimize``: a trust region, as in Powell's NEWUOA and BOBYQA and in COBYQA, with a
    derived Gaussian process (``surrogates.pinned``) instead of a quadratic model. The process interpolates queries
    around the best point, the center. After the initial design, which is one batch, the method evaluates one point at a
    time, or several with ``workers``.

    **A run** begins with a design: x0 and points around it. Each later query is a step to the least mean within a
    radius Δ of the center or, if the model is poor, a geometry-improving query. The model covers the subspace spanned
    by the steps from the center to its queries. Δ grows if steps decrease f as predicted, and falls otherwise. When the
    scale of the search falls below 5e-8 of the first radius, a new run begins at a random point. With many variables it
    begins at the best query instead, unless the random point is better than x0. ``best_x`` is the best query of all
    runs.

    **Kinks and steps.** If exact values of more than five variables are much more likely with errors that grow with the
    distance from the center, f has kinks: the model has such errors, and queries near the center must cover all
    variables before the search becomes finer. If many values near the center equal its value, f has steps, and the
    search becomes coarser.

    **Failed queries** (NaN, or exceptions) do not enter the model. A plane that separates them from the successful
    ones bounds the steps.

    **Noise.** If a fit suggests noise, the center is evaluated a second time. If the two values differ, or the second
    evaluation fails, f is treated as noisy. If they agree, f has ripples, and the model smooths over them until the
    search reaches their scale, or has found no lower value for some time. Meanwhile, local steps share the queries with
    posterior samples in a wide region of a finite box, as in TuRBO; the search that gains more has more queries. If
    steps keep failing after that, f is rough, and a new run begins. For noisy values, ``x`` is the query of least
    posterior mean, while ``best_x`` is always the query of the least value. When noise hides how f varies at the scale
    of the search, the run makes 20 more queries per variable, which averages out noise; then a new run begins
    elsewhere.

    **History.** A run with a history begins at the best given point that is feasible and in the bounds. The given
    points replace queries of the design. If x0 is given too, it is evaluated first. The model uses points outside the
    bounds, but the center never moves there. If one point has two different values, f is treated as noisy.

    **Prox.** Given the prox of ψ, the method minimizes f + ψ, and steps stay in ψ's domain.

    **Scales.** Δ is in units of a scale for each variable: ``x_scale`` if it is given; a tenth of the distance between
    two finite bounds; otherwise the variable's magnitude in x0, or its spread in the history. If the values of the
    design show that a scale from x0 is wrong by more than a factor of 128, the scale changes; if they show that the
    design is too wide, a smaller one follows.

    **When to use it.** It is the first choice for expensive functions: with 2 to 40 variables from about ten queries
    per variable on, with more variables from two queries per variable on, with noise, constraints, integers or a
    history. TuRBO and methods that only compare values may reach lower values of rugged functions.
    ``experiments/published/which-method.md`` has the comparisons.

    **Cost.** One query per step. With w queries in the model, a step takes O(w³ + w²d) time and O(w² + wd) memory.

    **When to set an option.** If x0 is 0 and variables have different units, or if f varies over a much smaller scale
    than the width of the box, set ``x_scale`` to the change of each variable that matters. Set ``radius`` to begin with
    smaller or larger steps. Set ``noise`` if you know the variance of a value's noise; with 0, the center is never
    evaluated twice, and small-scale variation is treated as ripples. Set ``window`` to make a query cheaper.
    ``docs/trust_region.md`` has the formulas and rules.

    Args:
        x0: the initial point, shape ``d``. With a prox, a point outside ψ's domain is moved into it.
        radius: the first Δ, in units of the variables' scales, at most half of the largest side (more for d > 20).
            None: 2 in a finite box, times √(d/20) for d > 20; 1 with ``x_scale``; 0.25 if a side is infinite. With
            ``rescale=False`` it is in x's units, by default a fifth of the least side.
        window: the most queries in a model. None: (d + 1)(d + 2)/2 + 2d, at most 1,000, or 100 for more than
            60 variables; 40 for one variable. For noisy values, at least half of all queries, up to 300. With
            more than 800 variables and noise or ripples, d/8, up to 300.
        noise: the variance of a value's noise, in f's units squared. None: the mean of the history's ``yvar`` if that
            is given, otherwise it is estimated. With ``yvar``, each given value has its own variance.
        x_scale: the size of a change that matters, for each variable or for all, rounded to a power of two. None: see
            **Scales**.
        constraints: lower ≤ c(x) ≤ upper: SciPy's ``LinearConstraint``, ``NonlinearConstraint`` and dictionaries,
            ``CheapConstraint``, ``ReturnedConstraints``, or a list of these. Nonlinear constraints are evaluated with
            f, as a part of the same query; linear and cheap constraints cost no queries.
        feasibility_tol: the largest violation at a feasible query, relative to the first distance of the constraint
            from its bound that is not 0.
        feasibility_probability: the probability, from 0.5 to below 1, with which each evaluated inequality must hold
            at the end of a step, under the constraint's model. None: the constraint's posterior mean must satisfy it.
        own_hyperparameters: whether each evaluated constraint has its own hyper-parameters instead of those of f. Set
            it if f and the constraints differ in noise or smoothness; a query then takes longer.
        residuals: the loss of a least-squares problem (see ``optimizers.least_squares``); queries then return rows
            (F, r) of the cost and the residuals.
        rules: the rules of the method and their options; None: ``TrustRegionRules()``, or ``RESIDUAL_RULES`` with
            ``residuals``.
        **common: see ``Optimizer``. Bounds may be infinite; a prox needs a method ``value``.

    Raises:
        ValueError: if the prox has no method ``value``, if no variable has two different bounds, if an option is out of
            range, or for ``x_scale`` with ``rescale=True`` or a prox.
        TypeError: for an option of the wrong type.

    References:
        M. J. D. Powell, The NEWUOA software for unconstrained optimization without derivatives, 2006.
        T. M. Ragonneau and Z. Zhang, COBYQA, a derivative-free trust-region SQP method, 2022.
    """

    method = "trust_region"
    has_model = takes_variances = True
    version = 13
    takes_integers = True
    state: TrustRegionState

    def __init__(
        self,
        x0: Any = None,
        *,
        radius: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        x_scale: float | Sequence[float] | np.ndarray | Tensor | None = None,
        rules: TrustRegionRules | None = None,
        constraints: ConstraintsLike | None = None,
        feasibility_tol: float = FEASIBILITY_TOL,
        feasibility_probability: float | None = None,
        own_hyperparameters: bool = False,
        residuals: Loss | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        for name, given, kind in (("rules", rules, TrustRegionRules), ("residuals", residuals, Loss)):
            if given is not None and not isinstance(given, kind):
                raise TypeError(f"{name} must be {kind.__name__}(...), got {given!r:.80}")
        groups = () if constraints is None else parse_constraints(constraints)
        if groups and common.get("prox") is not None:
            raise ValueError("constraints cannot be combined with a prox: pass bounds or constraints instead of it")
        if groups:
            x = reference_point(x0, common.get("history"), common.get("bounds"))
            self.constraint_set = ConstraintSet(groups, x.double().cpu().numpy())
        self.residuals = residuals
        if residuals is not None:
            if groups or common.get("prox") is not None:
                raise ValueError("residuals cannot be combined with constraints or a prox, only with bounds")
            self.constraint_set = ConstraintSet([residuals.group], np.empty(0))
        self.feasibility_tol = nonnegative("feasibility_tol", feasibility_tol)
        self.feasibility_probability = p = optional(nonnegative, "feasibility_probability", feasibility_probability)
        if p is not None and not 0.5 <= p < 1.0:
            raise ValueError(f"feasibility_probability must be at least 0.5 and below 1, got {p!r}")
        self.own_hyperparameters = check_boolean("own_hyperparameters", own_hyperparameters)
        self.radius = optional(positive, "radius", radius)
        self.window = optional(check_integer, "window", window, 2)
        self.noise = self._variance = optional(nonnegative, "noise", noise)
        self.x_scale = optional(parse_scale, "x_scale", x_scale)
        if x_scale is not None:
            if common.get("rescale") or common.get("prox") is not None:
                raise ValueError("x_scale cannot be combined with rescale=True or a prox: leave out x_scale")
            common["rescale"] = False
        self.rules = rules or (TrustRegionRules() if residuals is None else RESIDUAL_RULES)
        super().__init__(x0, **common)

    def _start(self) -> None:
        psi = cast("Prox | None", self.prox)
        if psi is not None:
            if not hasattr(psi, "value"):
                raise ValueError("SurrogateTrustRegion compares values of f + ψ: prox must have a method value(x)")
            if not math.isfinite(float(psi.value(self._x))):
                self._x = self._prox(self._x, 1.0)
        box = FreeBox(self._x, self.domain)
        if box.d == 0:
            raise ValueError("SurrogateTrustRegion has nothing to search: all lower bounds equal the upper bounds")
        scale = box.scale
        if self.x_scale is not None:
            if self.x_scale.shape not in ((), (1,), self._x.shape):
                raise ValueError(
                    f"x_scale must have one number, or one for each of {self.dimension} variables, "
                    f"got {len(self.x_scale)}"
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
        spanning = self.constraint_set is None  # constraints are modelled in all variables
        basis, constraints = none if spanning else torch.eye(box.d, dtype=torch.float64), None
        fit = Fit(basis, torch.eye(len(basis) + 1, dtype=torch.float64), spanning)
        if self._models.constraints is not None:
            self._models.constraints.check_start(center)
            empty = none[:, 0]
            constraints = ConstraintData(none, none, none[:, :1], empty, empty, empty, scale.new_empty(0, 2))
        self.state = TrustRegionState(data, run, fit, Design(center[None]), scale, constraints=constraints)

    def _build(self, box: FreeBox) -> ModelBuilder:
        known, prior = self.constraint_set, self.rules.model.prior
        constraints = None if known is None else ConstraintModels(known, box, self._constraint_rule(), prior)
        psi = cast("Prox | None", self.prox)
        limits = self.window, self._variance
        return ModelBuilder(box, self.rules, *limits, psi, constraints, self._generator, self.residuals)

    @property
    def _models(self) -> ModelBuilder:
        """The builder of models in the state's scales."""
        if self.state is not None and self._builder.box.scale is not self.state.scale:
            self._builder = self._build(self._builder.box.scaled(self.state.scale))
        return self._builder

    @property
    def _box(self) -> FreeBox:
        return self._models.box

    @property
    def _planner(self) -> Planner:
        pending = self.state.data.points[:0]
        if self._box.has_integers and self.pending:
            pending = torch.cat([self._box.part(cast(Tensor, batch.explicit)) for batch in self.pending])
        known = self.queries + self._history_size + self._record.given
        return Planner(self._models, self._opening, known, self.remaining, pending, self.rescale)

    def _state(self) -> dict[str, Any]:
        return {"plan_kind": type(self.state.plan).__name__} | save_fields(self.state)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        ours = {name: value for name, value in state.items() if name != "plan_kind"}
        plan = PLANS[state["plan_kind"]](self.state.plan.points)
        like = replace(self.state, fit=replace(self.state.fit, params=Hyperparameters()), plan=plan)
        self.state = load_fields(like, ours, torch.device("cpu"))

    def _options(self) -> dict[str, Any]:
        scale = None if self.x_scale is None else self.x_scale.tolist()
        loss = {} if self.residuals is None else {"residuals": str(self.residuals)}
        return super()._options() | {"rules": repr(self.rules), "x_scale": scale} | loss

    def _estimate(self) -> Estimate | None:
        if not self.state.run.noisy:
            return None

        def excess(c: np.ndarray) -> np.ndarray:
            assert self.constraint_set is not None and self._feasibility is not None
            return np.maximum(self._feasibility.relative(self.constraint_set, c) - self.feasibility_tol, 0.0)

        with small_algebra(self._models.flops):
            found = least_mean(self._models, self.state, excess)
        return found and found._replace(x=self._box.whole(found.x)[0])

    def _planned(self) -> Plan:
        """The plan of the next batch; a design at the start, and where ``move_to`` has moved the iterate."""
        if self.state.plan_id and torch.equal(self._x, self._iterate(self.state)):
            return self.state.plan
        return Design(self._planner.design(self.state, self._box.part(self._x), self._opening.delta))

    def _iterate(self, state: TrustRegionState) -> Tensor:
        center = state.run.center
        if self._placed[0] is not center:
            self._placed = center, self._box.whole(center[None])[0]
        return self._placed[1]

    def _next_queries(self) -> int:
        # A design leaves queries for steps, but no more than a few, so that a run hardly depends on its budget.
        kept = min(self.remaining // 2, self._box.d // 2, 10)
        return min(len(self._planned().points), self.remaining - kept)

    def _ask(self) -> Batch:
        return self._asked(self._next_queries())

    def _asked(self, most: int) -> Batch:
        """The planned batch, of at most this number of points."""
        plan = self._planned()
        info: dict[str, Any] = {"kind": type(plan).__name__, "plan_id": self.state.plan_id, "told": self.queries}
        info["design"] = isinstance(plan, Design) and plan.begins
        return self._points_batch(self._box.whole(plan.points[:most]), info=info)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        state, box = self.state, self._box
        if any(batch.info["kind"] in ("Design", "Restart", "Repeat") for batch in pending):
            return None
        if not any(batch.info["plan_id"] == state.plan_id for batch in pending):
            return self._asked(spare) if isinstance(self._planned(), Step | GeometryQuery | Sample) else None
        out = torch.cat([box.part(cast(Tensor, batch.explicit)) for batch in pending])
        try:
            points = box.rounded(self._models.informative_points(state, out))
        except NotPositiveDefiniteError:
            return None
        for point in points:
            if not self._models.is_evaluated(state, point[None]) and not bool((out == point).all(dim=1).any()):
                return self._points_batch(box.whole(point[None]), info={"kind": "Beside", "plan_id": -1})
        return None

    def _is_awaited(self) -> bool:
        """Whether the planned query is pending, and not for so long that another one takes its place."""
        planned = [batch for batch in self.pending if batch.info["plan_id"] == self.state.plan_id]
        return any(self.queries - batch.info["told"] <= PATIENCE * len(self.pending) for batch in planned)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        state, values = self.state.copied(), values.cpu()
        plan = self._planned() if batch.info["plan_id"] == state.plan_id else None
        self.state = state  # if this raises, the base class restores the former state
        asked, explained = self._box.part(cast(Tensor, batch.explicit)), torch.zeros(len(batch), dtype=torch.bool)
        if (models := self._models.constraints) is not None and state.constraints is not None:
            sizes = None if self._feasibility is None else self._feasibility.sizes
            state.constraints, values, explained = models.told(state.constraints, asked, values, sizes)
        succeeded = torch.isfinite(values)
        # A point that once succeeded does not mark an infeasible region.
        failed = asked[:0] if isinstance(plan, Repeat) else asked[~succeeded & ~explained]
        state.data = state.data.joined(asked[succeeded], values[succeeded], failed)
        # Plan anew when the planned query is answered, or has been awaited for too long.
        if plan is not None or not self._is_awaited():
            with small_algebra(self._models.flops):
                outcome = update_run(self._models, self._opening, state, plan, asked, values)
                another = self._planner.another_design(state, plan, values) if isinstance(plan, Design) else None
                # A new planner, because the scales may have changed.
                state.plan, state.plan_id = another or self._planner.next_plan(state, plan, outcome), state.plan_id + 1
            if len(state.plan.points) == 0 and not self.pending:
                self.stop(StopReason.EXHAUSTED)
            self._x = self._iterate(state)

    def _take_history(self, data: DataAtHand) -> None:
        self.state = state = self.state.copied()
        if not state.plan_id and len(data.points):
            spread = (self._box.part(data.points) - self._box.part(self._x)).abs().amax(dim=0)
            if self.rescale and bool(spread.any()):
                state.rescale(self.rules.scales.first(self._box, spread))
        weights, models, box = self._weights(data), self._models, self._box
        sizes = None if self._feasibility is None else self._feasibility.sizes
        add_evaluations(models, state, box.part(data.points), data.values.cpu(), sizes, weights)
        if len(state.data.values) == state.data.outside:
            return
        with small_algebra(models.flops):
            if not state.plan_id:
                best = models.best(state) if sizes is None else state.nearest(box.part(self._to_search(self.best_x)))
                state.plan = begin(self._planner, state, best, box.rounded(box.part(self._x)[None])[0])
            elif isinstance(state.plan, Step | GeometryQuery | Sample) and not self.pending:
                best, run = models.best(state, state.run.run_start), state.run
                if best != run.center_index and not run.smoothing:
                    fit_radius(self._planner, state, best)
                state.plan = self._planner.next_plan(state, None, NO_STEP)
            else:
                return
        state.plan_id += 1
        self._x = self._iterate(state)

    def _weights(self, data: DataAtHand) -> Tensor | None:
        """The noise variances relative to that of the run, which is their mean if ``noise`` is not given."""
        if data.yvar is None:
            return None
        run, yvar = self.state.run, data.yvar.cpu()
        if self.constraint_set is not None:
            raise ValueError("yvar cannot be combined with constraints or residuals: leave out yvar")
        if self._variance is None and self.state.plan_id:
            raise ValueError("this run cannot take values with yvar: begin it with noise=... or a history with yvar")
        if self._variance is None:
            self._variance = float(yvar.mean())
            self._builder = self._build(self._builder.box)
            run.noisy = self._variance > 0.0
            run.smoothing = self.rules.noise.smooths(run.noisy)
        if self._variance == 0.0 and bool(yvar.any()):
            raise ValueError("yvar is positive, but noise=0 says that values are exact: leave out one of them")
        return yvar / self._variance if self._variance else None

    def _admitted(self, points: Tensor) -> Tensor:
        box = self._box
        return box.whole(self._models.kept(self.state, box.part(points), box.part(self._x)))

    def _constraint_rule(self) -> ConstraintRule:
        """The rule with the user's options; a probability of feasibility becomes standard deviations."""
        rule = replace(self.rules.constraint, own=self.own_hyperparameters)
        if self.feasibility_probability is None:
            return rule
        return replace(rule, deviations=float(ndtri(self.feasibility_probability)))

    def _described(self, found: dict[str, Any]) -> dict[str, Any]:
        if self.residuals is None or self._feasibility is None:
            return found
        r, jac = self._feasibility.c, None
        if len(self.state.data.points):
            at = self._box.part(self._to_search(found["x"]))
            with small_algebra(self._models.flops):
                r, jac = residuals(self._models, self.state, at, self._opening.delta)
        return described_least_squares(found, self.residuals, r, jac, self.domain)

    def _multipliers(self, x: Tensor) -> np.ndarray | None:
        known = self._feasibility
        if known is None or known.scales is None or not len(self.state.data.points) or self.residuals is not None:
            return None
        at, slack = self._box.part(self._to_search(x)), self.feasibility_tol * known.scales.numpy()
        return multipliers(self._models, self.state, at, self._opening.delta, slack)
