"""TuRBO: Bayesian optimization in trust regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.history import DataAtHand
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_boolean, check_integer, optional, positive_integer, take_options
from optimizers.core.result import Estimate
from optimizers.methods.bayesian.local_gp import LocalGP, fit_local_gp
from optimizers.methods.bayesian.thompson import distinct_minimizers, sampled_candidates
from optimizers.methods.bayesian.turbo_region import TrustRegion, TrustRegionRule
from optimizers.methods.bayesian.unit_box import LEAST_DATA, Observations, UnitBox, check_prox_value


@dataclass
class TuRBOState:
    """TuRBO's state between batches.

    Attributes:
        data: the queries that succeeded.
        owner: the number of the trust region that made each query in ``data``, shape ``n``.
        regions: the current trust regions.
    """

    data: Observations
    owner: Tensor
    regions: list[TrustRegion]


class TuRBO(Optimizer):
    """Trust-region Bayesian optimization (Eriksson et al., 2019): TuRBO-1, and TuRBO-m with ``regions=m``.

    Each trust region is a box with sides L ℓ_i / (Π ℓ_j)^(1/d) around its best point. Its Gaussian process (Matérn 5/2
    with lengthscales ℓ, standardised values; see ``fit_local_gp``) is fitted to all queries made in the region. L
    follows ``TrustRegionRule``. A region with L < ``length_min`` is replaced by a new one with its own initial design.

    **Thompson sampling.** For each of the q queries of a batch, every region's joint posterior is sampled at the
    region's candidates. The candidate with the least sample over all regions is queried, so that regions compete.
    Candidates are Sobol' points in the region; each of their coordinates is kept with probability min(20/d, 1) and
    otherwise replaced by the center's coordinate.

    An idle worker gets an initial design if a region still needs one, otherwise one more query by Thompson sampling. A
    value that arrives after its region has ended does not change the other regions. The first region takes a history,
    and values of points that were not asked for; points outside the bounds are left out.

    The paper leaves some choices open. Here the center of a region is its point of least value, or with ``noisy=True``
    of least posterior mean. The initial design is a Latin hypercube; x0 replaces its first point in the first region.
    Each design is a batch of its own. Failed queries do not enter the models, and count as failures of their region. If
    a prox is given, it needs a method ``value``, and the objective is f + ψ.

    **When to use it.** For functions with many local minima, or rugged ones, in up to about 100 variables with hundreds
    of queries, as a global search before a local method. It is level with the default method on real black boxes
    (experiment ``problems-real``) and behind it on smooth functions.

    **Cost.** q queries per batch. With n queries in a region, a fit takes O(n³) time per iteration of L-BFGS-B, so that
    a query takes several times as long as with the default method.

    Args:
        batch_size: q, the number of queries in a batch; the last batch has as many as the budget allows.
        regions: m, the number of trust regions at a time.
        initial_points: the number of queries in a region's initial design; None: 2d, at least 4.
        candidates: the number of candidates in a region; None: min(100 d, 5000), at least 500.
        noisy: whether the center of a region is its point of least posterior mean.
        fit_steps: the largest number of L-BFGS-B iterations of a fit.
        **options: see ``TrustRegionRule`` and ``Optimizer``; ``bounds`` are required, finite on all sides.

    Raises:
        ValueError: without finite bounds, or for an option out of range.
    """

    method = "turbo"
    has_model = True
    version = 2
    takes_integers = True
    option_sets: ClassVar[tuple[type, ...]] = (TrustRegionRule,)
    state: TuRBOState

    def __init__(
        self,
        x0: Any = None,
        *,
        batch_size: int = 5,
        regions: int = 1,
        initial_points: int | None = None,
        candidates: int | None = None,
        noisy: bool = False,
        fit_steps: int = 50,
        **options: Any,
    ) -> None:
        self.initial_points = optional(check_integer, "initial_points", initial_points, LEAST_DATA)
        self.batch_size = positive_integer("batch_size", batch_size)
        self.regions = positive_integer("regions", regions)
        self.fit_steps = positive_integer("fit_steps", fit_steps)
        self.candidates = optional(positive_integer, "candidates", candidates)
        self.noisy, self.rule = check_boolean("noisy", noisy), take_options(TrustRegionRule, options)
        vars(self).update(vars(self.rule))
        super().__init__(x0, **options)

    def _start(self) -> None:
        check_prox_value(self.prox, "TuRBO")
        self.box = UnitBox.of(self.domain, "TuRBO")
        d = self.box.dimension
        self.rule = replace(self.rule, failure_tolerance=self.rule.failure_tolerance or max(d, 4))
        self._design_size = self.initial_points or max(2 * d, 4)
        self._num_candidates = self.candidates or max(min(100 * d, 5000), 500)
        self._fitted: dict[int, tuple[TrustRegion, LocalGP]] = {}
        self.state = TuRBOState(
            data=Observations.none(self._x),
            owner=torch.empty(0, dtype=torch.int64, device=self._x.device),
            regions=[self.rule.start(i) for i in range(self.regions)],
        )

    @property
    def observations(self) -> tuple[Tensor, Tensor]:
        """The points of the queries that succeeded, in user units, ``n x d``, and the values of f, shape ``n``."""
        return self._to_user(self.state.data.points), self.state.data.values.clone()

    def _undesigned(self) -> list[int]:
        """The numbers of the regions that have fewer than ``LEAST_DATA`` values."""
        numbers = [region.number for region in self.state.regions]
        return [number for number in numbers if int((self.state.owner == number).sum()) < LEAST_DATA]

    def _next_queries(self) -> int:
        size = self._design_size if self._undesigned() else self.batch_size
        return max(1, min(size, self.remaining))

    def _ask(self) -> Batch:
        undesigned, count = self._undesigned(), self._next_queries()
        return self._design(undesigned[0], count) if undesigned else self._queries(count)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        undesigned = self._undesigned()
        designs = {int(batch.info["regions"][0]) for batch in pending if batch.info["design"]}
        for number in undesigned:
            if number not in designs:
                return self._design(number, min(self._design_size, spare))
        return self._queries(1) if len(undesigned) < self.regions else None

    def _design(self, region: int, count: int) -> Batch:
        """The initial design of a region; its first point is x0 in the run's first batch."""
        points = self.box.design(count, self._generator(), self._x if self.next_id == 0 else None)
        regions = torch.full((count,), region, dtype=torch.int64, device=self._x.device)
        return self._points_batch(points, info={"regions": regions, "design": True})

    def _queries(self, count: int) -> Batch:
        """q minimizers of posterior samples in the regions that have a model."""
        candidates, draws, numbers, undesigned = [], [], [], self._undesigned()
        n, device = self._num_candidates, self._x.device
        for i, region in enumerate(self.state.regions):
            if region.number in undesigned:
                continue
            gp, center = self._model(region)
            generator = self._generator(stream=1 + i)
            points, drawn = sampled_candidates(gp, center, region.length, n, count, generator)
            candidates.append(points)
            draws.append(drawn)
            numbers.append(region.number)
        picks = distinct_minimizers(torch.cat(draws, dim=1))
        regions = torch.tensor(numbers, device=device)[picks // n]
        points = self.box.from_unit(torch.cat(candidates)[picks])
        return self._points_batch(points, info={"regions": regions, "design": False})

    def _data(self, region: TrustRegion) -> tuple[Tensor, Tensor]:
        """The region's points in the unit cube, ``n x d``, and f + ψ at them, shape ``n``."""
        own = self.state.owner == region.number
        return self.box.to_unit(self.state.data.points[own]), self.state.data.totals[own]

    def _model(self, region: TrustRegion) -> tuple[LocalGP, Tensor]:
        """The region's model, refitted whenever the region has changed, and its center."""
        X, y = self._data(region)
        fitted = self._fitted.get(region.number)
        if fitted is None or fitted[0] is not region:
            fitted = self._fitted[region.number] = (region, fit_local_gp(X, y, self.fit_steps))
        gp = fitted[1]
        return gp, X[int((gp.mean(X) if self.noisy else y).argmin())]

    def _estimate(self) -> Estimate | None:
        found = []
        for region in self.state.regions if self.noisy else ():
            X, y = self._data(region)
            if len(y) >= LEAST_DATA:
                gp, _ = self._model(region)
                least = int((means := gp.mean(X)).argmin())
                point = self.state.data.points[self.state.owner == region.number][least]
                found.append(Estimate(point, float(means[least]), float(gp.std(X[least][None])[0])))
        return min(found, key=itemgetter(1), default=None)

    def _take_history(self, data: DataAtHand) -> None:
        succeeded = torch.isfinite(data.totals)
        if not bool(succeeded.any()):
            return
        region, state = self.state.regions[0], self.state
        best = min(region.best, float(data.totals[succeeded].min()))
        self.state = TuRBOState(
            data=state.data.extended(data.points, data.values, data.totals),
            owner=torch.cat([state.owner, state.owner.new_full((int(succeeded.sum()),), region.number)]),
            regions=[replace(region, best=best), *state.regions[1:]],
        )
        self._x = self.state.data.best()

    def _tell(self, batch: Batch, values: Tensor) -> None:
        totals = self._composite(batch, values)
        succeeded = torch.isfinite(totals)
        owner = batch.info["regions"]
        regions = []
        for region in self.state.regions:
            own = owner == region.number
            best = float(totals[own & succeeded].min()) if bool((own & succeeded).any()) else math.inf
            if batch.info["design"] and bool(own.any()):
                regions.append(self.rule.start(region.number, min(region.best, best)))
            else:
                regions.append(self.rule.update(region, best, int(own.sum())))
        fresh = 1 + max(r.number for r in regions)
        for i, region in enumerate(regions):
            if self.rule.ended(region):
                regions[i], fresh = self.rule.start(fresh), fresh + 1
                self._fitted.pop(region.number, None)
        self.state = TuRBOState(
            data=self.state.data.extended(batch.explicit, values, totals),
            owner=torch.cat([self.state.owner, owner[succeeded]]),
            regions=regions,
        )
        if len(self.state.data):
            self._x = self.state.data.best()
