"""Differences along coordinate axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import check_choice, positive
from optimizers.directions.directions import Directions
from optimizers.estimators.estimator import GradientEstimator, check_moved, inward
from optimizers.estimators.finite_differences import SCHEMES


@dataclass(frozen=True)
class CoordinateDifferences(GradientEstimator):
    """Finite differences g_j along all or some coordinates (Katyusha eq. 3, whose printed factor 2β should be β).

    Forward, d + 1 queries (x first): g_j = (f(x + λe_j) − f(x))/λ, exact for linear f, with error λ/2 ∂²f/∂x_j² to
    first order. Central, 2d queries (all x + λe_j, then all x − λe_j): g_j = (f(x + λe_j) − f(x − λe_j))/(2λ), exact
    for quadratic f. ``FiniteDifferences(n, distribution="coordinate")`` samples coordinates.

    λ is the displacement after rounding and projection. A forward difference queries x − λe_j if x + λe_j leaves a box
    that confines queries and the other side has more room; without this, a descent could not leave an upper bound. g_j
    is 0 if the box leaves no room or a query failed; ``differences`` is then below d.

    Args:
        smoothing_radius: λ, in x's units; the default suits inputs of about unit range.
        scheme: ``"forward"`` or ``"central"``.
        axes: The coordinates j; None: all. Other coordinates of g are 0.
    """

    smoothing_radius: float = 1e-6
    _: KW_ONLY
    scheme: str = "forward"
    axes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        positive("smoothing_radius", self.smoothing_radius)
        check_choice("scheme", self.scheme, SCHEMES)

    def queries_needed(self, d: int) -> int:
        """|axes| + 1 forward, 2 |axes| central."""
        n = d if self.axes is None else len(self.axes)
        return n + 1 if self.scheme == "forward" else 2 * n

    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """The points, in the order given above; ``step`` is ignored. See `GradientEstimator.batch`."""
        axes = list(range(len(x)) if self.axes is None else self.axes)
        scales = torch.full((len(axes),), self.smoothing_radius, dtype=torch.float64)
        rows = [(0, int(j)) for j in axes]
        if self.scheme == "central":
            scales, rows = torch.cat((scales, -scales)), 2 * rows
        else:
            scales *= inward(x, axes, self.smoothing_radius, domain)
            scales, rows = torch.cat((scales.new_zeros(1), scales)), [(0, 0), *rows]
        return Batch(number, x, scales, tuple(rows), Directions(0, len(x), "axis"), domain=domain)

    def derivatives(self, batch: Batch, values: Tensor) -> Tensor:
        """The partial derivatives along a batch's axes, in their order; NaN for failed queries."""
        x, at, forward = batch.base, self._axes(batch), self.scheme == "forward"
        if batch.explicit is None:
            ends = x[at] + batch.scales[-len(at) :].to(x)
            if batch.domain is not None and batch.domain.confine:
                ends = torch.clamp(ends, batch.domain.search_lower[at], batch.domain.search_upper[at])
        else:
            ends = batch.explicit[-len(at) :].gather(1, at[:, None])[:, 0]
        plus, minus = (ends, x[at]) if forward else ends.chunk(2)
        above, below = (values[1:], values[0]) if forward else values.chunk(2)
        displacement = (plus - minus).to(values.dtype)
        if batch.explicit is not None:
            check_moved(displacement[:, None])
        return torch.where(displacement == 0.0, 0.0 * (above - below), (above - below) / displacement)

    def _axes(self, batch: Batch) -> Tensor:
        """The axis of each point except x."""
        first = int(self.scheme == "forward")
        axes = [j for _, j in batch.addresses[first:]]
        if batch.explicit is not None:
            axes = [*(range(batch.dimension) if self.axes is None else self.axes)] * (2 - first)
        return torch.tensor(axes, device=batch.base.device)

    _terms = derivatives

    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor:
        gradient = torch.zeros_like(batch.base)
        gradient[self._axes(batch)[: len(terms)]] = terms.to(gradient)
        return gradient
