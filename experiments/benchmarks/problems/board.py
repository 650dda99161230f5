"""The arithmetic of the tables: gaps, ranks and paired differences of methods on the problems that they share.

On COCO's suites a run counts by log10 of its gap, from 1e-8 on. A real problem has no known optimum: there it is how
many percent of what could be gained were left, 100 (least value − l)/(f₀ − l), where l is the least value that any
method found on the problem and f₀ the start's value, which all methods but CMA-ES and COBYQA ask first; where that
query fails, f₀ is the largest of the methods' first successes. It is from 0, the best, to 100, no gain. A run without a
success counts as the worst one on its problem.

Ranks are among methods that were run on all of the same problems, the mean rank for ties. A difference is paired
problem by problem, its interval Student's over them. The instances of a function are among them and alike: an interval
speaks of other instances, and of other functions less surely. Where there are several black boxes each counts once, by
the mean over its seeds, however many these are, and intervals are over the boxes.
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
from experiments.benchmarks.problems.suites import Problem

OURS, EIGHT = "trust_region", "trust_region_8"
COBYQAS = ("cobyqa", "cobyqa_wide")
BETTER_COBYQA = "the better COBYQA"


class Difference(NamedTuple):
    """A mean of paired differences with its 95% interval, NaN of one, and how many problems or boxes it is over."""

    mean: float
    low: float
    high: float
    units: int

    def __str__(self) -> str:
        if self.units < 2:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclasses.dataclass(frozen=True)
class Board:
    """Scores of methods on problems, less being better.

    Attributes:
        methods: names.
        problems: the problems.
        scores: ``methods x problems``; NaN where a method was not run.
        better: the better COBYQA in each dimension, the one with the lower mean score over all of the suite's problems
            there; empty without both.
    """

    methods: tuple[str, ...]
    problems: tuple[Problem, ...]
    scores: np.ndarray
    better: Mapping[int, str]

    @staticmethod
    def of(records: Iterable[Record]) -> Board:
        """The board of some runs of one suite."""
        found = {(record.run.method, record.run.problem): record for record in records}
        methods = tuple(dict.fromkeys(method for method, _ in found))
        problems = tuple(sorted({problem for _, problem in found}, key=lambda p: (p.dimension, str(p.function), p)))
        scores = np.full((len(methods), len(problems)), np.nan)
        for column, problem in enumerate(problems):
            there = [row for row, method in enumerate(methods) if (method, problem) in found]
            runs = [found[methods[row], problem] for row in there]
            scores[there, column] = percent_left(runs) if problem.suite == "real" else log_gaps(runs)
        return Board(methods, problems, scores, _better(methods, problems, scores))

    def where(self, chosen: Callable[[Problem], bool]) -> Board:
        """The board of some of the problems."""
        return self._columns([column for column, problem in enumerate(self.problems) if chosen(problem)])

    def shared(self, *methods: str) -> Board:
        """The board of the problems that these methods were run on."""
        known = ~np.isnan(np.array([self.score(method) for method in methods])).any(axis=0)
        return self._columns(np.flatnonzero(known).tolist())

    def _columns(self, columns: list[int]) -> Board:
        problems = tuple(self.problems[column] for column in columns)
        return Board(self.methods, problems, self.scores[:, columns], self.better)

    @property
    def everywhere(self) -> tuple[str, ...]:
        """The methods that were run on all problems."""
        return tuple(m for m, row in zip(self.methods, self.scores, strict=True) if not np.isnan(row).any())

    def has(self, method: str) -> bool:
        """Whether a method was run; the better COBYQA if both were in all dimensions."""
        if method == BETTER_COBYQA:
            return all(problem.dimension in self.better for problem in self.problems)
        return method in self.methods

    def score(self, method: str) -> np.ndarray:
        """A method's scores; of the better COBYQA those of the better one in each dimension, NaN without both."""
        return self._row(method, self.scores, self.methods)

    def _row(self, method: str, rows: np.ndarray, methods: Sequence[str]) -> np.ndarray:
        if method != BETTER_COBYQA:
            found: np.ndarray = rows[list(methods).index(method)]
            return found
        names = [self.better.get(problem.dimension) for problem in self.problems]
        cells = [rows[methods.index(m), column] if m in methods else np.nan for column, m in enumerate(names)]
        return np.array(cells, dtype=float)

    def mean_ranks(self) -> dict[str, float]:
        """The mean rank of each method that was run on all problems, among these; and of the better COBYQA."""
        methods = self.everywhere
        if not methods or not self.problems:
            return {}
        ranks = self._ranks(methods)
        names = [*methods, *([BETTER_COBYQA] if self._both_everywhere else [])]
        return {method: float(self._counted(self._row(method, ranks, methods)).mean()) for method in names}

    def rank_difference(self, method: str, other: str) -> Difference:
        """The mean of one method's rank less another's, among the methods that were run on all problems."""
        methods = self.everywhere
        ranks = self._ranks(methods)
        return interval(self._counted(ranks[methods.index(method)] - ranks[methods.index(other)]))

    def _ranks(self, methods: Sequence[str]) -> np.ndarray:
        found: np.ndarray = stats.rankdata(np.array([self.score(method) for method in methods]), axis=0)
        return found

    def mean_scores(self) -> dict[str, float]:
        """The mean score of each method that was run on all problems; and of the better COBYQA."""
        names = [*self.everywhere, *([BETTER_COBYQA] if self._both_everywhere else [])]
        return {method: float(self._counted(self.score(method)).mean()) for method in names if self.problems}

    @property
    def _both_everywhere(self) -> bool:
        return all(method in self.everywhere for method in COBYQAS) and self.has(BETTER_COBYQA)

    def difference(self, method: str, other: str) -> Difference:
        """The mean of one method's score less another's over the problems that both were run on."""
        return interval(self._counted(self.score(method) - self.score(other)))

    def _counted(self, values: np.ndarray) -> np.ndarray:
        """What counts once of values, NaN where there is none: that of each problem, or the mean of each black box."""
        known = ~np.isnan(values)
        boxes = np.array([problem.suite == "real" and problem.function for problem in self.problems], dtype=object)
        names = list(dict.fromkeys(boxes[known]))
        if len(names) < 2:
            return values[known]
        return np.array([values[known & (boxes == name)].mean() for name in names])


def _better(methods: Sequence[str], problems: Sequence[Problem], scores: np.ndarray) -> dict[int, str]:
    if not all(method in methods for method in COBYQAS):
        return {}
    found = {}
    for d in {problem.dimension for problem in problems}:
        at = np.array([problem.dimension == d for problem in problems])
        both = scores[[methods.index(method) for method in COBYQAS]][:, at]
        both = both[:, ~np.isnan(both).any(axis=0)]
        if both.shape[1]:
            found[d] = COBYQAS[int(both.mean(axis=1).argmin())]
    return found


def log_gaps(runs: Sequence[Record]) -> np.ndarray:
    """log10 of the gaps of runs on one problem."""
    finals = np.array([run.final for run in runs])
    worst = finals[np.isfinite(finals)].max(initial=FLOOR)
    gaps: np.ndarray = np.log10(np.clip(np.where(np.isfinite(finals), finals, worst), FLOOR, None))
    return gaps


def percent_left(runs: Sequence[Record]) -> np.ndarray:
    """The percentage of what could be gained that runs on one problem have left."""
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
    """l and f₀ of runs on one problem, of which one or more have a success."""
    first = {run.run.method: run.least[0] for run in runs if run.least}
    others = {name for name, rival in RIVALS.items() if not rival.asks_start}
    at_start = [value for method, (n, value) in first.items() if n == 1 and method not in others]
    return min(run.final for run in runs), max(at_start or [value for _, value in first.values()])


def interval(differences: np.ndarray) -> Difference:
    """The mean of paired differences with Student's 95% interval."""
    count = len(differences)
    if count == 0:
        return Difference(np.nan, np.nan, np.nan, 0)
    mean = float(differences.mean())
    if count == 1:
        return Difference(mean, np.nan, np.nan, 1)
    half = float(stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / np.sqrt(count))
    return Difference(mean, mean - half, mean + half, count)
