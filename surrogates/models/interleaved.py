"""GPyTorch's KernelGrad order: y₁, ∂₁y₁, …, ∂_d y₁, y₂, …, the value and the partial derivatives point by point."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from surrogates.kernels.blocks import KernelSnapshot, kernel_blocks


class InterleavedNoise(FixedNoiseGaussianLikelihood):
    """Fixed noise of N observed entries: given n inputs, GPyTorch would look for n variances and drop these."""

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Any:
        return super()._shaped_noise_covar(base_shape, **kwargs)


def values_among(entries: Tensor, d: int) -> Tensor:
    """Which of the entries, given by their numbers in the order, are values and no partial derivatives."""
    return entries % (d + 1) == 0


def gradients_of(mean: Tensor, covariance: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Mean, ``batch x q x d``, and covariance, ``batch x qd x qd``, of the gradients among all q(d+1) entries."""
    shape = (-1, d + 1)
    covariance = covariance.unflatten(-1, shape)[..., 1:].flatten(-2)
    covariance = covariance.unflatten(-2, shape)[..., 1:, :].flatten(-3, -2)
    return mean.unflatten(-1, shape)[..., 1:], covariance


def joint_covariance(kernel: KernelSnapshot, X1: Tensor, X2: Tensor, gradients1: bool, gradients2: bool) -> Tensor:
    """The prior covariance of what is at X1 with what is at X2, float64.

    On either side these are the values, or the values and partial derivatives in their order.
    """
    blocks = kernel_blocks(kernel, X1.double(), X2.double(), mixed=gradients1 and gradients2)
    rows = blocks.value.unsqueeze(-1)
    if gradients2:
        rows = torch.cat([rows, blocks.second], dim=-1)
    rows = rows.unsqueeze(-2)
    if gradients1:
        below = blocks.first.unsqueeze(-1)
        rows = torch.cat([rows, below if blocks.mixed is None else torch.cat([below, blocks.mixed], dim=-1)], dim=-2)
    return rows.transpose(-3, -2).flatten(-4, -3).flatten(-2)
