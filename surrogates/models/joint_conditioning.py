"""What a GP on values and gradients keeps of the points that its batch has in common, and what it gives at others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpytorch.means import Mean
from torch import Tensor

from surrogates.kernels.blocks import KernelSnapshot
from surrogates.linalg.cholesky import jittered_factor
from surrogates.models.interleaved import joint_covariance


@dataclass(frozen=True, eq=False)
class JointConditioning:
    """What follows from the points that the elements of a batch have in common, at one moment.

    Attributes:
        kernel: The kernel's numbers.
        mean: The prior mean of values and partial derivatives.
        X: The points, ``n x d``.
        observed: Which of their n(d+1) entries were observed, ``N``.
        factor: The Cholesky factor L of the covariance of these with their noise, ``N x N``, float64.
        alpha: L⁻ᵀ L⁻¹ (y' − m), ``N``, float64.
    """

    kernel: KernelSnapshot
    mean: Mean
    X: Tensor
    observed: Tensor
    factor: Tensor
    alpha: Tensor

    @classmethod
    def of(
        cls, kernel: KernelSnapshot, mean: Mean, X: Tensor, observed: Tensor, targets: Tensor, noise: Tensor
    ) -> JointConditioning:
        """Factorises the covariance of the observed entries, of which ``targets`` and ``noise`` are ``N`` each."""
        residuals = targets - mean(X).flatten()[observed]
        covariance = joint_covariance(kernel, X, X, True, True)[observed][:, observed] + torch.diag(noise)
        # Values and partial derivatives have units of their own, jitter none. Powers of two round nothing.
        units = torch.exp2(covariance.diagonal().detach().log2().div(2.0).round())
        factor = units[:, None] * jittered_factor(covariance / units / units[:, None])
        alpha = torch.cholesky_solve(residuals.double().unsqueeze(-1), factor).squeeze(-1)
        return cls(kernel, mean, X, observed, factor, alpha)

    def whitened(self, across: Tensor) -> Tensor:
        """The rows L⁻¹ a of the rows a, ``batch x rows x N``."""
        # A solve that broadcasts would copy the factor for every element of the batch.
        return torch.linalg.solve_triangular(
            self.factor, across.reshape(-1, across.shape[-1]).mT, upper=False
        ).mT.reshape(across.shape)

    def posterior(self, X: Tensor, gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, ``batch x rows``, covariance, ``batch x rows x rows``, and L⁻¹ of the covariance with the data.

        Args:
            X: The points, ``batch x q x d``.
            gradients: Whether rows are the q(d+1) values and partial derivatives, or the q values.
        """
        across = joint_covariance(self.kernel, X, self.X, gradients, True)[..., self.observed]
        white = self.whitened(across)
        means = self.mean(X)
        mean = (means.flatten(-2) if gradients else means[..., 0]) + across @ self.alpha
        return mean, joint_covariance(self.kernel, X, X, gradients, gradients) - white @ white.mT, white

    def posterior_with(
        self, own: Tensor, values: Tensor, noise: Tensor, X: Tensor, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean and covariance as of ``posterior``, given values of each element of the batch, too.

        Args:
            own: The points of these, ``batch x m x d``.
            values: The values, ``batch x m``.
            noise: Their noise variances, ``batch x m``.
            X: The points, ``batch x q x d``.
            gradients: As ``posterior`` takes it.
        """
        mean, covariance, white = self.posterior(X, gradients)
        expected, spread, own_white = self.posterior(own, False)
        spread = spread + torch.diag_embed(noise)
        prior = spread.diagonal(dim1=-2, dim2=-1) + own_white.square().sum(-1)
        factor = jittered_factor(spread, prior)
        across = joint_covariance(self.kernel, own, X, False, gradients) - own_white @ white.mT
        white = torch.linalg.solve_triangular(factor, across, upper=False)
        residuals = torch.linalg.solve_triangular(factor, (values - expected).unsqueeze(-1), upper=False)
        return mean + (white.mT @ residuals).squeeze(-1), covariance - white.mT @ white
