"""Forward differences along a prior direction and random directions orthonormal to it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import check_choice
from optimizers.directions.directions import Directions
from optimizers.directions.fixed_order import orthonormalize
from optimizers.estimators.estimator import GradientEstimator, check_draw, check_moved, confined, room
from optimizers.estimators.least_squares import least_squares

Scaling = Literal["projection", "unbiased"]


@dataclass(frozen=True, eq=False)
class PriorGuidedDifferences(GradientEstimator):
    """Forward differences along a prior p and along uniform directions orthogonal to p (Cheng et al., 2021).

    The queries are x and x + λu for n orthonormal directions u, namely p and u_1 … u_{n−1}. With ∂f/∂u = (f(x + λu) −
    f(x))/λ:

        g = (∂f/∂p) p + s Σ_i (∂f/∂u_i) u_i,   s = 1 or (d − 1)/(n − 1)

    s = 1 gives the projection of ∇f onto the span of the directions (Cheng et al.), s = (d − 1)/(n − 1) gives E g =
    ∇f(x) + O(λ). For linear f and n = d, g = ∇f. Failed differences are left out of the sum and of n.

    **Box.** Near bounds that confine the queries, the query goes along p or −p, whichever has more room. For s = 1 the
    projection onto the span of the clipped displacements is computed by least squares. For the unbiased s and linear f
    with gradient a, E g = p (m·a) + (I − p pᵀ) ρ∘a, where λm is the clipped displacement along p and ρ the clipped
    share of the other directions (`Directions.clipped_share`). The estimate solves this for a: a = h − q (m·h −
    ∂f/∂p)/(m·q) with h = g/ρ and q = p/ρ.

    Args:
        prior: p, a unit vector of shape ``d``, float64.
        directions: n, including p; at most d are used.
        smoothing_radius: λ, in x's units; the default is ZoRD's and suits inputs of about unit range.
        scaling: ``"projection"``, s = 1, or ``"unbiased"``.
        seed: Seed of the directions.
    """

    prior: Tensor
    directions: int
    smoothing_radius: float = 0.01
    _: KW_ONLY
    scaling: str = "projection"
    seed: int = 0

    def __post_init__(self) -> None:
        check_draw(self.directions, self.smoothing_radius, self.seed)
        check_choice("scaling", self.scaling, get_args(Scaling))

    def queries_needed(self, d: int) -> int:
        """n + 1, and at most d + 1."""
        return min(self.directions, d) + 1

    def frame(self, step: int) -> Tensor:
        """The prior and n − 1 directions orthonormal to it and to each other, float64, ``n x d``.

        Gram-Schmidt on standard normals makes the n − 1 directions Haar-distributed in the complement of p.
        """
        d = len(self.prior)
        frame = torch.empty(min(self.directions, d), d, dtype=torch.float64, device=self.prior.device)
        frame[0] = self.prior
        if len(frame) > 1:
            frame[1:] = Directions(self.seed, d).block(step, len(frame) - 1, device=frame.device)
        return orthonormalize(frame, 1)

    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """x and explicit points x + λu for the rows u of the frame (in ``info``); see `GradientEstimator.batch`."""
        frame, radius = self.frame(step).to(x), self.smoothing_radius
        if room(x, domain, radius) is not None:
            ahead, behind = (confined(x + r * frame[0], domain) - x for r in (radius, -radius))
            if frame[0] @ ahead < -(frame[0] @ behind):
                frame[0] = -frame[0]
        points = torch.cat([x[None], x + radius * frame])
        scales = torch.zeros(len(points), dtype=torch.float64)
        return Batch(number, x, scales, explicit=points, domain=domain, info={"frame": frame})

    def _terms(self, batch: Batch, values: Tensor) -> Tensor:
        return (values[1:] - values[0]) / self.smoothing_radius

    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor:
        faces = room(batch.base, batch.domain, self.smoothing_radius)
        if faces is not None and self.scaling == "projection":
            moved = self._moved(batch)[kept]
            return least_squares(moved, terms[kept]) if moved.any() else torch.zeros_like(batch.base)
        others = int(kept[1:].sum())
        if self.scaling == "unbiased" and others:
            terms[1:] *= (batch.dimension - 1) / others
        assert batch.explicit is not None
        frame = batch.info.get("frame")
        if frame is None:
            frame = check_moved(batch.explicit[1:] - batch.base) / self.smoothing_radius
        gradient = terms.to(batch.base.dtype) @ frame
        return gradient if faces is None else self._solved(batch, gradient, frame[0], terms[0], kept, *faces)

    def _moved(self, batch: Batch) -> Tensor:
        """The clipped displacements over λ, ``n x d``."""
        assert batch.explicit is not None
        return (confined(batch.explicit[1:], batch.domain) - batch.base) / self.smoothing_radius

    def _solved(
        self, batch: Batch, g: Tensor, p: Tensor, along: Tensor, kept: Tensor, below: Tensor, above: Tensor
    ) -> Tensor:
        """The solution a of the class's equation near bounds; ``along`` is m·a."""
        # Coordinate j of u_i is distributed as √(1 − p_j²) times that of a unit vector in d − 1 dimensions.
        length = self.smoothing_radius * (1.0 - p.to(below).square()).clamp(min=0.0).sqrt()
        plane = Directions(self.seed, max(1, batch.dimension - 1), "sphere")
        share = torch.where(length > 0.0, plane.clipped_share(below / length, above / length), 1.0).to(g)
        h, q = (torch.where(share > 0.0, v / share, 0.0) for v in (g, p))
        m = self._moved(batch)[0]
        known = bool(kept[0]) and bool(m @ q > 0.0)
        return h - q * ((m @ h - along.to(g)) / (m @ q)) if known else h
