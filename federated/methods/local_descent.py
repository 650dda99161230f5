"""Optimizers for a client's local steps along estimated or exact gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, nonnegative
from optimizers.estimators.estimator import GradientEstimator
from optimizers.first_order import FirstOrder, UpdateRule, adam
from optimizers.methods.gradient_descent import GradientDescent, GradientDescentState

local_adam: UpdateRule = partial(adam, lr=0.01)
"""FZooS's update rule: Adam with learning rate 0.01, for inputs normalized to [0, 1]^d (Appx. G)."""


def renew(rule: FirstOrder, reset: bool, rate: float | None) -> None:
    """Resets a rule's moments if ``reset``; sets its learning rate to ``rate`` times the initial one unless None."""
    if reset:
        rule.reset()
    if rate is not None:
        rule.rescale(rate)


def sgd(p: Tensor) -> torch.optim.Optimizer:
    """Gradient descent with learning rate 0.01."""
    return torch.optim.SGD([p], lr=0.01)


@dataclass
class LocalState:
    """The state of a phase, except for the iterate.

    Attributes:
        rule: the first-order rule.
        anchor: x_{r−1}, the round's starting point, shape ``d``.
        total: sum of the estimates without corrections, shape ``d``.
        correction: added to every estimate, shape ``d``, or None.
        moves: whether steps move the iterate; otherwise they only estimate the gradient.
        address: additional seed of the phase's first directions.
        planned: number of steps of the phase.
        steps: completed steps, including those without an estimate.
        estimates: number of estimates.
    """

    rule: FirstOrder
    anchor: Tensor
    total: Tensor
    correction: Tensor | None = None
    moves: bool = True
    address: int = 0
    planned: int = 0
    steps: int = 0
    estimates: int = 0


class LocalDescent(Optimizer):
    """Descent from the server's iterate along estimated gradients (FZooS eqs. 87, 89, 91, 93).

        x ← prox(rule(x, g)),    g = δ + b + γ (x − x_{r−1})

    with an estimate δ of ∇f(x) and the round's correction b. If all queries of a step failed, x does not move.

    Args:
        estimator: computes δ, with directions from its own seed.
        pull: γ, the factor of FedProx's proximal term.
        redraw: whether directions are redrawn for every step; otherwise for every phase.
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``.
    """

    method = "local_descent"
    rescale_by_default = False
    state: LocalState

    def __init__(
        self,
        x0: Any,
        *,
        estimator: GradientEstimator,
        pull: float = 0.0,
        redraw: bool = True,
        update_rule: UpdateRule = local_adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.estimator, self.redraw, self.update_rule = estimator, redraw, update_rule
        self.pull = nonnegative("pull", pull)
        super().__init__(x0, **common)

    def begin(
        self,
        x: Tensor,
        *,
        address: int,
        steps: int,
        moves: bool = True,
        correction: Tensor | None = None,
        reset: bool = True,
        rate: float | None = None,
    ) -> None:
        """Starts a phase at x = x_{r−1}, in user units, and cancels a pending batch.

        Args:
            x: x_{r−1}, shape ``d``.
            address: additional seed of the first directions; if directions are redrawn, it increases by 1 per step.
            steps: number of steps of the phase.
            moves: False only estimates the gradient at x.
            correction: b, shape ``d``.
            reset: whether the rule's moments are reset.
            rate: learning rate relative to the rule's initial one; None leaves it unchanged.
        """
        self.move_to(x)
        renew(self.state.rule, reset, rate)
        nothing = torch.zeros_like(self._x)
        self.state = LocalState(self.state.rule, self._x, nothing, correction, moves, address, planned=steps)

    @property
    def busy(self) -> bool:
        """Whether steps of the phase remain."""
        return self.state.steps < self.state.planned

    @property
    def mean_estimate(self) -> Tensor | None:
        """The mean of the phase's estimates δ, shape ``d``; None if there are none."""
        s = self.state
        return s.total / s.estimates if s.estimates else None

    def _start(self) -> None:
        self.state = LocalState(FirstOrder(self.update_rule, self._x), self._x, torch.zeros_like(self._x))

    def _next_queries(self) -> int:
        return self.estimator.queries_needed(self.dimension)

    def _ask(self) -> Batch:
        s = self.state
        step = s.address + (s.steps if self.redraw else 0)
        return self.estimator.batch(self._x, step, number=self.iterations, domain=self.domain)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        estimate, s = self.estimator.from_values(batch, values), self.state
        if estimate is None:
            self.state = replace(s, steps=s.steps + 1)
            return
        g = estimate.gradient
        self.state = replace(s, steps=s.steps + 1, estimates=s.estimates + 1, total=s.total + g)
        if s.moves:
            g = g if s.correction is None else g + s.correction
            g = g + self.pull * (self._x - s.anchor) if self.pull else g
            self._descend(s.rule, g)


@dataclass
class LocalGradientState(GradientDescentState):
    """``GradientDescentState`` with the numbers of planned and completed steps of the round."""

    planned: int = 0
    steps: int = 0


class LocalGradientDescent(GradientDescent):
    """Descent from the server's iterate along exact gradients, for FedAvg's clients (Reddi et al. 2020)."""

    method = "local_gradient_descent"
    state: LocalGradientState

    def begin(self, x: Tensor, *, steps: int, reset: bool = True, rate: float | None = None) -> None:
        """Starts a round of ``steps`` steps at x, in user units, and cancels a pending batch."""
        self.move_to(x)
        renew(self.state.rule, reset, rate)
        self.state = replace(self.state, last_good=None, planned=steps, steps=0)

    @property
    def busy(self) -> bool:
        """Whether steps of the round remain."""
        return self.state.steps < self.state.planned

    def _start(self) -> None:
        self.state = LocalGradientState(FirstOrder(self.update_rule, self._x))

    def _tell(self, batch: Batch, values: Tensor) -> None:
        super()._tell(batch, values)
        self.state.steps += 1


def autograd(fun: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """Returns the gradient of an objective: its ``gradient`` method, or automatic differentiation."""
    given = getattr(fun, "gradient", None)
    return given if callable(given) else partial(_differentiated, fun)


def _differentiated(fun: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        value = fun(leaf)
        if not isinstance(value, Tensor) or not value.requires_grad:
            ways = "define a method gradient(x), or return a tensor that torch can differentiate"
            raise TypeError(f"{type(fun).__name__} has no gradient: {ways}")
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return gradient
