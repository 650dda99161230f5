"""Accelerated descent along two-point gradient estimates with constant momentum (Katyusha's eq. 14)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_boolean, positive
from optimizers.methods.katyusha.smooth_method import SmoothMethod, SmoothState


@dataclass
class MomentumState(SmoothState):
    """The state with y, the point at which the gradient is estimated next; ``Optimizer`` stores x."""

    y: Tensor


class AcceleratedZO(SmoothMethod):
    """Nesterov's accelerated descent along two-point gradient estimates (Katyusha eq. 14 and Fig. 2).

        g    = d (f(y + βu) − f(y))/β u                 (eq. 2, u uniform on the unit sphere)
        x⁺   = prox_{ψ/(dL)}(y − g/(dL))
        y⁺   = x⁺ + m (x⁺ − x),   m = (1 − √(μ/L))/(1 + √(μ/L)), μ = μ_f + μ_ψ

    The paper uses this method as an example of failure: g does not vanish at a constrained minimum, so that iterates in
    a box stall. The iterates may even grow without a constraint, if the mean eigenvalue of ∇²f exceeds about 4 √(Lμ),
    because momentum sums the noise of √(L/μ)/2 estimates.

    **Differences from the paper.** Eq. 14 is printed with the projection P_X instead of the prox, with the sign y⁺ = x⁺
    − m (x⁺ − x), and with "the simple 2-point gradient estimator (3)", although eq. 3 has d + 1 points and the 2-point
    estimator is eq. 2. With the printed sign, y stays near the previous x, and the run is slower than without momentum.

    A failed query leaves x and y unchanged.

    **When to use it.** To repeat the paper's Fig. 2. For convex functions use ``NesterovSpokoiny`` without a
    constraint, and ``ZOLKatyusha`` with a constraint.

    **Cost.** 2 queries and O(d) time per step.

    Args:
        printed_sign: whether the momentum is −m, as printed in the paper.
        step_factor: divides L; larger factors make longer steps.
        **common: see ``SmoothMethod`` and ``Optimizer``.

    Raises:
        ValueError: if μ_f and μ_ψ are both 0, because eq. 14 needs μ, which cannot be measured.
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
            raise ValueError("accelerated_zo needs strong_convexity or prox_strong_convexity; or use nesterov_spokoiny")
        self.state = MomentumState(self.smoothness or 0.0, math.inf, self._x)

    def _restart(self) -> None:
        self.state.y = self._x

    @property
    def momentum(self) -> float:
        """The momentum m, or −m with ``printed_sign``; 0 if μ ≥ L."""
        root = math.sqrt(min((self.mu_f + self.mu_psi) * self.step_factor / self.state.smoothness, 1.0))
        m = (1.0 - root) / (1.0 + root)
        return -m if self.printed_sign else m

    def _method_ask(self) -> Batch:
        return self._batch(self._estimator, self.state.y)

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        if (estimate := self._estimator.from_values(batch, values)) is None:
            return
        step = self.step_factor / (self.dimension * self.state.smoothness)
        moved = batch.base - step * estimate.gradient
        if not bool(moved.isfinite().all()):
            return
        before, self._x = self._x, self._prox(moved, step)
        self.state.y = self._x + self.momentum * (self._x - before)
