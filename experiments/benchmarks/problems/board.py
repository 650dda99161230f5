"""Scores, ranks and paired differences of methods on the problems that they share.

On COCO's suites the score of a run is log10 of its final gap; gaps below 1e-8 count as 1e-8. On real problems, whose
optimum is unknown, it is 100 (v − l)/(f₀ − l), the percentage of the possible gain that the run did not reach. Here v
is the run's least value, l the least value that any method found on the problem, and f₀ the value at the start. All
methods except CMA-ES and COBYQA query the start first; if that query fails, f₀ is the largest of the methods' first
successful values. A score of 0 is best, 100 means no gain. A run without a success gets the problem's worst score.

COBYQA and NEWUOA run with two initial radii; "the better" one has the lower mean score in a dimension. Methods are
ranked among those that ran on the same problems, with the better of two radii and without our method's variant with
eight concurrent queries; tied methods share their mean rank. Differences are paired problem by problem, with Student's
interval over the problems. The problems include several similar instances of each function, so an interval describes
further instances, and further functions only roughly. If there are several black boxes, each one counts once, with the
mean over its seeds, and intervals are over the black boxes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.benchmarks.problems.coco_files import FLOOR
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import Record
from experiments.benchmarks.problems.suites import BOXES, Problem

OURS, EIGHT = "trust_region", "trust_region_8"
BETTER_COBYQA, BETTER_NEWUOA = "the better COBYQA", "the better NEWUOA"
PAIRS = {BETTER_COBYQA: ("cobyqa", "cobyqa_wide"), BETTER_NEWUOA: ("newuoa", "newuoa_wide")}
"""The rivals that run with two initial radii."""


class Difference(NamedTuple):
    """A mean of paired differences with its interval, which is NaN for a single difference.

    ``units`` is the number of problems or black boxes, and ``p`` the p-value of the one-sided test whose null
    hypothesis is that the mean is at least 0.
    """

    mean: float
    low: float
    high: float
    units: int
    p: float = np.nan

    def __str__(self) -> str:
        if self.units < 2:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclasses.dataclass(frozen=True)
class Board:
    """Scores of methods on problems; less is better.

    Attributes:
        methods: names; first of ``PAIRS`` whose two methods ran.
        problems: the problems.
        scores: ``methods x problems``; NaN if a method did not run.
        better: for each of the pairs and each dimension, the method with the lower mean score over all problems on
            which both ran.
    """

    methods: tuple[str, ...]
    problems: tuple[Problem, ...]
    scores: np.ndarray
    better: Mapping[str, Mapping[int, str]]

    @staticmethod
    def of(records: Iterable[Record]) -> Board:
        """Creates the board of some runs of one suite."""
        found = {(record.run.method, record.run.problem): record for record in records}
        methods = tuple(dict.fromkeys(method for method, _ in found))
        problems = tuple(sorted({problem for _, problem in found}, key=lambda p: (p.dimension, str(p.function), p)))
        scores = np.full((len(methods), len(problems)), np.nan)
        for column, problem in enumerate(problems):
            there = [row for row, method in enumerate(methods) if (method, problem) in found]
            runs = [found[methods[row], problem] for row in there]
            scores[there, column] = percent_left(runs) if problem.suite in BOXES else log_gaps(runs)
        known = {pair: _better(two, methods, problems, scores) for pair, two in PAIRS.items()}
        better = {pair: names for pair, names in known.items() if names}
        rows = [
            [
                scores[methods.index(names[p.dimension]), k] if p.dimension in names else np.nan
                for k, p in enumerate(problems)
            ]
            for names in better.values()
        ]
        return Board((*better, *methods), problems, np.vstack([*rows, scores]), better)

    def where(self, chosen: Callable[[Problem], bool]) -> Board:
        """Returns the board restricted to the chosen problems."""
        return self._columns([column for column, problem in enumerate(self.problems) if chosen(problem)])

    def shared(self, *methods: str) -> Board:
        """Returns the board restricted to the problems on which all these methods ran."""
        known = ~np.isnan(np.array([self.score(method) for method in methods])).any(axis=0)
        return self._columns(np.flatnonzero(known).tolist())

    def _columns(self, columns: list[int]) -> Board:
        problems = tuple(self.problems[column] for column in columns)
        return Board(self.methods, problems, self.scores[:, columns], self.better)

    @property
    def everywhere(self) -> tuple[str, ...]:
        """The methods that ran on all problems."""
        return tuple(m for m, row in zip(self.methods, self.scores, strict=True) if not np.isnan(row).any())

    def score(self, method: str) -> np.ndarray:
        """Returns a method's scores."""
        found: np.ndarray = self.scores[self.methods.index(method)]
        return found

    @property
    def ranked(self) -> tuple[str, ...]:
        """The methods that are ranked (see the module) among those that ran on all problems."""
        here = self.everywhere
        others = {EIGHT, *(variant for pair in PAIRS if pair in here for variant in PAIRS[pair])}
        return tuple(method for method in here if method not in others) if self.problems else ()

    def mean_ranks(self) -> dict[str, float]:
        """Returns the mean rank of each method that is ranked."""
        return {m: float(self._counted(row).mean()) for m, row in zip(self.ranked, self._ranks(), strict=True)}

    def rank_difference(self, method: str, other: str) -> Difference:
        """Returns the mean difference of the ranks of two methods that are ranked."""
        names, ranks = self.ranked, self._ranks()
        return interval(self._counted(ranks[names.index(method)] - ranks[names.index(other)]))

    def _ranks(self) -> np.ndarray:
        scores = [self.score(method) for method in self.ranked]
        found: np.ndarray = stats.rankdata(np.array(scores), axis=0) if scores else np.empty((0, 0))
        return found

    def mean_scores(self) -> dict[str, float]:
        """Returns the mean score of each method that ran on all problems."""
        return {name: float(self._counted(self.score(name)).mean()) for name in self.everywhere if self.problems}

    def difference(self, method: str, other: str, level: float = 0.95) -> Difference:
        """Returns the mean difference of two methods' scores over the problems on which both ran."""
        return interval(self._counted(self.score(method) - self.score(other)), level)

    def _counted(self, values: np.ndarray) -> np.ndarray:
        """Returns one value per problem, or the mean per black box; NaN are left out."""
        known = ~np.isnan(values)
        boxes = np.array([problem.suite in BOXES and problem.function for problem in self.problems], dtype=object)
        names = list(dict.fromkeys(boxes[known]))
        if len(names) < 2:
            return values[known]
        return np.array([values[known & (boxes == name)].mean() for name in names])


def _better(
    two: tuple[str, str], methods: Sequence[str], problems: Sequence[Problem], scores: np.ndarray
) -> dict[int, str]:
    if not all(method in methods for method in two):
        return {}
    found = {}
    for d in {problem.dimension for problem in problems}:
        at = np.array([problem.dimension == d for problem in problems])
        both = scores[[methods.index(method) for method in two]][:, at]
        both = both[:, ~np.isnan(both).any(axis=0)]
        if both.shape[1]:
            found[d] = two[int(both.mean(axis=1).argmin())]
    return found


def log_gaps(runs: Sequence[Record]) -> np.ndarray:
    """Returns log10 of the final gaps of the runs on one problem."""
    finals = np.array([run.final for run in runs])
    worst = finals[np.isfinite(finals)].max(initial=FLOOR)
    gaps: np.ndarray = np.log10(np.clip(np.where(np.isfinite(finals), finals, worst), FLOOR, None))
    return gaps


def percent_left(runs: Sequence[Record]) -> np.ndarray:
    """Returns for each run on one problem the percentage of the possible gain that it did not reach."""
    finals = np.array([run.final for run in runs])
    known = finals[np.isfinite(finals)]
    if not len(known):
        return np.full(len(runs), 100.0)
    least, start = least_and_start(runs)
    scale = start - least
    if scale <= 0:
        return np.zeros(len(runs))
    shares: np.ndarray = (np.where(np.isfinite(finals), finals, known.max()) - least) / scale
    return 100.0 * np.clip(shares, 0.0, 1.0)


def least_and_start(runs: Sequence[Record]) -> tuple[float, float]:
    """Returns l and f₀ (see the module) of the runs on one problem; at least one run must have a success."""
    first = {run.run.method: run.least[0] for run in runs if run.least}
    others = {name for name, rival in RIVALS.items() if not rival.asks_start}
    at_start = [value for method, (n, value) in first.items() if n == 1 and method not in others]
    return min(run.final for run in runs), max(at_start or [value for _, value in first.values()])


def interval(differences: np.ndarray, level: float = 0.95) -> Difference:
    """Returns the mean of paired differences, with Student's interval and one-sided test."""
    count = len(differences)
    mean = float(differences.mean()) if count else np.nan
    if count < 2:
        return Difference(mean, np.nan, np.nan, count)
    error = float(differences.std(ddof=1) / np.sqrt(count))
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * error
    p = float(stats.t.cdf(mean / error, count - 1)) if error else float(mean >= 0)
    return Difference(mean, mean - half, mean + half, count, p)


def holm(p: Sequence[float]) -> np.ndarray:
    """Returns p-values adjusted by Holm's method, which bounds the probability of any false rejection among them."""
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.sort(p) * np.arange(len(p), 0, -1)).clip(max=1.0)
    return adjusted
