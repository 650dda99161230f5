"""Long-form records: one measured value a row, kept as plain dictionaries and written as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

Value = str | int | float
Row = dict[str, Value]
Rows = list[Row]


class Curve(NamedTuple):
    """Mean over seeds with its standard error (sd/√seeds, one degree of freedom taken) along ``x``."""

    x: np.ndarray
    mean: np.ndarray
    standard_error: np.ndarray


def plain(row: Row) -> Row:
    """The row with numpy and torch scalars as Python numbers, so that it is written the same everywhere."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}


def where(rows: Iterable[Row], /, **conditions: Value) -> Rows:
    """The rows that agree with every condition."""
    return [row for row in rows if all(row.get(key) == value for key, value in conditions.items())]


def distinct(rows: Iterable[Row], key: str) -> list[Value]:
    """The values of one column in order of first appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def seeds_of(rows: Iterable[Row]) -> tuple[int, ...]:
    """The seeds present, ascending."""
    return tuple(sorted({int(row["seed"]) for row in rows}))


def by_seed(rows: Iterable[Row], /, **conditions: Value) -> np.ndarray:
    """One number a seed (the mean where a seed has several), in ascending order of seeds.

    Raises:
        ValueError: if a seed present in ``rows`` has no row under the conditions, which would unpair it.
    """
    rows = list(rows)
    groups: dict[int, list[float]] = {seed: [] for seed in seeds_of(rows)}
    for row in where(rows, **conditions):
        groups[int(row["seed"])].append(float(row["value"]))
    if missing := [seed for seed, values in groups.items() if not values]:
        raise ValueError(f"no rows with {conditions} for seeds {missing}")
    return np.array([np.mean(groups[seed]) for seed in groups])


def final(rows: Iterable[Row], x: str = "queries", /, **conditions: Value) -> np.ndarray:
    """One number a seed: ``value`` at the largest ``x`` among the rows under the conditions."""
    chosen = where(rows, **conditions)
    return by_seed(chosen, **{x: max(int(row[x]) for row in chosen)})


def mean_curve(x: Iterable[float], values: Iterable[Sequence[float] | np.ndarray]) -> Curve:
    """Mean and standard error at each ``x`` of ``values``: for each ``x`` one number a seed; the error of one is 0."""
    means, errors = [], []
    for numbers in map(np.asarray, values):
        means.append(numbers.mean())
        errors.append(numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else 0.0)
    return Curve(np.array([*x], dtype=float), np.array(means), np.array(errors))


def curve(rows: Iterable[Row], x: str, /, **conditions: Value) -> Curve:
    """Mean and standard error over seeds of ``value`` at each ``x``, ascending."""
    at: dict[float, Rows] = {}
    for row in where(rows, **conditions):
        at.setdefault(float(row[x]), []).append(row)
    positions = sorted(at)
    return mean_curve(positions, (by_seed(at[position]) for position in positions))


def checkpoints(last: int, every: int) -> list[int]:
    """0, ``every``, 2 ``every``, ... up to ``last``, which is always among them."""
    return sorted({*range(0, last + 1, every), last})


def best_so_far(values: Sequence[float] | np.ndarray, queries: int, first: float = math.nan) -> np.ndarray:
    """The least value after 0, 1, ..., ``queries`` queries; a run that ended before keeps what it has.

    Args:
        values: what was found, query by query; NaN where a query failed.
        queries: the budget.
        first: what was known before the first query; NaN: nothing.
    """
    padded = np.full(queries + 1, np.nan)
    padded[0], padded[1 : len(values) + 1] = first, values
    return np.fmin.accumulate(padded)


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
