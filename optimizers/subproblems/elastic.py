"""Steps to a low value of a smooth function under smooth constraints, which a price makes elastic.

The step s minimizes the exact penalty function

    f(s) + ν max(0, maxᵢ gᵢ(s))

in a region, as min f(s) + νt over s and t ≥ 0 subject to gᵢ(s) ≤ t, by sequential quadratic programming. It is defined
where the constraints contradict each other, depend on each other, or cannot be met in the region; an equality is two
rows, h and −h. Curved constraints are followed by their own values and gradients, so that no second-order correction
is needed.

References:
    R. Fletcher, Practical Methods of Optimization, 2nd ed., 1987, Secs. 12.3 and 14.3 (exact penalties, elastic mode).
    D. Kraft, A software package for sequential quadratic programming, DFVLR-FB 88-28, 1988 (SLSQP).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from scipy.optimize import minimize, nnls

from optimizers.subproblems.region import Region

ITERATIONS, PRECISION = 40, 1e-10
"""The most iterations of the quadratic programming, and the relative decrease at which it ends."""

BINDING = 0.02
"""A constraint binds at a step if its value is within this share of the step's length of 0."""


Found = TypeVar("Found")


@dataclass(frozen=True)
class Values:
    """Functions at a step.

    Attributes:
        f: the function's value less that at 0.
        rows: the constraints' values g, shape ``m``, in units of length: their gradients are of a size of about 1.
    """

    f: float
    rows: np.ndarray

    def merit(self, price: float) -> float:
        """f + ν max(0, max g)."""
        return self.f + price * violation(self.rows)


def violation(rows: np.ndarray) -> float:
    """The largest violation max(0, max g); 0 without constraints."""
    return max(0.0, float(rows.max())) if len(rows) else 0.0


Slopes = tuple[np.ndarray, np.ndarray]
"""The gradient of f, shape ``d``, and those of the constraints, ``m x d``."""


class Functions(Protocol):
    """f and the constraints of a step, shape ``d``."""

    def values(self, s: np.ndarray) -> Values:
        """The values at a step."""

    def slopes(self, s: np.ndarray) -> Slopes:
        """The gradients at a step."""


class _Last(Generic[Found]):
    """A function that keeps its last value: a step's values are asked for twice in a row."""

    def __init__(self, function: Callable[[np.ndarray], Found]) -> None:
        self._function, self._kept = function, dict[bytes, Found]()

    def __call__(self, s: np.ndarray) -> Found:
        if (key := s.tobytes()) not in self._kept:
            self._kept = {key: self._function(s)}
        return self._kept[key]


def minimize_elastic(
    functions: Functions,
    price: float,
    region: Region,
    start: np.ndarray,
    margin: np.ndarray,
    hard: np.ndarray,
) -> np.ndarray:
    """Finds a step of low f + ν max(0, max(g + margin)) in a region, shape ``d``.

    Args:
        functions: f and g.
        price: ν, in units of f per unit of length.
        region: the ball, the box and the half-space.
        start: the step with which the search begins, shape ``d``.
        margin: how far inside a constraint the step is to stay, shape ``m``.
        hard: constraints that no price makes elastic, shape ``m``; they hold at 0.
    """
    values, slopes, delta = _Last(functions.values), _Last(functions.slopes), region.delta
    steepest = float(np.linalg.norm(slopes(np.zeros(len(start)))[0]))
    lower, upper = (np.clip(side.numpy() / delta, -1.0, 1.0) for side in (region.lower, region.upper))
    unit = max(steepest, price) * delta or 1.0
    plane = region.half_space
    normal = None if plane is None else plane.normal.numpy() * delta
    allowed = 0.0 if plane is None else plane.allowed(delta)

    elastic = np.where(hard, 0.0, 1.0)

    def objective(z: np.ndarray) -> float:
        return (values(z[:-1] * delta).f + price * delta * z[-1]) / unit

    def objective_slope(z: np.ndarray) -> np.ndarray:
        return np.append(slopes(z[:-1] * delta)[0], price) * (delta / unit)

    def limits(z: np.ndarray) -> np.ndarray:
        there, s = values(z[:-1] * delta), z[:-1]
        beside = [1.0 - s @ s] if normal is None else [1.0 - s @ s, allowed - normal @ s]
        return np.concatenate([z[-1] * elastic - (there.rows + margin) / delta, beside])

    def limits_slopes(z: np.ndarray) -> np.ndarray:
        s, m = z[:-1], len(elastic)
        found = np.zeros((m + 1 + (normal is not None), len(z)))
        found[:m, :-1], found[:m, -1], found[m, :-1] = -slopes(s * delta)[1], elastic, -2.0 * s
        if normal is not None:
            found[m + 1, :-1] = -normal
        return found

    begin = np.clip(start / delta, lower, upper)
    slack = violation(values(begin * delta).rows + margin) / delta
    found = minimize(
        objective,
        np.append(begin, slack),
        jac=objective_slope,
        method="SLSQP",
        bounds=np.column_stack([np.append(lower, 0.0), np.append(upper, math.inf)]),
        constraints={"type": "ineq", "fun": limits, "jac": limits_slopes},
        options={"maxiter": ITERATIONS, "ftol": PRECISION},
    )
    z = np.clip(np.nan_to_num(found.x[:-1]), lower, upper)
    length = float(np.linalg.norm(z))
    share = max(1.0, length) if normal is None else max(1.0, length, float(normal @ z) / max(allowed, 1e-6))
    return z * (delta / share)


def multipliers(
    rows: np.ndarray, slopes: Slopes, s: np.ndarray, region: Region, reach: float | np.ndarray
) -> np.ndarray:
    """Computes the multipliers λ ≥ 0 of the constraints at a step, shape ``m``, 0 for those that do not bind.

    They minimize ‖∇f + Σ λᵢ∇gᵢ + Σ μⱼnⱼ‖ over λ, μ ≥ 0, n the outward normals of the sides of the box at which the
    step ends, and of the ball where it ends there.

    Args:
        rows: the constraints at the step, shape ``m``.
        slopes: the gradients there.
        s: the step, shape ``d``.
        region: the region.
        reach: a constraint within this distance of 0 binds; one for all, or of shape ``m``.
    """
    binding, found = np.flatnonzero(rows > -reach), np.zeros(len(rows))
    if not len(binding):
        return found
    at_lower, at_upper = s <= region.lower.numpy(), s >= region.upper.numpy()
    normals = np.eye(len(s))
    columns = [slopes[1][binding], -normals[at_lower], normals[at_upper]]
    if (length := float(np.linalg.norm(s))) > 0.99 * region.delta:
        columns.append(s[None] / length)
    try:
        found[binding] = nnls(np.concatenate(columns).T, -slopes[0])[0][: len(binding)]
    except RuntimeError:  # its limit of iterations: the last multipliers stay in use
        found[:] = np.nan
    return found
