"""What a trust-region run knows between batches, and the plans for its next batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from surrogates.pinned.prior import Shape


@dataclass(frozen=True)
class Radius:
    """Powell's two radii.

    Attributes:
        delta: Δ, the radius of the trust region.
        rho: ρ ≤ Δ, the scale at which the run searches.
        largest: the most that Δ may be.
    """

    delta: float
    rho: float
    largest: float

    @property
    def at_rho(self) -> bool:
        """Whether Δ cannot fall at this scale."""
        return self.delta <= self.rho


@dataclass(frozen=True)
class Design:
    """Points about a center, without a model; with ``begins`` a run begins there.

    Every plan has ``points``, ``q x d_free``, and its ``kind``, which is in ``Batch.info``.
    """

    kind: ClassVar[str] = "design"
    points: Tensor
    begins: bool = True


@dataclass(frozen=True)
class Restart:
    """One point, at which a new run begins."""

    kind: ClassVar[str] = "restart"
    points: Tensor


@dataclass(frozen=True)
class Repeat:
    """The center again: another value means that values are noisy."""

    kind: ClassVar[str] = "repeat"
    points: Tensor


@dataclass(frozen=True)
class GeometryQuery:
    """A point that improves the model."""

    kind: ClassVar[str] = "geometry"
    points: Tensor


@dataclass(frozen=True)
class Step:
    """A step to a low mean.

    Attributes:
        predicted: the decrease that the model predicts.
        exploration_std: the standard deviation that the model adds to it for what the step explores outside its span.
    """

    kind: ClassVar[str] = "step"
    points: Tensor
    predicted: float = 0.0
    exploration_std: float = 0.0


Plan = Design | Restart | Repeat | GeometryQuery | Step
PLANS = {plan.kind: plan for plan in (Design, Restart, Repeat, GeometryQuery, Step)}


@dataclass
class Data:
    """The queries.

    Attributes:
        points: those that succeeded, free variables in search units, ``n x d_free``.
        values: f at them, shape ``n``.
        failed: those that failed, ``m x d_free``.
    """

    points: Tensor
    values: Tensor
    failed: Tensor


@dataclass
class Run:
    """The run since the last restart.

    Attributes:
        first: the number of its first query.
        radius: its radii.
        center: its iterate, shape ``d_free``.
        center_index: the number of the query at the center.
        teaching: the number of queries in a row that only improved the model: geometry-improving queries, and steps
            that fell short by chance.
        noisy: whether values have noise; None: not known.
        smoothing: whether the model has noise: that of values, or ripples that it does not follow.
        start_value: f + ψ at x0; inf where it failed.
    """

    first: int
    radius: Radius
    center: Tensor
    center_index: int = 0
    teaching: int = 0
    noisy: bool | None = None
    smoothing: bool = False
    start_value: float = math.inf


@dataclass
class Fit:
    """The hyper-parameters of the model.

    Attributes:
        metric: A, ``d_free x d_free``, or ``k + 1 x k + 1`` in a basis's coordinates; 1 x 1 before the first batch.
        basis: an orthonormal basis of the span of the model's rows, ``k x d_free``; None: all variables are modelled.
        shape: a and s²; None before the first fit of a run.
        count: how many queries had succeeded at the last fit.
    """

    metric: Tensor
    basis: Tensor | None = None
    shape: Shape | None = None
    count: int = 0


@dataclass
class TrustRegionState:
    """The state between batches; its tensors are float64 on the CPU.

    Attributes:
        data: the queries.
        run: the run since the last restart.
        fit: the model's hyper-parameters.
        plan: the next batch.
        plan_id: the number of the plan; 0 before the first batch.
    """

    data: Data
    run: Run
    fit: Fit
    plan: Plan
    plan_id: int = 0

    def copied(self) -> TrustRegionState:
        """A state whose parts may be changed without changing this one."""
        return replace(self, data=replace(self.data), run=replace(self.run), fit=replace(self.fit))
