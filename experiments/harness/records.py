"""Helper functions for records: select rows and numbers, and read and write CSV."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from optimizers.comparison.records import Row, Rows, Value, by_seed, where

Point = TypeVar("Point")


def plain(row: Row) -> Row:
    """Converts the NumPy and torch scalars of a row to Python numbers."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}


def distinct(rows: Iterable[Row], key: str) -> list[Value]:
    """Returns the distinct values of a column in order of first appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def final(rows: Iterable[Row], x: str = "queries", /, **conditions: Value) -> np.ndarray:
    """Returns ``value`` at the largest ``x`` among the rows that meet the conditions, one number per seed."""
    chosen = where(rows, **conditions)
    return by_seed(chosen, **{x: max(int(row[x]) for row in chosen)})


def checkpoints(last: int, every: int) -> list[int]:
    """Returns 0, ``every``, 2 ``every``, ..., and ``last``."""
    return sorted({*range(0, last + 1, every), last})


def grid_means(measure: Callable[..., float], grid: Iterable[Point], *cells: Iterable[Any]) -> dict[Point, float]:
    """Returns for each point of a grid the mean of ``measure(point, *cell)`` over all combinations of the cells."""
    combinations = list(itertools.product(*cells))
    return {point: float(np.mean([measure(point, *cell) for cell in combinations])) for point in grid}


def log10_gap(value: float, minimum: float = 0.0) -> float:
    """Computes log10 of ``value - minimum``, with the difference bounded below by 1e-16."""
    return math.log10(max(value - minimum, 1e-16))


def points(rows: Iterable[Row], quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns ``x`` and ``value`` of one quantity, in the order of the rows."""
    chosen = where(rows, quantity=quantity)
    return np.array([row["x"] for row in chosen]), np.array([row["value"] for row in chosen])


def to_csv(rows: Sequence[Row]) -> str:
    """Formats the rows as CSV with a header; floats are written exactly."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def from_csv(text: str) -> Rows:
    """Parses the output of ``to_csv``; empty cells are left out of their row."""
    return [{key: _parse(cell) for key, cell in row.items() if cell != ""} for row in csv.DictReader(io.StringIO(text))]


@functools.lru_cache(1 << 16)
def _parse(cell: str) -> Value:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
