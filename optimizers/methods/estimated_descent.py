"""Descent along estimated gradients: an estimator, a first-order rule and a prox put together."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Unpack

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions
from optimizers.estimators.estimator import GradientEstimator, check_draw
from optimizers.first_order import FirstOrder, UpdateRule, adam


@dataclass
class DescentState:
    """The first-order rule's state; the iterate is the base's."""

    rule: FirstOrder


class EstimatedDescent(Optimizer):
    """x ← prox(rule(x, g)), g an estimate of ∇f(x) from n random directions.

    Failed queries are left out as the estimator does; where it has no estimate, the iterate returns to the best
    point. The last batch has as many directions as the budget holds. A subclass says its estimator.

    Args:
        x0: initial point, shape ``d``.
        directions: n, directions a step.
        smoothing_radius: λ, in search units.
        update_rule: factory of the first-order rule, a torch optimizer.
        **common: see ``Optimizer``.
    """

    state: DescentState

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
        check_draw(directions, smoothing_radius, 0)
        super().__init__(x0, **common)

    @property
    @abstractmethod
    def _estimator(self) -> GradientEstimator:
        """The estimator of the next step, with as many directions as the budget holds."""

    def _start(self) -> None:
        self.state = DescentState(FirstOrder(self.update_rule, self._x))

    def _next_queries(self) -> int:
        return self._estimator.queries_needed(self.dimension)

    def _ask(self) -> Batch:
        return self._estimator.batch(self._x, self.iterations, number=self.iterations, domain=self.domain)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        estimate = self._estimator.from_values(batch, values)
        if estimate is None:
            self.retreat()
        else:
            self._descend(self.state.rule, estimate.gradient)
