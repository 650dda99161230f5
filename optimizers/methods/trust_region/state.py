"""The state of a trust-region run between batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimizers.methods.trust_region.plans import Plan
from optimizers.methods.trust_region.radius import Radius
from surrogates.pinned.prior import Hyperparameters


@dataclass
class Data:
    """The queries.

    Attributes:
        points: those that succeeded, free variables in search units, ``n x d_free``.
        values: f at them, shape ``n``.
        failed: those that failed, ``m x d_free``.
        outside: the number of points that cannot be a center: given points that lie outside the bounds or violate a
            known constraint with ``keep_feasible``. They come first.
        weights: the noise variance of each value in units of the known one, shape ``n``; None: all 1.
    """

    points: Tensor
    values: Tensor
    failed: Tensor
    outside: int = 0
    weights: Tensor | None = None

    def rows(self, which: Tensor) -> Data:
        """The successful queries selected by indices or a mask, and all failed ones."""
        weights = None if self.weights is None else self.weights[which]
        mask = torch.zeros(len(self.values), dtype=torch.bool).index_fill(0, torch.arange(self.outside), True)
        outside = int(mask[which].sum())
        return Data(self.points[which], self.values[which], self.failed, outside, weights)

    def joined(self, points: Tensor, values: Tensor, failed: Tensor, weights: Tensor | None = None) -> Data:
        """These and further queries, of weight 1 unless weights are given."""
        held = (None, None) if self.weights is None and weights is None else (self.weights, weights)
        parts = [torch.ones_like(v) if w is None else w for v, w in zip((self.values, values), held, strict=True)]
        return Data(
            torch.cat([self.points, points]),
            torch.cat([self.values, values]),
            torch.cat([self.failed, failed]),
            self.outside,
            None if held == (None, None) else torch.cat(parts),
        )


@dataclass
class Run:
    """The run since the last restart.

    Attributes:
        radius: its radii.
        center: its iterate, shape ``d_free``.
        noisy: whether values have noise; None: not known.
        smoothing: whether the model has noise, for noisy values or for ripples that it does not follow.
        run_start: the index of its first query.
        center_index: the index of the query at the center.
        model_queries: the number of queries in a row that only improved the model: geometry-improving queries, and
            steps whose shortfall was attributed to chance.
        start_value: f + ψ at x0; inf where it failed.
        repeated_gap: the difference of the two values at a point that was evaluated twice; inf if noise is given.
        hidden_since: how many queries had been told when noise first hid how f varies within ρ; None: it has not.
    """

    radius: Radius
    center: Tensor
    noisy: bool | None
    smoothing: bool
    run_start: int = 0
    center_index: int = 0
    model_queries: int = 0
    start_value: float = math.inf
    repeated_gap: float = math.inf
    hidden_since: int | None = None


@dataclass
class Fit:
    """The hyper-parameters of the model.

    Attributes:
        basis: an orthonormal basis B of the subspace of the model, ``k x d_free``.
        metric: A in the basis's coordinates, ``k + 1 x k + 1``.
        spanning: whether the model is of the subspace spanned by the steps from the center to its queries.
        params: a and s²; None before the first fit of a run.
        fitted_at: how many queries had succeeded at the last fit; 0 makes a fit due.
    """

    basis: Tensor
    metric: Tensor
    spanning: bool
    params: Hyperparameters | None = None
    fitted_at: int = 0


@dataclass
class ConstraintData:
    """The constraints at the queries, and what a violation costs.

    Attributes:
        values: c at the queries that succeeded, ``n x m``: evaluated constraints, and then known ones.
        partial: failed queries that returned some of their values, ``p x d_free``.
        partial_values: f and c there, ``p x 1 + m``, NaN for those that are missing.
        slopes: the root mean square slope of each constraint, shape ``m``, by which violations become distances.
        errors: how far the constraints at the last step were from their predictions, shape ``m``.
        multipliers: of the rows of the constraints at the last step planned, in f's units per length.
        own: a and s² of each evaluated constraint with hyper-parameters of its own, ``m x 2``; else empty.
        sizes: the numbers of components of the evaluated constraints; empty before they are known.
        price: ν, in f's units per length; 0 before the first values.
        prices: the least and the largest ν.
        wanted: the prices that the last steps asked for.
        error_length: the length of the last step.
    """

    values: Tensor
    partial: Tensor
    partial_values: Tensor
    slopes: Tensor
    errors: Tensor
    multipliers: Tensor
    own: Tensor
    sizes: tuple[int, ...] = ()
    price: float = 0.0
    prices: tuple[float, float] = (0.0, math.inf)
    wanted: tuple[float, ...] = ()
    error_length: float = 1.0


@dataclass
class TrustRegionState:
    """The state between batches; its tensors are float64 on the CPU.

    Attributes:
        data: the queries.
        run: the run since the last restart.
        fit: the model's hyper-parameters.
        plan: the next batch.
        scale: the variables' scales in search units, shape ``d_free``, powers of two; points are in units of them.
        plan_id: the number of the plan; 0 before the first batch.
        constraints: the constraints' values; None without constraints.
    """

    data: Data
    run: Run
    fit: Fit
    plan: Plan
    scale: Tensor
    plan_id: int = 0
    constraints: ConstraintData | None = None

    def nearest(self, at: Tensor) -> int:
        """The index of the query nearest to a point, shape ``d_free``, among the queries that may be a center."""
        distances = torch.linalg.vector_norm(self.data.points[self.data.outside :] - at, dim=1)
        return self.data.outside + int(distances.argmin())

    def rescale(self, factors: Tensor) -> None:
        """Multiplies the scales by factors, shape ``d_free``, so that all points stay where they are."""
        data, self.scale = self.data, self.scale * factors
        self.data = replace(data, points=data.points / factors, failed=data.failed / factors)
        self.run.center = self.run.center / factors

    def center_at(self, number: int) -> None:
        """Moves the run's center to the query of index ``number``."""
        self.run.center, self.run.center_index = self.data.points[number], number

    def copied(self) -> TrustRegionState:
        """A state whose parts may be changed without changing this one."""
        parts = {name: replace(getattr(self, name)) for name in ("data", "run", "fit")}
        return replace(self, **parts, constraints=None if self.constraints is None else replace(self.constraints))
