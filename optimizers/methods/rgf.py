"""RGF: random gradient-free descent along orthonormal directions."""

from __future__ import annotations

from typing import Any, Unpack

from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.first_order import UpdateRule, adam
from optimizers.methods.estimated_descent import EstimatedDescent
from optimizers.options import CommonOptions


class RGF(EstimatedDescent):
    """Random gradient-free method (Nesterov and Spokoiny, 2017), as ZoRD's baseline (Sec. 5, Appx. C).

    At x it queries f(x) and f(x + λuᵢ), i = 1…n, and steps along

        g = (d/n) Σᵢ (f(x + λuᵢ) − f(x))/λ · uᵢ

    by a first-order rule, then the prox. The uᵢ are orthonormal in blocks of at most d and Haar-distributed,
    so E g = ∇f(x) + O(λ²) (ZoRD's eq. 2 prints the sum without the factor d/n), and g is the full forward
    difference gradient in a rotated basis where n = d. Failed queries: see ``EstimatedDescent``.

    Args:
        x0: initial point, shape ``d``.
        directions: n, directions a step.
        smoothing_radius: λ, smoothing radius.
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``.
    """

    method = "rgf"

    def __init__(
        self,
        x0: Any,
        *,
        directions: int = 10,
        smoothing_radius: float = 0.01,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.directions, self.smoothing_radius, self.update_rule = directions, smoothing_radius, update_rule
        super().__init__(x0, **common)

    @property
    def _estimator(self) -> FiniteDifferences:
        n = min(self.directions, max(1, self.remaining - 1))
        return FiniteDifferences(n, self.smoothing_radius, "orthonormal", seed=self.seed)
