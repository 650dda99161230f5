"""Descent along estimated gradients: an estimator, a first-order rule and a prox put together."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from optimizers.batch import Batch
from optimizers.estimators.estimator import GradientEstimator, check_draw
from optimizers.first_order import FirstOrder, UpdateRule
from optimizers.optimizer import Optimizer


@dataclass
class DescentState:
    """The first-order rule's state; the iterate is the base's."""

    rule: FirstOrder


class EstimatedDescent(Optimizer):
    """x ← prox(rule(x, g)), g an estimate of ∇f(x).

    Failed queries are left out as the estimator does; where it has no estimate, the iterate returns to the best
    point. The last batch has as many directions as the budget holds. A subclass says its estimator.
    """

    directions: int
    smoothing_radius: float
    update_rule: UpdateRule
    state: DescentState

    @property
    @abstractmethod
    def _estimator(self) -> GradientEstimator:
        """The estimator of the next step, with as many directions as the budget holds."""

    def _start(self) -> None:
        check_draw(self.directions, self.smoothing_radius, self.seed)
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
