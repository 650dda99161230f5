"""What a run has reached, query by query, and COCO's files of it.

COCO's observer knows what no user does: the least value that there is, and of a noisy problem the value without noise.
Its files say, for queries that grow in equal ratios (``.tdat``) and for each target that is reached (``.dat``), the
least value without noise so far over the optimum. These rows are the progress of a run here, so that the tables and
``cocopp`` speak of the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FLOOR = 1e-8
"""A gap below this is as good as none: COCO's last target."""

TARGETS = tuple(10.0 ** (k / 5) for k in range(10, -41, -1))
"""COCO's 51 targets, gaps from 100 to 1e-8 in equal ratios."""

A_DECADE = 10
"""Counts of queries that are kept in each decade."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The least value so far, or the least gap.

    Attributes:
        queries: counts of queries, ascending.
        least: the least value, or gap, after so many queries; NaN before the first success.
        asked: how many queries there were.
    """

    queries: tuple[int, ...]
    least: tuple[float, ...]
    asked: int

    @staticmethod
    def of(values: Sequence[float]) -> Progress:
        """From the values of all queries, NaN for one that failed."""
        found = np.asarray(values, dtype=float)
        least = np.fmin.accumulate(np.where(np.isfinite(found), found, np.nan)) if len(found) else found
        new = [n for n in range(len(least)) if n == 0 or least[n] != least[n - 1]]
        return Progress(tuple(n + 1 for n in new), tuple(float(least[n]) for n in new), len(found))

    @property
    def final(self) -> float:
        """The least of all; inf without a success."""
        known = [value for value in self.least if not math.isnan(value)]
        return known[-1] if known else math.inf

    def at(self, count: int) -> float:
        """The least after so many queries; inf before the first success."""
        before = [least for n, least in zip(self.queries, self.least, strict=True) if n <= count]
        return before[-1] if before and not math.isnan(before[-1]) else math.inf

    def reached(self, targets: Sequence[float] = TARGETS) -> list[int | None]:
        """For each target the count of queries at which it was reached."""
        pairs = list(zip(self.queries, self.least, strict=True))
        return [next((n for n, least in pairs if least <= target), None) for target in targets]

    def thinned(self) -> list[tuple[int, float]]:
        """Counts in equal ratios with the least after each, in four digits."""
        counts = log_spaced(self.asked)
        return [(n, float(f"{self.at(n):.4g}")) for n in counts if math.isfinite(self.at(n))]


def log_spaced(last: int) -> list[int]:
    """Whole numbers in about equal ratios from 1 to ``last``, ten a decade; ``last`` is among them."""
    if last < 1:
        return []
    steps = math.ceil(A_DECADE * math.log10(last)) if last > 1 else 0
    return sorted({*(round(10 ** (k / A_DECADE)) for k in range(steps)), last})


def progress_in(folder: Path) -> Progress:
    """The progress of the one run whose files COCO's observer left in a folder; without a query there are none.

    Raises:
        ValueError: for files of several runs, or of another format.
    """
    rows: dict[int, float] = {}
    for kind in ("dat", "tdat"):
        files = list(folder.rglob(f"*.{kind}"))
        if len(files) > 1:
            raise ValueError(f"{folder} holds files of several runs")
        for file in files:
            rows |= _rows(file)
    counts = sorted(rows)
    asked = counts[-1] if counts else 0
    new = [n for k, n in enumerate(counts) if k == 0 or rows[n] < rows[counts[k - 1]]]
    return Progress(tuple(new), tuple(rows[n] for n in new), asked)


def _rows(file: Path) -> dict[int, float]:
    """Count of queries to the least gap so far."""
    lines = file.read_text().splitlines()
    heads = [line for line in lines if line.startswith("%")]
    if len(heads) != 1 or "best noise-free fitness" not in heads[0].split("|")[2]:
        raise ValueError(f"{file} is not the record of one run in COCO's format: {heads[:2]}")
    cells = [line.split() for line in lines if line and not line.startswith("%")]
    return {int(row[0]): float(row[2]) for row in cells}
