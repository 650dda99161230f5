"""Spectral densities of the stationary kernels that have Fourier features.

By Bochner's theorem a stationary kernel is k(x, x') = o E[cos(vᵀ(x − x'))], v = ω/ℓ, where ω is

    RBF:          standard normal in d dimensions,
    Matérn ν:     multivariate Student t with 2ν degrees of freedom, ω = z √(2ν/χ²_2ν) with z standard normal.

References:
    A. Rahimi and B. Recht, Random features for large-scale kernel machines, NeurIPS 2007.
    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, Sec. 4.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv, gammaincinv
from torch import Tensor

from surrogates.checks import check_positive
from surrogates.kernels.stationary import unscaled

SUPPORTED_SPECTRA = "RBFKernel and MaternKernel (nu = 1.5 or 2.5), alone or in ScaleKernel"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SpectralDensity:
    """The spectral density of a kernel o h(r²): a normal distribution or a scale mixture of normals.

    Attributes:
        name: The kernel: ``"rbf"``, ``"matern32"`` or ``"matern52"``.
        nu: Matérn's ν, or None for RBF.
        outputscale: o.
        lengthscale: ℓ, one number for every active dimension.
        active_dims: The dimensions of x that the kernel sees.
    """

    name: str
    nu: float | None
    outputscale: float
    lengthscale: tuple[float, ...]
    active_dims: tuple[int, ...]

    @property
    def dim(self) -> int:
        """The number of active dimensions."""
        return len(self.active_dims)

    def mixing_scale(self, uniform: Array) -> Array:
        """The factor √(2ν/χ²_2ν) of a standard normal vector, at quantiles ``uniform`` of χ²_2ν; 1 for RBF."""
        if self.nu is None:
            return np.ones_like(uniform)
        return np.sqrt(self.nu / gammaincinv(self.nu, uniform))

    def radius(self, uniform: Array) -> Array:
        """‖ω‖ at the quantiles ``uniform`` of its distribution (for Matérn, the upper quantiles).

        For RBF ‖ω‖² ~ χ²_d. For Matérn ‖ω‖²/d ~ F(d, 2ν), so that ‖ω‖² = 2ν (1 − B)/B with B ~ Beta(ν, d/2). The
        quantile of 1 − B is computed directly, because a difference would lose the digits of short radii.
        """
        if self.nu is None:
            return np.sqrt(2 * gammaincinv(self.dim / 2, uniform))
        beta = betaincinv(self.nu, self.dim / 2, uniform)
        complement = betainccinv(self.dim / 2, self.nu, uniform)
        return np.sqrt(2 * self.nu * complement / beta)


def spectral_density(kernel: Kernel, d: int) -> SpectralDensity:
    """Returns the spectral density of a kernel, chosen by its exact type.

    Hyper-parameters are rounded to 12 digits, because the last digit of GPyTorch's softplus depends on the machine.

    Args:
        kernel: ``RBFKernel`` or ``MaternKernel`` with ν = 3/2 or 5/2, isotropic or ARD, with or without
            ``active_dims``, in any number of ``ScaleKernel``s.
        d: The dimension of x.

    Raises:
        TypeError: If the kernel has another type, including subclasses of supported types. Matérn 1/2 is not supported
            because its frequencies have no mean, so that gradients of its features do not converge.
        ValueError: If the kernel is batched or does not fit d, or a hyper-parameter is not finite and positive.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must be a gpytorch kernel ({SUPPORTED_SPECTRA}), got {type(kernel).__name__}.")
    if len(kernel.batch_shape) > 0:
        raise ValueError(f"Fourier features need a kernel without batch shape, got {tuple(kernel.batch_shape)}.")
    base, outputscales = unscaled(kernel)
    outputscale = prod((_rounded(scale, "outputscale")[0] for scale in outputscales), start=1.0)
    name, nu = _family(base)
    lengthscale = _rounded(base.lengthscale, "lengthscale")
    active = kernel.active_dims
    dims = tuple(range(d)) if active is None else tuple(int(i) % d for i in active)
    if len(dims) > d or (active is not None and max(int(i) for i in active) >= d):
        raise ValueError(f"The kernel's active_dims {active.tolist()} do not fit in d = {d} dimensions.")
    if len(lengthscale) not in (1, len(dims)):
        raise ValueError(f"The kernel has {len(lengthscale)} lengthscales for {len(dims)} active dimensions.")
    if len(lengthscale) == 1:
        lengthscale = lengthscale * len(dims)
    return SpectralDensity(name, nu, outputscale, lengthscale, dims)


def _family(kernel: Kernel) -> tuple[str, float | None]:
    if type(kernel) is RBFKernel:
        return "rbf", None
    if type(kernel) is MaternKernel and kernel.nu in (1.5, 2.5):
        return {1.5: "matern32", 2.5: "matern52"}[kernel.nu], float(kernel.nu)
    if type(kernel) is MaternKernel:
        raise TypeError(
            f"MaternKernel with nu = {kernel.nu} has no Fourier features here: its frequencies have no mean, so that "
            f"gradients of its features do not converge. Supported are {SUPPORTED_SPECTRA}."
        )
    raise TypeError(
        f"{type(kernel).__name__} has no Fourier features here. Supported are {SUPPORTED_SPECTRA}, but none of their "
        "subclasses."
    )


def _rounded(value: Tensor, name: str) -> tuple[float, ...]:
    check_positive(f"The kernel's {name}", value)
    return tuple(float(f"{number:.12g}") for number in value.detach().reshape(-1).tolist())
