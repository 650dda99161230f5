"""The state of a trust-region run between batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimizers.methods.trust_region.plans import Plan
from optimizers.methods.trust_region.portfolio import Portfolio
from optimizers.methods.trust_region.radius import Radius
from surrogates.pinned.prior import Hyperparameters


@dataclass
class Data:
    """The queries of all runs, and given evaluations.

    Attributes:
        points: the points that succeeded, free variables in units of their scales, ``n x d_free``.
        values: f at the points, shape ``n``.
        failed: the points that failed, ``m x d_free``.
        outside: the number of points that cannot be a center, which come first: given points that lie outside the
            bounds or violate a known constraint with ``keep_feasible``.
        weights: the noise variance of each value relative to the run's noise variance, shape ``n``; None: 1.
    """

    points: Tensor
    values: Tensor
    failed: Tensor
    outside: int = 0
    weights: Tensor | None = None

    def rows(self, which: Tensor) -> Data:
        """Selects successful queries by indices or a mask, with all failed queries."""
        weights = None if self.weights is None else self.weights[which]
        mask = torch.zeros(len(self.values), dtype=torch.bool).index_fill(0, torch.arange(self.outside), True)
        outside = int(mask[which].sum())
        return Data(self.points[which], self.values[which], self.failed, outside, weights)

    def joined(self, points: Tensor, values: Tensor, failed: Tensor, weights: Tensor | None = None) -> Data:
        """Adds further queries; without ``weights``, their weight is 1."""
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
        radius: the radii.
        center: the center of the trust region, shape ``d_free``.
        noisy: whether values have noise; None: not known.
        smoothing: whether the model has noise, for noisy values or to smooth over ripples.
        run_start: the index of the run's first query.
        center_index: the index of the query at the center.
        model_queries: the number of consecutive queries that only improved the model: geometry-improving queries, and
            steps whose shortfall was attributed to chance.
        start_value: f + ψ at x0; inf if f failed there.
        repeated_gap: the difference of the two values at a point that was evaluated twice; inf if noise is given.
        hidden_since: the number of evaluations when noise first hid how f varies within ρ, or None.
        lowest: the lowest value of the run; inf before the first plan.
        lowest_at: the number of evaluations after which it was found.
        stepped_at: the number of evaluations after the last successful step, or after the last query that was smoothed
            over or belonged to a design.
        designed: the number of queries that had succeeded after the last design.
        restarts: the number of restarts before this run.
        portfolio: the shares of local steps and samples.
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
    lowest: float = math.inf
    lowest_at: int = 0
    stepped_at: int = 0
    designed: int = 0
    restarts: int = 0
    portfolio: Portfolio = Portfolio()

    @property
    def follows(self) -> bool:
        """Whether values are known to be exact and the model follows them, so that its errors may be due to kinks."""
        return self.noisy is False and not self.smoothing


@dataclass
class Fit:
    """The model's subspace, metric and hyper-parameters.

    Attributes:
        basis: an orthonormal basis B of the model's subspace, ``k x d_free``.
        metric: the metric A in coordinates of the basis, ``k + 1 x k + 1``.
        spanning: whether the model is restricted to the subspace spanned by the steps from the center to the queries.
        params: the amplitude and the noise of the kernel; None before the first fit of a run.
        fitted_at: the number of successful queries at the last fit; 0 makes a fit due.
    """

    basis: Tensor
    metric: Tensor
    spanning: bool
    params: Hyperparameters | None = None
    fitted_at: int = 0


@dataclass
class ConstraintData:
    """The constraints' values at the queries, and the price of a violation.

    Attributes:
        values: c at the successful queries, ``n x m``: first the evaluated constraints, then the known ones.
        partial: failed queries with some finite values, ``p x d_free``.
        partial_values: f and c at the queries in ``partial``, ``p x 1 + m``; NaN for missing values.
        slopes: the root mean square slope of each constraint, shape ``m``, which converts violations to distances.
        errors: the error of the prediction of each constraint at the last step, shape ``m``.
        multipliers: the multipliers of the one-sided constraints at the last planned step, in f's units per length.
        own: amplitude and noise of each evaluated constraint, ``m x 2``; empty if hyper-parameters are shared.
        sizes: the number of components of each evaluated constraint; empty before the first values.
        price: the price ν, in f's units per length; 0 before the first values.
        prices: the least and the largest price.
        wanted: the prices computed from the multipliers of the last steps.
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
    """The state of the method between batches; all tensors are float64 on the CPU.

    Attributes:
        data: the queries.
        run: the run since the last restart.
        fit: the model's subspace, metric and hyper-parameters.
        plan: the plan for the next batch.
        scale: the scales of the free variables in search coordinates, shape ``d_free``, powers of two.
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
        """Returns the index of the query nearest to a point, shape ``d_free``, among queries that may be a center."""
        distances = torch.linalg.vector_norm(self.data.points[self.data.outside :] - at, dim=1)
        return self.data.outside + int(distances.argmin())

    def rescale(self, factors: Tensor) -> None:
        """Multiplies the scales by factors, shape ``d_free``, and converts all points to the new scales."""
        data, self.scale = self.data, self.scale * factors
        self.data = replace(data, points=data.points / factors, failed=data.failed / factors)
        self.run.center = self.run.center / factors

    def center_at(self, number: int) -> None:
        """Moves the run's center to the query of index ``number``."""
        self.run.center, self.run.center_index = self.data.points[number], number

    def copied(self) -> TrustRegionState:
        """Returns a copy whose parts may be replaced without changing this state."""
        parts = {name: replace(getattr(self, name)) for name in ("data", "run", "fit")}
        return replace(self, **parts, constraints=None if self.constraints is None else replace(self.constraints))
