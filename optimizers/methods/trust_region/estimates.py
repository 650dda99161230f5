"""Estimates at a result's point: multipliers, residuals and their Jacobian and, for noisy values, the least mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import cast

import numpy as np
import torch
from torch import Tensor

from optimizers.core.result import Estimate
from optimizers.methods.trust_region.constrained_model import ConstrainedModel
from optimizers.methods.trust_region.local_model import LocalModel
from optimizers.methods.trust_region.models import ModelBuilder
from optimizers.methods.trust_region.residuals import ResidualModel
from optimizers.methods.trust_region.state import ConstraintData, TrustRegionState

RIPPLES = 100.0
"""Noise is mostly ripples if its standard deviation exceeds this many times the difference of two values at a point."""

SAME, APART = (1e-6, 1e-5, 1e-4, 1e-3), 0.1
"""The derivatives of a result leave out queries nearer to its point than 1e-6 of the first radius, or than the next of
these fractions if the covariance is singular. Without noise they also leave out queries whose distance from a nearer
one is at most 0.1 of that from the point, for rounding hides differences within clusters."""


def multipliers(
    models: ModelBuilder, state: TrustRegionState, at: Tensor, delta: float, slack: np.ndarray
) -> np.ndarray | None:
    """Computes the constraints' multipliers, shape ``m``, at the query nearest to a point; None without a model.

    Args:
        models: the model builder.
        state: the state.
        at: the point, shape ``d_free``.
        delta: the first radius.
        slack: the distance from its bound within which each constraint is active, shape ``m``.
    """
    refitted, model = _refitted(models, state, at, delta)
    if model is None or not isinstance(model.composite, ConstrainedModel):
        return None
    return model.composite.multipliers(refitted.data.points[model.numbers], slack)


def residuals(models: ModelBuilder, state: TrustRegionState, at: Tensor, delta: float) -> tuple[Tensor, Tensor | None]:
    """Predicts the residuals at the query nearest to a point, shape ``m``, and their Jacobian, ``m x d``.

    The Jacobian is in user units, with 0 for variables that are not free; without a model it is None.
    """
    refitted, model = _refitted(models, state, at, delta)
    if model is None or not isinstance(model.region.pinned, ResidualModel):
        return cast(ConstraintData, refitted.constraints).values[refitted.run.center_index], None
    r, slopes = model.region.pinned.at_pin()
    return r, models.box.user_slopes(at, (slopes @ model.region.map)[:, :-1] @ model.region.basis)


def _refitted(
    models: ModelBuilder, state: TrustRegionState, at: Tensor, delta: float
) -> tuple[TrustRegionState, LocalModel | None]:
    """Fits a model about the query nearest to a point; returns the state with its queries and the model."""
    data, known = state.data, cast(ConstraintData, state.constraints)
    center = int(torch.linalg.vector_norm(data.points - at, dim=1).argmin())
    moves = data.points - data.points[center]
    distances, noisy = torch.linalg.vector_norm(moves, dim=1), bool(state.run.noisy)
    for least in SAME:
        kept = distances > least * delta
        if not noisy:
            kept[kept.clone()] = _are_apart(moves[kept])
        kept[center] = True
        found = replace(state.copied(), data=data.rows(kept))
        found.constraints, found.fit.params = replace(known, values=known.values[kept]), None
        found.run.noisy = found.run.smoothing = noisy  # ripples are followed
        found.run.radius = replace(state.run.radius, delta=math.inf)  # far queries count too
        found.center_at(int(kept[:center].sum()))
        if (model := models.model(found, found.run.center_index)) is not None:
            break
    return found, model


def least_mean(
    models: ModelBuilder, state: TrustRegionState, excess: Callable[[np.ndarray], np.ndarray]
) -> Estimate | None:
    """Finds the query of least posterior mean of f + ψ, for noisy values.

    Two models are built: about the run's center, and about the query of least value, because an earlier run may
    have ended at a better point. Each proposes its query of least mean. The proposal with the lower mean plus
    standard deviation is returned; with constraints, one with less excess is preferred. A model whose noise is
    mostly ripples proposes nothing.

    Args:
        models: the model builder.
        state: the state, which does not change.
        excess: computes how far constraints, ``n x m``, exceed the tolerated violation, shape ``n``.

    Returns:
        The point, ``1 x d_free``, the mean and standard deviation of f there, and the means of the constraints;
        None without a proposal.
    """
    found, known, gap = [], state.constraints, state.run.repeated_gap
    for center in {state.run.center_index, models.best(state)} if len(state.data.values) > state.data.outside else ():
        copied = state.copied()
        if center != state.run.center_index:
            copied.fit.params = None
        model = models.model(copied, center)
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
            means = models.totals(state, numbers) - noise
        outside = numbers < state.data.outside
        means[outside], worse[outside.numpy()] = math.inf, math.inf
        least = int(np.lexsort((means.numpy(), worse))[0])
        point = state.data.points[numbers[least]][None]
        estimate = Estimate(point, float(means[least]), float(std[least]), None if c is None else c[least])
        found.append((float(worse[least]), estimate.fun + estimate.fun_std, estimate))
    return min(found, key=itemgetter(0, 1), default=(0.0, 0.0, None))[-1]


def _are_apart(moves: Tensor) -> Tensor:
    """Whether each of the steps from a point, ``n x d``, is apart from all nearer ones that are; shape ``n``."""
    kept, distances = torch.zeros(len(moves), dtype=torch.bool), torch.linalg.vector_norm(moves, dim=1)
    for i in distances.argsort().tolist():
        kept[i] = bool((torch.linalg.vector_norm(moves[kept] - moves[i], dim=1) > APART * distances[i]).all())
    return kept
