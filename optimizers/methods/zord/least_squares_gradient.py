"""Descent along least-squares gradients of the nearest queries: what a surrogate has to beat."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.estimators.gradient_estimators import least_squares
from optimizers.methods.zord.trajectory_descent import DescentOptions, TrajectoryDescent
from optimizers.options import check_integer, positive_integer
from surrogates import Trajectory

WINDOW = 150
"""Most queries of a fit by default, ZoRD's number."""


class LeastSquaresGradient(TrajectoryDescent):
    """ZoRD's loop with a line through the nearest queries in place of its Gaussian process.

    At x, with x₁ … xₙ the ``window`` queries nearest to it, x₁ the nearest, it steps along

        g = argmin Σᵢ (yᵢ − y₁ − g·(xᵢ − x₁))² + r s²‖g‖²,   s = ‖(xᵢ − x₁)ᵢ‖₂,

    the one of least norm where several are (r = 0 and n ≤ d): ∇f's projection onto the span of the differences, for
    linear f. Queries, initial design, start and rule are ``TrajectoryDescent``'s.

    Args:
        x0: initial point, shape ``d``.
        window: n, at most; None: 3d, and not more than ZoRD's 150 (at d = 20 better than 150 and than d).
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
        if window is not None:
            check_integer("window", window, 2)
        if isinstance(ridge, bool) or not isinstance(ridge, int | float):
            raise TypeError(f"ridge must be a number, got {ridge!r}")
        if not (ridge >= 0 and math.isfinite(ridge)):
            raise ValueError(f"ridge must be at least 0 and finite, got {ridge}")
        self.window, self.ridge, self.steps = window, float(ridge), positive_integer("steps", steps)
        super().__init__(x0, **common)

    def _memory(self) -> Trajectory:
        self._size = min(max(3 * self.dimension, 10), WINDOW) if self.window is None else self.window
        return Trajectory(self.dimension, dtype=self._x.dtype, device=self._x.device)

    def _advance(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        self.state.steps = 0
        for _ in range(self._most_steps(self.steps)):
            gradient = self.gradient(x)
            z, step_size = self.state.rule.step(x, gradient)
            if not bool(torch.isfinite(gradient).all() and torch.isfinite(z).all()):
                break
            x = self._prox(z, step_size)
            self.state.steps += 1
        return x, None

    def gradient(self, x: Tensor) -> Tensor:
        """G at x, search coordinates, shape ``d``; 0 where all of the nearest queries are at one point."""
        rows = self.trajectory.nearest(x, self._size)
        X, y = self.trajectory.X[rows], self.trajectory.y[rows]
        displacements, differences = (X[1:] - X[0]).double(), y[1:] - y[0]
        if not bool(displacements.any()):
            return torch.zeros_like(x)
        return least_squares(displacements, differences, self.ridge).to(x)
