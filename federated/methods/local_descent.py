"""A client's local steps as optimizers: along estimated gradients, and along exact ones."""

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
"""FZooS's rule: Adam with learning rate 0.01, for inputs normalized to [0, 1]^d (Appx. G)."""


def sgd(p: Tensor) -> torch.optim.Optimizer:
    """Gradient descent with learning rate 0.01."""
    return torch.optim.SGD([p], lr=0.01)


@dataclass
class LocalState:
    """What changes within a phase, beside the iterate.

    Attributes:
        rule: the first-order rule.
        anchor: x_{r−1}, where the round began, shape ``d``.
        correction: added to every estimate, shape ``d``, or None.
        moves: whether steps move the iterate; estimates are only made otherwise.
        address: first direction address of the phase.
        planned: steps of the phase.
        steps: steps done, those without an estimate too.
        estimates: estimates made.
        total: their sum, without corrections, shape ``d``.
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
    """Steps from the server's iterate along estimated gradients (FZooS eqs. 87, 89, 91, 93).

    At x, with δ the estimate of ∇f(x), it steps by a first-order rule along

        g = δ + b + γ (x − x_{r−1})

    with b the correction of the round, and then through the prox. Where there is no estimate the step is none.

    Args:
        x0: initial point, shape ``d``.
        estimator: makes δ, from directions of its own seed.
        pull: γ, of the proximal term of FedProx.
        redraw: whether directions are drawn anew for every step, or stay those of the phase.
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
        """Start a phase at x, in user units; a batch still pending is dropped.

        Args:
            x: x_{r−1}, shape ``d``.
            address: first direction address; one a step follows where directions are redrawn.
            steps: steps of the phase.
            moves: False: estimate at x only.
            correction: b, shape ``d``.
            reset: whether the rule forgets its moments.
            rate: the learning rate in units of the rule's own; None: as it is.
        """
        self.restart(x)
        if reset:
            self.state.rule.reset()
        if rate is not None:
            self.state.rule.rescale(rate)
        nothing = torch.zeros_like(self._x)
        self.state = LocalState(self.state.rule, self._x, nothing, correction, moves, address, planned=steps)

    @property
    def busy(self) -> bool:
        """Whether steps of the phase are left."""
        return self.state.steps < self.state.planned

    @property
    def mean_estimate(self) -> Tensor | None:
        """The mean of the phase's estimates δ, shape ``d``; None where there is none."""
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
    """``GradientDescentState``, and the phase's steps, planned and done."""

    planned: int = 0
    steps: int = 0


class LocalGradientDescent(GradientDescent):
    """Steps from the server's iterate along exact gradients: what FedAvg's clients do (Reddi et al. 2020)."""

    method = "local_gradient_descent"
    state: LocalGradientState

    def begin(self, x: Tensor, *, steps: int, reset: bool = True, rate: float | None = None) -> None:
        """Start a round of so many steps at x, in user units; a batch still pending is dropped."""
        self.restart(x)
        if reset:
            self.state.rule.reset()
        if rate is not None:
            self.state.rule.rescale(rate)
        self.state = replace(self.state, last_good=None, planned=steps, steps=0)

    @property
    def busy(self) -> bool:
        """Whether steps of the round are left."""
        return self.state.steps < self.state.planned

    def _start(self) -> None:
        self.state = LocalGradientState(FirstOrder(self.update_rule, self._x))

    def _tell(self, batch: Batch, values: Tensor) -> None:
        super()._tell(batch, values)
        self.state.steps += 1


def autograd(fun: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """The gradient of an objective: its own ``gradient`` method, or automatic differentiation."""
    given = getattr(fun, "gradient", None)
    return given if callable(given) else partial(_differentiated, fun)


def _differentiated(fun: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        value = fun(leaf)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise TypeError(
                f"{type(fun).__name__} has no gradient: give it a gradient(x) method, or return a tensor "
                "that torch can differentiate"
            )
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return gradient
