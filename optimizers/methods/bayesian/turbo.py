"""TuRBO: Bayesian optimization in trust regions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.designs import sobol
from optimizers.methods.bayesian.local_gp import LocalGP, fit_local_gp, maximize_acquisition
from optimizers.methods.bayesian.observations import Observations, check_prox_value, initial_design
from optimizers.methods.bayesian.trust_region import TrustRegion, TrustRegionRule, perturbed_candidates, region_bounds
from optimizers.methods.bayesian.unit_box import UnitBox
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, check_integer, positive_integer
from optimizers.state import load_fields

Acquisition = Literal["thompson", "log_ei"]

LEAST_DATA = 2
"""Values that a region's model needs; with fewer its initial design is drawn again."""


@dataclass
class TuRBOState:
    """All that TuRBO carries from batch to batch.

    Attributes:
        data: the queries that succeeded.
        owner: number of the region that made each of them, shape ``n``.
        regions: the current trust regions.
    """

    data: Observations
    owner: Tensor
    regions: list[TrustRegion]


class TuRBO(Optimizer):
    """Trust-region Bayesian optimization (Eriksson et al., 2019): TuRBO-1, and TuRBO-m with ``regions=m``.

    Each region has a Gaussian process of its own (Matérn 5/2, ARD, values standardised; see
    ``fit_local_gp``), fitted to all that was queried in it, and is a box about its best point with sides
    L ℓ_i / (Π ℓ_j)^(1/d). L follows ``TrustRegionRule``; a region with L < ``length_min`` is replaced by a
    new one with an initial design of its own.

    **Thompson sampling** (the default): for each of the q queries a sample of every region's joint posterior
    at its candidates is drawn, in f's units, and the least value over all regions and candidates is
    queried: the implicit bandit over regions. Candidates are Sobol' points of the region of which each
    coordinate is taken with probability min(20/d, 1), and the center's otherwise.
    **LogEI** (``acquisition="log_ei"``): the q queries are chosen one after the other, each the point of
    largest expected improvement on the best value of the current regions, jointly with what is already
    chosen in its region.

    Readings where the paper leaves a choice: the center is the point of least value, with ``noisy=True`` of
    least posterior mean; the initial design of the first region has x0 as its first point and a Latin
    hypercube for the others; each design is a batch of its own. Failed queries stay out of the model and
    count as failures of their region. The objective is f + ψ where a prox with a value is given.

    Args:
        x0: initial point, shape ``d``.
        batch_size: q, queries a batch; the last one has what the budget holds.
        regions: m, trust regions at a time.
        initial_points: queries of a region's initial design; None: 2d, at least 4.
        acquisition: ``"thompson"`` or ``"log_ei"``.
        candidates: Thompson sampling's candidates in a region; None: min(100 d, 5000), at least 500.
        success_tolerance: successful batches in a row that double L.
        failure_tolerance: unsuccessful queries in a row that halve L; None: d (the paper's ⌈d/q⌉ batches),
            at least 4.
        length_init: first L, in units of the box's width.
        length_min: L at which a region ends.
        length_max: largest L.
        improvement: relative improvement that makes a success.
        noisy: center regions at the least posterior mean.
        fit_steps: most L-BFGS-B iterations of a fit.
        **common: see ``Optimizer``; ``bounds`` are needed, finite on all sides.

    Raises:
        ValueError: without finite bounds, or for an option out of range.
    """

    method = "turbo"
    state: TuRBOState

    def __init__(
        self,
        x0: Any,
        *,
        batch_size: int = 5,
        regions: int = 1,
        initial_points: int | None = None,
        acquisition: Acquisition = "thompson",
        candidates: int | None = None,
        success_tolerance: int = 3,
        failure_tolerance: int | None = None,
        length_init: float = 0.8,
        length_min: float = 0.5**7,
        length_max: float = 1.6,
        improvement: float = 1e-3,
        noisy: bool = False,
        fit_steps: int = 50,
        **common: Unpack[CommonOptions],
    ) -> None:
        if acquisition not in ("thompson", "log_ei"):
            raise ValueError(f"acquisition must be 'thompson' or 'log_ei', got {acquisition!r}")
        if initial_points is not None:
            check_integer("initial_points", initial_points, LEAST_DATA)
        self.batch_size = positive_integer("batch_size", batch_size)
        self.regions, self.fit_steps = (
            positive_integer("regions", regions),
            positive_integer("fit_steps", fit_steps),
        )
        self.success_tolerance = positive_integer("success_tolerance", success_tolerance)
        self.failure_tolerance = (
            None if failure_tolerance is None else positive_integer("failure_tolerance", failure_tolerance)
        )
        self.candidates = None if candidates is None else positive_integer("candidates", candidates)
        self.initial_points, self.acquisition, self.noisy = initial_points, acquisition, bool(noisy)
        self.length_init, self.length_min, self.length_max = length_init, length_min, length_max
        self.improvement = improvement
        super().__init__(x0, **common)

    def _start(self) -> None:
        check_prox_value(self.prox, "TuRBO")
        self.box = UnitBox.of(self.domain, "TuRBO")
        d = self.box.dimension
        self.rule = TrustRegionRule(
            failure_tolerance=self.failure_tolerance or max(d, 4),
            success_tolerance=self.success_tolerance,
            length_init=self.length_init,
            length_min=self.length_min,
            length_max=self.length_max,
            improvement=self.improvement,
        )
        self._design_size = self.initial_points or max(2 * d, 4)
        self._num_candidates = self.candidates or max(min(100 * d, 5000), 500)
        self._fitted: dict[int, tuple[int, LocalGP]] = {}
        self.state = TuRBOState(
            data=Observations(self._x),
            owner=torch.empty(0, dtype=torch.int64, device=self._x.device),
            regions=[self.rule.start(i) for i in range(self.regions)],
        )

    def _load_state(self, state: Mapping[str, Any]) -> None:
        loaded = load_fields(self.state, state, self._x0.device)
        loaded.regions = [TrustRegion(**region) for region in loaded.regions]
        self.state, self._fitted = loaded, {}

    @property
    def observations(self) -> tuple[Tensor, Tensor]:
        """Points of the queries that succeeded, user units, ``n x d``, and f there, shape ``n``."""
        return self._to_user(self.state.data.points), self.state.data.values.clone()

    def _undesigned(self) -> int | None:
        """The first region that has too few values for a model."""
        for i, region in enumerate(self.state.regions):
            if int((self.state.owner == region.number).sum()) < LEAST_DATA:
                return i
        return None

    def _next_queries(self) -> int:
        size = self.batch_size if self._undesigned() is None else self._design_size
        return max(1, min(size, self.remaining))

    def _ask(self) -> Batch:
        region, count = self._undesigned(), self._next_queries()
        if region is None:
            choose = self._thompson if self.acquisition == "thompson" else self._log_ei
            unit, regions = choose(count)
            return self._points_batch(self.box.from_unit(unit), info={"regions": regions, "design": False})
        first = self._x if self.iterations == 0 else None
        points = initial_design(self.box, count, self._generator(), first)
        regions = torch.full((count,), region, dtype=torch.int64, device=self._x.device)
        return self._points_batch(points, info={"regions": regions, "design": True})

    def _data(self, region: TrustRegion) -> tuple[Tensor, Tensor]:
        own = self.state.owner == region.number
        return self.box.to_unit(self.state.data.points[own]), self.state.data.totals[own]

    def _model(self, region: TrustRegion) -> tuple[LocalGP, Tensor]:
        """The region's model, kept until it has new data, and its center."""
        X, y = self._data(region)
        if region.number not in self._fitted or self._fitted[region.number][0] != len(y):
            self._fitted[region.number] = (len(y), fit_local_gp(X, y, self.fit_steps))
        gp = self._fitted[region.number][1]
        return gp, X[int((gp.mean(X) if self.noisy else y).argmin())]

    def _thompson(self, count: int) -> tuple[Tensor, Tensor]:
        """Points that q posterior samples prefer, ``q x d``, and their regions, shape ``q``."""
        candidates, draws = [], []
        d, n, device = self.box.dimension, self._num_candidates, self._x.device
        for i, region in enumerate(self.state.regions):
            gp, center = self._model(region)
            lower, upper = region_bounds(center, gp.lengthscales, region.length)
            generator = self._generator(stream=1 + i)
            unit = sobol(n, d, generator).to(device)
            uniforms = torch.from_numpy(generator.random((n, d))).to(device)
            normals = torch.from_numpy(generator.standard_normal((count, n))).to(device)
            points = perturbed_candidates(center, lower, upper, unit, uniforms, min(20.0 / d, 1.0))
            candidates.append(points)
            draws.append(gp.draw(points, normals))
        picks = distinct_minimizers(torch.cat(draws, dim=1))
        return torch.cat(candidates)[picks], picks // n

    def _log_ei(self, count: int) -> tuple[Tensor, Tensor]:
        """Points of largest expected improvement, one after the other, ``q x d``, and their regions."""
        generator = self._generator()
        best = min(region.best for region in self.state.regions)
        chosen: list[list[Tensor]] = [[] for _ in self.state.regions]
        proposals: dict[int, tuple[Tensor, float]] = {}
        points, regions = [], []
        for _ in range(count):
            for i, region in enumerate(self.state.regions):
                if i in proposals:
                    continue
                gp, center = self._model(region)
                lower, upper = region_bounds(center, gp.lengthscales, region.length)
                seeds = [int(s) for s in generator.integers(2**31, size=2)]
                pending = torch.stack(chosen[i]) if chosen[i] else None
                acquisition = gp.log_expected_improvement(best, seeds[0], pending)
                point, value = maximize_acquisition(acquisition, lower, upper, seeds[1])
                proposals[i] = (point, value + math.log(gp.scale))
            i = max(proposals, key=lambda j: proposals[j][1])
            point, _ = proposals.pop(i)
            chosen[i].append(point)
            points.append(point)
            regions.append(i)
        return torch.stack(points), torch.tensor(regions, device=self._x.device)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        totals = self._composite(batch, values)
        succeeded = torch.isfinite(totals)
        slots = batch.info["regions"]
        numbers = torch.tensor([r.number for r in self.state.regions], device=slots.device)
        regions = []
        for i, region in enumerate(self.state.regions):
            own = slots == i
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
            data=self.state.data.extended(batch, values, totals),
            owner=torch.cat([self.state.owner, numbers[slots][succeeded]]),
            regions=regions,
        )
        if len(self.state.data):
            self._x = self.state.data.best()


def distinct_minimizers(draws: Tensor) -> Tensor:
    """The minimizer of each row, none of them twice while others are left, shape ``q``.

    Args:
        draws: values, ``q x n``.
    """
    draws, picks = draws.clone(), []
    for row in draws:
        pick = int(row.argmin())
        picks.append(pick)
        if len(picks) < draws.shape[1]:
            draws[:, pick] = math.inf
    return torch.tensor(picks, device=draws.device)
