"""Kernels and likelihoods with given hyper-parameters, without priors, in float64."""

from __future__ import annotations

import torch
from gpytorch import settings
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from surrogates.checks import check_positive

NOISE_AS_GIVEN = settings.min_fixed_noise(float_value=0.0, double_value=0.0, half_value=0.0)
"""A context in which GPyTorch uses fixed noise variances as given, instead of raising them to 1e-6 (float32: 1e-4)."""

NOISE_FLOOR = 1e-4
"""The lower bound of the noise in a fit of ``gaussian_likelihood``, in units of its initial noise."""


def matern_kernel(
    lengthscale: float | Tensor, outputscale: float = 1.0, *, nu: float = 2.5, dtype: torch.dtype = torch.float64
) -> ScaleKernel:
    """Makes ScaleKernel(MaternKernel(nu)) with the given hyper-parameters, from which a fit starts.

    Args:
        lengthscale: One number (isotropic) or one for each of d inputs (ARD).
        outputscale: The variance of f, in the model's (standardised) units.
        nu: 0.5, 1.5 or 2.5; ZoRD uses 2.5.
        dtype: The dtype of the parameters.

    Raises:
        TypeError: If a hyper-parameter is not a number.
        ValueError: If a hyper-parameter is not finite and positive, the lengthscale has more than one dimension, or nu
            is not one of the three numbers.
    """
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"nu must be 0.5, 1.5 or 2.5, got {nu!r}.")
    scales, ard = _lengthscales(lengthscale, dtype)
    return _scaled(MaternKernel(nu=nu, ard_num_dims=ard), scales, outputscale, dtype)


def rbf_kernel(
    lengthscale: float | Tensor, outputscale: float = 1.0, *, dtype: torch.dtype = torch.float64
) -> ScaleKernel:
    """Makes ScaleKernel(RBFKernel), the squared exponential kernel, with the given hyper-parameters.

    Args:
        lengthscale: One number (isotropic) or one for each of d inputs (ARD).
        outputscale: The variance of f, in the model's (standardised) units.
        dtype: The dtype of the parameters.

    Raises:
        TypeError, ValueError: As ``matern_kernel``.
    """
    scales, ard = _lengthscales(lengthscale, dtype)
    return _scaled(RBFKernel(ard_num_dims=ard), scales, outputscale, dtype)


def gaussian_likelihood(
    noise: float,
    *,
    dtype: torch.dtype = torch.float64,
    batch_shape: torch.Size = torch.Size(),  # noqa: B008
) -> GaussianLikelihood:
    """Makes a GaussianLikelihood with the given noise variance, without a prior.

    A fit keeps the noise above 1e-4 times the given variance. The likelihood of ``SingleTaskGP`` keeps it above 1e-4 in
    the model's units, which is too much for gradients: points a hundredth of a lengthscale apart need 1e-6.

    Args:
        noise: s², in the model's (standardised) units.
        dtype: The dtype of the parameter.
        batch_shape: The batch shape of the model, followed by m for m > 1 outcomes.

    Raises:
        TypeError: If the noise is not a number.
        ValueError: If the noise is not finite and positive.
    """
    value = _as_tensor("noise", noise, dtype)
    if value.numel() != 1:
        raise ValueError(f"noise must be one number, got {noise!r}.")
    check_positive("noise", value)
    constraint = GreaterThan(NOISE_FLOOR * value.item())
    likelihood = GaussianLikelihood(noise_constraint=constraint, batch_shape=batch_shape).to(dtype)
    likelihood.noise = value.expand(*batch_shape, 1)
    return likelihood


def _as_tensor(name: str, value: object, dtype: torch.dtype) -> Tensor:
    """The value as a tensor, because GPyTorch's setters convert numbers to float32."""
    try:
        return torch.as_tensor(value, dtype=dtype).detach()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number or a tensor, got {value!r}.") from None


def _lengthscales(value: float | Tensor, dtype: torch.dtype) -> tuple[Tensor, int | None]:
    """The lengthscales and ``ard_num_dims``."""
    scales = _as_tensor("lengthscale", value, dtype)
    check_positive("lengthscale", scales)
    if scales.dim() > 1 or not scales.numel():
        raise ValueError(f"lengthscale must be one number or a vector of d numbers, got shape {tuple(scales.shape)}.")
    return scales, scales.numel() if scales.dim() else None


def _scaled(base: Kernel, lengthscale: Tensor, outputscale: float, dtype: torch.dtype) -> ScaleKernel:
    kernel = ScaleKernel(base).to(dtype)
    base.lengthscale = lengthscale.reshape(1, -1)
    scale = _as_tensor("outputscale", outputscale, dtype)
    check_positive("outputscale", scale)
    kernel.outputscale = scale
    return kernel
