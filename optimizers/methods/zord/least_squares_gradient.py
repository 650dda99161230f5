"""Descent along least-squares gradients of the nearest queries: what a surrogate has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.core.options import check_integer, nonnegative, optional, positive_integer
from optimizers.directions.directions import Directions
from optimizers.estimators.least_squares import least_squares
from optimizers.methods.zord.trajectory_descent import DescentOptions, TrajectoryDescent
from surrogates import Trajectory
from surrogates.window.local_options import LEAST_DATA

WINDOW = 150
"""Most queries of a fit by default, ZoRD's number."""


@dataclass
class LinearSurrogate:
    """A line through the queries nearest to a point.

    Attributes:
        trajectory: the queries.
    """

    trajectory: Trajectory

    def gradient(self, x: Tensor, size: int, ridge: float = 0.0) -> Tensor:
        """g of ``LeastSquaresGradient`` at x, shape ``d``; 0 where all of the ``size`` nearest are at one point."""
        rows = self.trajectory.nearest(x, size)
        X, y = self.trajectory.X[rows], self.trajectory.y[rows]
        displacements, differences = (X[1:] - X[0]).double(), y[1:] - y[0]
        if not bool(displacements.any()):
            return torch.zeros_like(x)
        return least_squares(displacements, differences, ridge).to(x)


class LeastSquaresGradient(TrajectoryDescent[LinearSurrogate]):
    """ZoRD's loop with a line through the nearest queries in place of its Gaussian process.

    At x, with x₁ … xₙ the ``window`` queries nearest to it, x₁ the nearest, it steps along

        g = argmin Σᵢ (yᵢ − y₁ − g·(xᵢ − x₁))² + r s²‖g‖²,   s = ‖(xᵢ − x₁)ᵢ‖₂,

    the one of least norm where several are (r = 0 and n ≤ d): ∇f's projection onto the span of the differences, for
    linear f. Queries, initial design, start and rule are ``TrajectoryDescent``'s.

    Args:
        x0: initial point, shape ``d``.
        window: n, at most; None: 3d, at least 10 and not more than ZoRD's 150.
        ridge: r.
        steps: steps of an iteration, each with the queries nearest to where it starts.
        **common: see ``TrajectoryDescent`` and ``Optimizer``.
    """

    method = "least_squares"

    def __init__(
        self,
        x0: Any,
        *,
        window: int | None = None,
        ridge: float = 0.0,
        steps: int = 1,
        **common: Unpack[DescentOptions],
    ) -> None:
        self.window = optional(check_integer, "window", window, LEAST_DATA)
        self.ridge, self.steps = nonnegative("ridge", ridge), positive_integer("steps", steps)
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        self._size = self.window or min(max(3 * self.dimension, 10), WINDOW)
        self._begin(LinearSurrogate(Trajectory(self.dimension, dtype=self._x.dtype, device=self._x.device)))

    def _iterate(self, x: Tensor) -> None:
        z, state = x, self.state
        state.steps = 0
        for _ in range(self._halved_after_failures(self.steps)):
            gradient = self.surrogate.gradient(z, self._size, self.ridge)
            moved, step_size = state.rule.step(z, gradient)
            if not bool(torch.isfinite(gradient).all() and torch.isfinite(moved).all()):
                break
            z, state.steps = self._prox(moved, step_size), state.steps + 1
        self._query_next(z, start=x)

    def _informative(self, z: Tensor, pending: Tensor, count: int) -> Tensor:
        """Points at the radius from z, each along the direction that the regression at z knows least with those before.

        Its rows are the ``window`` queries nearest to z and the pending points.
        """
        X = self.trajectory.X[self.trajectory.nearest(z, self._size)]
        known, normal = torch.cat([X[1:], pending]) - X[0], Directions(self.seed, len(z), "normal")
        starts = normal.block(self.number, count, device=z.device)
        found = z.new_empty(0, len(z))
        for start in starts:
            u = self.local_radius * least_determined(known.double(), start).to(z)
            sides = self._confined(torch.stack([z + u, z - u]))
            room = (sides - z).norm(dim=1)
            points = self._unasked(sides[int(room[1] > 2 * room[0])][None], torch.cat([pending, found]))
            found, known = torch.cat([found, points]), torch.cat([known, points - X[0]])
        return found


def least_determined(displacements: Tensor, start: Tensor) -> Tensor:
    """The unit vector u of least ‖D u‖, shape ``d``: in D's null space the projection of a vector, where there is one.

    Args:
        displacements: D, ``n x d``, float64.
        start: the vector, shape ``d``, float64, which also decides between u and −u.
    """
    _, s, right = torch.linalg.svd(displacements, full_matrices=False)
    right = right[s > torch.finfo(s.dtype).eps * max(displacements.shape) * s[0]]
    u = right[-1] * (right[-1] @ start).sign() if len(right) == len(start) else start - right.mT @ (right @ start)
    return torch.nn.functional.normalize(u, dim=0)
