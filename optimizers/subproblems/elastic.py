"""Steps to a low value of a smooth function, with a penalty for violating smooth constraints.

The step s minimizes the exact penalty function

    f(s) + ν max(0, maxᵢ gᵢ(s))

in a region, as min f(s) + νt over s and t ≥ 0 subject to gᵢ(s) ≤ t, by sequential quadratic programming. A solution
exists even if constraints contradict each other, depend on each other, or cannot be satisfied in the region. An
equality h = 0 is two constraints, h and −h. Each iterate evaluates the constraints, so curved ones need no second-order
correction.

References:
    R. Fletcher, Practical Methods of Optimization, 2nd ed., 1987, Secs. 12.3 and 14.3 (exact penalties, elastic mode).
    D. Kraft, A software package for sequential quadratic programming, DFVLR-FB 88-28, 1988 (SLSQP).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import minimize, nnls

from optimizers.subproblems.region import Region

ITERATIONS, PRECISION = 40, 1e-7
"""The most iterations of SLSQP, and the decrease at which it ends, relative to max(‖∇f‖, ν)δ."""

FLATTEST = 0.01
"""Least curvature by which a variable is scaled, in units of max(‖∇f‖, ν)/δ."""

BINDING = 0.02
"""A constraint g ≤ 0 is active at a step s if g ≥ −BINDING ‖s‖."""


@dataclass(frozen=True)
class Values:
    """The function and the constraints at a step.

    Attributes:
        f: the function's value minus its value at 0.
        rows: the constraints' values g, shape ``m``, scaled to units of length, so that ‖∇g‖ is about 1.
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
"""The gradient of f, shape ``d``, and the gradients of the constraints, ``m x d``."""


def minimize_elastic(
    values: Callable[[np.ndarray], Values],
    slopes: Callable[[np.ndarray], Slopes],
    price: float,
    region: Region,
    start: np.ndarray,
    margin: np.ndarray,
    hard: np.ndarray,
    hessian: np.ndarray,
) -> np.ndarray:
    """Finds a step of low f + ν max(0, max(g + margin)) in a region, shape ``d``.

    SLSQP assumes at first that the Hessian of the Lagrangian is the identity. Therefore it solves for y = T⁻¹s, where T
    is computed from ``hessian`` so that the Hessian in y is near the identity.

    Args:
        values: f and g at a step, shape ``d``.
        slopes: the gradients of f and g at a step.
        price: ν, in units of f per unit of length.
        region: the ball, the box and the half-space.
        start: the step with which the search begins, shape ``d``.
        margin: how far inside a constraint the step is to stay, shape ``m``.
        hard: whether a constraint has no slack t and must be satisfied, shape ``m``; such constraints hold at s = 0.
        hessian: an estimate of the Lagrangian's Hessian at 0, ``d x d``.
    """
    # SLSQP asks for f and then for the constraints at the same step.
    values_at = lru_cache(1)(lambda key: values(np.frombuffer(bytearray(key))))
    slopes_at = lru_cache(1)(lambda key: slopes(np.frombuffer(bytearray(key))))
    delta, m, steepest = region.delta, len(margin), float(np.linalg.norm(slopes_at(np.zeros(len(start)).tobytes())[0]))
    unit = max(steepest, price) * delta or 1.0
    curvatures, Q = np.linalg.eigh(np.nan_to_num(hessian * (delta * (delta / unit)), posinf=0.0, neginf=0.0))
    roots = np.sqrt(np.maximum(np.abs(curvatures), FLATTEST))
    T = Q * (delta / roots)
    normals, allowed = _planes(region)
    # The last column is of the slack t, in units of δ.
    constant = np.zeros((m + len(normals) + 1, len(T) + 1))
    constant[:m, -1], constant[m:-1, :-1] = np.where(hard, 0.0, 1.0), -normals @ T

    def objective(z: np.ndarray) -> float:
        return (values_at((T @ z[:-1]).tobytes()).f + price * delta * z[-1]) / unit

    def objective_slope(z: np.ndarray) -> np.ndarray:
        return np.append(slopes_at((T @ z[:-1]).tobytes())[0] @ T, price * delta) / unit

    def limits(z: np.ndarray) -> np.ndarray:
        s = T @ z[:-1]
        offsets = np.concatenate(
            [(values_at(s.tobytes()).rows + margin) / -delta, allowed, [1.0 - (s / delta) @ (s / delta)]]
        )
        found: np.ndarray = constant @ z + offsets
        return found

    def limits_slopes(z: np.ndarray) -> np.ndarray:
        found, s = constant.copy(), T @ z[:-1]
        found[:m, :-1], found[-1, :-1] = slopes_at(s.tobytes())[1] @ (T / -delta), -2.0 * ((s / delta) @ (T / delta))
        return found

    slack = violation(values(start).rows + margin) / delta
    found = minimize(
        objective,
        np.append(roots * (start @ Q) / delta, slack),
        jac=objective_slope,
        method="SLSQP",
        bounds=[*[(None, None)] * len(T), (0.0, None)],
        constraints={"type": "ineq", "fun": limits, "jac": limits_slopes},
        options={"maxiter": ITERATIONS, "ftol": PRECISION},
    )
    return region.confined(torch.from_numpy(T @ np.nan_to_num(found.x[:-1]))).numpy()


def _planes(region: Region) -> tuple[np.ndarray, np.ndarray]:
    """The planes nᵀs = a of a region's box and half-space that cut its ball: n, ``k x d``, and a, both over δ."""
    delta, sides = region.delta, np.concatenate([region.upper.numpy(), -region.lower.numpy()])
    near, both = np.flatnonzero(sides < delta), np.eye(len(region.lower)) / delta
    normals, allowed = np.concatenate([both, -both])[near], sides[near] / delta
    if (plane := region.half_space) is None:
        return normals, allowed
    return np.vstack([normals, plane.normal.numpy()]), np.append(allowed, plane.allowed(delta))


def multipliers(
    rows: np.ndarray, slopes: Slopes, s: np.ndarray, region: Region, reach: float | np.ndarray
) -> np.ndarray:
    """Computes the multipliers λ ≥ 0 of the constraints at a step, shape ``m``, 0 for those that do not bind.

    The multipliers minimize ‖∇f + Σ λᵢ∇gᵢ + Σ μⱼnⱼ‖ over λ, μ ≥ 0. The nⱼ are the outward normals of the sides of the
    box that the step reaches, and of the ball if the step reaches its boundary.

    Args:
        rows: the constraints at the step, shape ``m``.
        slopes: the gradients at the step.
        s: the step, shape ``d``.
        region: the region.
        reach: a constraint within this distance of 0 binds; a number, or shape ``m``.
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
