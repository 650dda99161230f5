"""The model of a cost F(r), made from models of its residuals r that share hyper-parameters and one Cholesky factor.

Each residual has a pinned Gaussian process with posterior mean μᵢ. The model of the cost is F(μ(u)): with J the
Jacobian of μ, its gradient is Jᵀ∂F and its Hessian Jᵀ∂²F J + Σᵢ ∂Fᵢ∇²μᵢ, which is the Gauss-Newton matrix plus
the curvature of the residuals' models. ``ResidualModel`` replaces the ``PinnedModel`` of f.

References:
    C. Cartis, J. Fiala, B. Marteau, L. Roberts, Improving the flexibility and robustness of model-based derivative-free
        optimization solvers, ACM Trans. Math. Softw. 45, 2019 (DFO-LS, linear models of the residuals).
    H. Zhang, A. R. Conn, K. Scheinberg, A derivative-free algorithm for least-squares minimization, SIAM J. Optim. 20,
        2010 (DFLS, quadratic models).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from optimizers.core.residuals import Loss
from surrogates.pinned.columns import ColumnsModel, PinnedColumns
from surrogates.pinned.engine import Conditioned
from surrogates.pinned.prior import Hyperparameters, PinnedPrior


@dataclass(frozen=True)
class ResidualData:
    """Residuals at points relative to the pin.

    Attributes:
        cost: the loss, which defines F.
        prior: the kernel's constants.
        U: the points, ``n x d``, none of them 0.
        Y: the residuals there less those at the pin, ``n x m``.
        r: the residuals at the pin, shape ``m``.
        unit: the size of the model's unit in F's units.
    """

    cost: Loss
    prior: PinnedPrior
    U: Tensor
    Y: Tensor
    r: Tensor
    unit: float
    variance = 0.0

    @property
    def y(self) -> Tensor:
        """The first residual at the points, shape ``n``; its length is the number of points, as in a model of f."""
        return self.Y[:, 0]

    def loss(self, params: Hyperparameters) -> float:
        """The mean of the residuals' −2 log marginal likelihoods, which a and s² are fitted to."""
        return self._likelihood.loss(params)

    @cached_property
    def _likelihood(self) -> PinnedColumns:
        m = self.Y.shape[1]
        return PinnedColumns(self.prior, self.U, self.Y, torch.full((m,), 1.0 / m, dtype=torch.float64))

    def model(self, params: Hyperparameters) -> ResidualModel:
        """The posterior given the data; raises ``NotPositiveDefiniteError`` if points are too near to each other."""
        return ResidualModel(self, Conditioned.on(self.prior, self.U, params))


class ResidualModel:
    """The model of F(r) − F(r(pin)) with the interface of a ``PinnedModel``.

    Args:
        data: the residuals.
        given: the Gaussian process conditioned on values at the points.
    """

    def __init__(self, data: ResidualData, given: Conditioned) -> None:
        self.data, self.given, self.params = data, given, given.params
        self._columns = ColumnsModel(given, data.Y)
        self._r, self._loss, self._unit = data.r.numpy() + self._columns.pin_offsets, data.cost, data.unit
        self._cost = self._loss.cost(self._r)

    def mean(self, v: Tensor) -> float:
        """F(μ(v)) − F(μ(0)) at a point, shape ``d``."""
        return (self._loss.cost(self._r + self._columns.means(v.numpy())) - self._cost) / self._unit

    def means(self) -> Tensor:
        """``mean`` at the data's points, shape ``n``."""
        costs = [self._loss.cost(row) - self._cost for row in self._r + self._columns.means_at_data()]
        return torch.tensor(costs, dtype=torch.float64) / self._unit

    def means_at(self, V: Tensor) -> Tensor:
        """``mean`` at several points, ``n x d``, shape ``n``."""
        return torch.tensor([self.mean(v) for v in V], dtype=torch.float64)

    def deviations_at(self, V: Tensor) -> Tensor:
        """The standard deviations of F(r) at several points, ``n x d``, to first order in those of the residuals."""
        found = []
        for v in V.numpy():
            slopes, _ = self._loss.derivatives(self._r + self._columns.means(v))
            width = np.linalg.norm(slopes * self._columns.deviations)
            found.append(float(width) * self._columns.deviation(v)[0] / self._unit)
        return torch.tensor(found, dtype=torch.float64)

    def derivatives(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The mean's gradient, shape ``d``, and Hessian, ``d x d``."""
        at = v.numpy()
        J = self._columns.gradients(at)
        slopes, curvatures = self._loss.derivatives(self._r + self._columns.means(at))
        H = (J.T * curvatures) @ J + self._columns.weighted_hessian_at(slopes, at)
        return torch.from_numpy(J.T @ slopes / self._unit), torch.from_numpy(H / self._unit)

    def gradient_covariance(self) -> Tensor:
        """The covariance of ∂F·∇r at the pin, ``d x d``, where the residuals are known but their slopes are not."""
        slopes, _ = self._loss.derivatives(self._r)
        square = float(((slopes * self._columns.deviations / self._unit) ** 2).sum())
        return square * self.given.slope_covariance(torch.zeros_like(self.data.U[0]))

    @property
    def noise(self) -> float:
        """The variance of a cost's noise, to the second order in that of the residuals."""
        slopes, curvatures = self._loss.derivatives(self._r)
        variances = self.params.noise * self._columns.deviations**2 / self._unit
        return float((slopes**2 / self._unit * variances + 0.5 * (curvatures * variances) ** 2).sum())

    def at_pin(self) -> tuple[Tensor, Tensor]:
        """The means of the residuals at the pin, shape ``m``, and their gradients, ``m x d``."""
        return torch.from_numpy(self._r), torch.from_numpy(self._columns.gradients(np.zeros(self.data.U.shape[1])))

    def noise_posterior(self) -> tuple[Tensor, Tensor]:
        """The posterior mean and standard deviation of the noise in the costs at the points and, last, at the pin.

        The mean is F(r) − F(μ). The deviation is ‖∂F σ‖ times that of the noise of a residual with σ = 1.

        Returns:
            Two tensors of shape ``n + 1``.
        """
        told = torch.cat([self.data.Y, torch.zeros_like(self.data.Y[:1])]).numpy() + self.data.r.numpy()
        expected = np.concatenate([self._columns.means_at_data(), np.zeros_like(self._r)[None]]) + self._r
        gaps = [self._loss.cost(a) - self._loss.cost(b) for a, b in zip(told, expected, strict=True)]
        slopes = np.stack([self._loss.derivatives(b)[0] for b in expected]) * self._columns.deviations
        widths = torch.from_numpy(np.linalg.norm(slopes, axis=1))
        deviations = widths / self._unit * (self.params.noise * self.given.noise_shares()).sqrt()
        return torch.tensor(gaps, dtype=torch.float64) / self._unit, deviations
