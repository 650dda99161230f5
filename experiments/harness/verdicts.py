"""Verdicts on a paper's claims: paired over shared seeds, with bootstrap intervals.

A claim that fails is reported as it came out; it is never an exception and never a failing test.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from scipy import stats

from experiments.harness.style import METHODS

Cell = TypeVar("Cell")

Status = Literal["reproduced", "partly", "not reproduced"]

CONTROL_WORDS: dict[Status, str] = {
    "reproduced": "holds",
    "partly": "holds partly",
    "not reproduced": "does not hold",
}
"""What a status says of a control."""

CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out for one claim.

    Attributes:
        claim: the claim in one sentence.
        status: ``reproduced``, ``partly`` or ``not reproduced``.
        statistic: what ``estimate`` measures, with its unit or scale.
        estimate: the mean over seeds.
        interval: its 95% bootstrap interval over seeds.
        seeds: the seeds that it rests on.
        detail: what a reader should know besides: the settings that failed, the tightest one.
        held: in how many settings the claim holds.
        settings: of how many.
        control: whether the claim is ours, a baseline or a check beside the paper's claims; for a control
            ``reproduced`` says that it holds.
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

    def line(self) -> str:
        """One line for a terminal."""
        low, high = self.interval
        status = f"control, {CONTROL_WORDS[self.status]}" if self.control else self.status
        if self.status == "partly":
            status += f" (in {self.held} of {self.settings} settings)"
        return f"{status}: {self.claim}; {self.statistic} {self.estimate:.3g} ({low:.3g} to {high:.3g})"


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """95% bootstrap interval of the mean (bias-corrected, accelerated; Efron 1987), the same at every call.

    Args:
        values: one number a seed (for a paired comparison: the difference within the seed).

    Raises:
        ValueError: with fewer than two values or with values that are not finite.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"an interval needs at least two finite values, one a seed; got {values}")
    if np.ptp(values) <= 1e-15 * np.abs(values).max():
        return float(values[0]), float(values[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = _bootstrap(values, "BCa")
        if not np.isfinite(result).all():
            result = _bootstrap(values, "percentile")
    return result


def _bootstrap(values: np.ndarray, method: str) -> tuple[float, float]:
    result = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method=method,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(result.low), float(result.high)


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
    """Verdict on "the mean over seeds lies between two bars in every cell".

    A cell (one setting of the experiment: a smoothing radius and a number of queries, say) holds where its
    95% interval lies wholly between the bars. All cells holding is ``reproduced``, none ``not reproduced``,
    else ``partly``. The estimate is the mean over cells, its interval the bootstrap over seeds of each seed's
    mean over cells.

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
    failed = [label for label, (low, high) in intervals.items() if not (low > above and high < below)]
    slack = {label: min(low - above, below - high) for label, (low, high) in intervals.items()}
    tightest = min(slack, key=lambda label: slack[label])
    low, high = intervals[tightest]
    bars = [f"{name} {bar:g}" for name, bar in (("above", above), ("below", below)) if math.isfinite(bar)]
    detail = f"asked: {' and '.join(bars)}"
    if len(cells) > 1:
        detail += f"; tightest at {tightest}: {np.mean(cells[tightest]):.3g} ({low:.3g} to {high:.3g})"
        if failed:
            detail += "; does not hold at " + ", ".join(failed)
    pooled = np.mean(list(cells.values()), axis=0)
    return Verdict(
        claim=claim,
        status="partly" if 0 < len(failed) < len(cells) else "not reproduced" if failed else "reproduced",
        statistic=statistic if len(cells) == 1 else f"{statistic}, mean of {len(cells)} settings",
        estimate=float(pooled.mean()),
        interval=bootstrap_interval(pooled),
        seeds=tuple(seeds),
        detail=detail,
        held=len(cells) - len(failed),
        settings=len(cells),
        control=control,
    )


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

    ``reproduced`` without a violation, ``partly`` while under 5% of the trials violate.
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


def with_interval(values: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """Mean of one number a seed with its 95% bootstrap interval, such as ``0.93 (0.9 to 0.95)``."""
    values = np.asarray(values, dtype=float)
    low, high = bootstrap_interval(values)
    return f"{values.mean():.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"


def with_sd(values: Sequence[float] | np.ndarray, mean: str = ".4g", sd: str = ".2g") -> str:
    """Mean of one number a seed with its standard deviation, such as ``0.93 ± 0.02``; the formats of both."""
    values = np.asarray(values, dtype=float)
    return f"{values.mean():{mean}} ± {values.std(ddof=1) if len(values) > 1 else 0.0:{sd}}"
