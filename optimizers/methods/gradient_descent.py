"""Gradient descent with an exact gradient, a reference for zeroth-order methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions
from optimizers.core.values import numeric
from optimizers.first_order import FirstOrder, UpdateRule, adam

GradientOracle = Callable[[Tensor], Any]


@dataclass
class GradientDescentState:
    """The state of the first-order rule, the last point with a finite gradient, and the number of calls of jac."""

    rule: FirstOrder
    last_good: Tensor | None = None
    gradients: int = 0


class GradientDescent(Optimizer):
    """Proximal gradient descent with exact gradients (GD with true derivatives in ZoRD's Fig. 3).

    A step queries f(x), calls jac(x), and moves by x ← prox(rule(x, ∇f(x))). If the value or the gradient is not
    finite, x moves halfway back to the last point at which both were finite.

    **When to use it.** If f has a gradient, as a reference for methods that need none. To minimize a smooth f, use
    SciPy's L-BFGS-B instead.

    **Cost.** One query, one gradient and O(d) time per step.

    Args:
        jac: the gradient ∇f: takes a point in user units, shape ``d``, and returns d numbers. Calls are counted in
            ``state.gradients``, not against the budget.
        update_rule: makes a torch optimizer of one parameter, such as ``lambda p: torch.optim.Adam([p])``.
        **common: see ``Optimizer``; ``rescale`` is off by default, so that step sizes are in user units.

    Raises:
        TypeError: if jac is missing or not callable.
    """

    method = "gradient_descent"
    follows_estimates = True
    rescale_by_default = False
    state: GradientDescentState

    def __init__(
        self,
        x0: Any,
        *,
        jac: GradientOracle | None = None,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        if not callable(jac):
            raise TypeError(f"gradient_descent needs jac, a function that returns the gradient of f, got {jac!r}")
        self.jac, self.update_rule = jac, update_rule
        super().__init__(x0, **common)

    def _start(self) -> None:
        self.state = GradientDescentState(FirstOrder(self.update_rule, self._x))

    def _next_queries(self) -> int:
        return 1

    def _ask(self) -> Batch:
        return self._directions_batch([0], [0.0])

    def _tell(self, batch: Batch, values: Tensor) -> None:
        gradient = None
        if not bool(values[0].isnan()):
            gradient = self._gradient(batch.point(0))
            self.state.gradients += 1
        if gradient is not None and bool(gradient.isfinite().all()):
            self.state.last_good = self._x
            self._descend(self.state.rule, gradient)
        elif self.state.last_good is not None:
            self._x = (self._x + self.state.last_good) / 2.0

    def _gradient(self, x: Tensor) -> Tensor:
        gradient = numeric("jac's gradient", self.jac(x)).to(x)
        if gradient.shape != x.shape:
            raise ValueError(f"jac must return a gradient of shape {tuple(x.shape)}, got {tuple(gradient.shape)}")
        return gradient if self.domain is None else gradient * self.domain.slopes(x)
