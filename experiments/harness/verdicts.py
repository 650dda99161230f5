"""Verdicts on claims: paired over shared seeds, with bootstrap intervals.

A claim that fails is reported as a result; it raises no exception and fails no test.

A claim is judged in cells; each is a setting of an experiment. A cell *holds* if its 95% interval lies entirely in the
claimed region, *fails* if the interval lies entirely outside, and is *undecided* if it contains the threshold. Status:

* ``reproduced``: every cell holds;
* ``partly``: some cells hold;
* ``undecided``: no cell holds, and every cell is undecided or the interval of the mean over cells contains the
  threshold;
* ``not reproduced``: in all other cases.

Only a claim of a paper is called reproduced; a claim of our own *holds* or *does not hold* (``Verdict.control``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar, get_args

import numpy as np

from optimizers.comparison.interval import bootstrap_interval
from surrogates.plotting import METHODS

Cell = TypeVar("Cell")

Status = Literal["reproduced", "partly", "undecided", "not reproduced"]
STATUSES: tuple[Status, ...] = get_args(Status)

OWN_WORDS: dict[Status, tuple[str, str]] = {
    "reproduced": ("holds", "hold"),
    "partly": ("holds partly", "hold partly"),
    "undecided": ("undecided", "undecided"),
    "not reproduced": ("does not hold", "do not hold"),
}
"""Words for each status of our own claims, for one claim and for several."""

ON_STAND_IN = " on the stand-in"
"""Suffix of a status that rests on a stand-in for the paper's data."""
DIFFERS = " on the paper's data, other model or size"
"""Suffix of a status that rests on the paper's data with another model, or on a part of them."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    Attributes:
        claim: the claim in one sentence.
        status: ``reproduced``, ``partly``, ``undecided`` or ``not reproduced``.
        statistic: the quantity that ``estimate`` measures, with its unit or scale.
        estimate: its mean over seeds.
        interval: 95% bootstrap interval of the mean over seeds.
        seeds: the seeds; if empty, ``Experiment.judged`` inserts those of all records.
        detail: the thresholds, the cell nearest to them, and the cells that fail or are undecided.
        held: number of cells in which the claim holds.
        settings: number of cells.
        control: whether the claim is our own; ``reproduced`` then means that it holds.
        undecided: number of undecided cells.
        stand_in: what replaced the paper's data; empty if nothing did.
        differs: differences from the paper's model or size, if the paper's data were used; empty if there are none.
    """

    claim: str
    status: Status
    statistic: str
    estimate: float
    interval: tuple[float, float]
    seeds: tuple[int, ...] = ()
    detail: str = ""
    held: int = 1
    settings: int = 1
    control: bool = False
    undecided: int = 0
    stand_in: str = ""
    differs: str = ""

    @property
    def basis(self) -> str:
        """The suffix of the status that names the data and model used; empty for the paper's data and model."""
        return ON_STAND_IN if self.stand_in else DIFFERS if self.differs else ""

    def said(self) -> str:
        """Describes the status, with its basis and, for ``partly``, the number of cells."""
        word = (OWN_WORDS[self.status][0] if self.control else self.status) + self.basis
        return f"{word}, in {self.held} of {self.settings} settings" if self.status == "partly" else word

    def measured(self) -> str:
        """Formats statistic, estimate and interval."""
        low, high = self.interval
        return f"{self.statistic}: {self.estimate:.3g} ({low:.3g} to {high:.3g})"

    def line(self) -> str:
        """Formats the verdict as one line."""
        return f"{self.said()}: {self.claim}; {self.measured()}"


def judge(
    claim: str,
    statistic: str,
    cells: Mapping[str, np.ndarray],
    *,
    above: float = -math.inf,
    below: float = math.inf,
    control: bool = False,
) -> Verdict:
    """Judges the claim "the mean over seeds lies between two thresholds in every cell" by the module's rule.

    A cell is one setting of the experiment, such as a smoothing radius and a number of queries. The estimate is the
    mean over cells and seeds; its interval is a bootstrap over seeds.

    Args:
        claim: the claim in one sentence.
        statistic: the quantity that the cells' numbers measure.
        cells: label of each cell and its numbers, one per seed, in the same order of seeds in all cells.
        above: lower threshold.
        below: upper threshold.
        control: whether the claim is our own.

    Raises:
        ValueError: without a threshold or cells, or if cells have numbers of different seeds.
    """
    if math.isinf(above) and math.isinf(below):
        raise ValueError(f"{claim!r}: a verdict needs a threshold; pass above or below")
    if len({len(values) for values in cells.values()}) != 1:
        raise ValueError(f"{claim!r}: every cell needs one number for each seed, got {[*map(len, cells.values())]}")
    intervals = {label: bootstrap_interval(values) for label, values in cells.items()}
    failed = [label for label, (low, high) in intervals.items() if high < above or low > below]
    held = [label for label, (low, high) in intervals.items() if low > above and high < below]
    open_ = [label for label in cells if label not in failed and label not in held]
    slack = {label: min(low - above, below - high) for label, (low, high) in intervals.items()}
    tightest = min(slack, key=lambda label: slack[label])
    low, high = intervals[tightest]
    bars = [f"{name} {bar:g}" for name, bar in (("above", above), ("below", below)) if math.isfinite(bar)]
    detail = f"threshold: {' and '.join(bars)}"
    if len(cells) > 1:
        detail += f"; nearest to it at {tightest}: {np.mean(cells[tightest]):.3g} ({low:.3g} to {high:.3g})"
        for said, labels in (("fails at ", failed), ("undecided at ", open_)):
            if labels:
                detail += f"; {said}" + ", ".join(labels)
    pooled = np.mean(list(cells.values()), axis=0)
    interval = bootstrap_interval(pooled)
    on_a_bar = any(interval[0] <= bar <= interval[1] for bar in (above, below))
    status: Status = "reproduced" if len(held) == len(cells) else "partly"
    if not held:
        status = "undecided" if on_a_bar or not failed else "not reproduced"
    return Verdict(
        claim=claim,
        status=status,
        statistic=statistic if len(cells) == 1 else f"{statistic}, mean of {len(cells)} settings",
        estimate=float(pooled.mean()),
        interval=interval,
        detail=detail,
        held=len(held),
        settings=len(cells),
        control=control,
        undecided=len(open_),
    )


def at_least(verdict: Verdict, enough: int, claim: str) -> Verdict:
    """Judges a verdict anew as "the claim holds in at least ``enough`` cells"."""
    held, possible = verdict.held, verdict.held + verdict.undecided
    status: Status = "reproduced" if held >= enough else "undecided" if possible >= enough else "not reproduced"
    return dataclasses.replace(verdict, claim=claim, status=status)


def judge_pairs(
    pairs: Iterable[tuple[str, str, bool]],
    claim: str,
    statistic: str,
    measure: Callable[[Cell, str], np.ndarray],
    cells: Mapping[str, Cell],
    **bars: float,
) -> list[Verdict]:
    """Judges a claim about the difference of two methods, for each pair of methods.

    Args:
        pairs: a method, another method, and whether the claim is our own.
        claim: format string for the two labels, such as ``{} ends lower than {}``.
        statistic: the quantity that the difference measures.
        measure: maps a cell and a method to one number per seed.
        cells: label of each cell and the first argument of ``measure``.
        **bars: thresholds of the difference, ``above`` and ``below``.
    """
    verdicts = []
    for method, other, control in pairs:
        differences = {label: measure(cell, method) - measure(cell, other) for label, cell in cells.items()}
        words = claim.format(METHODS[method].label, METHODS[other].label)
        verdicts.append(judge(words, statistic, differences, control=control, **bars))
    return verdicts


def never(claim: str, statistic: str, violations: np.ndarray, trials: np.ndarray) -> Verdict:
    """Judges the claim that something never happens by the share of trials in which it happens; each seed is a cell.

    The status is ``reproduced`` without a violation, ``partly`` below 5% of violations, and never ``undecided``.
    """
    share = np.asarray(violations, dtype=float) / np.asarray(trials, dtype=float)
    total = float(np.sum(violations) / np.sum(trials))
    return Verdict(
        claim=claim,
        status="reproduced" if total == 0 else "partly" if total < 0.05 else "not reproduced",
        statistic=statistic,
        estimate=total,
        interval=bootstrap_interval(share),
        detail=f"{int(np.sum(violations))} of {int(np.sum(trials))} trials violate it",
        held=int((share == 0).sum()),
        settings=len(share),
    )


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of plain texts, which the page escapes.

    Attributes:
        columns: headings; the first column names the rows.
        rows: one text per column.
        caption: explains the cells: unit, interval, printed values.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"a row of the table must have {len(self.columns)} cells, got {len(wrong[0])}: {wrong[0]}")


def with_sd(values: Sequence[float] | np.ndarray, mean: str = ".4g", sd: str = ".2g") -> str:
    """Formats mean and standard deviation over seeds, such as ``0.93 ± 0.02``."""
    values = np.asarray(values, dtype=float)
    return f"{values.mean():{mean}} ± {values.std(ddof=1) if len(values) > 1 else 0.0:{sd}}"
