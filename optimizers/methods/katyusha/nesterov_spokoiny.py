"""Nesterov and Spokoiny's accelerated descent along two-point estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import positive
from optimizers.methods.katyusha.smooth_method import SmoothMethod, SmoothState


def next_alpha(gamma: float, mu: float, cost: float) -> float:
    """Solves cost · α² = (1 − α)γ + αμ for α in (0, 1); cost = d²L for two-point estimates."""
    b = gamma - mu
    return 2.0 * gamma / (b + math.sqrt(b * b + 4.0 * cost * gamma))


@dataclass
class EstimateSequence(SmoothState):
    """The state with the point v and the curvature γ of Nesterov's estimate sequence; ``Optimizer`` stores x."""

    v: Tensor
    gamma: float


class NesterovSpokoiny(SmoothMethod):
    """Accelerated descent along two-point gradient estimates (Nesterov and Spokoiny 2017, Sec. 6).

    It starts from v = x = x0 and γ = L. With μ = μ_f + μ_ψ, h = 1/(dL) and α from d²L α² = (1 − α)γ + αμ, a step is

        y  = x + αγ/(γ + αμ) (v − x)
        g  = d (f(y + βu) − f(y))/β u                   (Katyusha eq. 2, u uniform on the unit sphere)
        x⁺ = prox_{hψ}(y − hg)
        v⁺ = argmin_w α(g·w + μ_f/2 ‖w − y‖² + ψ(w)) + (1 − α)γ/2 ‖w − v‖²
        γ⁺ = (1 − α)γ + αμ

    The constants are for directions on the sphere, for which E‖g‖² = d‖∇f‖². Without ψ, an iteration multiplies E[f(x)
    − f* + γ/2 ‖v − x*‖²] by at most 1 − α, where α tends to √(μ/L)/d. The treatment of ψ is ours, and has no such rate:
    g and its variance do not vanish at a constrained minimum, so that the iterates stall before they reach it.

    A failed query leaves x and v unchanged.

    **When to use it.** For smooth convex functions without a constraint, in many variables, with cheap queries.

    **Cost.** 2 queries and O(d) time per step.

    Args:
        step_factor: divides L; larger factors make longer steps.
        **common: see ``SmoothMethod`` and ``Optimizer``.
    """

    method = "nesterov_spokoiny"
    state: EstimateSequence

    def __init__(self, x0: Any, *, step_factor: float = 1.0, **common: Any) -> None:
        self.step_factor = positive("step_factor", step_factor)
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        L = self.smoothness or 0.0
        self.state = EstimateSequence(L, math.inf, self._x, L / self.step_factor)

    def _restart(self) -> None:
        self.state.v, self.state.gamma = self._x, self.state.smoothness / self.step_factor

    def _momentum(self) -> tuple[float, float, Tensor]:
        """h, α and y of the next iteration."""
        state, mu, d = self.state, self.mu_f + self.mu_psi, self.dimension
        L = state.smoothness / self.step_factor
        alpha = next_alpha(state.gamma, mu, d * d * L)
        weight = alpha * state.gamma / (state.gamma + alpha * mu)
        return 1.0 / (d * L), alpha, self._x + weight * (state.v - self._x)

    def _method_ask(self) -> Batch:
        return self._batch(self._estimator, self._momentum()[2])

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        estimate = self._estimator.from_values(batch, values)
        if estimate is None:
            return
        state, y, g = self.state, batch.base, estimate.gradient
        h, alpha, _ = self._momentum()
        inner = (1.0 - alpha) * state.gamma + alpha * self.mu_f
        x = y - h * g
        v = ((1.0 - alpha) * state.gamma * state.v + alpha * (self.mu_f * y - g)) / inner
        if bool((x.isfinite() & v.isfinite()).all()):
            self._x, state.v = self._prox(x, h), self._prox(v, alpha / inner)
            state.gamma = inner + alpha * self.mu_psi
