"""Descent along a linear fit to the nearest queries, a baseline for ZoRD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimizers.core.options import check_integer, nonnegative, optional, positive_integer
from optimizers.estimators.least_squares import least_squares
from optimizers.methods.zord.trajectory_descent import TrajectoryDescent
from surrogates.window.local_options import LEAST_DATA
from surrogates.window.trajectory import Trajectory

WINDOW = 150
"""The most queries in a fit by default; ZoRD's window has the same limit."""


@dataclass
class LinearSurrogate:
    """A linear function fitted to the queries nearest to a point."""

    trajectory: Trajectory

    def gradient(self, x: Tensor, size: int, ridge: float = 0.0) -> Tensor:
        """Computes the gradient at x, shape ``d``, from the ``size`` nearest queries; 0 if they all coincide."""
        rows = self.trajectory.nearest(x, size)
        X, y = self.trajectory.X[rows], self.trajectory.y[rows]
        displacements, differences = (X[1:] - X[0]).double(), y[1:] - y[0]
        if not bool(displacements.any()):
            return torch.zeros_like(x)
        return least_squares(displacements, differences, ridge).to(x)


class LeastSquaresGradient(TrajectoryDescent[LinearSurrogate]):
    """Descends along a linear fit to the nearest queries, otherwise like ``ZoRD`` (see ``TrajectoryDescent``).

    With values y₁ … yₙ at the ``window`` queries x₁ … xₙ nearest to x, x₁ the nearest, it steps along

        g = argmin Σᵢ (yᵢ − y₁ − g·(xᵢ − x₁))² + r s²‖g‖²,   s = ‖(xᵢ − x₁)ᵢ‖₂,

    where s is the spectral norm of the matrix of differences. If there are several minimizers (r = 0 and n ≤ d), g is
    the one of least norm.

    **When to use it.** As a baseline, to see the gain from the Gaussian process of ``ZoRD``.

    **Cost.** One query per iteration, and O(n²d) time for a fit to n queries; memory for all queries.

    Args:
        window: the largest n; None: 3d, from 10 to 150.
        ridge: the weight r of the penalty on ‖g‖².
        steps: the number of steps in an iteration, each with a new fit.
        **common: see ``TrajectoryDescent`` and ``Optimizer``.
    """

    method = "least_squares"  # in checkpoints the method keeps its former name

    def __init__(
        self,
        x0: Any = None,
        *,
        window: int | None = None,
        ridge: float = 0.0,
        steps: int = 1,
        **common: Any,
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
        """Points at the radius from z, along normal directions."""
        return self._unasked(self._around(z, count), pending)
