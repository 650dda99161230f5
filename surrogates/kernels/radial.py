"""Radial profiles of the stationary kernels and their derivatives.

A stationary kernel is k(x, x') = o h(r²) with r² = Σᵢ (xᵢ − x'ᵢ)²/ℓᵢ². Everything that a gradient posterior
needs of a kernel is h, h' and h'' as functions of r²:

    ∂k/∂xᵢ        = 2 o h'(r²) (xᵢ − x'ᵢ)/ℓᵢ²
    ∂²k/∂xᵢ∂x'ⱼ   = −o [2 h'(r²) δᵢⱼ/ℓᵢ² + 4 h''(r²) (xᵢ − x'ᵢ)(xⱼ − x'ⱼ)/(ℓᵢ² ℓⱼ²)]

References:
    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, Sec. 4.2 and 9.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from torch import Tensor

SUPPORTED_KERNELS = (
    "RBFKernel, MaternKernel (nu = 1.5 or 2.5; 0.5 for the mean away from the data), RQKernel, "
    "ScaleKernel, and sums and products of these (in kernel_blocks RBFKernelGrad and Matern52KernelGrad too, by their "
    "value part)"
)


class UnsupportedKernelError(TypeError):
    """A kernel whose gradient posterior is not known here; the message names those that are."""

    def __init__(self, kernel: object) -> None:
        super().__init__(
            f"{type(kernel).__name__} has no gradient blocks here (a subclass is not taken for its parent). "
            f"Supported are exactly: {SUPPORTED_KERNELS}."
        )


@dataclass(frozen=True)
class RadialProfile:
    """h(r²) of one stationary kernel, h(0) = 1, with its first two derivatives with respect to r².

    Attributes:
        name: ``"rbf"``, ``"matern12"``, ``"matern32"``, ``"matern52"`` or ``"rq"``.
        alpha: The exponent of the rational quadratic kernel, shaped to broadcast with ``batch x q x n``.
    """

    name: str
    alpha: Tensor | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether sample paths have a gradient, that is, whether h'(0) is finite."""
        return self.name != "matern12"

    def h(self, r2: Tensor) -> Tensor:
        """h(r²), elementwise."""
        if self.name == "rbf":
            return torch.exp(-0.5 * r2)
        if self.name == "rq":
            return (1 + r2 / (2 * self._alpha)) ** -self._alpha
        if self.name == "matern12":
            return torch.exp(-_sqrt(r2))
        if self.name == "matern32":
            a = sqrt(3) * _sqrt(r2)
            return (1 + a) * torch.exp(-a)
        a = sqrt(5) * _sqrt(r2)
        return (1 + a + a.square() / 3) * torch.exp(-a)

    def h1(self, r2: Tensor) -> Tensor:
        """dh/d(r²), elementwise; −∞ at 0 for Matérn 1/2, whose sample paths have no gradient."""
        if self.name == "rbf":
            return -0.5 * torch.exp(-0.5 * r2)
        if self.name == "rq":
            return -0.5 * (1 + r2 / (2 * self._alpha)) ** (-self._alpha - 1)
        r = _sqrt(r2)
        if self.name == "matern12":
            return -torch.exp(-r) / (2 * r)
        if self.name == "matern32":
            return -1.5 * torch.exp(-sqrt(3) * r)
        a = sqrt(5) * r
        return (-5 / 6) * (1 + a) * torch.exp(-a)

    def h2(self, r2: Tensor) -> Tensor:
        """d²h/d(r²)², elementwise.

        For Matérn 3/2 it grows as 1/r towards 0, where it only ever multiplies (x − x')(x − x')ᵀ = O(r²); it is
        given as 0 at r = 0, the limit of the product.

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
        r = _sqrt(r2)
        if self.name == "matern32":
            inverse = torch.where(r2 > 0, 1 / torch.where(r2 > 0, r, torch.ones_like(r)), torch.zeros_like(r))
            return 0.75 * sqrt(3) * inverse * torch.exp(-sqrt(3) * r)
        return (25 / 12) * torch.exp(-sqrt(5) * r)

    @property
    def prior_curvature(self) -> float:
        """−2h'(0), so that o(−2h'(0))/ℓ² is the prior variance of one partial derivative.

        1 for RBF and RQ, 5/3 for Matérn 5/2, 3 for Matérn 3/2.

        Raises:
            ValueError: For Matérn 1/2, where it is infinite.
        """
        if self.name == "matern12":
            raise no_gradient_covariance()
        return {"rbf": 1.0, "rq": 1.0, "matern32": 3.0, "matern52": 5 / 3}[self.name]

    @property
    def _alpha(self) -> Tensor:
        assert self.alpha is not None
        return self.alpha


def radial_profile(kernel: Kernel) -> RadialProfile:
    """The profile of a stationary kernel, chosen by its exact type.

    ``RBFKernelGrad`` and ``Matern52KernelGrad`` give the profile of their value part. The hyper-parameters
    are detached: gradient posteriors are differentiable in the points where they are asked for, not in the
    hyper-parameters, which are fitted by the marginal likelihood of the values.

    Args:
        kernel: A GPyTorch kernel without ``ScaleKernel``.

    Raises:
        UnsupportedKernelError: For any other type, a subclass of a supported one included.
    """
    kind = type(kernel)
    if kind in (RBFKernel, RBFKernelGrad):
        return RadialProfile("rbf")
    if kind is Matern52KernelGrad:
        return RadialProfile("matern52")
    if kind is MaternKernel:
        return RadialProfile({0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}[kernel.nu])
    if kind is RQKernel:
        return RadialProfile("rq", alpha=kernel.alpha.detach().unsqueeze(-1))
    raise UnsupportedKernelError(kernel)


def no_gradient_covariance() -> ValueError:
    """The error for what a Matérn 1/2 kernel does not have."""
    return ValueError(
        "MaternKernel(nu=0.5) has no gradient covariance: its sample paths are not differentiable "
        "(-2h'(0) is infinite). Use nu=1.5, nu=2.5, RBFKernel or RQKernel; only the gradient mean away from "
        "the data exists for nu=0.5."
    )


def gradient_at_datum() -> ValueError:
    """The error for the gradient of a Matérn 1/2 mean on a datum, where the mean has a kink."""
    return ValueError(
        "A point coincides with a datum, where the gradient mean of MaternKernel(nu=0.5) does not exist; "
        "ask for it away from the data, or use nu=1.5, nu=2.5, RBFKernel or RQKernel."
    )


def _sqrt(r2: Tensor) -> Tensor:
    """√r² whose derivative at 0 is 0 rather than ∞, so that gradients through a point on a datum are finite."""
    if not r2.requires_grad:
        return r2.sqrt()
    positive = r2 > 0
    return torch.where(positive, torch.where(positive, r2, torch.ones_like(r2)).sqrt(), torch.zeros_like(r2))
