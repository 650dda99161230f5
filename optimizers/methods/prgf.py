"""PRGF: random gradient-free descent that also measures the derivative along the previous estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_choice
from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.estimators.prior_guided import PriorGuidedDifferences, Scaling
from optimizers.methods.estimated_descent import DescentState, EstimatedDescent


@dataclass
class PRGFState(DescentState):
    """The state of the first-order rule, and the previous estimate as a unit vector; None makes the next step RGF's."""

    prior: Tensor | None = None


class PRGF(EstimatedDescent):
    """Prior-guided random gradient-free method (Cheng et al., 2021), as ZoRD's baseline (Sec. 5, Appx. C.1).

    It queries f(x) and f(x + λu) for n ≤ d orthonormal directions u: the previous gradient estimate, normalised to p,
    and random u₁…uₙ₋₁, uniform in the complement of p. With ∂f/∂u = (f(x + λu) − f(x))/λ it steps along

        g = (∂f/∂p) p + s Σᵢ (∂f/∂uᵢ) uᵢ,   s = 1 or (d − 1)/(n − 1)

    by a first-order rule, followed by the prox. A step without a previous estimate, or after a zero one, is RGF's.
    A zero estimate does not move x.

    **When to use it.** Instead of RGF if gradients at successive iterates are similar, as in attacks on images
    (experiment ``problems-real``).

    **Cost.** n + 1 queries and O(n²d) time per step, as for RGF.

    Args:
        scaling: ``"projection"`` for s = 1, or ``"unbiased"`` for s = (d − 1)/(n − 1).
        **options: see ``EstimatedDescent``, also for failed queries.
    """

    method = "prgf"
    default_directions = 8
    state: PRGFState

    def __init__(self, x0: Any, *, scaling: Scaling = "projection", **options: Any) -> None:
        self.scaling = check_choice("scaling", scaling, get_args(Scaling))
        super().__init__(x0, **options)

    def _start(self) -> None:
        self.state = PRGFState(self._first_order())

    @property
    def _estimator(self) -> FiniteDifferences | PriorGuidedDifferences:
        n = min(self.directions, self.dimension, max(1, self.remaining - 1))
        radius, prior = self.smoothing_radius, self.state.prior
        if prior is None:
            return FiniteDifferences(n, radius, distribution="orthonormal", seed=self.seed)
        return PriorGuidedDifferences(prior, n, radius, scaling=self.scaling, seed=self.seed)

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
            self._move(batch, estimate.gradient)
