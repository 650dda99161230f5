"""The constraints of a run as one vector c with bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from scipy.optimize import approx_fprime
from torch import Tensor

from optimizers.core.constraints import Group, as_matrix, as_numbers, check_size
from optimizers.core.values import InvalidValueError

STEP = 1.5e-8
"""The step of a cheap constraint's forward differences, relative to the larger of |xᵢ| and its typical change."""


@dataclass(frozen=True)
class Sides:
    """The bounds lower ≤ c ≤ upper, also as rows g ≤ 0; an equality has two rows of opposite signs.

    Attributes:
        lower: the lower bounds, shape ``m``; −inf for none.
        upper: the upper bounds, shape ``m``; inf for none.
    """

    lower: np.ndarray
    upper: np.ndarray

    @cached_property
    def columns(self) -> np.ndarray:
        """The index of the component of c in each row, shape ``r``."""
        return np.concatenate([np.flatnonzero(np.isfinite(self.upper)), np.flatnonzero(np.isfinite(self.lower))])

    @cached_property
    def signs(self) -> np.ndarray:
        """±1, the derivative of each row with respect to its component of c, shape ``r``."""
        count = int(np.isfinite(self.upper).sum())
        return np.where(np.arange(len(self.columns)) < count, 1.0, -1.0)

    @cached_property
    def _offsets(self) -> np.ndarray:
        limits = np.where(self.signs > 0.0, self.upper[self.columns], self.lower[self.columns])
        return self.signs * limits

    def rows(self, c: np.ndarray) -> np.ndarray:
        """The rows g, ``... x r``, of values c, ``... x m``."""
        return c[..., self.columns] * self.signs - self._offsets

    def violations(self, c: np.ndarray) -> np.ndarray:
        """The violation of each component, ``... x m``."""
        return np.maximum(np.maximum(self.lower - c, c - self.upper), 0.0)

    def sizes(self, c: np.ndarray) -> np.ndarray:
        """The largest distance of each component from its finite bounds, ``... x m``; 0 without a finite bound."""
        away = [np.where(np.isfinite(side), np.abs(c - side), 0.0) for side in (self.lower, self.upper)]
        return np.maximum(*away)


class ConstraintSet:
    """The constraints of a run: those evaluated with f, in the order given, then the known (linear and cheap) ones.

    Args:
        groups: the constraints.
        x0: a point, shape ``d``, at which the known constraints are evaluated to count their components.

    Raises:
        ValueError: if bounds and values of a known constraint differ in shape.
    """

    def __init__(self, groups: Sequence[Group], x0: np.ndarray) -> None:
        self._places = sorted(range(len(groups)), key=lambda i: groups[i].known)
        self.groups = [groups[i] for i in self._places]
        self.evaluated = [group for group in self.groups if not group.known]
        self.known = self.groups[len(self.evaluated) :]
        first = [self._values(group, x0) for group in self.known]
        self._known_sizes = [len(values) for values in first]
        for group, size in zip(self.known, self._known_sizes, strict=True):
            check_size(group, size)
        self._first = np.concatenate([np.empty(0), *first])
        self._sides: dict[tuple[int, ...], Sides] = {}

    def _values(self, group: Group, x: np.ndarray) -> np.ndarray:
        assert group.fun is not None
        return np.atleast_1d(np.asarray(group.fun(x), dtype=float)).reshape(-1)

    @property
    def sizes_given(self) -> tuple[int, ...] | None:
        """The number of components of each constraint evaluated with f; None if the bounds do not determine it."""
        sizes = [group.size for group in self.evaluated]
        return None if None in sizes else tuple(size or 0 for size in sizes)

    def sides(self, sizes: tuple[int, ...]) -> Sides:
        """The bounds of all components, given the number of components of each constraint evaluated with f."""
        if sizes not in self._sides:
            pairs, none = [*zip(self.groups, [*sizes, *self._known_sizes], strict=True)], np.empty(0)
            lower = np.concatenate([none, *(np.broadcast_to(group.lower, n) for group, n in pairs)])
            upper = np.concatenate([none, *(np.broadcast_to(group.upper, n) for group, n in pairs)])
            self._sides[sizes] = Sides(lower, upper)
        return self._sides[sizes]

    def order(self, sizes: tuple[int, ...]) -> np.ndarray:
        """The indices of the components in the order in which the constraints were given, shape ``m``."""
        return np.argsort(np.repeat(self._places, [*sizes, *self._known_sizes]), kind="stable")

    def kept(self, sizes: tuple[int, ...], known: bool = True) -> np.ndarray:
        """Whether each component belongs to a known (or evaluated) constraint with ``keep_feasible``, shape ``m``."""
        kept = [group.keep_feasible and group.known == known for group in self.groups]
        return np.repeat(kept, [*sizes, *self._known_sizes])

    def known_values(self, X: np.ndarray) -> np.ndarray:
        """The values of the known constraints, ``q x k``, at points, ``q x d``."""
        rows = [[v for group in self.known for v in self._values(group, x)] for x in X]
        return np.array(rows, dtype=float).reshape(len(X), sum(self._known_sizes))

    def magnitudes(self, sizes: tuple[int, ...]) -> np.ndarray:
        """For each component max(|finite bounds|, |value at x0| if known), shape ``m``; 1 where that is 0."""
        values = np.concatenate([np.zeros(sum(sizes)), self._first])
        sides = self.sides(sizes)
        parts = [values, *(np.where(np.isfinite(side), side, 0.0) for side in (sides.lower, sides.upper))]
        largest: np.ndarray = np.abs(parts).max(axis=0)
        return np.where(largest > 0.0, largest, 1.0)

    def known_jacobian(self, x: np.ndarray, unit: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """The Jacobian of the known constraints, ``k x d``.

        Args:
            x: the point, shape ``d``.
            unit: a typical change of each coordinate, shape ``d``.
            upper: the upper bounds, which finite differences do not exceed, shape ``d``.
        """
        parts = [np.empty((0, len(x)))]
        for group in self.known:
            if group.jac is not None:
                parts.append(as_matrix(group.jac(x)))
            else:
                step = STEP * np.maximum(unit, np.abs(x))
                step = np.where(x + step > upper, -step, step)
                parts.append(np.atleast_2d(approx_fprime(x, lambda p, g=group: self._values(g, p), step)))
        return np.concatenate(parts)

    def parse(self, values: Any, count: int, sizes: tuple[int, ...] | None) -> tuple[Tensor, tuple[int, ...] | None]:
        """Converts the values of q queries to rows (f, c), ``q x 1 + m``, NaN where not finite, and counts components.

        Args:
            values: for each query a pair ``(f, c)``, f and each constraint's values, a row f, c₁, …, or NaN if it
                failed.
            count: q.
            sizes: the number of components of each constraint, if known.

        Raises:
            InvalidValueError: for values of another form or number.
        """
        values = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
        if not isinstance(values, list | tuple) or len(values) != count:
            raise InvalidValueError(f"values must be {count} rows (f, c), one for each point")
        rows = []
        for value in values:
            row, found = self._row(value, self.sizes_given if sizes is None else sizes)
            if found is not None:
                for group, size in zip(self.evaluated, found, strict=True):
                    check_size(group, size)
                if sizes is not None and found != sizes:
                    raise InvalidValueError(f"a query gave {found} constraint values, but earlier queries gave {sizes}")
                sizes = found
            rows.append(row)
        width = 1 + sum(sizes or ())
        tensor = torch.tensor([row or [math.nan] * width for row in rows], dtype=torch.float64).reshape(count, width)
        return torch.where(torch.isfinite(tensor), tensor, torch.nan), sizes

    def _row(self, value: Any, known: tuple[int, ...] | None) -> tuple[list[float], tuple[int, ...] | None]:
        """The numbers f, c₁, … of a query and the number of components of each constraint; ([], None) if all failed."""
        parts = [as_numbers(part) for part in value] if isinstance(value, list | tuple) else [as_numbers(value)]
        if len(parts) == 1 + len(self.evaluated) and len(parts[0]) == 1:
            if known is not None:
                wide = zip(parts[1:], known, strict=True)
                parts[1:] = [part * n if len(part) == 1 and math.isnan(part[0]) else part for part, n in wide]
            found: tuple[int, ...] | None = tuple(map(len, parts[1:]))
        elif len(self.evaluated) == 1:
            found = (sum(map(len, parts)) - 1,)
        else:
            found = known
        row = list(chain.from_iterable(parts))
        if not any(map(math.isfinite, row)):
            return [], None
        if found is None or len(row) != 1 + sum(found):
            raise InvalidValueError(
                f"each query needs f and the values of each of {len(self.evaluated)} constraints, got {value!r:.80}"
            )
        return row, found
