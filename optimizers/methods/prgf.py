"""PRGF: random gradient-free descent with the last estimate as a prior direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.directions.directions import Directions
from optimizers.directions.fixed_order import orthonormalize
from optimizers.first_order import FirstOrder, UpdateRule, adam
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, positive, positive_integer

Scaling = Literal["projection", "unbiased"]


def frame_of_prior(prior: Tensor, directions: Directions, step: int, count: int) -> Tensor:
    """The prior and ``count − 1`` directions orthonormal to it and to each other, float64, ``count x d``.

    The others are Gram-Schmidt's of standard normals, hence Haar-distributed in the prior's complement.

    Args:
        prior: unit vector, shape ``d``.
        directions: normal directions.
        step: their step.
        count: at most d.
    """
    frame = torch.empty(count, prior.numel(), dtype=torch.float64, device=prior.device)
    frame[0] = prior
    if count > 1:
        frame[1:] = directions.block(step, count - 1, device=prior.device)
    return orthonormalize(frame, 1)


@dataclass
class PRGFState:
    """The first-order rule's state and the prior, the normalised last estimate; None: the next is RGF's."""

    rule: FirstOrder
    prior: Tensor | None = None


class PRGF(Optimizer):
    """Prior-guided random gradient-free method (Cheng et al., 2021), as ZoRD's baseline (Sec. 5, Appx. C).

    At x it queries f(x) and f(x + λu) for n orthonormal directions: the normalised last estimate p, and
    u₁…uₙ₋₁ uniform in its complement. With ∂f/∂u = (f(x + λu) − f(x))/λ it steps along

        g = (∂f/∂p) p + s Σᵢ (∂f/∂uᵢ) uᵢ,   s = 1 or (d − 1)/(n − 1)

    by a first-order rule, then the prox. s = 1 is the projection of ∇f onto the span (Cheng et al.);
    ``scaling="unbiased"`` makes E g = ∇f(x) + O(λ). n is at most d. The first step, and one after a zero or
    failed estimate, has no prior and is RGF's. Failed directions leave the sums and n; where f(x) itself
    fails, the iterate returns to the best point.

    Args:
        x0: initial point, shape ``d``.
        directions: n, directions a step, the prior among them.
        smoothing_radius: λ, smoothing radius.
        scaling: ``"projection"`` or ``"unbiased"``.
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
        self.directions = positive_integer("directions", directions)
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        if scaling not in ("projection", "unbiased"):
            raise ValueError(f"scaling must be 'projection' or 'unbiased', got {scaling!r}")
        self.scaling, self.update_rule = scaling, update_rule
        super().__init__(x0, **common)

    def _start(self) -> None:
        self.state = PRGFState(FirstOrder(self.update_rule, self._x))

    def _next_queries(self) -> int:
        return max(2, min(self.directions, self.dimension, self.remaining - 1) + 1)

    def _ask(self) -> Batch:
        n = self._next_queries() - 1
        if self.state.prior is None:
            scales = [0.0] + [self.smoothing_radius] * n
            return self._directions_batch([0, *range(n)], scales, distribution="orthonormal")
        normal = Directions(self.seed, self.dimension)
        frame = frame_of_prior(self.state.prior, normal, self.iterations, n).to(self._x)
        points = torch.cat([self._x[None], self._x + self.smoothing_radius * frame])
        return self._points_batch(points, info={"frame": frame})

    def _tell(self, batch: Batch, values: Tensor) -> None:
        if bool(values[0].isnan()):
            self.retreat()
            self.state.prior = None
            return
        derivatives = (values - values[0]) / self.smoothing_radius
        succeeded = ~derivatives.isnan()
        derivatives = torch.where(succeeded, derivatives, 0.0)
        if self.state.prior is None:
            n = int(succeeded[1:].sum())
            gradient = batch.combine(derivatives * (self.dimension / max(n, 1)))
        else:
            n = int(succeeded[2:].sum())
            if self.scaling == "unbiased" and n > 0:
                derivatives[2:] *= (self.dimension - 1) / n
            gradient = derivatives[1:].to(self._x.dtype) @ batch.info["frame"]
        norm = torch.linalg.vector_norm(gradient.to(torch.float64))
        usable = bool(norm > 0) and bool(torch.isfinite(norm))
        self.state.prior = gradient.to(torch.float64) / norm if usable else None
        if usable:
            self._descend(self.state.rule, gradient)
