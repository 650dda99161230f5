"""A paper's table with our values beside the printed ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.harness.verdicts import bootstrap_interval


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
