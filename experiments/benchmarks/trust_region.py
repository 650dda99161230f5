"""``python -m experiments benchmark trust-region``: measures the gain from each component of the default method.

Each row of the table switches one component off, by options of ``TrustRegionRules`` or by another rule, and runs on the
same problems: by default twelve functions from all groups of COCO's ``bbob`` at d = 5 and 10, on instances that are
used for tuning. A row reports the change of the final log gap with its standard error over problems; a positive change
means that the component helps. On real black boxes, whose optimum is unknown, the score of a run is the percentage of
the best row's gain that the run did not reach.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import registry
from experiments.benchmarks import output
from experiments.benchmarks.problems.board import log_gaps, percent_left
from experiments.benchmarks.problems.runs import Record, Run, record_of
from experiments.benchmarks.problems.suites import BOXES, SIDE, SUITES, Problem, chosen, opened
from optimizers import SurrogateTrustRegion, run
from optimizers.methods.trust_region.portfolio import PortfolioRule
from optimizers.methods.trust_region.radius import RadiusRule
from optimizers.methods.trust_region.rules import (
    DesignRule,
    ExplorationRule,
    FailureRule,
    GeometryRule,
    ModelRule,
    NoiseRule,
    RestartRule,
    TrustRegionRules,
)
from surrogates.pinned.engine import PinnedData, ShapeSearch
from surrogates.pinned.prior import PinnedPrior

FUNCTIONS = (1, 2, 6, 7, 8, 10, 12, 13, 15, 17, 20, 22)

LENGTHSCALES = (0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0)
"""The candidates of ``LikeliestLengthscale``."""


class LikeliestLengthscale(ModelRule):
    """Chooses the most likely of ``LENGTHSCALES``, after a separate fit of the other hyperparameters for each."""

    def data(
        self, U: torch.Tensor, heights: torch.Tensor, variance: float, weights: torch.Tensor | None = None
    ) -> PinnedData:
        """Returns the data conditioned under the most likely lengthscale."""
        priors = [replace(self.prior, lengthscale=lengthscale) for lengthscale in LENGTHSCALES]
        trials = [PinnedData.of(U, heights, variance, prior, weights) for prior in priors]
        return min(trials, key=lambda trial: trial.loss(self.search.fitted(trial, None)))


class BothSides(DesignRule):
    """An initial design with points on both sides of the start along each variable."""

    def wants_opposite(self, heights: torch.Tensor) -> bool:
        """Returns True: the opposite point of each direction is always queried."""
        return True


class VarianceRule(GeometryRule):
    """Makes geometry-improving queries along the direction in which the gradient's posterior variance is largest."""

    def weights(self, hessian: torch.Tensor, least: float) -> torch.Tensor:
        """Returns the identity, which weights all directions equally."""
        return torch.eye(len(hessian), dtype=hessian.dtype)


class NoiseAlone(NoiseRule):
    """Smooths noisy values, but not the ripples of deterministic ones."""

    def smooths(self, noisy: bool | None) -> bool:
        """Returns whether the values are noisy."""
        return bool(noisy)


class RandomPoints(RestartRule):
    """Restarts at a random point whatever its value is."""

    def begins_at_best(self, value: float, start_value: float, spanning: bool) -> bool:
        """Returns False: a restart never begins at the best point."""
        return False


def _model(**options: Any) -> TrustRegionRules:
    return TrustRegionRules(model=ModelRule(**options))


PROTOTYPE = TrustRegionRules(
    model=LikeliestLengthscale(prior=PinnedPrior(shared=0.0), search=ShapeSearch(evidence=float("inf")), power=0.25),
    geometry=VarianceRule(),
    failures=FailureRule(reach=0.0),
)

ROWS: dict[str, TrustRegionRules] = {
    "all": TrustRegionRules(),
    "without the Matérn part": _model(search=ShapeSearch(amplitudes=(1e-6, 1e-6))),
    "the most likely lengthscale": TrustRegionRules(model=LikeliestLengthscale()),
    "a lengthscale of 1": _model(prior=PinnedPrior(lengthscale=1.0)),
    "without the quadratic form": _model(prior=PinnedPrior(quadratic=0.0)),
    "without the shared curvature": _model(prior=PinnedPrior(shared=0.0)),
    "without the metric": _model(power=0.0),
    "the metric of the curvatures' roots": _model(power=0.25),
    "without geometry queries": TrustRegionRules(geometry=GeometryRule(limit=0)),
    "geometry queries where the variance is most": TrustRegionRules(geometry=VarianceRule()),
    "a design of 2d + 1 points": TrustRegionRules(design=BothSides(directions=60)),
    "metric and noise from the first query on": _model(young=0),
    "metric and noise after 2d queries alone": _model(few=float("inf")),
    "without Newton steps after the first": _model(newton=0),
    "without noise and ripples": _model(search=ShapeSearch(evidence=float("inf"))),
    "ripples told from noise, not smoothed over": TrustRegionRules(noise=NoiseAlone()),
    "ripples smoothed over until no more is seen": TrustRegionRules(noise=NoiseRule(early=0)),
    "ripples smoothed over without a lower value": TrustRegionRules(noise=NoiseRule(patience=float("inf"))),
    "steps that fail on rough functions": TrustRegionRules(noise=NoiseRule(fruitless=float("inf"))),
    "coarser scales for ripples in a subspace": TrustRegionRules(noise=NoiseRule(coarsest=float("inf"))),
    "the finest scales for ripples in a subspace": TrustRegionRules(noise=NoiseRule(descent=0)),
    "a window of 100 for ripples in a subspace": TrustRegionRules(noise=NoiseRule(window=0)),
    "without samples over ripples": TrustRegionRules(portfolio=PortfolioRule(least=0)),
    "without errors at kinks": TrustRegionRules(noise=NoiseRule(kinks=float("inf"))),
    "without near queries at kinks": TrustRegionRules(geometry=GeometryRule(coverage=0)),
    "without coarser scales on plateaus": TrustRegionRules(noise=NoiseRule(plateaus=0)),
    "without searches of hyper-parameters after the first": _model(search=ShapeSearch(later=0)),
    "any number of steps may fall short by chance": TrustRegionRules(exploration=ExplorationRule(limit=float("inf"))),
    "new runs at any random point": TrustRegionRules(restart=RandomPoints()),
    "queries of a finer scale in the window": _model(close=0.0),
    "half the first radius": TrustRegionRules(radius=RadiusRule(initial=0.1)),
    "radius grows at any decrease": TrustRegionRules(radius=RadiusRule(poor=0.1)),
    "the prototype's model": PROTOTYPE,
}


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "trust-region",
        __doc__,
        arguments,
        suite=("bbob", "COCO's suite, or real", ("bbob", "bbob-noisy", "bbob-largescale", "real")),
        dimensions=((5, 10), "dimensions of COCO's problems"),
        functions=(tuple(map(str, FUNCTIONS)), "COCO's functions, or black boxes by name"),
        instances=((4, 5, 6), "COCO's instances, from 4 on, or seeds"),
        queries=(20, "queries per variable on COCO's problems"),
        rows=(tuple(ROWS), "rows besides the first", ROWS),
    )
    registry.require("problems", "the benchmark trust-region")
    functions = [int(name) if name.isdigit() else name for name in options.functions]
    suite = SUITES[options.suite]
    problems = chosen(suite, options.dimensions, functions, options.instances, options.queries)
    rows = dict.fromkeys(["all", *options.rows])
    found = [[record(name, problem) for name in rows] for problem in problems]
    score, unit = (percent_left, "% left") if suite.name in BOXES else (log_gaps, "log10 gap")
    scores = dict(zip(rows, np.transpose([score(runs) for runs in found]).tolist(), strict=True))
    return output.write(options.out, "trust-region", summary(scores, unit), scores=scores)


def record(row: str, problem: Problem) -> Record:
    """Returns the record of a row's run on a problem; the method has the row's name."""
    with tempfile.TemporaryDirectory() as folder:
        with opened(problem, "trust_region", Path(folder)) as found:
            box = [(-SIDE, SIDE)] * problem.dimension
            optimizer = SurrogateTrustRegion(found.start, bounds=box, max_queries=problem.queries, rules=ROWS[row])
            run(optimizer, lambda x: found.fun(x.numpy()))
        assert found.progress is not None
        return record_of(Run(row, problem), found.progress)


def summary(scores: Mapping[str, Sequence[float]], unit: str) -> list[str]:
    """Formats the table."""
    whole = np.asarray(scores["all"])
    lines = [f"mean {unit} with all components: {whole.mean():.2f}, over {len(whole)} problems; the change without:"]
    for name, found in scores.items():
        change = np.asarray(found) - whole
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            error = change.std(ddof=1) / len(change) ** 0.5
        lines.append(f"  {name:52} {change.mean():+.3f} ± {error:.3f}")
    return lines
