"""Constraints as users give them, and objectives that are evaluated together with constraints.

One query gives f and the values c of all constraints that are not known. Linear and cheap constraints are known: they
are evaluated wherever they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import LinearConstraint, NonlinearConstraint

from optimizers.core.values import InvalidValueError, numeric


@dataclass(frozen=True)
class CheapConstraint:
    """A constraint that costs nothing to evaluate and needs no model.

    The function gets NumPy arrays. Derivatives come from ``jac`` if it is callable, otherwise from forward differences.

    Attributes:
        constraint: SciPy's ``NonlinearConstraint``, or a dictionary.
    """

    constraint: NonlinearConstraint | Mapping[str, Any]


@dataclass(frozen=True)
class ReturnedConstraints:
    """Bounds lb ≤ c ≤ ub on values c of an objective that returns ``(f, c)``.

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
        fun: the function; None if the objective returns the values.
        lower: shape ``m``, or 1 for all components.
        upper: shape ``m``, or 1 for all components.
        keep_feasible: whether points that violate the constraint are avoided.
        known: whether the constraint costs nothing to evaluate.
        jac: the Jacobian; None: forward differences.
    """

    fun: Callable[[Any], Any] | None
    lower: np.ndarray
    upper: np.ndarray
    keep_feasible: bool = False
    known: bool = False
    jac: Callable[[Any], Any] | None = None

    @property
    def size(self) -> int | None:
        """The number of components; None if the bounds do not determine it."""
        return len(self.lower) if self.fun is None or len(self.lower) > 1 else None


def parse_constraints(given: Any) -> tuple[Group, ...]:
    """Converts constraints to groups, in the order given.

    Raises:
        TypeError: for a value of another type.
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
        A = as_matrix(one.A)
        lower, upper = (np.broadcast_to(side, len(A)).copy() for side in _bounds(one.lb, one.ub))
        return Group(partial(np.matmul, A), lower, upper, bool(np.any(one.keep_feasible)), True, lambda x: A)
    if isinstance(one, NonlinearConstraint):
        jac = one.jac if callable(one.jac) else None
        return Group(_callable(one.fun), *_bounds(one.lb, one.ub), bool(np.any(one.keep_feasible)), False, jac)
    if isinstance(one, Mapping):
        kind, args = one.get("type"), tuple(one.get("args", ()))
        if kind not in ("eq", "ineq"):
            raise ValueError(f"a constraint's 'type' must be 'eq' or 'ineq', got {kind!r}")
        jac = WithArgs(one["jac"], args) if callable(one.get("jac")) else None
        upper = np.full(1, 0.0 if kind == "eq" else math.inf)
        return Group(WithArgs(_callable(one.get("fun")), args), np.zeros(1), upper, jac=jac)
    raise TypeError(
        "constraints take SciPy's LinearConstraint, NonlinearConstraint and dictionaries, CheapConstraint, "
        f"ReturnedConstraints, and lists of these, got {type(one).__name__}"
    )


@dataclass(frozen=True)
class WithArgs:
    """A function of the point alone that appends SciPy's ``args``; unlike a closure it can be pickled."""

    fun: Callable[..., Any]
    args: tuple

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, whose name and source checkpoints compare."""
        return self.fun

    def __call__(self, x: Any) -> Any:
        """The function's value at x."""
        return self.fun(x, *self.args)


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


def as_matrix(matrix: Any) -> np.ndarray:
    """Converts a sparse or dense matrix to an array of two dimensions."""
    return np.atleast_2d(np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=float))


def check_size(group: Group, size: int) -> None:
    """Raises ``InvalidValueError`` if a constraint has neither one pair of bounds nor ``size`` pairs."""
    if len(group.lower) not in (1, size):
        raise InvalidValueError(f"a constraint gave {size} values, but has bounds for {len(group.lower)}")


def as_numbers(part: Any) -> list[float]:
    """Converts a number, array or tensor to a list; None becomes NaN."""
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
        cost: f as a function of residuals r. If given, ``fun`` returns r, a row is (f, r), and ``groups`` is empty.
    """

    fun: Callable[[Any], Any]
    groups: tuple[Group, ...]
    batched: bool = False
    cost: Callable[[np.ndarray], float] | None = None

    @property
    def __wrapped__(self) -> Callable[[Any], Any]:
        """The objective, whose name and source a checkpoint compares."""
        return self.fun

    def __call__(self, x: Any) -> list[Any]:
        """Returns a row [f, c of the first constraint, …] for each point."""
        points = list(x) if self.batched else [x]
        parts = [[None if g.fun is None else as_numbers(g.fun(p)) for g in self.groups] for p in points]
        chosen = [i for i, row in enumerate(parts) if all(map(_may_be_queried, self.groups, row))]
        found: Any = [self.fun(x)] if chosen and not self.batched else []
        if chosen and self.batched:
            found = self.fun([x[i] for i in chosen] if isinstance(x, list) else x[chosen])
        values = dict(zip(chosen, found, strict=True))
        return [self._row(values.get(i, math.nan), row) for i, row in enumerate(parts)]

    def _row(self, value: Any, parts: list[Any]) -> list[Any]:
        if self.cost is not None:
            r = as_numbers(value)
            return [self.cost(np.array(r)), r]
        if None not in parts:
            return [_one(value), *parts]
        flat = [v for part in value for v in as_numbers(part)] if isinstance(value, list | tuple) else as_numbers(value)
        returned = flat[1:] or [math.nan]
        return [flat[0], *(returned if part is None else part for part in parts)]


def _may_be_queried(group: Group, values: list[float] | None) -> bool:
    """Whether f may be evaluated where a constraint has these values."""
    if values is None or not group.keep_feasible:
        return True
    c = np.array(values)
    return bool(((group.lower <= c) & (c <= group.upper)).all())


def _one(value: Any) -> float:
    found = as_numbers(value)
    if len(found) != 1:
        raise InvalidValueError(f"the objective must give one number, got {len(found)}")
    return found[0]


def is_success(value: Any) -> bool:
    """Whether a value, or each number of a row, is finite."""
    return all(map(is_success, value)) if isinstance(value, list | tuple) else math.isfinite(value)
