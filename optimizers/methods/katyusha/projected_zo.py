"""Projected zeroth-order descent: proximal steps along a two-point or a coordinate estimate."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.estimators.axis_differences import axis_derivatives
from optimizers.methods.katyusha.smooth_method import SmoothMethod, SmoothOptions, SmoothState
from optimizers.options import positive

Estimator = Literal["two_point", "coordinates"]
Steps = Literal["diminishing", "constant"]


def diminishing_step(initial: float, mu: float, iteration: int, delay: float) -> float:
    """η_k = 1/(1/η₀ + μk/2), order 1/k, where μ > 0; η₀/√(1 + k/delay), order 1/√k, where μ = 0."""
    if mu > 0.0:
        return 1.0 / (1.0 / initial + mu * iteration / 2.0)
    return initial / math.sqrt(1.0 + iteration / delay)


def two_point_batch(method: SmoothMethod, x: Tensor) -> Batch:
    """x + βu and x − βu, u uniform on the unit sphere."""
    return method._directions_batch(
        [0, 0], [method.current_smoothing_radius, -method.current_smoothing_radius], distribution="sphere", base=x
    )


def two_point_gradient(batch: Batch, values: Tensor, smoothing_radius: float) -> Tensor:
    """Eq. 2: g = d (f(x + βu) − f(x − βu))/(2β) u, unbiased to O(β²); E‖g‖² = d‖∇f‖²; NaN where one failed."""
    slope = float(values[0] - values[1]) / (2.0 * smoothing_radius)
    return batch.combine(torch.tensor([batch.dimension * slope, 0.0], dtype=torch.float64))


class ProjectedZO(SmoothMethod):
    """Projected (proximal) zeroth-order descent, the baseline of Katyusha's Sec. 5.

        x ← prox_{η_k ψ}(x − η_k g)

    ``"two_point"``: g = d (f(x + βu) − f(x − βu))/(2β) u (eq. 2), u uniform on the sphere, 2 queries. Its
    variance does not vanish at a constrained minimum, hence the diminishing steps η_k = 1/(dL + μk/2), or
    1/(dL √(1 + k/d)) where no strong convexity is known (the paper does not give them). ``"coordinates"``:
    g = Σ_i (f(x + βe_i) − f(x))/β e_i, d + 1 queries and dL above replaced by L; with constant steps that is
    plain proximal gradient descent by differences.

    A failed two-point query leaves x where it is; a failed derivative counts as 0.

    Args:
        x0: initial point, shape ``d``.
        estimator: ``"two_point"`` or ``"coordinates"``.
        steps: ``"diminishing"`` or ``"constant"``, η₀ throughout.
        step_factor: multiplies η₀.
        **common: see ``SmoothMethod`` and ``Optimizer``.

    Raises:
        ValueError: for an unknown estimator or kind of steps.
    """

    method = "projected_zo"

    def __init__(
        self,
        x0: Any,
        *,
        estimator: Estimator = "two_point",
        steps: Steps = "diminishing",
        step_factor: float = 1.0,
        **common: Unpack[SmoothOptions],
    ) -> None:
        if estimator not in ("two_point", "coordinates"):
            raise ValueError(f"estimator must be 'two_point' or 'coordinates', got {estimator!r}")
        if steps not in ("diminishing", "constant"):
            raise ValueError(f"steps must be 'diminishing' or 'constant', got {steps!r}")
        self.estimator, self.steps = estimator, steps
        self.step_factor = positive("step_factor", step_factor)
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        self.state = SmoothState(self.smoothness or 0.0, math.inf)

    @property
    def step_size(self) -> float:
        """η_k at k = ``iterations``."""
        d = 1 if self.estimator == "coordinates" else self.dimension
        initial = self.step_factor / (d * self.state.smoothness)
        if self.steps == "constant":
            return initial
        return diminishing_step(initial, self.mu_f + self.mu_psi, self.iterations, self.dimension)

    def _restart(self) -> None:
        return

    def _method_queries(self) -> int:
        return 2 if self.estimator == "two_point" else self.dimension + 1

    def _method_ask(self) -> Batch:
        if self.estimator == "two_point":
            return two_point_batch(self, self._x)
        return self._axes_batch(self._x, range(self.dimension))

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        if self.estimator == "two_point":
            if not bool(values.isnan().any()):
                self._step(two_point_gradient(batch, values, self.current_smoothing_radius), self.step_size)
        elif not self._base_failed(values):
            g = axis_derivatives(batch, values).to(self._x)
            self._step(g.nan_to_num(nan=0.0), self.step_size)
