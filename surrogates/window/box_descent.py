"""BFGS in a rectangle: minimizes an expensive function of two numbers.

scipy's L-BFGS-B needs as many evaluations, but shares its solves with triangles of 2 x 2 to 10 x 10 among the threads
of OpenBLAS (0.3.30, dtrtrs), whose number is global to the process (``surrogates.threads``). The trust region's pinned
process has its own pattern search; used here it ends at a lower likelihood in one window fit of five, at the same cost.

References:
    D. P. Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM Journal on
    Control and Optimization 20, 1982, eqs. 31 and 32.
    J. Nocedal and S. J. Wright, Numerical Optimization, 2nd ed., 2006, eqs. 3.6, 3.58, 6.19 and 6.20.
"""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, inf
from typing import NamedTuple

Pair = tuple[float, float]
Matrix = tuple[float, float, float]

GRADIENT, DECREASE = 1e-5, 2.2e-9
"""The tolerances at which a search ends: of the projected gradient, and of a step's relative gain (as L-BFGS-B's)."""

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""The constants c₁ and c₂ of the Wolfe conditions."""

LONGEST, LENGTHENED, TRIALS = 2.0, 4.0, 20
"""The longest first trial of a step, the factor by which a trial is lengthened, and the largest number of trials."""


class Point(NamedTuple):
    """An evaluation of the function.

    Attributes:
        x: the two numbers.
        value: f(x), or inf.
        gradient: f's two derivatives.
    """

    x: Pair
    value: float
    gradient: Pair


class Rectangle(NamedTuple):
    """The x with lower <= x <= upper."""

    lower: Pair
    upper: Pair

    def nearest(self, x: Pair) -> Pair:
        """The point of the rectangle nearest to x."""
        first, second = (min(max(x[i], self.lower[i]), self.upper[i]) for i in range(2))
        return first, second

    def along(self, x: Pair, p: Pair, t: float = 1.0) -> Pair:
        """The point of the rectangle nearest to x + t p."""
        return self.nearest((x[0] + t * p[0], x[1] + t * p[1]))

    def slope(self, point: Point) -> float:
        """The largest element of the projected gradient."""
        moved = self.along(point.x, point.gradient, -1.0)
        return max(abs(moved[0] - point.x[0]), abs(moved[1] - point.x[1]))

    def is_free(self, point: Point, i: int) -> bool:
        """Whether f decreases along coordinate i without leaving the rectangle."""
        g = point.gradient[i]
        return not ((point.x[i] <= self.lower[i] and g > 0) or (point.x[i] >= self.upper[i] and g < 0))


def minimize_in_rectangle(
    f: Callable[[Pair], tuple[float, Pair]], start: Pair, rectangle: Rectangle, steps: int
) -> Point:
    """A local minimum of f in the rectangle, whose value does not exceed the one at ``start``.

    A step follows the projection of x + t p. p is the Newton direction of the free coordinates, with a BFGS matrix as
    Hessian; t meets the Wolfe conditions, the second one as far as the rectangle allows.

    Args:
        f: returns the value and the derivatives at a point of the rectangle. If the value is inf, the derivatives are
            ignored.
        start: the start, in the rectangle.
        rectangle: the bounds.
        steps: the largest number of steps.
    """
    now = Point(start, *f(start))
    matrix: Matrix | None = None
    for _ in range(steps):
        if now.value == inf or rectangle.slope(now) <= GRADIENT:
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


def _direction(now: Point, matrix: Matrix | None, rectangle: Rectangle) -> Pair:
    """−B⁻¹ g over the free coordinates, 0 for the others; without B steepest descent, of length at most 1."""
    g, free = now.gradient, (rectangle.is_free(now, 0), rectangle.is_free(now, 1))
    if matrix is None:
        p = (-g[0] if free[0] else 0.0, -g[1] if free[1] else 0.0)
        return _scaled(p, 1.0 / max(1.0, hypot(*p)))
    a, b, c = matrix
    determinant = a * c - b * b
    if all(free) and determinant > 0:
        p = ((b * g[1] - c * g[0]) / determinant, (b * g[0] - a * g[1]) / determinant)
    else:
        p = (-g[0] / a if free[0] else 0.0, -g[1] / c if free[1] else 0.0)
    return _scaled(p, LONGEST / max(LONGEST, abs(p[0]), abs(p[1])))


def _searched(f: Callable[[Pair], tuple[float, Pair]], now: Point, p: Pair, rectangle: Rectangle) -> Point | None:
    """The end of a step along p; None if no trial decreases enough."""
    t, best = 1.0, None
    shortened = False
    for _ in range(TRIALS):
        x = rectangle.along(now.x, p, t)
        slope = _dot(now.gradient, _difference(x, now.x))
        if not slope < 0:
            break
        trial = Point(x, *f(x))
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
        flat = _dot(trial.gradient, _difference(x, now.x)) >= CURVATURE * slope
        t *= LENGTHENED
        if flat or shortened or rectangle.along(now.x, p, t) == x:
            break
    return best


def _updated(matrix: Matrix | None, before: Point, after: Point) -> Matrix | None:
    """The BFGS matrix after a step; unchanged if f has no positive curvature along the step."""
    s, y = _difference(after.x, before.x), _difference(after.gradient, before.gradient)
    curvature, square = _dot(s, y), _dot(y, y)
    if not curvature > 2.2e-16 * square:
        return matrix
    a, b, c = matrix or (square / curvature, 0.0, square / curvature)
    u = (a * s[0] + b * s[1], b * s[0] + c * s[1])
    length = _dot(s, u)
    return (
        a - u[0] * u[0] / length + y[0] * y[0] / curvature,
        b - u[0] * u[1] / length + y[0] * y[1] / curvature,
        c - u[1] * u[1] / length + y[1] * y[1] / curvature,
    )


def _dot(a: Pair, b: Pair) -> float:
    return a[0] * b[0] + a[1] * b[1]


def _difference(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]


def _scaled(p: Pair, factor: float) -> Pair:
    return factor * p[0], factor * p[1]
