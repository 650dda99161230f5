"""Stationary kernels: their radial profiles h and the derivatives of h.

A stationary kernel is k(x, x') = o h(r²) with r² = Σᵢ (xᵢ − x'ᵢ)²/ℓᵢ². A gradient posterior needs h, h' and h'' as
functions of r²:

    ∂k/∂xᵢ        = 2 o h'(r²) (xᵢ − x'ᵢ)/ℓᵢ²
    ∂²k/∂xᵢ∂x'ⱼ   = −o [2 h'(r²) δᵢⱼ/ℓᵢ² + 4 h''(r²) (xᵢ − x'ᵢ)(xⱼ − x'ⱼ)/(ℓᵢ² ℓⱼ²)]

References:
    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, Sec. 4.2 and 9.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import sqrt
from typing import ClassVar

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from torch import Tensor

from surrogates.checks import is_traced
from surrogates.kernels.errors import UnsupportedKernelError, no_gradient_covariance
from surrogates.kernels.registry import RadialFunctions, copied, read_registered

_TITLES = {
    "rbf": "RBFKernel",
    "rq": "RQKernel",
    "matern12": "MaternKernel(nu=0.5)",
    "matern32": "MaternKernel(nu=1.5)",
    "matern52": "MaternKernel(nu=2.5)",
}


@dataclass(frozen=True)
class RadialProfile:
    """The function h(r²) of a stationary kernel, h(0) = 1, and its first two derivatives with respect to r².

    Attributes:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"``, ``"matern52"`` or ``"rq"``.
        alpha: The exponent of the rational quadratic kernel, which broadcasts with ``batch x q x n``; otherwise None.
    """

    name: str
    alpha: Tensor | None = None

    prior_value: ClassVar[float] = 1.0

    @property
    def title(self) -> str:
        """The kernel's name in messages."""
        return _TITLES[self.name]

    @property
    def has_gradient(self) -> bool:
        """Whether sample paths have a gradient, that is, whether h'(0) is finite."""
        return self.name != "matern12"

    def h(self, r2: Tensor) -> Tensor:
        """The profile h(r²), elementwise."""
        if self.name == "rbf":
            return torch.exp(-0.5 * r2)
        if self.name == "rq":
            return (1 + r2 / (2 * self._alpha)) ** -self._alpha
        if self.name == "matern12":
            return torch.exp(-root(r2))
        if self.name == "matern32":
            a = sqrt(3) * root(r2)
            return (1 + a) * torch.exp(-a)
        a = sqrt(5) * root(r2)
        return (1 + a + a.square() / 3) * torch.exp(-a)

    def h1(self, r2: Tensor) -> Tensor:
        """dh/d(r²), elementwise; −∞ at 0 for Matérn 1/2, whose sample paths have no gradient."""
        if self.name == "rbf":
            return -0.5 * torch.exp(-0.5 * r2)
        if self.name == "rq":
            return -0.5 * (1 + r2 / (2 * self._alpha)) ** (-self._alpha - 1)
        r = root(r2)
        if self.name == "matern12":
            return -torch.exp(-r) / (2 * r)
        if self.name == "matern32":
            return -1.5 * torch.exp(-sqrt(3) * r)
        a = sqrt(5) * r
        return (-5 / 6) * (1 + a) * torch.exp(-a)

    def h2(self, r2: Tensor) -> Tensor:
        """The second derivative h'' = d²h/d(r²)², elementwise.

        For Matérn 3/2, h'' grows as 1/r for r → 0. The result at r = 0 is 0, because every use multiplies h'' by δδᵀ
        with δ = x − x', and the product tends to 0.

        Raises:
            ValueError: For Matérn 1/2.
        """
        if self.name == "rbf":
            return 0.25 * torch.exp(-0.5 * r2)
        if self.name == "rq":
            alpha = self._alpha
            return (alpha + 1) / (4 * alpha) * (1 + r2 / (2 * alpha)) ** (-alpha - 2)
        if self.name == "matern12":
            raise no_gradient_covariance()
        r = root(r2)
        if self.name == "matern32":
            inverse = torch.where(r2 > 0, 1 / torch.where(r2 > 0, r, torch.ones_like(r)), torch.zeros_like(r))
            return 0.75 * sqrt(3) * inverse * torch.exp(-sqrt(3) * r)
        return (25 / 12) * torch.exp(-sqrt(5) * r)

    @property
    def prior_curvature(self) -> float:
        """−2h'(0); multiplied by o/ℓ², it is the prior variance of one partial derivative.

        It is 1 for RBF and RQ, 5/3 for Matérn 5/2 and 3 for Matérn 3/2.

        Raises:
            ValueError: For Matérn 1/2, where h'(0) is infinite.
        """
        if self.name == "matern12":
            raise no_gradient_covariance()
        return {"rbf": 1.0, "rq": 1.0, "matern32": 3.0, "matern52": 5 / 3}[self.name]

    @property
    def _alpha(self) -> Tensor:
        assert self.alpha is not None
        return self.alpha


@dataclass(frozen=True)
class StationaryKernel:
    """A snapshot of a GPyTorch kernel o h(r²) over some of the inputs, with the scales of its Jacobian.

    With Δ the ``n x d`` matrix of rows x − x_τ, the Jacobian of rows ∂k(x, x_τ)/∂x is J = diag(c) Δ diag(v), where c_τ
    = 2 o h'(r_τ²) are the row scales and v = (dz/dx)/ℓ² the column scales. Later changes of the kernel have no effect.

    Attributes:
        profile: h and its derivatives, built-in or registered.
        outputscale: o, ``batch x 1 x 1`` or ``1 x 1``.
        precision: 1/ℓ² per unit of the transformed inputs z, ``batch x 1 x d`` (ARD) or ``batch x 1 x 1``.
        column_scales: v, including the slope dz/dx of the input transform, with the shape of ``precision``.
        active_dims: The kernel's inputs, or None for all.
    """

    profile: RadialProfile | RadialFunctions
    outputscale: Tensor
    precision: Tensor
    column_scales: Tensor
    active_dims: Tensor | None = None

    @property
    def isotropic(self) -> bool:
        """Whether all inputs have the same precision and the same column scale."""
        return self.precision.shape[-1] == 1 and self.column_scales.shape[-1] == 1

    def with_slope(self, slope: Tensor | None) -> StationaryKernel:
        """Returns the kernel with the slope dz/dx of an input transform, ``batch x 1 x d``, in ``column_scales``."""
        if slope is None:
            return self
        seen = slope if self.active_dims is None else slope[..., self.active_dims]
        return replace(self, column_scales=self.precision * seen)

    @cached_property
    def numbers(self) -> tuple[float, float, float, float]:
        """The exponent (1 unless the kernel is RQ), o, 1/ℓ² and v of an isotropic kernel without batch."""
        exponent = 1.0 if self.profile.alpha is None else self.profile.alpha.item()
        precision, column_scale = (t.reshape(-1)[0].item() for t in (self.precision, self.column_scales))
        return exponent, self.outputscale.item(), precision, column_scale

    def seen_inputs(self, x: Tensor) -> Tensor:
        """Selects the kernel's inputs, ``... x d'``, from x, ``... x d``; x itself is returned if all are used."""
        return x if self.active_dims is None else x[..., self.active_dims]

    def row_scales(self, r2: Tensor) -> Tensor:
        """The scales c = 2 o h'(r²) of the Jacobian's rows, float64, with the shape of r²."""
        return 2 * self.outputscale.double() * self.profile.h1(r2.double())


_BUILT_IN = (RBFKernel, MaternKernel, RQKernel, RBFKernelGrad, Matern52KernelGrad)


def as_stationary(kernel: Kernel, detach: bool = True) -> StationaryKernel | None:
    """Returns a snapshot o h(r²) of one stationary kernel in any number of ``ScaleKernel``s; None for other kernels.

    Args:
        kernel: A kernel of GPyTorch.
        detach: Whether the hyper-parameters are detached from autograd.
    """
    base, outputscales = unscaled(kernel)
    profile: RadialProfile | RadialFunctions
    if type(base) in _BUILT_IN:
        profile, lengthscale = radial_profile(base, detach), copied(base.lengthscale, detach)
    else:
        found = read_registered(base, detach)
        if not isinstance(found, RadialFunctions):
            return None
        profile, lengthscale = found, found.lengthscale
    precision = lengthscale**-2
    scales = [copied(scale, detach)[..., None, None] for scale in outputscales]
    outputscale = reduce(torch.mul, scales) if scales else torch.ones_like(precision[..., :1])
    active_dims = None if kernel.active_dims is None else kernel.active_dims.clone()
    return StationaryKernel(profile, outputscale, precision, precision, active_dims)


def unscaled(kernel: Kernel) -> tuple[Kernel, list[Tensor]]:
    """The kernel inside any number of ``ScaleKernel``s, and their outputscales, ``batch``, outermost first."""
    outputscales = []
    while type(kernel) is ScaleKernel:
        outputscales.append(kernel.outputscale)
        kernel = kernel.base_kernel
    return kernel, outputscales


def radial_profile(kernel: Kernel, detach: bool = True) -> RadialProfile:
    """The profile of a stationary kernel, chosen by its exact type.

    ``RBFKernelGrad`` and ``Matern52KernelGrad`` have the profiles of ``RBFKernel`` and ``MaternKernel(nu=2.5)``.

    Args:
        kernel: A GPyTorch kernel that is not in a ``ScaleKernel``.
        detach: Whether the exponent of RQ is detached from autograd.

    Raises:
        UnsupportedKernelError: For any other type, including subclasses of supported types.
    """
    kind = type(kernel)
    if kind in (RBFKernel, RBFKernelGrad):
        return RadialProfile("rbf")
    if kind is Matern52KernelGrad:
        return RadialProfile("matern52")
    if kind is MaternKernel:
        return RadialProfile({0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}[kernel.nu])
    if kind is RQKernel:
        return RadialProfile("rq", alpha=copied(kernel.alpha, detach).unsqueeze(-1))
    raise UnsupportedKernelError(
        kernel,
        "has no radial profile here. RBFKernel, MaternKernel and RQKernel have one, but none of their subclasses.",
    )


def over_all_inputs(value: Tensor, active_dims: Tensor | None, d: int, *dims: int) -> Tensor:
    """Extends the dimensions ``dims`` of a value from the active inputs to all d inputs, with 0 for the others."""
    if active_dims is None:
        return value
    for dim in dims:
        shape = list(value.shape)
        shape[dim] = d
        value = value.new_zeros(shape).index_copy(dim, active_dims, value)
    return value


def root(r2: Tensor) -> Tensor:
    """√r² with the derivative 0 instead of ∞ at 0, so that gradients are finite where a point is a data point."""
    if not (r2.requires_grad or is_traced(r2)):
        return r2.sqrt()
    positive = r2 > 0
    return torch.where(positive, torch.where(positive, r2, torch.ones_like(r2)).sqrt(), torch.zeros_like(r2))
