"""Projected zeroth-order descent along two-point estimates or coordinate differences."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_choice, positive
from optimizers.estimators.estimator import GradientEstimator
from optimizers.methods.katyusha.smooth_method import SmoothMethod, SmoothState

Estimator = Literal["two_point", "coordinates"]
Steps = Literal["diminishing", "constant"]


def diminishing_step(initial: float, mu: float, iteration: int, delay: float) -> float:
    """Computes the step size η_k = 1/(1/η₀ + μk/2) for μ > 0, and η₀/√(1 + k/``delay``) for μ = 0."""
    if mu > 0.0:
        return 1.0 / (1.0 / initial + mu * iteration / 2.0)
    return initial / math.sqrt(1.0 + iteration / delay)


class ProjectedZO(SmoothMethod):
    """Projected (proximal) zeroth-order descent, the baseline of Katyusha's Sec. 5.

        x ← prox_{η_k ψ}(x − η_k g)

    - ``"two_point"``: g = d (f(x + βu) − f(x))/β u with u uniform on the unit sphere (eq. 2), from 2 queries. The
      variance of g does not vanish at a constrained minimum. The steps therefore diminish by η_k = 1/(dL + μk/2) or,
      for μ = 0, η_k = 1/(dL √(1 + k/d)); the paper mentions such steps without a formula.
    - ``"coordinates"``: g = Σ_i (f(x + βe_i) − f(x))/β e_i (eq. 6), from d + 1 queries, with L instead of dL in η_k.
      With constant steps, this is proximal gradient descent by finite differences.

    A failed two-point query leaves x unchanged; a failed coordinate difference counts as 0.

    **When to use it.** As a baseline for convex problems with a prox; with ``"coordinates"`` for small d.

    **Cost.** 2 or d + 1 queries per step, and O(d) time for each.

    Args:
        estimator: ``"two_point"`` or ``"coordinates"``.
        step_schedule: ``"diminishing"``, or ``"constant"`` for η_k = η₀.
        step_factor: multiplies η₀.
        **common: see ``SmoothMethod`` and ``Optimizer``.
    """

    method = "projected_zo"

    def __init__(
        self,
        x0: Any,
        *,
        estimator: Estimator = "two_point",
        step_schedule: Steps = "diminishing",
        step_factor: float = 1.0,
        **common: Any,
    ) -> None:
        check_choice("estimator", estimator, get_args(Estimator))
        check_choice("step_schedule", step_schedule, get_args(Steps))
        self.estimator, self.step_schedule = estimator, step_schedule
        self.step_factor = positive("step_factor", step_factor)
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        self.state = SmoothState(self.smoothness or 0.0, math.inf)

    @property
    def step_size(self) -> float:
        """The step size η_k of the present iteration k."""
        d = 1 if self.estimator == "coordinates" else self.dimension
        initial = self.step_factor / (d * self.state.smoothness)
        if self.step_schedule == "constant":
            return initial
        return diminishing_step(initial, self.mu_f + self.mu_psi, self.iterations, self.dimension)

    @property
    def _estimator(self) -> GradientEstimator:
        return super()._estimator if self.estimator == "two_point" else self._coordinates()

    def _method_ask(self) -> Batch:
        return self._batch(self._estimator, self._x)

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        estimate = self._estimator.from_values(batch, values)
        if estimate is not None:
            self._step(estimate.gradient, self.step_size)
        self._base_failed(values)
