"""CobBO: Bayesian optimization in changing blocks of coordinates, with kernels in two stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.methods.bayesian.coordinate_blocks import sample_block, updated_weights, virtual_points
from optimizers.methods.bayesian.local_gp import LocalGP, fit_local_gp, maximize_acquisition
from optimizers.methods.bayesian.observations import Observations, check_prox_value, initial_design
from optimizers.methods.bayesian.trust_region import TrustRegion, TrustRegionRule
from optimizers.methods.bayesian.unit_box import UnitBox
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, check_integer, positive_integer
from optimizers.state import load_fields

LEAST_DATA = 2
"""Values that a model needs; with fewer the initial design is drawn again."""


def backs_off(queries: int, failures: int, gain: float, step: float, limit: int, patience: int) -> bool:
    """Whether the next query leaves the subspace: the stopping rule of Section 3.2 as we read it.

    The paper names what its heuristic weighs, not how: failures in a row, improvement, distance between
    queries, budget and dimension. Here a subspace is left after ``patience`` failures in a row, or after
    ``limit`` queries, or where an improvement is marginal: under 1% of the values' spread by a step under
    1% of the box.

    Args:
        queries: queries made in the subspace.
        failures: queries in a row that did not improve, in the subspace.
        gain: the last query's improvement over the spread of values; 0 where it did not improve.
        step: root mean square coordinate distance of the last two queries in the subspace; inf for the first.
        limit: see ``CobBO``.
        patience: see ``CobBO``.
    """
    return failures >= patience or queries >= limit or (0.0 < gain < 0.01 and step < 0.01)


@dataclass
class CobBOState:
    """All that CobBO carries from query to query; points are in the unit cube of the free coordinates.

    Attributes:
        data: the queries that succeeded.
        log_weights: ln of the coordinates' weights, shape ``d``.
        pivot: V, shape ``d``.
        best: value M at the pivot.
        region: trust region about the pivot.
        failures: q, queries in a row without improvement on M.
        block: numbers of the subspace's coordinates; empty before the first.
        virtual: virtual points, ``v x c``, then the queries made in the subspace.
        virtual_values: their values, shape ``v``.
        projected: how many of them are projections.
        blocks: subspaces so far.
        block_queries: queries made in the subspace.
        block_failures: those in a row without improvement.
        last: the last query in the subspace, shape ``d``; empty at its start.
    """

    data: Observations
    log_weights: Tensor
    pivot: Tensor
    best: float
    region: TrustRegion
    failures: int
    block: Tensor
    virtual: Tensor
    virtual_values: Tensor
    projected: int
    blocks: int
    block_queries: int
    block_failures: int
    last: Tensor


class CobBO(Optimizer):
    """Coordinate backoff Bayesian optimization (Tan, Nayman, Wang, Li and Jin, 2021, Alg. 1).

    A query is made in the subspace of a block of coordinates through the pivot V, the best point. All
    observations are projected onto it; the first stage, a multiquadric interpolation in all coordinates,
    gives values to the projections (``virtual_points``), the second, a Matérn 5/2 process with a lengthscale
    for each of the block's coordinates, is fitted to them, and the point of largest expected improvement on M
    is queried. The block stays until a stopping rule (``backs_off``); then its size is drawn uniformly from 1
    to ``max_block`` and its coordinates by multiplicative weights (eq. 2). The method is sequential: after
    the initial design a batch is one query.

    Where the paper (its main text; not the appendix) is silent, our readings are:

    - Stopping rule: ``patience`` failures in a row, at most ``limit`` = ⌈T c/(10 d)⌉ queries for a block of c
      (ten rounds over the coordinates in a budget T), at least ``patience``; or a marginal improvement.
    - Trust region: a cube about V with TuRBO's rule, a query a batch, cut to the box; it confines the
      query, not the virtual points.
    - Escape: after ``escape_after`` failures in a row, or when the region ends, the pivot moves to a point
      drawn from the better half of what lies outside of the region, M is its value, and the region and the
      block are new.
    - Clustered points: the first stage leaves out points within 1e-3 (root mean square over coordinates, in
      box widths) of a better one.
    - The second stage's hyperparameters are fitted when a subspace starts; the queries made in it are
      conditioned on.
    - Interpolated values count like observed ones in the second stage, as in the paper's text.

    Failed queries stay out of both stages and count as queries without improvement. The objective is f + ψ
    where a prox with a value is given.

    Args:
        x0: initial point, shape ``d``; the initial design's first.
        initial_points: τ, queries of the initial Latin hypercube; None: 2d, at least 4.
        max_block: largest block.
        reward: α of eq. 2.
        penalty: β of eq. 2.
        patience: failures in a row that end a subspace.
        escape_after: failures in a row that move the pivot; None: 3d, at least 30.
        failure_tolerance: failures in a row that halve the trust region; None: d, at least 10.
        fit_steps: most L-BFGS-B iterations of a fit.
        **common: see ``Optimizer``; ``bounds`` are needed, finite on all sides.

    Raises:
        ValueError: without finite bounds, or for an option out of range.
    """

    method = "cobbo"
    state: CobBOState

    def __init__(
        self,
        x0: Any,
        *,
        initial_points: int | None = None,
        max_block: int = 30,
        reward: float = 2.0,
        penalty: float = 1.1,
        patience: int = 3,
        escape_after: int | None = None,
        failure_tolerance: int | None = None,
        fit_steps: int = 50,
        **common: Unpack[CommonOptions],
    ) -> None:
        for name, ratio in (("reward", reward), ("penalty", penalty)):
            if not (ratio > 1.0 and math.isfinite(ratio)):
                raise ValueError(f"{name} must be a finite number over 1, got {ratio}")
        if initial_points is not None:
            check_integer("initial_points", initial_points, LEAST_DATA)
        for name, count in (("escape_after", escape_after), ("failure_tolerance", failure_tolerance)):
            if count is not None:
                check_integer(name, count, 1)
        self.initial_points, self.max_block = initial_points, positive_integer("max_block", max_block)
        self.reward, self.penalty = float(reward), float(penalty)
        self.patience, self.fit_steps = (
            positive_integer("patience", patience),
            positive_integer("fit_steps", fit_steps),
        )
        self.escape_after, self.failure_tolerance = escape_after, failure_tolerance
        super().__init__(x0, **common)

    def _start(self) -> None:
        check_prox_value(self.prox, "CobBO")
        self.box = UnitBox.of(self.domain, "CobBO")
        d = self.box.dimension
        self.rule = TrustRegionRule(failure_tolerance=self.failure_tolerance or max(d, 10), improvement=0.0)
        self._design_size = self.initial_points or max(2 * d, 4)
        self._escape_after = self.escape_after or max(3 * d, 30)
        self._fitted: tuple[int, LocalGP] | None = None
        empty = self._x.new_empty(0, dtype=torch.float64)
        self.state = CobBOState(
            data=Observations(self._x),
            log_weights=self._x.new_zeros(d, dtype=torch.float64),
            pivot=self.box.to_unit(self._x),
            best=math.inf,
            region=self.rule.start(0),
            failures=0,
            block=torch.empty(0, dtype=torch.int64, device=self._x.device),
            virtual=empty.clone(),
            virtual_values=empty.clone(),
            projected=0,
            blocks=0,
            block_queries=0,
            block_failures=0,
            last=empty,
        )

    def _load_state(self, state: Mapping[str, Any]) -> None:
        loaded = load_fields(self.state, state, self._x0.device)
        self.state, self._fitted = replace(loaded, region=TrustRegion(**loaded.region)), None

    @property
    def observations(self) -> tuple[Tensor, Tensor]:
        """Points of the queries that succeeded, user units, ``n x d``, and f there, shape ``n``."""
        return self._to_user(self.state.data.points), self.state.data.values.clone()

    def _next_queries(self) -> int:
        size = self._design_size if len(self.state.block) == 0 else 1
        return max(1, min(size, self.remaining))

    def _ask(self) -> Batch:
        state, generator = self.state, self._generator()
        if len(state.block) == 0:
            first = self._x if self.iterations == 0 else None
            return self._points_batch(initial_design(self.box, self._next_queries(), generator, first))
        gp = self._fit().with_data(state.virtual, state.virtual_values)
        lower, upper = (side[state.block] for side in self._region_bounds())
        acquisition = gp.log_expected_improvement(state.best)
        point, _ = maximize_acquisition(acquisition, lower, upper, int(generator.integers(2**31)))
        query = state.pivot.clone()
        query[state.block] = point
        return self._points_batch(self.box.from_unit(query)[None])

    def _fit(self) -> LocalGP:
        """The fit to the subspace's first virtual points, kept while the subspace is."""
        points, values = (part[: self.state.projected] for part in (self.state.virtual, self.state.virtual_values))
        if self._fitted is None or self._fitted[0] != self.state.blocks:
            self._fitted = (self.state.blocks, fit_local_gp(points, values, self.fit_steps))
        return self._fitted[1]

    def _region_bounds(self) -> tuple[Tensor, Tensor]:
        pivot, half = self.state.pivot, 0.5 * self.state.region.length
        return (pivot - half).clamp(0.0, 1.0), (pivot + half).clamp(0.0, 1.0)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        totals = self._composite(batch, values)
        data = self.state.data.extended(batch, values, totals)
        if len(self.state.block) > 0:
            query = self.box.to_unit(batch.search_point(0))
            self.state = self._after_query(data, query, float(totals[0]))
        elif len(data) >= LEAST_DATA:
            best = int(data.totals.argmin())
            value = float(data.totals[best])
            pivot = self.box.to_unit(data.points[best])
            state = replace(self.state, data=data, pivot=pivot, best=value, region=self.rule.start(0, value))
            self.state = self._with_new_block(state)
        else:
            self.state = replace(self.state, data=data)
        if len(data):
            self._x = data.best()

    def _after_query(self, data: Observations, query: Tensor, value: float) -> CobBOState:
        """The state after a query in the subspace; ``value`` is not finite where it failed."""
        old, block = self.state, self.state.block
        succeeded = math.isfinite(value)
        improved = succeeded and value < old.best
        spread = float(data.totals.median() - data.totals.min())
        gain = (old.best - value) / spread if improved and spread > 0.0 else 0.0
        step = float((query - old.last).square().sum() / len(block)) ** 0.5 if len(old.last) else math.inf
        state = replace(
            old,
            data=data,
            log_weights=updated_weights(old.log_weights, block, improved, self.reward, self.penalty),
            pivot=query if improved else old.pivot,
            best=value if improved else old.best,
            region=self.rule.update(old.region, value if succeeded else math.inf, 1),
            failures=0 if improved else old.failures + 1,
            block_queries=old.block_queries + 1,
            block_failures=0 if improved else old.block_failures + 1,
            last=query,
        )
        if succeeded:
            state.virtual = torch.cat([old.virtual, query[block][None]])
            state.virtual_values = torch.cat([old.virtual_values, data.totals[-1:]])
        if state.failures >= self._escape_after or self.rule.ended(state.region):
            return self._with_new_block(self._escaped(state))
        limit = max(self.patience, math.ceil(self.max_queries * len(block) / (10 * self.box.dimension)))
        counts = (state.block_queries, state.block_failures)
        if backs_off(*counts, gain, step, limit, self.patience):
            return self._with_new_block(state)
        return state

    def _escaped(self, state: CobBOState) -> CobBOState:
        """The state with another pivot and a new region."""
        X, y = self.box.to_unit(state.data.points), state.data.totals
        outside = (X - state.pivot).abs().amax(dim=1) > 0.5 * state.region.length
        eligible = (outside & (y <= y.median())).nonzero().flatten()
        if len(eligible) == 0:
            eligible = (y <= y.median()).nonzero().flatten()
        chosen = int(eligible[int(self._generator(stream=2).integers(len(eligible)))])
        value = float(y[chosen])
        region = self.rule.start(state.region.number + 1, value)
        return replace(state, pivot=X[chosen], best=value, region=region, failures=0)

    def _with_new_block(self, state: CobBOState) -> CobBOState:
        """The state with a new block and its virtual points."""
        d, generator = self.box.dimension, self._generator(stream=1)
        size = int(generator.integers(1, min(self.max_block, d) + 1))
        block = sample_block(state.log_weights, size, generator)
        X = self.box.to_unit(state.data.points)
        virtual, values = virtual_points(X, state.data.totals, state.pivot, block)
        return replace(
            state,
            block=block,
            virtual=virtual,
            virtual_values=values,
            projected=len(values),
            blocks=state.blocks + 1,
            block_queries=0,
            block_failures=0,
            last=state.last.new_empty(0),
        )
