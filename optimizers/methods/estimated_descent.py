"""Descent along estimated gradients: an estimator, a first-order rule and a prox put together."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from optimizers.batch import Batch
from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.estimators.prior_guided import PriorGuidedDifferences
from optimizers.estimators.search_gradient import SearchGradient
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

    update_rule: UpdateRule
    state: DescentState

    @property
    @abstractmethod
    def _estimator(self) -> FiniteDifferences | PriorGuidedDifferences | SearchGradient:
        """The estimator of the next step, with all of its directions."""

    def _start(self) -> None:
        self.state = DescentState(FirstOrder(self.update_rule, self._x))

    def _next_queries(self) -> int:
        return self._estimator.within(self.remaining).queries_needed(self.dimension)

    def _ask(self) -> Batch:
        estimator = self._estimator.within(self.remaining)
        return estimator.batch(self._x, self.iterations, number=self.iterations, domain=self.domain)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        estimate = self._estimator.from_values(batch, values)
        if estimate is None:
            self.retreat()
        else:
            self._descend(self.state.rule, estimate.gradient)
