"""Verdicts on a paper's claims: paired over shared seeds, with bootstrap intervals.

A claim that fails is reported as it came out; it is never an exception and never a failing test.

A claim is judged in cells, the settings of an experiment. A cell *holds* where its 95% interval lies wholly in the
claimed region, *fails* where it lies wholly outside, and is *undecided* where it has a part of both, or touches the
threshold. The status of the claim follows:

* ``reproduced``: every cell holds;
* ``partly``: some hold;
* ``undecided``: none holds, and either every cell is undecided, or the interval of the mean over cells has the
  threshold in it;
* ``not reproduced``: none holds otherwise.
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

CONTROL_WORDS: dict[Status, str] = {
    "reproduced": "holds",
    "partly": "holds partly",
    "undecided": "undecided",
    "not reproduced": "does not hold",
}
"""What a status says of a control."""

ON_STAND_IN = " on the stand-in"
"""What is added to every status where the data are not the paper's."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out for one claim.

    Attributes:
        claim: the claim in one sentence.
        status: ``reproduced``, ``partly``, ``undecided`` or ``not reproduced``.
        statistic: what ``estimate`` measures, with its unit or scale.
        estimate: the mean over seeds.
        interval: its 95% bootstrap interval over seeds.
        seeds: the seeds that it rests on.
        detail: what a reader should know besides: the settings that failed or are undecided, the tightest one.
        held: in how many settings the claim holds.
        settings: of how many.
        control: whether the claim is ours, a baseline or a check beside the paper's claims; for a control
            ``reproduced`` says that it holds.
        undecided: in how many settings it is undecided.
        stand_in: what took the place of the paper's data; empty where they were used, or none were needed.
    """

    claim: str
    status: Status
    statistic: str
    estimate: float
    interval: tuple[float, float]
    seeds: tuple[int, ...]
    detail: str = ""
    held: int = 1
    settings: int = 1
    control: bool = False
    undecided: int = 0
    stand_in: str = ""

    def said(self, words: Mapping[Status, str] | None = None) -> str:
        """The status in words: its own, a control's, or others; on what, and where partly in how many settings."""
        word = (words or CONTROL_WORDS)[self.status] if words or self.control else self.status
        if self.stand_in:
            word += ON_STAND_IN
        return f"{word}, in {self.held} of {self.settings} settings" if self.status == "partly" else word

    def measured(self) -> str:
        """Statistic, estimate and interval."""
        low, high = self.interval
        return f"{self.statistic}: {self.estimate:.3g} ({low:.3g} to {high:.3g})"

    def line(self) -> str:
        """One line for a terminal."""
        status = f"control, {self.said()}" if self.control else self.said()
        return f"{status}: {self.claim}; {self.measured()}"


def judge(
    claim: str,
    statistic: str,
    cells: Mapping[str, np.ndarray],
    seeds: Sequence[int],
    *,
    above: float = -math.inf,
    below: float = math.inf,
    control: bool = False,
) -> Verdict:
    """Verdict on "the mean over seeds lies between two bars in every cell", by the module's rule.

    A cell is one setting of the experiment: a smoothing radius and a number of queries, say. The estimate is the mean
    over cells, its interval the bootstrap over seeds of each seed's mean over cells.

    Args:
        claim: the claim in one sentence.
        statistic: what a cell's numbers measure.
        cells: label of a cell to one number a seed, all in the same order of ``seeds``.
        seeds: the seeds.
        above: the lower bar.
        below: the upper bar.
        control: whether the claim is ours rather than the paper's.

    Raises:
        ValueError: without a bar or cells, or with cells that do not have one number a seed.
    """
    if math.isinf(above) and math.isinf(below):
        raise ValueError(f"{claim!r}: a verdict needs a bar, above or below")
    if not cells or any(len(values) != len(seeds) for values in cells.values()):
        raise ValueError(f"{claim!r}: every cell needs one number for each of the {len(seeds)} seeds")
    intervals = {label: bootstrap_interval(values) for label, values in cells.items()}
    failed = [label for label, (low, high) in intervals.items() if high < above or low > below]
    held = [label for label, (low, high) in intervals.items() if low > above and high < below]
    open_ = [label for label in cells if label not in failed and label not in held]
    slack = {label: min(low - above, below - high) for label, (low, high) in intervals.items()}
    tightest = min(slack, key=lambda label: slack[label])
    low, high = intervals[tightest]
    bars = [f"{name} {bar:g}" for name, bar in (("above", above), ("below", below)) if math.isfinite(bar)]
    detail = f"asked: {' and '.join(bars)}"
    if len(cells) > 1:
        detail += f"; tightest at {tightest}: {np.mean(cells[tightest]):.3g} ({low:.3g} to {high:.3g})"
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
        seeds=tuple(seeds),
        detail=detail,
        held=len(held),
        settings=len(cells),
        control=control,
        undecided=len(open_),
    )


def at_least(verdict: Verdict, enough: int, claim: str) -> Verdict:
    """A verdict in every cell, judged anew as one in so many of them: undecided while undecided cells could decide."""
    held, possible = verdict.held, verdict.held + verdict.undecided
    status: Status = "reproduced" if held >= enough else "undecided" if possible >= enough else "not reproduced"
    return dataclasses.replace(verdict, claim=claim, status=status)


def judge_pairs(
    pairs: Iterable[tuple[str, str, bool]],
    claim: str,
    statistic: str,
    measure: Callable[[Cell, str], np.ndarray],
    cells: Mapping[str, Cell],
    seeds: Sequence[int],
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> list[Verdict]:
    """A verdict for each pair of methods on "the one's measure minus the other's lies between two bars in every cell".

    Args:
        pairs: a method, another one, and whether the claim is a control.
        claim: formats the labels of both methods, such as ``{} ends lower than {}``.
        statistic: what the difference of their measures is.
        measure: of a cell and a method, one number a seed.
        cells: label of a cell to what ``measure`` takes for it.
        seeds: the seeds.
        above: the lower bar.
        below: the upper bar.
    """
    verdicts = []
    for method, other, control in pairs:
        differences = {label: measure(cell, method) - measure(cell, other) for label, cell in cells.items()}
        words = claim.format(METHODS[method].label, METHODS[other].label)
        verdicts.append(judge(words, statistic, differences, seeds, above=above, below=below, control=control))
    return verdicts


def never(claim: str, statistic: str, violations: np.ndarray, trials: np.ndarray, seeds: Sequence[int]) -> Verdict:
    """Verdict on "it never happens": the share of trials that violate, one count a seed; a setting is a seed.

    ``reproduced`` without a violation, ``partly`` while under 5% of the trials violate; never ``undecided``, as one
    violation decides.
    """
    share = np.asarray(violations, dtype=float) / np.asarray(trials, dtype=float)
    total = float(np.sum(violations) / np.sum(trials))
    return Verdict(
        claim=claim,
        status="reproduced" if total == 0 else "partly" if total < 0.05 else "not reproduced",
        statistic=statistic,
        estimate=total,
        interval=bootstrap_interval(share),
        seeds=tuple(seeds),
        detail=f"{int(np.sum(violations))} of {int(np.sum(trials))} trials violate it",
        held=int((share == 0).sum()),
        settings=len(seeds),
    )


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells as they are to be read; the page escapes and sets them.

    Attributes:
        columns: headings; the first is that of the rows' names.
        rows: one text a column each.
        caption: what a cell is: its unit, what stands beside what.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"a table of {len(self.columns)} columns has a row of {len(wrong[0])}: {wrong[0]}")


def with_sd(values: Sequence[float] | np.ndarray, mean: str = ".4g", sd: str = ".2g") -> str:
    """Mean of one number a seed with its standard deviation, such as ``0.93 ± 0.02``; the formats of both."""
    values = np.asarray(values, dtype=float)
    return f"{values.mean():{mean}} ± {values.std(ddof=1) if len(values) > 1 else 0.0:{sd}}"
