"""The base class of methods that descend along estimated gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Unpack

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import search_width
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions
from optimizers.estimators.estimator import GradientEstimator, check_draw
from optimizers.first_order import FirstOrder, UpdateRule, adam

STEP = 0.2
"""The default length of Adam's first step, in units of the box's side."""

HALVED = 50.0
"""The number of queries per variable after which the default rate is halved."""


@dataclass
class DescentState:
    """The state of the first-order rule; ``Optimizer`` stores the iterate."""

    rule: FirstOrder


class EstimatedDescent(Optimizer):
    """Descends by x ← prox(rule(x, g)), where g estimates ∇f(x) from n random directions.

    Failed queries are left out of the estimate; if no estimate is possible, x returns to the best point. The last batch
    has as many directions as the budget allows. A subclass defines the estimator.

    Args:
        directions: n, the number of directions of a step; None: the class's ``default_directions``.
        smoothing_radius: λ, the distance of the queries from x, in search coordinates.
        update_rule: makes a torch optimizer of one parameter, such as ``lambda p: torch.optim.Adam([p])``. None: Adam,
            whose rate after q queries is r/(1 + q/(50 d)). In a box of mean side w, r = w/(5√d), so that the first step
            is a fifth of a side long; without a finite box, r = 0.1.
        **common: see ``Optimizer``.

    ZoRD's figures use n = 10, λ = 0.01 and a constant rate (Appx. C); see ``experiments.papers.zord.descent``.
    """

    default_directions: ClassVar[int] = 2
    follows_estimates = True
    state: DescentState

    def __init__(
        self,
        x0: Any,
        *,
        directions: int | None = None,
        smoothing_radius: float = 0.01,
        update_rule: UpdateRule | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.directions = self.default_directions if directions is None else directions
        self.smoothing_radius, self.update_rule = smoothing_radius, update_rule
        check_draw(self.directions, smoothing_radius, 0)
        super().__init__(x0, **common)

    @property
    @abstractmethod
    def _estimator(self) -> GradientEstimator:
        """The estimator of the next step, with as many directions as the budget allows."""

    def _start(self) -> None:
        self.state = DescentState(self._first_order())

    def _first_order(self) -> FirstOrder:
        """The given rule, or the default one for the box."""
        return FirstOrder(self.update_rule or box_adam(search_width(self.domain), self.dimension), self._x)

    def _move(self, batch: Batch, gradient: Tensor) -> None:
        """A step of the rule along the estimate from a batch, and the prox."""
        if self.update_rule is None:
            spent = self.queries - len(batch)
            self.state.rule.rescale(1.0 / (1.0 + spent / (HALVED * self.dimension)))
        self._descend(self.state.rule, gradient)

    def _next_queries(self) -> int:
        return self._estimator.queries_needed(self.dimension)

    def _ask(self) -> Batch:
        return self._estimator.batch(self._x, self.iterations, number=self.iterations, domain=self.domain)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        estimate = self._estimator.from_values(batch, values)
        if estimate is None:
            self.retreat()
        else:
            self._move(batch, estimate.gradient)


def box_adam(width: float | None, d: int) -> UpdateRule:
    """Returns Adam with a first step of length ``STEP · width`` for a box of this width; ``adam`` if None."""
    return adam if width is None else partial(adam, lr=STEP * width / math.sqrt(d))
