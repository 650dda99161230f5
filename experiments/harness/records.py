"""Records of experiments: selections, and CSV files with one measured value per row."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

import numpy as np

from optimizers.comparison.records import Row, Rows, Value, by_seed, where


def plain(row: Row) -> Row:
    """The row with numpy and torch scalars as Python numbers, so that it is written the same everywhere."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}


def distinct(rows: Iterable[Row], key: str) -> list[Value]:
    """The values of one column in order of first appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def final(rows: Iterable[Row], x: str = "queries", /, **conditions: Value) -> np.ndarray:
    """One number a seed: ``value`` at the largest ``x`` among the rows under the conditions."""
    chosen = where(rows, **conditions)
    return by_seed(chosen, **{x: max(int(row[x]) for row in chosen)})


def checkpoints(last: int, every: int) -> list[int]:
    """0, ``every``, 2 ``every``, ... up to ``last``, which is always among them."""
    return sorted({*range(0, last + 1, every), last})


def log10_gap(value: float, minimum: float = 0.0) -> float:
    """log10 of ``value - minimum``, from 1e-16 upwards."""
    return math.log10(max(value - minimum, 1e-16))


def points(rows: Iterable[Row], quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """``x`` and ``value`` of one quantity, in the order of the rows."""
    chosen = where(rows, quantity=quantity)
    return np.array([row["x"] for row in chosen]), np.array([row["value"] for row in chosen])


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with one header; floats in their shortest exact form."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def from_csv(text: str) -> Rows:
    """What ``to_csv`` wrote; empty cells are left out of their row."""
    return [{key: _parse(cell) for key, cell in row.items() if cell != ""} for row in csv.DictReader(io.StringIO(text))]


def _parse(cell: str) -> Value:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
