"""RGF: random gradient-free descent along orthonormal directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.first_order import FirstOrder, UpdateRule, adam
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, positive, positive_integer


@dataclass
class RGFState:
    """The first-order rule's state; the iterate is the base's."""

    rule: FirstOrder


class RGF(Optimizer):
    """Random gradient-free method (Nesterov and Spokoiny, 2017), as ZoRD's baseline (Sec. 5, Appx. C).

    At x it queries f(x) and f(x + λuᵢ), i = 1…n, and steps along

        g = (d/n) Σᵢ (f(x + λuᵢ) − f(x))/λ · uᵢ

    by a first-order rule, then the prox. The uᵢ are orthonormal in blocks of at most d and Haar-distributed,
    so E g = ∇f(x) + O(λ) (ZoRD's eq. 2 prints the sum without the factor d/n), and g is the full forward
    difference gradient in a rotated basis where n = d. Failed directions leave the sum and n; where f(x)
    itself fails, the iterate returns to the best point. The last batch has as many directions as the budget
    holds.

    Args:
        x0: initial point, shape ``d``.
        directions: n, directions a step.
        smoothing_radius: λ, smoothing radius.
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``.
    """

    method = "rgf"
    state: RGFState

    def __init__(
        self,
        x0: Any,
        *,
        directions: int = 10,
        smoothing_radius: float = 0.01,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.directions = positive_integer("directions", directions)
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        self.update_rule = update_rule
        super().__init__(x0, **common)

    def _start(self) -> None:
        self.state = RGFState(FirstOrder(self.update_rule, self._x))

    def _next_queries(self) -> int:
        return max(2, min(self.directions + 1, self.remaining))

    def _ask(self) -> Batch:
        n = self._next_queries() - 1
        scales = [0.0] + [self.smoothing_radius] * n
        return self._directions_batch([0, *range(n)], scales, distribution="orthonormal")

    def _tell(self, batch: Batch, values: Tensor) -> None:
        if bool(values[0].isnan()):
            self.retreat()
            return
        differences = (values - values[0]) / self.smoothing_radius
        succeeded = ~differences.isnan()
        n = int(succeeded.sum()) - 1
        if n == 0:
            return
        gradient = batch.combine(torch.where(succeeded, differences, 0.0) * (self.dimension / n))
        self._descend(self.state.rule, gradient)
