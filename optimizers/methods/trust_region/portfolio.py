"""A portfolio of two searches over ripples: local steps, and posterior samples in a wide region."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.bayesian.local_gp import fit_local_gp
from optimizers.methods.bayesian.thompson import distinct_minimizers, sampled_candidates
from optimizers.methods.bayesian.turbo_region import TrustRegion, TrustRegionRule
from optimizers.methods.trust_region.box import FreeBox

REGION = TrustRegionRule(improvement=0.0)
"""TuRBO's rule for the wide region; any lower value is a success, as in the paper."""


@dataclass(frozen=True)
class Share:
    """The queries and the gain of a search in a run since ripples were seen.

    Attributes:
        queries: the number of its queries.
        gain: the mean by which its last queries lowered the least value.
    """

    queries: int = 0
    gain: float = 0.0

    def after(self, queries: int, decrease: float, memory: float) -> Share:
        """Returns the share after queries that lowered the least value by ``decrease``.

        The weight of a query in the gain falls by the factor 1 − 1/``memory`` with each later one.
        """
        kept = (1.0 - 1.0 / memory) ** queries
        return Share(self.queries + queries, kept * self.gain + (1.0 - kept) * decrease / queries)


@dataclass(frozen=True)
class Portfolio:
    """The state of the portfolio in a run.

    Attributes:
        region: the wide region.
        local: the share of all queries that are not samples.
        wide: the share of the samples.
        noted_at: the number of evaluations when gains were last noted.
    """

    region: TrustRegion = TrustRegion(0, REGION.length_init)
    local: Share = Share()
    wide: Share = Share()
    noted_at: int = 0


@dataclass(frozen=True)
class PortfolioRule:
    """Shares the queries of a model that smooths over ripples between local steps and samples in a wide region.

    Samples are made as in TuRBO (Eriksson et al., 2019): they are points of least value of posterior samples of a
    Gaussian process with a lengthscale for each variable, in a box about the run's best query. (Not with a prox,
    constraints, residuals, integers, infinite sides, one variable or ``noise=0``.)

    Attributes:
        least: each search has at least this share of a run's queries since ripples were seen. The rest belongs to the
            search whose last queries lowered the least value more. 0: no samples.
        few: the least share of the samples while local steps make progress.
        progress: local steps make progress if their gain is at least this fraction of the mean decrease by a query.
        batch: the number of samples that are queried as one batch.
        memory: a search's gain is the mean over about this number of its last queries.
        recent: the process is fitted to the best and the last queries of the run, at most this number.
        iterations: the number of L-BFGS-B iterations of its fit.
        candidates: the number of points at which a sample is drawn.
        most: with more variables than this, there are no samples.
    """

    least: float = 0.33
    few: float = 0.1
    progress: float = 0.1
    batch: int = 5
    memory: float = 10
    recent: int = 300
    iterations: int = 20
    candidates: int = 1000
    most: int = 200

    def holds(self, box: FreeBox) -> bool:
        """Whether there are samples in a box."""
        continuous = 1 < box.d <= self.most and not box.has_integers
        return self.least > 0 and continuous and bool(torch.isfinite(box.sides).all())

    def wants_sample(self, portfolio: Portfolio, mean_decrease: float) -> bool:
        """Whether samples have the next queries.

        Args:
            portfolio: the state.
            mean_decrease: the mean decrease of the run's least value by one of its queries.
        """
        local, wide = portfolio.local, portfolio.wide
        count, stalled = local.queries + wide.queries, local.gain < self.progress * mean_decrease
        if wide.queries < (self.least if stalled else self.few) * (count + self.batch):
            return True
        return local.queries >= self.least * (count + 1) and wide.gain > local.gain

    def sample(
        self, box: FreeBox, points: Tensor, values: Tensor, region: TrustRegion, random: np.random.Generator
    ) -> Tensor:
        """Finds the points of least value of posterior samples in the wide region, ``batch x d_free``.

        Args:
            box: the box, finite on all sides.
            points: the run's queries, ``n x d_free``.
            values: f at the queries, shape ``n``.
            region: the wide region.
            random: the random generator.
        """
        used, best = torch.arange(max(0, len(values) - self.recent), len(values)), int(values.argmin())
        used[0] = min(int(used[0]), best)
        unit = (points - box.lower) / box.sides
        gp = fit_local_gp(unit[used], values[used], self.iterations)
        candidates, draws = sampled_candidates(gp, unit[best], region.length, self.candidates, self.batch, random)
        return box.clamped(box.lower + box.sides * candidates[distinct_minimizers(draws)])

    def sampled(self, portfolio: Portfolio, lowest: float, values: Tensor, d: int) -> Portfolio:
        """Updates the wide region after the values of samples, shape ``q``, given the run's least value before."""
        rule = replace(REGION, failure_tolerance=max(d, 4))
        least = float(values.nan_to_num(nan=math.inf).min())
        region = rule.update(replace(portfolio.region, best=lowest), least, len(values))
        return replace(portfolio, region=rule.start(0) if rule.ended(region) else region)

    def noted(self, portfolio: Portfolio, decrease: float, queries: int, search: str | None) -> Portfolio:
        """Notes by how much the least value has fallen after a number of evaluations, for a search.

        ``search`` is ``"local"`` or ``"wide"``; None: the evaluations do not count.
        """
        count = queries - portfolio.noted_at
        if search is not None and count > 0:
            share = getattr(portfolio, search).after(count, decrease, self.memory)
            portfolio = replace(portfolio, **{search: share})
        return replace(portfolio, noted_at=queries)
