"""CobBO: Bayesian optimization in a changing block of coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.history import DataAtHand
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_integer, optional, positive_integer
from optimizers.methods.bayesian.coordinate_blocks import CLUSTER_RADIUS, sample_block, updated_weights, virtual_points
from optimizers.methods.bayesian.local_gp import LocalGP, fit_local_gp, maximize_acquisition
from optimizers.methods.bayesian.turbo_region import TrustRegion, TrustRegionRule
from optimizers.methods.bayesian.unit_box import LEAST_DATA, Observations, UnitBox, check_prox_value

MAX_BLOCK = 30
"""The largest number of coordinates in a block."""


def backs_off(queries: int, failures: int, gain: float, step: float, limit: int, patience: int) -> bool:
    """Decides whether CobBO leaves its present block of coordinates.

    It leaves the block after ``patience`` consecutive failures, after ``limit`` queries, or after a marginal
    improvement (``gain`` and ``step`` below 0.01). The paper's Section 3.2 names such quantities but gives no formula.

    Args:
        queries: the number of queries made in the block.
        failures: the number of consecutive queries in the block that did not improve on the best value.
        gain: the last query's improvement divided by the spread of the values; 0 without an improvement.
        step: root mean square over the block's coordinates of the difference between the last two queries in the
            block, in box widths; inf after the first query.
        limit: the largest number of queries in a block.
        patience: the number of consecutive failures that ends a block.
    """
    return failures >= patience or queries >= limit or (0.0 < gain < 0.01 and step < 0.01)


@dataclass
class CobBOState:
    """CobBO's state between queries; all points except those in ``data`` are in the unit cube of the free coordinates.

    Attributes:
        data: the queries that succeeded.
        log_weights: the logarithms of the coordinates' weights, shape ``d``.
        pivot: the pivot V, shape ``d``.
        best: the value M at the pivot.
        region: the trust region about the pivot.
        failures: q, the number of consecutive queries that did not improve on M.
        block: the indices of the present block's c coordinates; empty before the first block.
        virtual: the virtual points, followed by the queries made in the block, ``v x c``.
        virtual_values: the values at the points in ``virtual``, shape ``v``.
        projected: the number of virtual points, without the queries made in the block.
        blocks: the number of blocks so far.
        block_queries: the number of queries made in the block.
        block_failures: the number of consecutive queries in the block that did not improve on M.
        last: the last query made in the block, shape ``d``; empty before the first query.
    """

    data: Observations
    log_weights: Tensor
    pivot: Tensor
    best: float
    region: TrustRegion
    block: Tensor
    virtual: Tensor
    virtual_values: Tensor
    last: Tensor
    failures: int = 0
    projected: int = 0
    blocks: int = 0
    block_queries: int = 0
    block_failures: int = 0


class CobBO(Optimizer):
    """Coordinate backoff Bayesian optimization (Tan et al. 2021, arXiv:2101.05147, Alg. 1).

    Every query lies in a subspace: it differs from the pivot V, usually the best point, only in a block of coordinates.
    A query is chosen in two stages. First, all observations are projected onto the subspace, and values at the
    projections are computed by multiquadric interpolation in all coordinates. Second, a Matérn 5/2 process with one
    lengthscale per coordinate of the block is fitted to the projections, and the point of largest expected improvement
    on M, the value at V, is queried. A query that does not improve on M is a failure. A stopping rule ends the block.
    The size of the next block is drawn uniformly from 1 to 30, and its coordinates by multiplicative weights (eq. 2).
    After the initial design, a batch is one query.

    An idle worker gets one more query: the point with the largest expected improvement jointly with the pending points
    of the block or, to avoid a repetition, a random point of the trust region. A value that arrives after its block has
    ended only adds data, unless it is below M and V has not escaped (see below) in the meantime. In that case V moves
    to the point of the value, and a new block begins. The same applies to a history and to values of points that were
    not asked for; points outside the bounds are left out.

    We do not follow the paper's appendix. Where its main text is silent, we read it as follows:

    - Stopping rule: a block of c coordinates ends after ``patience`` consecutive failures, after a marginal improvement
      (``backs_off``), or after max(``patience``, ⌈T c/(10 d)⌉) queries for a budget of T queries.
    - Trust region: queries are confined to a cube around V, clipped to the box. The side of the cube follows TuRBO's
      rule with one query per batch.
    - Escape: after ``escape_after`` consecutive failures, or when the trust region ends, V moves to a random
      observation outside the region whose value is not above the median, and M becomes its value. A new region and a
      new block begin.
    - First stage: points within 1e-3 (root mean square over coordinates, in box widths) of a better point are left out.
    - Second stage: the hyperparameters are fitted when a block begins, and the process is then conditioned on the
      queries made in the block. Interpolated values count like observed values.

    Failed queries enter neither stage, and count as failures. If a prox is given, it needs a method ``value``, and the
    objective is f + ψ.

    **When to use it.** For many variables of which few matter at a time, and for functions with many local minima.

    **Cost.** One query per step; after N queries, a new block takes O(N²d + N³) time.

    Args:
        x0: initial point, shape ``d``, and first point of the initial design.
        initial_points: τ, the number of queries in the initial Latin hypercube; None: 2d, at least 4.
        patience: the number of consecutive failures that ends a block.
        escape_after: the number of consecutive failures after which the pivot moves; None: 3d, at least 30.
        failure_tolerance: the number of consecutive failures that halves the trust region; None: d, at least 10.
        fit_steps: the largest number of L-BFGS-B iterations of a fit.
        **common: see ``Optimizer``; ``bounds`` are required, finite on all sides.

    Raises:
        ValueError: without finite bounds, or for an option out of range.
    """

    method = "cobbo"
    has_model = True
    version = 2
    takes_integers = True
    state: CobBOState

    def __init__(
        self,
        x0: Any = None,
        *,
        initial_points: int | None = None,
        patience: int = 3,
        escape_after: int | None = None,
        failure_tolerance: int | None = None,
        fit_steps: int = 50,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.initial_points = optional(check_integer, "initial_points", initial_points, LEAST_DATA)
        self.patience = positive_integer("patience", patience)
        self.escape_after = optional(positive_integer, "escape_after", escape_after)
        self.failure_tolerance = optional(positive_integer, "failure_tolerance", failure_tolerance)
        self.fit_steps = positive_integer("fit_steps", fit_steps)
        super().__init__(x0, **common)

    def _start(self) -> None:
        check_prox_value(self.prox, "CobBO")
        self.box = UnitBox.of(self.domain, "CobBO")
        d = self.box.dimension
        self.rule = TrustRegionRule(failure_tolerance=self.failure_tolerance or max(d, 10), improvement=0.0)
        self._design_size = self.initial_points or max(2 * d, 4)
        self._escape_after = self.escape_after or max(3 * d, 30)
        self._fitted: tuple[Tensor, LocalGP] | None = None
        empty = self._x.new_empty(0, dtype=torch.float64)
        self.state = CobBOState(
            data=Observations.none(self._x),
            log_weights=self._x.new_zeros(d, dtype=torch.float64),
            pivot=self.box.to_unit(self._x),
            best=math.inf,
            region=self.rule.start(0),
            block=torch.empty(0, dtype=torch.int64, device=self._x.device),
            virtual=empty,
            virtual_values=empty,
            last=empty,
        )

    @property
    def observations(self) -> tuple[Tensor, Tensor]:
        """The points of the queries that succeeded, in user units, ``n x d``, and the values of f, shape ``n``."""
        return self._to_user(self.state.data.points), self.state.data.values.clone()

    def _next_queries(self) -> int:
        size = self._design_size if len(self.state.block) == 0 else 1
        return max(1, min(size, self.remaining))

    def _ask(self) -> Batch:
        if len(self.state.block) == 0:
            first = self._x if self.iterations == 0 else None
            design = self.box.design(self._next_queries(), self._generator(), first)
            return self._points_batch(design, info={"design": True})
        return self._query(None)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        state = self.state
        if len(state.block) == 0:
            return None
        own = [
            batch.explicit for batch in pending if batch.explicit is not None and batch.info["block"] == state.blocks
        ]
        return self._query(self.box.to_unit(torch.cat(own))[:, state.block] if own else None)

    def _query(self, pending: Tensor | None) -> Batch:
        """The point of largest expected improvement on M, jointly with pending points in the block, ``p x c``."""
        state, generator = self.state, self._generator()
        gp = self._fit().with_data(state.virtual, state.virtual_values)
        center, half = state.pivot[state.block], 0.5 * state.region.length
        lower, upper = (center - half).clamp(0.0, 1.0), (center + half).clamp(0.0, 1.0)
        seed, sampler_seed = (int(number) for number in generator.integers(2**31, size=2))
        acquisition = gp.log_expected_improvement(state.best, sampler_seed, pending)
        point = maximize_acquisition(acquisition, lower, upper, seed)
        if pending is not None and bool(((pending - point).square().mean(1) < CLUSTER_RADIUS**2).any()):
            uniforms = torch.from_numpy(generator.random(len(point))).to(point)
            point = lower + (upper - lower) * uniforms
        query = state.pivot.clone()
        query[state.block] = point
        info = {"block": state.blocks, "region": state.region.number}
        return self._points_batch(self.box.from_unit(query)[None], info=info)

    def _fit(self) -> LocalGP:
        """The process fitted to the virtual points; the fit is kept as long as the block is the same tensor."""
        state = self.state
        if self._fitted is None or self._fitted[0] is not state.block:
            virtual, values = state.virtual[: state.projected], state.virtual_values[: state.projected]
            self._fitted = (state.block, fit_local_gp(virtual, values, self.fit_steps))
        return self._fitted[1]

    def _tell(self, batch: Batch, values: Tensor) -> None:
        totals = self._composite(batch, values)
        data = self.state.data.extended(batch.explicit, values, totals)
        if len(self.state.block) > 0:
            query = self.box.to_unit(batch.search_point(0))
            if batch.info["block"] == self.state.blocks:
                self.state = self._after_query(data, query, float(totals[0]))
            else:
                self.state = self._after_late_query(data, query, float(totals[0]), batch.info["region"])
        else:
            self.state = self._begun(data)
        if len(data):
            self._x = data.best()

    def _begun(self, data: Observations) -> CobBOState:
        """The state with a block about the best of the data, if these suffice for a fit."""
        state = replace(self.state, data=data)
        if len(data) < LEAST_DATA:
            return state
        best = int(data.totals.argmin())
        value = float(data.totals[best])
        pivot, region = self.box.to_unit(data.points[best]), self.rule.start(state.region.number, value)
        return self._with_new_block(replace(state, pivot=pivot, best=value, region=region))

    def _take_history(self, data: DataAtHand) -> None:
        extended = self.state.data.extended(data.points, data.values, data.totals)
        better = len(extended) > 0 and float(extended.totals.min()) < self.state.best
        self.state = self._begun(extended) if better else replace(self.state, data=extended)
        if len(extended):
            self._x = extended.best()

    def _after_late_query(self, data: Observations, query: Tensor, value: float, region: int) -> CobBOState:
        """The state after a query of a block that has ended; ``region`` is the number of its trust region."""
        state = replace(self.state, data=data)
        if not value < state.best or region != state.region.number:
            return state
        return self._with_new_block(
            replace(state, pivot=query, best=value, region=self.rule.update(state.region, value, 1), failures=0)
        )

    def _after_query(self, data: Observations, query: Tensor, value: float) -> CobBOState:
        """The state after a query in the subspace; its value is not finite if it failed."""
        old, block = self.state, self.state.block
        succeeded = math.isfinite(value)
        improved = succeeded and value < old.best
        spread = float(data.totals.median() - data.totals.min())
        gain = (old.best - value) / spread if improved and spread > 0.0 else 0.0
        step = float((query - old.last).square().sum() / len(block)) ** 0.5 if len(old.last) else math.inf
        state = replace(
            old,
            data=data,
            log_weights=updated_weights(old.log_weights, block, improved),
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
        if backs_off(state.block_queries, state.block_failures, gain, step, limit, self.patience):
            return self._with_new_block(state)
        return state

    def _escaped(self, state: CobBOState) -> CobBOState:
        """The state with another pivot and a new trust region about it."""
        X, y = self.box.to_unit(state.data.points), state.data.totals
        outside = (X - state.pivot).abs().amax(dim=1) > 0.5 * state.region.length
        eligible = (outside & (y <= y.median())).nonzero().flatten()
        if len(eligible) == 0:
            eligible = (y <= y.median()).nonzero().flatten()
        chosen = int(eligible[int(self._generator(stream=2, step=self.iterations).integers(len(eligible)))])
        value = float(y[chosen])
        region = self.rule.start(state.region.number + 1, value)
        return replace(state, pivot=X[chosen], best=value, region=region, failures=0)

    def _with_new_block(self, state: CobBOState) -> CobBOState:
        """The state with a new block and the virtual points of its subspace."""
        d, generator = self.box.dimension, self._generator(stream=1, step=self.iterations)
        size = int(generator.integers(1, min(MAX_BLOCK, d) + 1))
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
