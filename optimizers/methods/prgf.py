"""PRGF: random gradient-free descent with the last estimate as a prior direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack, get_args

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.estimators.prior_guided import PriorGuidedDifferences, Scaling
from optimizers.first_order import UpdateRule, adam
from optimizers.methods.estimated_descent import DescentState, EstimatedDescent
from optimizers.options import CommonOptions, check_choice


@dataclass
class PRGFState(DescentState):
    """The first-order rule's state and the prior, the normalised last estimate; None: the next is RGF's."""

    prior: Tensor | None = None


class PRGF(EstimatedDescent):
    """Prior-guided random gradient-free method (Cheng et al., 2021), as ZoRD's baseline (Sec. 5, Appx. C).

    At x it queries f(x) and f(x + λu) for n orthonormal directions: the normalised last estimate p, and
    u₁…uₙ₋₁ uniform in its complement. With ∂f/∂u = (f(x + λu) − f(x))/λ it steps along

        g = (∂f/∂p) p + s Σᵢ (∂f/∂uᵢ) uᵢ,   s = 1 or (d − 1)/(n − 1)

    by a first-order rule, then the prox (``PriorGuidedDifferences``). n is at most d. The first step, and one after a
    zero estimate or none, has no prior and is RGF's; a zero estimate makes no step. Failed queries: see
    ``EstimatedDescent``.

    Args:
        x0: initial point, shape ``d``.
        directions: n, directions a step, the prior among them.
        smoothing_radius: λ, smoothing radius.
        scaling: ``"projection"``, s = 1, or ``"unbiased"``.
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``.
    """

    method = "prgf"
    state: PRGFState

    def __init__(
        self,
        x0: Any,
        *,
        directions: int = 10,
        smoothing_radius: float = 0.01,
        scaling: Scaling = "projection",
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.directions, self.smoothing_radius = directions, smoothing_radius
        self.scaling, self.update_rule = check_choice("scaling", scaling, get_args(Scaling)), update_rule
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        self.state = PRGFState(self.state.rule)

    @property
    def _estimator(self) -> FiniteDifferences | PriorGuidedDifferences:
        n = min(self.directions, self.dimension, max(1, self.remaining - 1))
        radius, prior = self.smoothing_radius, self.state.prior
        if prior is None:
            return FiniteDifferences(n, radius, "orthonormal", seed=self.seed)
        return PriorGuidedDifferences(prior, n, radius, self.scaling, self.seed)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        estimate = self._estimator.from_values(batch, values)
        self.state.prior = None
        if estimate is None:
            self.retreat()
            return
        gradient = estimate.gradient.to(torch.float64)
        norm = torch.linalg.vector_norm(gradient)
        if bool(norm > 0) and bool(norm.isfinite()):
            self.state.prior = gradient / norm
            self._descend(self.state.rule, estimate.gradient)
