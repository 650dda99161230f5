"""Draws functions from a GP prior together with their exact gradients.

The joint covariance is GPyTorch's (``RBFKernelGrad``, ``Matern52KernelGrad``), so that tests on these draws are
independent of this project's derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Matern52KernelGrad, RBFKernelGrad
from torch import Tensor

_KERNELS = {"rbf": RBFKernelGrad, "matern52": Matern52KernelGrad}


def draw_values_and_gradients(
    kernel: str, lengthscale: float | Sequence[float], X: Tensor, num_draws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws values and gradients of independent functions with zero mean and unit variance at shared points.

    Args:
        kernel: ``"rbf"`` or ``"matern52"``.
        lengthscale: ℓ, or one for each of d inputs.
        X: points, ``n x d``.
        num_draws: number of functions.
        generator: source of the draws.

    Returns:
        f(X), ``num_draws x n``, and ∇f(X), ``num_draws x n x d``.
    """
    n, d = X.shape
    lengthscales = torch.tensor(lengthscale, dtype=X.dtype)
    module = _KERNELS[kernel](ard_num_dims=d if lengthscales.ndim else None).to(X)
    module.lengthscale = lengthscales
    with torch.no_grad():
        covariance = module(X).to_dense()
    # Symmetric square root: dense designs make the covariance singular to working precision.
    variances, axes = torch.linalg.eigh((covariance + covariance.mT) / 2)
    normal = torch.randn(num_draws, n * (d + 1), generator=generator, dtype=X.dtype)
    joint = ((normal * variances.clamp_min(0).sqrt()) @ axes.mT).reshape(num_draws, n, d + 1)
    return joint[..., 0], joint[..., 1:]
