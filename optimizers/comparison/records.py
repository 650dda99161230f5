"""Selects rows of measured values, which are dictionaries, and averages them over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from surrogates.plotting import Curve

Value = str | int | float
Row = dict[str, Value]
Rows = list[Row]


def where(rows: Iterable[Row], /, **conditions: Value) -> Rows:
    """The rows that meet every condition."""
    kept = list(rows)
    for key, value in conditions.items():
        kept = [row for row in kept if row.get(key) == value]
    return kept


def seeds_of(rows: Iterable[Row]) -> tuple[int, ...]:
    """The seeds in the rows, ascending."""
    return tuple(sorted({int(row["seed"]) for row in rows}))


def by_seed(rows: Iterable[Row], /, **conditions: Value) -> np.ndarray:
    """One number per seed (the mean if a seed has several), in ascending order of seeds.

    Raises:
        ValueError: if a seed in ``rows`` has no row under the conditions, which would break the pairing.
    """
    rows = list(rows)
    groups: dict[int, list[float]] = {seed: [] for seed in seeds_of(rows)}
    for row in where(rows, **conditions):
        groups[int(row["seed"])].append(float(row["value"]))
    if missing := [seed for seed, values in groups.items() if not values]:
        raise ValueError(f"no rows with {conditions} for seeds {missing}")
    return np.array([np.mean(groups[seed]) for seed in groups])


def mean_curve(x: Iterable[float], values: Iterable[Sequence[float] | np.ndarray]) -> Curve:
    """Mean and standard error over seeds at each ``x``; ``values`` has one number per seed. One value has error 0."""
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


def best_so_far(values: Sequence[float] | np.ndarray, queries: int, first: float = math.nan) -> np.ndarray:
    """The least value after 0, 1, ..., ``queries`` queries; a run that ended earlier keeps its last least value.

    Args:
        values: the values of the queries; NaN for failed ones.
        queries: the budget.
        first: the value known before the first query; NaN: none.
    """
    padded = np.full(queries + 1, np.nan)
    padded[0], padded[1 : len(values) + 1] = first, values
    return np.fmin.accumulate(padded)
