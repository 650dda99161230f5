"""The progress of a run, query by query, and how to read it from COCO's files.

COCO's observer knows the minimum and, for noisy problems, the noise-free value. The observer's files list the smallest
noise-free gap so far, for query counts in equal ratios (``.tdat``) and for each target reached (``.dat``). Our tables
are computed from these rows, so that they agree with ``cocopp``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FLOOR = 1e-8
"""COCO's smallest target; smaller gaps are set to this value."""

TARGETS = tuple(10.0 ** (k / 5) for k in range(10, -41, -1))
"""COCO's 51 targets, gaps from 100 to 1e-8 in equal ratios."""

A_DECADE = 10
"""Number of stored query counts per factor of ten."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The least value or gap so far, as a function of the number of queries.

    Attributes:
        queries: the query counts after which ``least`` changed, ascending.
        least: the least value or gap after each of these counts; NaN before the first success.
        asked: total number of queries.
    """

    queries: tuple[int, ...]
    least: tuple[float, ...]
    asked: int

    @staticmethod
    def of(values: Sequence[float]) -> Progress:
        """Creates the progress from the values of all queries, NaN for failed ones."""
        found = np.asarray(values, dtype=float)
        least = np.fmin.accumulate(np.where(np.isfinite(found), found, np.nan)) if len(found) else found
        new = [n for n in range(len(least)) if n == 0 or least[n] != least[n - 1]]
        return Progress(tuple(n + 1 for n in new), tuple(float(least[n]) for n in new), len(found))

    @property
    def final(self) -> float:
        """The least value or gap of the whole run; inf without a success."""
        known = [value for value in self.least if not math.isnan(value)]
        return known[-1] if known else math.inf

    def at(self, count: int) -> float:
        """Returns the least value or gap after ``count`` queries; inf before the first success."""
        before = [least for n, least in zip(self.queries, self.least, strict=True) if n <= count]
        return before[-1] if before and not math.isnan(before[-1]) else math.inf

    def reached(self, targets: Sequence[float] = TARGETS) -> list[int | None]:
        """Returns the query count at which each target was reached, or None."""
        pairs = list(zip(self.queries, self.least, strict=True))
        return [next((n for n, least in pairs if least <= target), None) for target in targets]

    def thinned(self, *counts: int) -> list[tuple[int, float]]:
        """Returns pairs of a query count and the least value or gap, in four digits, by default at equal ratios."""
        counts = counts or tuple(log_spaced(self.asked))
        return [(n, float(f"{self.at(n):.4g}")) for n in counts if math.isfinite(self.at(n))]


def log_spaced(last: int) -> list[int]:
    """Returns integers in nearly equal ratios from 1 to ``last``, ten per decade, including ``last``."""
    if last < 1:
        return []
    steps = math.ceil(A_DECADE * math.log10(last)) if last > 1 else 0
    return sorted({*(round(10 ** (k / A_DECADE)) for k in range(steps)), last})


def progress_in(folder: Path) -> Progress:
    """Reads the progress of a run from the files that COCO's observer wrote to a folder.

    Raises:
        ValueError: for files of another format.
    """
    rows: dict[int, float] = {}
    for kind in ("dat", "tdat"):
        for file in folder.rglob(f"*.{kind}"):
            rows |= _rows(file)
    counts = sorted(rows)
    asked = counts[-1] if counts else 0
    new = [n for k, n in enumerate(counts) if k == 0 or rows[n] < rows[counts[k - 1]]]
    return Progress(tuple(new), tuple(rows[n] for n in new), asked)


def optimum_in(folder: Path) -> float:
    """Reads f at the minimum from the files that COCO's observer wrote to a folder."""
    (file,) = folder.rglob("*.tdat")
    found = re.search(r"Fopt \((.+?)\)", file.read_text())
    assert found is not None, f"{file} does not give the minimum"
    return float(found[1])


def _rows(file: Path) -> dict[int, float]:
    lines = file.read_text().splitlines()
    heads = [line for line in lines if line.startswith("%")]
    if len(heads) != 1 or "best noise-free fitness" not in heads[0].split("|")[2]:
        raise ValueError(f"{file} must be one run in COCO's format, but its headings are {heads[:2]}")
    cells = [line.split() for line in lines if line and not line.startswith("%")]
    return {int(row[0]): float(row[2]) for row in cells}
