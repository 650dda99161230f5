"""Katyusha's eq. 14: Nesterov's constant momentum along two-point estimates, without variance reduction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_boolean, positive
from optimizers.methods.katyusha.projected_zo import two_point
from optimizers.methods.katyusha.smooth_method import SmoothMethod, SmoothState


@dataclass
class MomentumState(SmoothState):
    """L and its guard, and y, the point of the next estimate; the base class holds x."""

    y: Tensor


class AcceleratedZO(SmoothMethod):
    """Nesterov's accelerated descent along two-point gradient estimates (Katyusha eq. 14 and Fig. 2).

        g    = d (f(y + βu) − f(y))/β u                 (eq. 2, u uniform on the unit sphere)
        x⁺   = prox_{ψ/(dL)}(y − g/(dL))
        y⁺   = x⁺ + m (x⁺ − x),   m = (1 − √(μ/L))/(1 + √(μ/L)), μ = μ_f + μ_ψ

    **As printed and as read.** Eq. 14 has the projection P_X instead of the prox, y⁺ = x⁺ − m (x⁺ − x), and "the simple
    2-point gradient estimator (3)". Eq. 3 has d + 1 points, and the method does not stall with it; the 2-point
    estimator is eq. 2. With the printed sign (``printed_sign=True``) y stays near the previous x, and the run is slower
    than without momentum. The paper uses this method as an example of failure: g does not vanish at a constrained
    minimum, so that iterates in a box stall. ``ZOLKatyusha`` does not.

    The paper gives no rate, and there is none for every f: momentum sums the noise of √(L/μ)/2 estimates, and if the
    mean eigenvalue of ∇²f exceeds about 4 √(Lμ) the iterates grow, even without a constraint. ``NesterovSpokoiny`` has
    a rate.

    A failed query leaves x and y unchanged.

    **When to use it.** To repeat the paper's Fig. 2. For convex functions without a constraint use
    ``NesterovSpokoiny``; with one, ``ZOLKatyusha``.

    **Cost.** 2 queries and O(d) time per step.

    Args:
        printed_sign: whether m has the printed sign.
        step_factor: the divisor of L; a larger one makes longer steps.
        **common: see ``SmoothMethod`` and ``Optimizer``.

    Raises:
        ValueError: for μ_f + μ_ψ = 0: eq. 14 needs μ, which cannot be measured.
    """

    method = "accelerated_zo"
    state: MomentumState

    def __init__(self, x0: Any, *, printed_sign: bool = False, step_factor: float = 1.0, **common: Any) -> None:
        self.printed_sign = check_boolean("printed_sign", printed_sign)
        self.step_factor = positive("step_factor", step_factor)
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        if self.mu_f + self.mu_psi == 0.0:
            raise ValueError("accelerated_zo needs strong_convexity or prox_strong_convexity, or use nesterov_spokoiny")
        self.state = MomentumState(self.smoothness or 0.0, math.inf, self._x)

    def _restart(self) -> None:
        self.state.y = self._x

    @property
    def momentum(self) -> float:
        """m, with its sign; 0 if μ ≥ L."""
        root = math.sqrt(min((self.mu_f + self.mu_psi) * self.step_factor / self.state.smoothness, 1.0))
        m = (1.0 - root) / (1.0 + root)
        return -m if self.printed_sign else m

    def _method_queries(self) -> int:
        return 2

    def _method_ask(self) -> Batch:
        return self._batch(two_point(self), self.state.y)

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        if (estimate := two_point(self).from_values(batch, values)) is None:
            return
        step = self.step_factor / (self.dimension * self.state.smoothness)
        moved = batch.base - step * estimate.gradient
        if not bool(moved.isfinite().all()):
            return
        before, self._x = self._x, self._prox(moved, step)
        self.state.y = self._x + self.momentum * (self._x - before)
