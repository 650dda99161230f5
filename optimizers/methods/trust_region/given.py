"""Adds a history, or values of points that were not asked for, to a trust-region run, and begins a run with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from optimizers.methods.trust_region.models import ModelBuilder
from optimizers.methods.trust_region.outcomes import NO_STEP
from optimizers.methods.trust_region.planning import Planner
from optimizers.methods.trust_region.plans import Design, Plan
from optimizers.methods.trust_region.state import TrustRegionState

REFITS = 2
"""The number of fits before the first step of a run with a history, each with the metric of the previous fit."""

NEAREST = 4
"""With a history, the first Δ is the distance from the center to its ``NEAREST``-th nearest evaluation."""


def add_evaluations(
    models: ModelBuilder,
    state: TrustRegionState,
    points: Tensor,
    values: Tensor,
    sizes: Sequence[int] | None,
    weights: Tensor | None,
) -> None:
    """Adds given evaluations to the data of a run's state.

    A point outside the box, or one that violates a known constraint with ``keep_feasible``, cannot become the center;
    such points are stored first. If one point has two different values, values are treated as noisy.

    Args:
        models: the model builder.
        state: the state, which is modified.
        points: the evaluated points, ``q x d_free``.
        values: f at the points, shape ``q``, or rows (f, c); NaN where the evaluation failed.
        sizes: the number of components of each evaluated constraint.
        weights: the noise variance of each value relative to the run's noise variance, shape ``q``; None: 1.

    Raises:
        ValueError: if a point has two different values although ``noise`` is 0.
    """
    box, run, explained = models.box, state.run, torch.zeros(len(points), dtype=torch.bool)
    allowed = ((points >= box.lower) & (points <= box.upper)).all(dim=1)
    points = torch.where(allowed[:, None], box.rounded(points), points)
    if models.constraints is not None:
        allowed &= torch.tensor([models.constraints.breach(point) == 0.0 for point in points])
    order = allowed.int().argsort(stable=True)
    points, values, allowed = points[order], values[order], allowed[order]
    weights = None if weights is None else weights[order]
    if models.constraints is not None and state.constraints is not None:
        state.constraints, values, explained = models.constraints.told(state.constraints, points, values, sizes)
    succeeded, data = torch.isfinite(values), state.data
    n, k = len(data.values), int((succeeded & ~allowed).sum())
    new, failed = points[succeeded], points[~succeeded & ~explained]
    known = torch.cat([data.points, new])
    failed = failed[[not bool((known == point).all(dim=1).any()) for point in failed]]
    weights = None if weights is None else weights[succeeded]
    outside_first = torch.cat([torch.arange(n, n + k), torch.arange(n), torch.arange(n + k, n + len(new))])
    joined = data.joined(new, values[succeeded], failed, weights).rows(outside_first)
    state.data = replace(joined, outside=data.outside + k)
    if state.constraints is not None:
        state.constraints = replace(state.constraints, values=state.constraints.values[outside_first])
    run.run_start, run.center_index = run.run_start + k, run.center_index + k
    if not run.noisy:
        _compare_repeated(models, state)


def _compare_repeated(models: ModelBuilder, state: TrustRegionState) -> None:
    """Compares the values of repeated points: if they differ, values are noisy, else the repetitions are removed."""
    data, run, known = state.data, state.run, state.constraints
    rows = data.values[:, None] if known is None else torch.cat([data.values[:, None], known.values], dim=1)
    _, which = torch.unique(data.points, dim=0, return_inverse=True)
    first = torch.full_like(which, len(which)).scatter_reduce(0, which, torch.arange(len(which)), "amin")[which]
    repeated = first < torch.arange(len(which))
    if not bool(repeated.any()):
        return
    gaps = (rows - rows[first]).abs()
    run.noisy = bool((gaps > 0.0).any())
    if run.noisy and models.noise == 0.0:
        raise ValueError("a point was given with two different values, but noise=0 says that values are exact")
    run.smoothing = models.rules.noise.smooths(run.noisy)
    if run.noisy:
        run.repeated_gap = float(gaps[:, 0].max())
        return
    for name in ("run_start", "center_index"):
        setattr(run, name, int((~repeated[: getattr(run, name)]).sum()))
    state.data = data.rows(~repeated)
    if known is not None:
        state.constraints = replace(known, values=known.values[~repeated])


def fit_radius(planner: Planner, state: TrustRegionState, center: int) -> None:
    """Moves the center to an evaluation; sets Δ and ρ to the distance of its ``NEAREST``-th nearest evaluation.

    If the evaluations come from an earlier run, this is about its last Δ.
    """
    data, run = state.data, state.run
    state.center_at(center)
    distances, first = torch.linalg.vector_norm(data.points - run.center, dim=1), planner.first
    distances = distances[distances > 0.0].sort().values
    delta = float(distances[min(NEAREST, len(distances)) - 1]) if len(distances) else math.inf
    delta = max(min(delta, first.delta), first.finest)
    run.radius = replace(first, delta=delta, rho=delta)


def begin(planner: Planner, state: TrustRegionState, center: int, x0: Tensor) -> Plan:
    """Begins a run at the best given evaluation, of index ``center``, and plans its first batch.

    The batch has x0, if it was not evaluated, and the missing points of a design. Without any, it is planned as in the
    rest of a run.
    """
    run, data, models = state.run, state.data, planner.models
    run.run_start = data.outside
    fit_radius(planner, state, center)
    models.prepare(state)
    run.start_value = float(models.totals(state, torch.tensor([run.center_index])))
    queries = x0[None] if not bool((data.points == x0).all(dim=1).any()) else x0[None][:0]
    design = planner.design(state, run.center, run.radius.delta)[1:]
    near = torch.cat([run.center[None], data.points[models.window(state, run.center_index)]])
    # The points of the design that are farthest from the given ones make up the missing number.
    missing = max(0, len(design) + 1 - len(near) - len(queries))
    farthest = torch.cdist(design, near).amin(dim=1).argsort(descending=True)
    queries, model = torch.cat([queries, design[farthest[:missing]]]), None
    for _ in range(REFITS if len(near) > 1 else 0):
        state.fit.fitted_at = 0  # a fit is due
        model = models.model(state, run.center_index)
    if run.smoothing and not run.noisy and model is not None and not planner.smooths_on(model):
        run.smoothing, state.fit.fitted_at = False, 0
    return Design(queries, begins=False) if len(queries) else planner.next_plan(state, None, NO_STEP)
