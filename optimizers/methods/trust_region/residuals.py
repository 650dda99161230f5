"""The model of a cost F(r), composed of models of its residuals r.

Each residual has a pinned Gaussian process with posterior mean μᵢ; all share hyper-parameters and one Cholesky factor.
The model of the cost is F(μ(u)). With the Jacobian J of μ, its gradient is Jᵀ∂F, and its Hessian is Jᵀ∂²F J + Σᵢ
∂Fᵢ∇²μᵢ: the Gauss-Newton matrix plus the curvature of the residuals' models.

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
    """The residuals at n points and at the pin, u = 0.

    Attributes:
        cost: the loss, which defines F.
        prior: the constants of the pinned kernel.
        U: the points, ``n x d``, none of them 0.
        Y: the residuals at the points minus those at the pin, ``n x m``.
        r: the residuals at the pin, shape ``m``.
        unit: the model's unit in units of F.
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
        """The first residual at the points, shape ``n``."""
        return self.Y[:, 0]

    def loss(self, params: Hyperparameters) -> float:
        """Computes the mean of the residuals' −2 log marginal likelihoods, which a fit minimizes."""
        return self._likelihood.loss(params)

    @cached_property
    def _likelihood(self) -> PinnedColumns:
        m = self.Y.shape[1]
        return PinnedColumns(self.prior, self.U, self.Y, torch.full((m,), 1.0 / m, dtype=torch.float64))

    def model(self, params: Hyperparameters) -> ResidualModel:
        """Conditions the model on the data; raises ``NotPositiveDefiniteError`` for points that nearly coincide."""
        return ResidualModel(self, Conditioned.on(self.prior, self.U, params))


class ResidualModel:
    """The model of F(r(u)) − F(r(0)), with the interface of a ``PinnedModel`` and 0 as the pin.

    Args:
        data: the residuals.
        given: the Gaussian process conditioned on the points.
    """

    def __init__(self, data: ResidualData, given: Conditioned) -> None:
        self.data, self.given, self.params = data, given, given.params
        self._columns = ColumnsModel(given, data.Y)
        self._r, self._loss, self._unit = data.r.numpy() + self._columns.pin_offsets, data.cost, data.unit
        self._cost = self._loss.cost(self._r)

    def mean(self, v: Tensor) -> float:
        """Predicts the cost at a point v, shape ``d``, minus the cost at the pin, F(μ(v)) − F(μ(0))."""
        return (self._loss.cost(self._r + self._columns.means(v.numpy())) - self._cost) / self._unit

    def means(self) -> Tensor:
        """Computes ``mean`` at the data's points, shape ``n``."""
        costs = [self._loss.cost(row) - self._cost for row in self._r + self._columns.means_at_data()]
        return torch.tensor(costs, dtype=torch.float64) / self._unit

    def means_at(self, V: Tensor) -> Tensor:
        """Computes ``mean`` at points V, ``n x d``, shape ``n``."""
        return torch.tensor([self.mean(v) for v in V], dtype=torch.float64)

    def deviations_at(self, V: Tensor) -> Tensor:
        """Computes standard deviations of F(r) at points V, ``n x d``, to first order in those of r, shape ``n``."""
        found = []
        for v in V.numpy():
            slopes, _ = self._loss.derivatives(self._r + self._columns.means(v))
            width = np.linalg.norm(slopes * self._columns.deviations)
            found.append(float(width) * self._columns.deviation(v)[0] / self._unit)
        return torch.tensor(found, dtype=torch.float64)

    def derivatives(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Computes gradient, shape ``d``, and Hessian, ``d x d``, of ``mean`` at a point v."""
        at = v.numpy()
        J = self._columns.gradients(at)
        slopes, curvatures = self._loss.derivatives(self._r + self._columns.means(at))
        H = (J.T * curvatures) @ J + self._columns.weighted_hessian_at(slopes, at)
        return torch.from_numpy(J.T @ slopes / self._unit), torch.from_numpy(H / self._unit)

    def gradient_covariance(self) -> Tensor:
        """Computes the posterior covariance of the cost's gradient at the pin, ``d x d``."""
        slopes, _ = self._loss.derivatives(self._r)
        square = float(((slopes * self._columns.deviations / self._unit) ** 2).sum())
        return square * self.given.slope_covariance(torch.zeros_like(self.data.U[0]))

    @property
    def noise(self) -> float:
        """The variance of the cost's noise, to second order in the residuals' noise."""
        slopes, curvatures = self._loss.derivatives(self._r)
        variances = self.params.noise * self._columns.deviations**2 / self._unit
        return float((slopes**2 / self._unit * variances + 0.5 * (curvatures * variances) ** 2).sum())

    def at_pin(self) -> tuple[Tensor, Tensor]:
        """Computes the posterior means of the residuals at the pin, shape ``m``, and their Jacobian, ``m x d``."""
        return torch.from_numpy(self._r), torch.from_numpy(self._columns.gradients(np.zeros(self.data.U.shape[1])))

    def noise_posterior(self) -> tuple[Tensor, Tensor]:
        """Computes mean and standard deviation of the noise in the costs at the points and, last, at the pin.

        The mean is F(r) − F(μ); the standard deviation is to first order in the residuals' noise. Both have shape
        ``n + 1``.
        """
        told = torch.cat([self.data.Y, torch.zeros_like(self.data.Y[:1])]).numpy() + self.data.r.numpy()
        expected = np.concatenate([self._columns.means_at_data(), np.zeros_like(self._r)[None]]) + self._r
        gaps = [self._loss.cost(a) - self._loss.cost(b) for a, b in zip(told, expected, strict=True)]
        slopes = np.stack([self._loss.derivatives(b)[0] for b in expected]) * self._columns.deviations
        widths = torch.from_numpy(np.linalg.norm(slopes, axis=1))
        deviations = widths / self._unit * (self.params.noise * self.given.noise_shares()).sqrt()
        return torch.tensor(gaps, dtype=torch.float64) / self._unit, deviations
