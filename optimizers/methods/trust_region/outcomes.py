"""Updates a trust-region run after the values of a planned batch have arrived."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from optimizers.methods.trust_region.local_model import LocalModel
from optimizers.methods.trust_region.models import ModelBuilder
from optimizers.methods.trust_region.plans import Design, GeometryQuery, Plan, Repeat, Restart, Sample, Step
from optimizers.methods.trust_region.portfolio import Portfolio
from optimizers.methods.trust_region.radius import Radius
from optimizers.methods.trust_region.state import TrustRegionState


class StepOutcome(NamedTuple):
    """The outcome of the last query.

    Attributes:
        failed: whether the last query was a step that failed: its decrease was too small, or f failed.
        at_rho: whether ρ may fall, because the failed step was made with Δ = ρ.
    """

    failed: bool = False
    at_rho: bool = False


NO_STEP = StepOutcome()


def update_run(
    models: ModelBuilder, first: Radius, state: TrustRegionState, plan: Plan | None, asked: Tensor, values: Tensor
) -> StepOutcome:
    """Updates a run's start, its radii and whether values are noisy, after the values of a batch have arrived.

    Args:
        models: the model builder.
        first: the initial radii of a run.
        state: the state, to whose data the values have been added.
        plan: the plan of the batch; None if the batch was not planned.
        asked: the points of the batch, ``q x d_free``.
        values: f at the points, shape ``q``; NaN for failed queries.
    """
    run, data, succeeded = state.run, state.data, bool(torch.isfinite(values).all())
    known = state.constraints
    if isinstance(plan, Step) and succeeded and plan.constraints is not None and known is not None:
        known.errors = (known.values[-1] - plan.constraints).abs()
        known.error_length = float((asked[0] - data.points[run.center_index]).norm())
    match plan:
        case Restart() | Design(begins=True):
            _begin(models, first, state, plan, values)
        case Repeat():
            run.noisy = not succeeded or bool(values[0] != data.values[run.center_index])
            run.repeated_gap = float((values[0] - data.values[run.center_index]).abs()) if succeeded else math.inf
            if not run.noisy and known is not None:
                run.noisy = not torch.equal(known.values[-1], known.values[run.center_index])
            run.smoothing, state.fit.fitted_at = models.rules.noise.smooths(run.noisy), 0  # a fit is due
            if not run.noisy:
                state.data = data.rows(torch.arange(len(data.values) - 1))
                if known is not None:
                    state.constraints = replace(known, values=known.values[:-1])
        case Sample():
            run.portfolio = models.rules.portfolio.sampled(run.portfolio, run.lowest, values, models.box.d)
        # With noise in the model, ``settle_by_mean`` judges a step, by the posterior mean of the next model.
        case Step() if not (run.smoothing and succeeded):
            return _update_radius(models, state, plan, asked[0], succeeded)
        case GeometryQuery() if not succeeded:
            # With one value, or if no plane separates the failures from the others, the radius is too large.
            if len(data.values) == 1 or models.half_space(state, models.center(state)) is None:
                run.radius = models.rules.radius.after(run.radius, math.nan, run.radius.delta)
    return NO_STEP


def _begin(
    models: ModelBuilder, first: Radius, state: TrustRegionState, plan: Design | Restart, values: Tensor
) -> None:
    """Begins a run at the first point of a design, or at a random one."""
    run, data, rules = state.run, state.data, models.rules
    run.run_start = len(data.values) - int(torch.isfinite(values).sum())
    run.radius, run.model_queries, run.hidden_since, run.lowest, state.fit.params = first, 0, None, math.inf, None
    run.restarts += isinstance(plan, Restart)
    run.portfolio = Portfolio()
    run.smoothing, value_at_start = rules.noise.smooths(run.noisy), math.inf
    if state.constraints is not None:
        state.constraints = replace(state.constraints, price=0.0, wanted=())
    if bool(torch.isfinite(values[0])):
        value_at_start = float(models.totals(state, torch.tensor([run.run_start])))
    if isinstance(plan, Design):
        run.start_value = value_at_start
    elif len(data.values) > data.outside and rules.restart.begins_at_best(
        value_at_start, run.start_value, state.fit.spanning
    ):
        # The run continues from the best query: all queries belong to it.
        run.run_start, run.center_index = data.outside, models.best(state)


def _update_radius(
    models: ModelBuilder, state: TrustRegionState, plan: Step, point: Tensor, succeeded: bool
) -> StepOutcome:
    """Updates the radii by the ratio of a step's actual to its predicted decrease."""
    run, data, rules, model_queries = state.run, state.data, models.rules, state.run.model_queries
    # If the step has no value, the last value belongs to another query, and NaN replaces it.
    before, after = models.totals(state, torch.tensor([run.center_index, -1])).tolist()
    ratio, run.model_queries = _ratio(before, after if succeeded else math.nan, plan.predicted), 0
    by_chance = after - before + plan.predicted <= rules.exploration.deviations * plan.exploration_std
    # A small shortfall of an exploring step is attributed to chance, but not several times in a row.
    if ratio <= rules.radius.failed and by_chance and model_queries < rules.exploration.limit:
        ratio, run.model_queries = rules.exploration.ratio, model_queries + 1
    plane = None if succeeded else models.half_space(state, run.center_index)
    # If a plane excludes the failed point, Δ falls and ρ stays (a ratio of −∞); without one (NaN) ρ falls too.
    may_lower_rho = succeeded or (plane is not None and rules.failures.is_near(plane, run.radius.delta))
    outcome = StepOutcome(not ratio > rules.radius.failed, may_lower_rho and run.radius.delta <= run.radius.rho)
    length = float((point - data.points[run.center_index]).norm())
    # A failure that a constraint explains needs no plane: the constraint's model excludes the point.
    explained = not succeeded and not bool((data.failed == point).all(dim=1).any())
    if outcome.failed and models.box.has_integers and length > (1.0 + 1e-9) * run.radius.delta:
        return StepOutcome(True)  # an integer moved out of the ball: this says nothing about the radius
    run.radius = rules.radius.after(run.radius, -math.inf if explained or plane is not None else ratio, length)
    return outcome


def _ratio(before: float, after: float, predicted: float) -> float:
    """Actual over predicted decrease; NaN for a failed query, inf for the first value in ψ's domain."""
    if not after < math.inf or before == math.inf:
        return math.inf if after < before else math.nan
    unit = max(abs(before), abs(after), 1e-300)
    return (before / unit - after / unit) / max(predicted / unit, 1e-300)


def settle_by_mean(
    models: ModelBuilder,
    state: TrustRegionState,
    center: int,
    model: LocalModel,
    told: Plan | None,
    outcome: StepOutcome,
) -> tuple[int, LocalModel, StepOutcome]:
    """Updates the radii by posterior means instead of values, and moves the center to the query of least mean.

    The ratio of actual to predicted decrease is computed from the posterior mean at the last step. If f failed at this
    step, the radii have already been updated. Returns the new center, its model and the outcome.
    """
    run, data, rule = state.run, state.data, models.rules.radius
    last = model.means[model.numbers == len(data.values) - 1]
    if isinstance(told, Step) and not outcome.failed and len(last):
        ratio, run.model_queries = -float(last) / max(told.predicted, 1e-300), 0
        if not ratio > rule.failed:
            outcome = StepOutcome(True, run.radius.delta <= run.radius.rho)
        run.radius = rule.after(run.radius, ratio, float((data.points[-1] - data.points[center]).norm()))
    means = torch.where(model.numbers >= run.run_start, model.means, math.inf)
    lowest = int(model.numbers[means.argmin()])
    new_model = models.model(state, lowest) if float(means.min()) < 0.0 else None
    return (center, model, outcome) if new_model is None else (lowest, new_model, outcome)
