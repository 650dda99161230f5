"""BFGS in a rectangle: minimizes an expensive function of two numbers.

scipy's L-BFGS-B needs as many evaluations, but solves its small triangular systems on all threads of OpenBLAS (0.3.30,
dtrtrs), whose number is global to the process (``surrogates.threads``). The pattern search of
``surrogates.pinned.engine`` ends at a lower likelihood in one window fit of five, at the same cost.

References:
    D. P. Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM Journal on
    Control and Optimization 20, 1982, eqs. 31 and 32.
    J. Nocedal and S. J. Wright, Numerical Optimization, 2nd ed., 2006, eqs. 3.6, 3.58, 6.19 and 6.20.
"""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, tuple[float, float]]]

GRADIENT, DECREASE = 1e-5, 2.2e-9
"""The tolerances of the projected gradient and of a step's relative decrease at which a search ends."""

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""The constants c₁ and c₂ of the Wolfe conditions."""

LONGEST, LENGTHENED, TRIALS = 2.0, 4.0, 20
"""The largest first trial of a step, the factor by which trials become longer, and the largest number of trials."""


class Point(NamedTuple):
    """An evaluation of the function.

    Attributes:
        x: The two numbers.
        value: f(x), or inf.
        gradient: The two derivatives of f.
    """

    x: Array
    value: float
    gradient: Array

    @classmethod
    def of(cls, f: Function, x: Array) -> Point:
        """Evaluates the function f at x."""
        value, gradient = f(x)
        return cls(x, value, np.array(gradient))


class Rectangle(NamedTuple):
    """The rectangle of points x with lower <= x <= upper."""

    lower: tuple[float, float]
    upper: tuple[float, float]

    def along(self, x: Array, p: Array, t: float = 1.0) -> Array:
        """The point of the rectangle nearest to x + t p."""
        return np.clip(x + t * p, self.lower, self.upper)

    def free(self, point: Point) -> NDArray[np.bool_]:
        """A mask of the coordinates along which a descent step stays in the rectangle."""
        x, g = point.x, point.gradient
        return ~((x <= self.lower) & (g > 0) | (x >= self.upper) & (g < 0))


def minimize_in_rectangle(f: Function, start: tuple[float, float], rectangle: Rectangle, steps: int) -> Point:
    """Finds a local minimum of f in the rectangle, at which f is not larger than at ``start``.

    A step moves to the projection of x + t p. The direction p is the Newton direction in the free coordinates, with a
    BFGS matrix as Hessian. The length t meets the Wolfe conditions; the second may fail at the rectangle's edge.

    Args:
        f: A function that returns the value and the derivatives (ignored if the value is inf) at a point.
        start: The start, in the rectangle.
        rectangle: The bounds.
        steps: The largest number of steps.
    """
    now = Point.of(f, np.array(start))
    matrix: Array | None = None
    for _ in range(steps):
        projected = rectangle.along(now.x, now.gradient, -1.0) - now.x
        if now.value == inf or np.abs(projected).max() <= GRADIENT:
            break
        found = _searched(f, now, _direction(now, matrix, rectangle), rectangle)
        if found is None:
            if matrix is None:
                break
            matrix = None
            continue
        matrix = _updated(matrix, now, found)
        before, now = now.value, found
        if before - now.value <= DECREASE * max(abs(before), abs(now.value), 1.0):
            break
    return now


def _direction(now: Point, matrix: Array | None, rectangle: Rectangle) -> Array:
    """−B⁻¹ g over the free coordinates, 0 for the others; without B steepest descent, of length at most 1."""
    g, free = now.gradient, rectangle.free(now)
    if matrix is None:
        p = np.where(free, -g, 0.0)
        return p * (1.0 / max(1.0, hypot(*p)))
    (a, b), (_, c) = matrix
    determinant = a * c - b * b
    if free.all() and determinant > 0:
        p = np.array([b * g[1] - c * g[0], b * g[0] - a * g[1]]) / determinant
    else:
        p = np.where(free, -g / matrix.diagonal(), 0.0)
    return p * (LONGEST / max(LONGEST, *np.abs(p)))


def _searched(f: Function, now: Point, p: Array, rectangle: Rectangle) -> Point | None:
    """The end of a step along p; None if no trial decreases enough."""
    t, best = 1.0, None
    shortened = False
    for _ in range(TRIALS):
        x = rectangle.along(now.x, p, t)
        slope = _dot(now.gradient, x - now.x)
        if not slope < 0:
            break
        trial = Point.of(f, x)
        if best is not None:
            # The steps grow longer as long as that helps.
            if not trial.value < best.value:
                break
        elif not trial.value <= now.value + SUFFICIENT * slope:
            shortened = True
            # The minimum of the parabola through value, slope and trial.
            t *= min(max(-0.5 * slope / (trial.value - now.value - slope), 0.1), 0.5)
            continue
        best = trial
        flat = _dot(trial.gradient, x - now.x) >= CURVATURE * slope
        t *= LENGTHENED
        if flat or shortened or np.array_equal(rectangle.along(now.x, p, t), x):
            break
    return best


def _updated(matrix: Array | None, before: Point, after: Point) -> Array | None:
    """The BFGS matrix after a step; unchanged if f has no positive curvature along the step."""
    s, y = after.x - before.x, after.gradient - before.gradient
    curvature, square = _dot(s, y), _dot(y, y)
    if not curvature > 2.2e-16 * square:
        return matrix
    matrix = square / curvature * np.eye(2) if matrix is None else matrix
    u = (matrix * s).sum(1)
    return matrix - np.outer(u, u) / _dot(s, u) + np.outer(y, y) / curvature


def _dot(a: Array, b: Array) -> float:
    """a·b, rounded after each operation on every machine."""
    return float(a[0] * b[0] + a[1] * b[1])
