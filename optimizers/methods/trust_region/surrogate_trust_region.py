"""Minimizes by a trust region on a derived Gaussian process whose value is pinned at the best point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack, cast

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_integer, nonnegative, optional, positive
from optimizers.core.state import load_fields, save_fields
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.local_model import LocalModel, ModelBuilder
from optimizers.methods.trust_region.models import CompositeModel, SpanModel
from optimizers.methods.trust_region.parallel import informative_points
from optimizers.methods.trust_region.rules import TrustRegionRules
from optimizers.methods.trust_region.state import (
    PLANS,
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
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.prior import Shape
from surrogates.threads import small_algebra

PATIENCE = 2
"""A planned query is passed over when this many other answers for each pending point have come before its own."""


class Outcome(NamedTuple):
    """What the last query says: whether it was a step that failed, and whether it failed at the finest radius."""

    failed: bool = False
    at_rho: bool = False


class SurrogateTrustRegion(Optimizer):
    """Minimizes a derived GP's mean in a trust region about the best point, by Powell's rules of two radii.

    TO BE WRITTEN

    Args:
        x0: initial point, shape ``d``.
        radius: the first Δ, in search units.
        window: the most queries in a model.
        noise: variance of a value's noise, in f's squared units; None: estimated.
        rules: the method's rules and their options; None: ``TrustRegionRules()``.
        **common: see ``Optimizer``; there may be bounds, finite or not; a prox needs a method ``value``.

    Raises:
        ValueError: for a prox without values, for bounds that leave nothing to search, or for an option out of range.
    """

    method = "trust_region"
    version = 4
    state: TrustRegionState

    def __init__(
        self,
        x0: Any,
        *,
        radius: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        rules: TrustRegionRules | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.radius = optional(positive, "radius", radius)
        self.window = optional(check_integer, "window", window, 2)
        self.noise = optional(nonnegative, "noise", noise)
        self.rules = rules or TrustRegionRules()
        super().__init__(x0, **common)

    def _start(self) -> None:
        psi = cast("Prox | None", self.prox)
        if psi is not None:
            if not hasattr(psi, "value"):
                raise ValueError("SurrogateTrustRegion compares values of f + ψ: its prox needs a method value(x)")
            if not math.isfinite(float(psi.value(self._x))):
                self._x = self._prox(self._x, 1.0)
        self._box = FreeBox(self._x, self.domain)
        if self._box.d == 0:
            raise ValueError("SurrogateTrustRegion has nothing to search: every coordinate has equal bounds")
        self._models = ModelBuilder(self._box, self.rules, self.window, self.noise, psi)
        center = self._box.part(self._x)
        self._opening = self.rules.radius.first(self._box, center, self.radius)
        noisy = None if self.noise is None else self.noise > 0.0
        none = center.new_empty(0, self._box.d)
        self.state = TrustRegionState(
            data=Data(none, none[:, 0], none),
            run=Run(0, self._opening, center, noisy=noisy, smoothing=bool(noisy)),
            fit=Fit(torch.eye(1, dtype=torch.float64)),
            plan=Design(center[None]),
        )

    def _state(self) -> dict[str, Any]:
        return {"plan_kind": self.state.plan.kind} | save_fields(self.state)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        ours = {name: value for name, value in state.items() if name != "plan_kind"}
        fit, plan = replace(self.state.fit, shape=Shape()), PLANS[state["plan_kind"]](self.state.plan.points)
        self.state = load_fields(replace(self.state, fit=fit, plan=plan), ours, torch.device("cpu"))

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"rules": repr(self.rules)}

    # Asking.

    def _planned(self) -> Plan:
        """The plan of the next batch; a design where ``restart`` has moved the iterate."""
        if self.state.plan_id and torch.equal(self._x, self._iterate(self.state)):
            return self.state.plan
        return Design(self._design(self._box.part(self._x), self._opening.delta))

    def _iterate(self, state: TrustRegionState) -> Tensor:
        return self._box.whole(state.run.center[None])[0]

    def _design(self, center: Tensor, delta: float) -> Tensor:
        random = self._generator(3) if self._is_spanning() else None
        return self.rules.design.points(self._box, center, delta, random)

    def _is_spanning(self) -> bool:
        """Whether the model is of the span of its rows, which the budget of the first batch decides."""
        if self.state.plan_id:
            return self.state.fit.basis is not None
        return self.rules.design.is_spanning(self._box.d, self.max_queries)

    def _next_queries(self) -> int:
        plan = self._planned()
        return min(len(plan.points), max(1, (self.remaining + 1) // 2)) if isinstance(plan, Design) else 1

    def _ask(self) -> Batch:
        plan = self._planned()
        info = {"kind": plan.kind, "plan_id": self.state.plan_id, "told": self.iterations}
        return self._points_batch(self._box.whole(plan.points[: self._next_queries()]), info=info)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        state, box = self.state, self._box
        if any(batch.info["kind"] in ("design", "restart", "repeat") for batch in pending):
            return None
        if not any(batch.info["plan_id"] == state.plan_id for batch in pending):
            return self._ask() if isinstance(self._planned(), Step | GeometryQuery) else None
        out = torch.cat([box.part(cast(Tensor, batch.explicit)) for batch in pending])
        rows = self._models.window(state, state.run.center_index).rows
        try:
            points = informative_points(state, rows, out, box, self.rules.model.prior, self._generator(5))
        except NotPositiveDefiniteError:
            return None
        for point in box.rounded(points):
            if not self._is_known(state, point[None]) and not bool((out == point).all(dim=1).any()):
                return self._points_batch(box.whole(point[None]), info={"kind": "beside", "plan_id": -1})
        return None

    def _is_awaited(self) -> bool:
        """Whether the planned query is pending, and not for so long that another one takes its place."""
        late = PATIENCE * len(self.pending)
        planned = [batch for batch in self.pending if batch.info["plan_id"] == self.state.plan_id]
        return any(self.iterations - batch.info["told"] <= late for batch in planned)

    # Learning from answers.

    def _tell(self, batch: Batch, values: Tensor) -> None:
        state, values = self.state.copied(), values.cpu()
        plan = self._planned() if batch.info["plan_id"] == state.plan_id else None
        asked, succeeded = self._box.part(cast(Tensor, batch.explicit)), torch.isfinite(values)
        # A point that has succeeded before and fails now is at no border.
        failed = asked[:0] if isinstance(plan, Repeat) else asked[~succeeded]
        state.data = Data(
            torch.cat([state.data.points, asked[succeeded]]),
            torch.cat([state.data.values, values[succeeded]]),
            torch.cat([state.data.failed, failed]),
        )
        if plan is not None or not self._is_awaited():
            with small_algebra(self._models.flops):
                outcome = self._learned(state, plan, asked, values)
                state.plan, state.plan_id = self._next_plan(state, plan, outcome), state.plan_id + 1
            self._x = self._iterate(state)
        self.state = state

    def _learned(self, state: TrustRegionState, plan: Plan | None, asked: Tensor, values: Tensor) -> Outcome:
        """Takes what the answers to a plan say into the run: its beginning, its radius, and whether it has noise."""
        run, data, succeeded = state.run, state.data, bool(torch.isfinite(values).all())
        match plan:
            case Restart() | Design(begins=True):
                self._begin(state, plan, values)
            case Repeat():
                run.noisy = not succeeded or bool(values[0] != data.values[run.center_index])
                run.smoothing, state.fit.count = self.rules.noise.smooths(run.noisy), 0
                if not run.noisy:
                    state.data = replace(data, points=data.points[:-1], values=data.values[:-1])
            case Step() if not (run.smoothing and succeeded):
                return self._judged(state, plan, asked[0], succeeded)
            case GeometryQuery() if not succeeded:
                # A lone value, or failures that no plane separates from the others: the radius is too large.
                if len(data.values) == 1 or self._models.half_space(state, self._models.best(state)) is None:
                    run.radius = self.rules.radius.after(run.radius, math.nan, run.radius.delta)
        return Outcome()

    def _begin(self, state: TrustRegionState, plan: Design | Restart, values: Tensor) -> None:
        """Begins a run at the first point of a design, or at a random one."""
        run, fit, d = state.run, state.fit, self._box.d
        if state.plan_id == 0:
            fit.basis = state.data.points[:0] if self._is_spanning() else None
            fit.metric = torch.eye(d if fit.basis is None else 1, dtype=torch.float64)
        run.first = len(state.data.values) - int(torch.isfinite(values).sum())
        run.radius, run.teaching, fit.shape = self._opening, 0, None
        run.smoothing = self.rules.noise.smooths(run.noisy)
        reached = math.inf
        if bool(torch.isfinite(values[0])):
            reached = float(self._models.totals(state.data, torch.tensor([run.first])))
        if isinstance(plan, Design):
            run.start_value = reached
        elif len(state.data.values) and self.rules.restart.begins_at_best(reached, run.start_value, fit.basis is not None):
            run.first, run.center_index = 0, self._models.lowest(state.data)

    def _judged(self, state: TrustRegionState, plan: Step, point: Tensor, succeeded: bool) -> Outcome:
        """Moves the radius by the ratio of a step's actual to its predicted decrease."""
        run, data, rules, teaching = state.run, state.data, self.rules, state.run.teaching
        length = float((point - data.points[run.center_index]).norm())
        numbers = torch.tensor([run.center_index, len(data.values) - 1])
        before, after = self._models.totals(data, numbers).tolist()
        ratio = _ratio(before, after if succeeded else math.nan, plan.predicted)
        run.teaching = 0
        # Chance explains a step that explores and falls short by little, but not several in a row.
        short_by = after - before + plan.predicted
        if ratio <= rules.radius.failed and short_by <= rules.exploration.deviations * plan.exploration_std:
            if teaching < rules.exploration.limit:
                ratio, run.teaching = rules.exploration.ratio, teaching + 1
        failed, at_rho = not ratio > rules.radius.failed, run.radius.at_rho
        plane = None if succeeded else self._models.half_space(state, run.center_index)
        if not succeeded:
            # Before a plane that is far, shorter steps do not fail: the scale stays.
            at_rho = at_rho and plane is not None and rules.failures.is_near(plane, run.radius.delta)
        run.radius = rules.radius.after(run.radius, ratio if plane is None else -math.inf, length)
        return Outcome(failed, failed and at_rho)

    # Planning.

    def _next_plan(self, state: TrustRegionState, told: Plan | None, outcome: Outcome) -> Plan:
        """Sets the center, fits the model, and plans the next batch."""
        run, models, box = state.run, self._models, self._box
        if run.first == len(state.data.values):
            return self._restarted(state)
        models.forget(state)
        if isinstance(told, Restart):
            self._center(state, models.best(state))
            return Design(self._design(run.center, run.radius.delta)[1:], begins=False)
        normal = torch.from_numpy(self._generator(4).standard_normal(box.d))
        while True:
            best = models.best(state)
            model = models.model(state, best, normal)
            if run.smoothing and model is not None:
                best, model, outcome = self._settled(state, best, model, told, outcome, normal)
            self._center(state, best)
            if model is None:
                query = self._random_query(state)
                return self._restarted(state) if self._is_known(state, query.points) else query
            if run.noisy is None and model.region.pinned.shape.noise > 0.0:
                return Repeat(run.center[None])
            if (plan := self._by_powell(state, model, outcome)) is not None:
                return plan
            told, outcome = None, Outcome()  # ripples are followed from here on: the model is fitted without noise

    def _by_powell(self, state: TrustRegionState, model: LocalModel, outcome: Outcome) -> Plan | None:
        """Plans a step, a geometry-improving query or, at the end of the finest scale, a restart.

        Powell's loop: a step that is long enough for its scale is queried; after one that failed, or where it would be
        too short, a query improves the model; where nothing improves it, the scale becomes finer. None: the model is to
        be fitted again without noise.
        """
        run, rules, box = state.run, self.rules, self._box
        # Noise hides what f does within ρ: a coarser scale.
        if self._is_blind(state, model):
            run.radius = rules.radius.raised(run.radius)
        lower, upper = box.lower - run.center, box.upper - run.center
        step, mean = model.steps.step(run.radius.delta, lower, upper)
        failed, at_rho = outcome
        while True:
            length, point = float(step.norm()), box.clamped(run.center + step)[None]
            short = rules.radius.is_short(run.radius, length) or not mean < 0.0 or self._is_known(state, point)
            if not short and not failed:
                return self._step(state, model, step, -mean)
            if (query := self._geometry_query(state, model)) is not None:
                return query
            if short or at_rho:
                # Where noise hides more, a finer scale would only follow it.
                if self._is_blind(state, model):
                    return self._at_noise(state, model, point)
                run.radius = rules.radius.lowered(run.radius)
                if rules.radius.ends(run.radius, self._opening, box.resolution(run.center)):
                    return self._restarted(state)
                # A step that fits into the smaller ball is still the best one, unless it may now go nearer to a plane.
                if length > run.radius.delta or len(state.data.failed):
                    step, mean = model.steps.step(run.radius.delta, lower, upper)
            failed = at_rho = False

    def _step(self, state: TrustRegionState, model: LocalModel, step: Tensor, predicted: float) -> Step:
        """The step, which in a span explores a direction outside, unless it is the last query."""
        run, box, std = state.run, self._box, 0.0
        if isinstance(model.steps, SpanModel) and self.remaining > 1:
            region = (run.radius.delta, box.lower - run.center, box.upper - run.center)
            step, std = model.steps.explored(self.rules.exploration, step, *region)
        return Step(box.clamped(run.center + step)[None], predicted, std)

    def _geometry_query(self, state: TrustRegionState, model: LocalModel) -> GeometryQuery | None:
        """The query that the geometry rule asks for, unless there were enough in a row or it is known."""
        run, rule, delta = state.run, self.rules.geometry, state.run.radius.delta
        if run.teaching >= rule.limit:
            return None
        slope = model.steps.slope(delta) if isinstance(model.steps, CompositeModel) else None
        direction = model.base.geometry_direction(rule, slope, delta)
        if direction is None:
            return None
        point = self._box.along(run.center, direction, delta)
        if self._is_known(state, point):
            return None
        run.teaching += 1
        return GeometryQuery(point)

    def _random_query(self, state: TrustRegionState) -> GeometryQuery:
        direction = torch.from_numpy(self._generator(1).standard_normal(self._box.d))
        return GeometryQuery(self._box.along(state.run.center, direction, state.run.radius.delta))

    def _at_noise(self, state: TrustRegionState, model: LocalModel, point: Tensor) -> GeometryQuery | None:
        """Queries the short step, because noise averages out; None where only ripples are left and are to be followed."""
        run, rule = state.run, self.rules.noise
        early = self.queries < min(rule.early * self._box.d, self.remaining)
        run.teaching = 0
        if run.noisy or (early and rule.needs(model.region.pinned, self.rules.model.search)):
            return self._random_query(state) if self._is_known(state, point) else GeometryQuery(point)
        run.smoothing, state.fit.count = False, 0
        return None

    def _settled(
        self, state: TrustRegionState, best: int, model: LocalModel, told: Plan | None, outcome: Outcome, normal: Tensor
    ) -> tuple[int, LocalModel, Outcome]:
        """With noise, moves the center to the query of least posterior mean, and the radius by the fall of the mean.

        The ratio is that of the mean's fall, given the new value, to the predicted one.
        """
        run, data, means, numbers = state.run, state.data, model.means(), model.window.numbers
        last = (numbers == len(data.values) - 1).nonzero().flatten()
        if isinstance(told, Step) and not outcome.failed and len(last):
            ratio = -float(means[last[0]]) / max(told.predicted, 1e-300)
            length = float((data.points[-1] - data.points[best]).norm())
            run.radius, run.teaching = self.rules.radius.after(run.radius, ratio, length), 0
            if not ratio > self.rules.radius.failed:
                outcome = Outcome(True, run.radius.at_rho)
        means = torch.where(numbers >= run.first, means, math.inf)
        place = int(means.argmin())
        if not float(means[place]) < 0.0:
            return best, model, outcome
        lower = int(numbers[place])
        found = self._models.model(state, lower, normal)
        return (best, model, outcome) if found is None else (lower, found, outcome)

    def _center(self, state: TrustRegionState, best: int) -> None:
        state.run.center, state.run.center_index = state.data.points[best], best

    def _restarted(self, state: TrustRegionState) -> Restart:
        """A random point, moved into ψ's domain, at which a new run begins."""
        data, box = state.data, self._box
        where = (box, state.run.center, self._opening.delta, data.points, data.failed)
        point = self.rules.restart.point(*where, self._generator(2))
        return Restart(point if self.prox is None else box.part(self._prox(box.whole(point), 1.0)))

    def _is_blind(self, state: TrustRegionState, model: LocalModel) -> bool:
        """Whether noise hides what f does within ρ, and nothing has failed near: then ρ does not fall."""
        run, rule, region = state.run, self.rules.noise, model.region
        if not run.smoothing or rule.sees(region.hessian, region.pinned.noise, 0.5 * run.radius.rho):
            return False
        distances = torch.linalg.vector_norm(state.data.failed - run.center, dim=1)
        return not bool((distances <= rule.fails * run.radius.rho).any())

    def _is_known(self, state: TrustRegionState, point: Tensor) -> bool:
        """Whether a point, rounded to the run's dtype, was queried before and would give the same value."""
        rounded = self._box.rounded(point)
        asked = (state.data.points, state.data.failed)
        return not state.run.noisy and any(bool((queries == rounded).all(dim=1).any()) for queries in asked)


def _ratio(before: float, after: float, predicted: float) -> float:
    """Actual over predicted decrease; NaN for a failed query, inf for the first value in ψ's domain."""
    if math.isnan(after):
        return math.nan
    if before == math.inf > after:
        return math.inf
    unit = max(abs(before), abs(after), 1e-300)
    return (before / unit - after / unit) / max(predicted / unit, 1e-300)
