"""Constraints as users give them, and the values of an objective and its constraints at one point.

A *query* of a constrained function gives f and the values c of all constraints that are unknown until evaluated.
Linear constraints and those that are declared cheap are known: they are evaluated wherever they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.optimize import LinearConstraint, NonlinearConstraint, approx_fprime
from torch import Tensor

from optimizers.core.values import InvalidValueError, numeric

STEP = 1.5e-8
"""The step of forward differences of a cheap constraint, relative to the coordinate or, if larger, to its unit."""


@dataclass(frozen=True)
class CheapConstraint:
    """A constraint that costs nothing to evaluate, so that it needs no model.

    Its function gets NumPy arrays. Its derivatives are its ``jac`` if that is callable, and else forward differences.

    Attributes:
        constraint: SciPy's ``NonlinearConstraint``, or a dictionary.
    """

    constraint: NonlinearConstraint | Mapping[str, Any]


@dataclass(frozen=True)
class ReturnedConstraints:
    """Bounds lb ≤ c ≤ ub on values that the objective returns together with f: it returns ``(f, c)``.

    Attributes:
        lb: the lower bounds, shape ``m``; −inf for none.
        ub: the upper bounds, shape ``m``; inf for none. An equality has ``lb == ub``.
    """

    lb: Any
    ub: Any


Constraint: TypeAlias = (
    LinearConstraint | NonlinearConstraint | Mapping[str, Any] | CheapConstraint | ReturnedConstraints
)
ConstraintsLike: TypeAlias = Constraint | Sequence[Constraint]


@dataclass(frozen=True)
class Group:
    """The components of one constraint, lower ≤ fun(x) ≤ upper.

    Attributes:
        fun: the function; None where the objective returns the values.
        lower: shape ``m``, or 1 for bounds that hold for every component.
        upper: likewise.
        keep_feasible: whether points that violate it are avoided.
        known: whether it costs nothing to evaluate.
        jac: its Jacobian; None: forward differences.
    """

    fun: Callable[[Any], Any] | None
    lower: np.ndarray
    upper: np.ndarray
    keep_feasible: bool = False
    known: bool = False
    jac: Callable[[Any], Any] | None = None

    @property
    def size(self) -> int | None:
        """The number of components, where the bounds say it."""
        return len(self.lower) if self.fun is None or len(self.lower) > 1 else None

    def violation(self, values: Sequence[float]) -> float:
        """The largest violation among the components; NaN if a value is."""
        c = np.asarray(values, dtype=float)
        return float(np.maximum(np.maximum(self.lower - c, c - self.upper), 0.0).max())


def parse_constraints(given: Any) -> tuple[Group, ...]:
    """The constraints as groups, in the order given.

    Raises:
        TypeError: for something that is no constraint.
        ValueError: for bounds that are NaN, reversed or of different shapes, an unknown type of a dictionary, or more
            than one ``ReturnedConstraints``.
    """
    several = given if isinstance(given, list | tuple) else [given]
    groups = tuple(_group(one) for one in several if one is not None)
    if sum(group.fun is None for group in groups) > 1:
        raise ValueError("constraints hold more than one ReturnedConstraints: give one with the bounds of all values")
    return groups


def _group(one: Any) -> Group:
    if isinstance(one, CheapConstraint):
        group = _group(one.constraint)
        if group.fun is None:
            raise TypeError("CheapConstraint takes a NonlinearConstraint or a dictionary")
        return Group(group.fun, group.lower, group.upper, group.keep_feasible, True, group.jac)
    if isinstance(one, ReturnedConstraints):
        return Group(None, *_bounds(one.lb, one.ub))
    if isinstance(one, LinearConstraint):
        A = _dense(one.A)
        lower, upper = (np.broadcast_to(side, len(A)).copy() for side in _bounds(one.lb, one.ub))
        return Group(_Linear(A), lower, upper, bool(np.any(one.keep_feasible)), True, lambda x: A)
    if isinstance(one, NonlinearConstraint):
        jac = one.jac if callable(one.jac) else None
        return Group(_callable(one.fun), *_bounds(one.lb, one.ub), bool(np.any(one.keep_feasible)), False, jac)
    if isinstance(one, Mapping):
        kind, args = one.get("type"), tuple(one.get("args", ()))
        if kind not in ("eq", "ineq"):
            raise ValueError(f"a constraint's 'type' must be 'eq' or 'ineq', got {kind!r}")
        fun, jac = (_bound(one.get(name), args) for name in ("fun", "jac"))
        return Group(_callable(fun), np.zeros(1), np.full(1, 0.0 if kind == "eq" else math.inf), jac=jac)
    raise TypeError(
        "constraints take SciPy's LinearConstraint, NonlinearConstraint and dictionaries, CheapConstraint, "
        f"ReturnedConstraints, and lists of these, got {type(one).__name__}"
    )


@dataclass(frozen=True)
class _Linear:
    A: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        product: np.ndarray = self.A @ x
        return product


@dataclass(frozen=True)
class _Bound:
    fun: Callable[..., Any]
    args: tuple

    def __call__(self, x: Any) -> Any:
        return self.fun(x, *self.args)


def _bound(fun: Any, args: tuple) -> Any:
    return _Bound(fun, args) if args and callable(fun) else fun if callable(fun) else None


def _callable(fun: Any) -> Any:
    if not callable(fun):
        raise TypeError(f"a constraint's function must be callable, got {type(fun).__name__}")
    return fun


def _bounds(lb: Any, ub: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        lower, upper = np.broadcast_arrays(*(np.atleast_1d(np.asarray(side, dtype=float)) for side in (lb, ub)))
    except ValueError as error:
        raise ValueError(f"a constraint's bounds must be numbers of one shape, got {lb!r} and {ub!r}") from error
    if lower.ndim != 1 or np.isnan(lower).any() or np.isnan(upper).any() or (lower > upper).any():
        raise ValueError(f"a constraint's bounds must be lb <= ub and not NaN, got {lb!r} and {ub!r}")
    return lower.copy(), upper.copy()


@dataclass(frozen=True)
class Sides:
    """The rows g ≤ 0 of constraints lower ≤ c ≤ upper; an equality has two, of opposite signs.

    Attributes:
        lower: shape ``m``.
        upper: shape ``m``.
    """

    lower: np.ndarray
    upper: np.ndarray

    @cached_property
    def columns(self) -> np.ndarray:
        """The component of each row, shape ``r``."""
        return np.concatenate([np.flatnonzero(np.isfinite(self.upper)), np.flatnonzero(np.isfinite(self.lower))])

    @cached_property
    def signs(self) -> np.ndarray:
        """±1, the derivative of each row in its component, shape ``r``."""
        count = int(np.isfinite(self.upper).sum())
        return np.where(np.arange(len(self.columns)) < count, 1.0, -1.0)

    @cached_property
    def _offsets(self) -> np.ndarray:
        limits = np.where(self.signs > 0.0, self.upper[self.columns], self.lower[self.columns])
        return self.signs * limits

    def rows(self, c: np.ndarray) -> np.ndarray:
        """The rows g of values c, ``... x m`` to ``... x r``."""
        return c[..., self.columns] * self.signs - self._offsets

    def violations(self, c: np.ndarray) -> np.ndarray:
        """The violation of each component, ``... x m``."""
        return np.maximum(np.maximum(self.lower - c, c - self.upper), 0.0)

    def sizes(self, c: np.ndarray) -> np.ndarray:
        """The largest distance of a component from a finite bound of its, ``... x m``; 0 without one."""
        away = [np.where(np.isfinite(side), np.abs(c - side), 0.0) for side in (self.lower, self.upper)]
        return np.maximum(*away)


class ConstraintSet:
    """The constraints of a run: those evaluated with f, in the order given, and then the known ones.

    Args:
        groups: the constraints.
        x0: a point, shape ``d``, at which the known ones are evaluated to learn how many they are.

    Raises:
        ValueError: if bounds and values of a known constraint differ in shape.
    """

    def __init__(self, groups: Sequence[Group], x0: np.ndarray) -> None:
        self.groups = tuple(groups)
        self.evaluated = [group for group in groups if not group.known]
        self.known = [group for group in groups if group.known]
        first = [self._values(group, x0) for group in self.known]
        self._known_sizes = [len(values) for values in first]
        for group, size in zip(self.known, self._known_sizes, strict=True):
            _check_size(group, size)
        self._first = np.concatenate([np.empty(0), *first])
        self._sides: dict[tuple[int, ...], Sides] = {}

    def _values(self, group: Group, x: np.ndarray) -> np.ndarray:
        assert group.fun is not None
        return np.atleast_1d(np.asarray(group.fun(x), dtype=float)).reshape(-1)

    @property
    def sizes_given(self) -> tuple[int, ...] | None:
        """The numbers of components of those evaluated with f; None where the bounds do not say it."""
        sizes = [group.size for group in self.evaluated]
        return None if None in sizes else tuple(size or 0 for size in sizes)

    def sides(self, sizes: tuple[int, ...]) -> Sides:
        """The rows of all constraints, for the numbers of components of those evaluated with f."""
        if sizes not in self._sides:
            both = zip([*self.evaluated, *self.known], [*sizes, *self._known_sizes], strict=True)
            parts = [[np.broadcast_to(side, n) for side in (group.lower, group.upper)] for group, n in both]
            none = np.empty(0)
            self._sides[sizes] = Sides(
                np.concatenate([none, *(p[0] for p in parts)]), np.concatenate([none, *(p[1] for p in parts)])
            )
        return self._sides[sizes]

    def order(self, sizes: tuple[int, ...]) -> list[int]:
        """The columns in the order in which the constraints were given."""
        both = [*zip(self.evaluated, sizes, strict=True), *zip(self.known, self._known_sizes, strict=True)]
        starts = np.cumsum([0, *(size for _, size in both)])
        at = {id(group): range(starts[i], starts[i + 1]) for i, (group, _) in enumerate(both)}
        return [column for group in self.groups for column in at[id(group)]]

    def kept(self, sizes: tuple[int, ...]) -> np.ndarray:
        """Whether each component is of a known constraint with ``keep_feasible``, shape ``m``."""
        flags = [False] * sum(sizes)
        for group, size in zip(self.known, self._known_sizes, strict=True):
            flags += [group.keep_feasible] * size
        return np.array(flags, dtype=bool)

    def known_values(self, X: np.ndarray) -> np.ndarray:
        """The known constraints at points, ``q x d`` to ``q x k``."""
        if not self.known:
            return np.empty((len(X), 0))
        return np.array([np.concatenate([self._values(group, x) for group in self.known]) for x in X]).reshape(
            len(X), -1
        )

    def magnitudes(self, sizes: tuple[int, ...]) -> np.ndarray:
        """The size of each constraint's numbers, shape ``m``: of its bounds, and of its value at x0 if it is known.

        It is 1 where these are all 0.
        """
        values = np.concatenate([np.zeros(sum(sizes)), self._first])
        sides = self.sides(sizes)
        parts = [values, *(np.where(np.isfinite(side), side, 0.0) for side in (sides.lower, sides.upper))]
        largest: np.ndarray = np.abs(parts).max(axis=0)
        return np.where(largest > 0.0, largest, 1.0)

    def known_jacobian(self, x: np.ndarray, unit: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """The known constraints' derivatives, ``k x d``.

        Args:
            x: the point, shape ``d``.
            unit: the length of a change that matters in each coordinate, shape ``d``.
            upper: the upper bounds, which the points of differences do not exceed, shape ``d``.
        """
        parts = [np.empty((0, len(x)))]
        for group in self.known:
            if group.jac is not None:
                parts.append(_dense(group.jac(x)))
            else:
                step = STEP * np.maximum(unit, np.abs(x))
                step = np.where(x + step > upper, -step, step)
                parts.append(np.atleast_2d(approx_fprime(x, lambda p, g=group: self._values(g, p), step)))
        return np.concatenate(parts)

    def parse(self, values: Any, count: int, sizes: tuple[int, ...] | None) -> tuple[Tensor, tuple[int, ...] | None]:
        """The values of q queries as rows (f, c), ``q x 1 + m``, NaN where a value is not finite; and the sizes.

        Args:
            values: for each query ``(f, c)``, ``(f, c of each constraint ...)``, the numbers f, c₁, … in one row, or
                NaN for a failed query.
            count: q.
            sizes: the numbers of components, where they are known.

        Raises:
            InvalidValueError: for values of another form or number.
        """
        values = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
        if not isinstance(values, list | tuple) or len(values) != count:
            raise InvalidValueError(f"values must be {count} rows (f, c), one for each point")
        parsed: list[list[list[float]] | None] = []
        for value in values:
            parts = self._parts(value, sizes)
            if parts is not None:
                found = tuple(len(part) for part in parts[1:])
                for group, size in zip(self.evaluated, found, strict=True):
                    _check_size(group, size)
                if sizes is not None and found != sizes:
                    raise InvalidValueError(f"the constraints have {found} components, before they had {sizes}")
                sizes = found
            parsed.append(parts)
        width = 1 + sum(sizes or ())
        rows = [[math.nan] * width if parts is None else [v for part in parts for v in part] for parts in parsed]
        tensor = torch.tensor(rows, dtype=torch.float64).reshape(count, width)
        return torch.where(torch.isfinite(tensor), tensor, torch.nan), sizes

    def _parts(self, value: Any, sizes: tuple[int, ...] | None) -> list[list[float]] | None:
        """f and the values of each constraint; None for a failed query of which nothing is known."""
        parts = [_floats(value)] if not isinstance(value, list | tuple) else [_floats(part) for part in value]
        sizes = self.sizes_given if sizes is None else sizes
        flat = [v for part in parts for v in part]
        if not any(map(math.isfinite, flat)):
            return None
        if len(parts) == 1 + len(self.evaluated) and len(parts[0]) == 1:
            if sizes is None:
                return parts
            wide = [
                part * n if len(part) == 1 and math.isnan(part[0]) else part
                for part, n in zip(parts[1:], sizes, strict=True)
            ]
            return [parts[0], *wide]
        if len(self.evaluated) == 1:
            sizes = (len(flat) - 1,)
        if sizes is None or len(flat) != 1 + sum(sizes):
            raise InvalidValueError(
                f"a query gives f and the values of each of {len(self.evaluated)} constraints, got {value!r:.80}"
            )
        bounds = np.cumsum([0, 1, *sizes])
        return [flat[low:high] for low, high in pairwise(bounds)]


def _dense(matrix: Any) -> np.ndarray:
    """A matrix, sparse or not, as an array of two dimensions."""
    return np.atleast_2d(np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=float))


def _check_size(group: Group, size: int) -> None:
    if len(group.lower) not in (1, size):
        raise InvalidValueError(f"a constraint gave {size} values, and its bounds are {len(group.lower)}")


def _floats(part: Any) -> list[float]:
    """The numbers of a part, NaN for None."""
    if part is None:
        return [math.nan]
    try:
        found: list[float] = numeric("values", part, booleans=True).double().reshape(-1).tolist()
    except (TypeError, ValueError) as error:
        raise InvalidValueError(str(error)) from error
    return found


@dataclass(frozen=True)
class ConstrainedObjective:
    """An objective and the constraints that are evaluated with it: one query gives f and c.

    Where a constraint with ``keep_feasible`` is violated, f is not evaluated: the query fails, and c is kept.

    Attributes:
        fun: the objective, which returns f, or (f, c) for ``ReturnedConstraints``.
        groups: the constraints that are evaluated.
        batched: whether ``fun`` takes ``q x d`` points; constraints get one point at a time.
    """

    fun: Callable[[Any], Any]
    groups: tuple[Group, ...]
    batched: bool = False

    def __post_init__(self) -> None:
        """A checkpoint knows a function by its name, and this one by that of the objective."""
        object.__setattr__(self, "__qualname__", getattr(self.fun, "__qualname__", type(self.fun).__qualname__))

    @property
    def __wrapped__(self) -> Callable[[Any], Any]:
        """The objective, whose source a checkpoint compares."""
        return self.fun

    def __call__(self, x: Any) -> list[Any]:
        """A list of rows [f, c of the first constraint, …], one for each point."""
        points = list(x) if self.batched else [x]
        parts = [[None if g.fun is None else _floats(g.fun(p)) for g in self.groups] for p in points]
        allowed = [
            not any(g.keep_feasible and not g.violation(c) <= 0.0 for g, c in zip(self.groups, row, strict=True) if c)
            for row in parts
        ]
        values = [math.nan] * len(points)
        if self.batched and any(allowed):
            chosen = [i for i, fine in enumerate(allowed) if fine]
            found = self.fun(x[chosen])
            for i, value in zip(chosen, found, strict=True):
                values[i] = value
        elif allowed[0]:
            values[0] = self.fun(x)
        return [self._row(value, row) for value, row in zip(values, parts, strict=True)]

    def _row(self, value: Any, parts: list[Any]) -> list[Any]:
        if None not in parts:
            return [_one(value), *parts]
        flat = [v for part in value for v in _floats(part)] if isinstance(value, list | tuple) else _floats(value)
        returned = flat[1:] or [math.nan]
        return [flat[0], *(returned if part is None else part for part in parts)]


def _one(value: Any) -> float:
    found = _floats(value)
    if len(found) != 1:
        raise InvalidValueError(f"the objective must give one number, got {len(found)}")
    return found[0]


def is_success(value: Any) -> bool:
    """Whether a value, or each number of a row, is finite."""
    return all(map(is_success, value)) if isinstance(value, list | tuple) else math.isfinite(value)
