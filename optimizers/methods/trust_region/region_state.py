"""What a trust region knows between batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from optimizers.methods.trust_region.radius import Radius


@dataclass
class TrustRegionState:
    """The state between batches.

    Attributes:
        points: the queries that succeeded, free coordinates in search units, float64, ``n x d_free``.
        values: f at them, float64, shape ``n``.
        failed: the queries that failed, ``m x d_free``.
        first: the number of the first query of the run since the last restart.
        radius: the radius and the lower radius.
        metric: A, ``d_free x d_free``, or ``k + 1 x k + 1`` in the basis's coordinates (``span``); 1 x 1 before the
            first batch.
        basis: an orthonormal basis of the span of the model's rows, ``k x d_free``; None: all variables are modelled.
        shape: the model's a and s², or None before the first fit of a run, also of one since a restart.
        noisy: whether values have noise; None: not known.
        smoothing: whether the model has s², of noise or of ripples that it does not follow.
        pin: the number of the query at the center.
        fitted: how many queries had succeeded at the last fit.
        lessons: the number of queries in a row that only taught the model; a step that fell short by chance is one.
        center: the iterate after the last batch, shape ``d``.
        kind: of the next batch: ``"design"``, ``"scout"`` (a random point), ``"surround"`` (the rest of a design about
            one), ``"step"``, ``"lesson"`` or ``"repeat"`` (the center again).
        plan: the points of the next batch, ``q x d_free``.
        predicted: the decrease that the model predicts for a step.
        turn: the number of the plan.
        doubt: the standard deviation that what a step explores beside it adds to that.
        began: f + ψ at x0; inf where it failed.
    """

    points: Tensor
    values: Tensor
    failed: Tensor
    first: int
    radius: Radius
    metric: Tensor
    basis: Tensor | None
    shape: tuple[float, float] | None
    noisy: bool | None
    smoothing: bool
    pin: int
    fitted: int
    lessons: int
    center: Tensor
    kind: str
    plan: Tensor
    predicted: float
    turn: int
    doubt: float
    began: float

    @classmethod
    def beginning(cls, x: Tensor, center: Tensor, radius: Radius, noisy: bool | None) -> TrustRegionState:
        """The state before the first batch.

        Args:
            x: the initial point in search coordinates, shape ``d``.
            center: its free coordinates, float64, shape ``d_free``.
            radius: the first radius.
            noisy: whether values have noise; None: not known.
        """
        center = center.to(x.device)
        d = len(center)
        return cls(
            points=center.new_empty(0, d),
            values=center.new_empty(0),
            failed=center.new_empty(0, d),
            first=0,
            radius=radius,
            metric=torch.eye(1, dtype=torch.float64, device=x.device),
            basis=None,
            shape=None,
            noisy=noisy,
            smoothing=bool(noisy),
            pin=0,
            fitted=0,
            lessons=0,
            center=x,
            kind="design",
            plan=center[None],
            predicted=0.0,
            turn=0,
            doubt=0.0,
            began=math.inf,
        )
