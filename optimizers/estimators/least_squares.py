"""The gradient of a linear least-squares fit."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import nonnegative
from optimizers.estimators.estimator import GradientEstimator, confined
from optimizers.estimators.finite_differences import FiniteDifferences


@dataclass(frozen=True)
class LeastSquaresDifferences(GradientEstimator):
    """The gradient of the linear function that fits the values best: y_i − y_0 ≈ g · (x_i − x_0).

    g minimizes Σ (y_i − y_0 − g · (x_i − x_0))² + r s² ‖g‖², where s is the largest singular value of the
    displacements. For r = 0 it is the minimizer of least norm; for linear f this is the projection of ∇f onto the span
    of the displacements. x_0 is the point nearest to x with a finite value (x itself if it was queried). Failed queries
    are left out. A query that a box confines enters with its projected point; if no point could move, g is 0.

    `points` returns x and n points x + λu_i, n + 1 queries. `estimate` takes any points and values, such as an
    optimizer's last queries.

    Args:
        directions: n.
        smoothing_radius: λ, in x's units; the default is ZoRD's and suits inputs of about unit range.
        distribution: A distribution of `Directions`.
        ridge: r, at least 0, relative to s².
        seed: Seed of the directions.
    """

    min_values: ClassVar[int] = 2
    any_points: ClassVar[bool] = True

    directions: int
    smoothing_radius: float = 0.01
    _: KW_ONLY
    distribution: str = "orthonormal"
    ridge: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        nonnegative("ridge", self.ridge)
        self._proposal()

    def _proposal(self) -> FiniteDifferences:
        return FiniteDifferences(self.directions, self.smoothing_radius, distribution=self.distribution, seed=self.seed)

    def queries_needed(self, d: int) -> int:
        """n + 1."""
        return self.directions + 1

    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """x and the points x + λu_i of `FiniteDifferences`; see `GradientEstimator.batch`."""
        return self._proposal().batch(x, step, number=number, domain=domain)

    def _terms(self, batch: Batch, values: Tensor) -> Tensor:
        return values

    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor:
        points, values = confined(replace(batch, domain=None).points(), batch.domain)[kept], terms[kept]
        nearest = int((points - batch.base).square().sum(-1).argmin())
        displacements, differences = points - points[nearest], values - values[nearest]
        if batch.domain is not None and not displacements.any():
            return torch.zeros_like(batch.base)
        return least_squares(displacements, differences, self.ridge)


def least_squares(displacements: Tensor, differences: Tensor, ridge: float = 0.0) -> Tensor:
    """The minimizer g of ‖D g − y‖² + ridge s² ‖g‖², s = ‖D‖₂, of least norm.

    Singular values of D below ε max(n, d) s count as zero. The cost is O(min(n, d) n d).

    Args:
        displacements: D, ``n x d``; ``ValueError`` if it is zero.
        differences: y, ``n``.
        ridge: At least 0.
    """
    left, s, right = torch.linalg.svd(displacements, full_matrices=False)
    if not s[0] > 0:
        raise ValueError("all points coincide; at least two must differ")
    kept = s > torch.finfo(s.dtype).eps * max(displacements.shape) * s[0]
    filtered = torch.where(kept, s / (s.square() + ridge * s[0].square()), 0.0)
    return right.mH @ (filtered * (left.mH @ differences.to(s.dtype)))
