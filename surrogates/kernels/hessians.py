"""Hessians in x of weighted sums of kernels, Σ_τ α_τ k(x, x_τ).

For a stationary kernel o h(r²), with Z the ``n x d`` matrix of rows (x − x_τ)/ℓ², c = 2 o h'(r²) and e = 4 o h''(r²),
the Hessian is (Σ_τ c_τ α_τ) diag(1/ℓ²) + Zᵀ diag(e ∘ α) Z. For any other kernel it is the automatic derivative of the
gradient, which is exact and slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from gpytorch.means import Mean
from torch import Tensor

from surrogates.kernels import one_pass
from surrogates.kernels.blocks import CompositeKernel, KernelSnapshot, kernel_blocks
from surrogates.kernels.errors import no_hessian
from surrogates.kernels.radial_jets import check_four_derivatives
from surrogates.kernels.stationary import StationaryKernel, over_all_inputs


def check_has_hessian(kernel: KernelSnapshot, covariance: bool = False) -> None:
    """Raises a ``ValueError`` if a part of the kernel is known to have no Hessian posterior.

    Args:
        kernel: The kernel.
        covariance: Whether the covariance of second derivatives is needed, not only their mean. Matérn 1/2 has neither
            mean nor covariance, Matérn 3/2 has no covariance.
    """
    if isinstance(kernel, CompositeKernel):
        for part in kernel.parts:
            check_has_hessian(part, covariance)
    elif isinstance(kernel, StationaryKernel):
        if not kernel.profile.has_gradient:
            raise no_hessian(kernel.profile.title)
        if covariance:
            check_four_derivatives(kernel)


class AutomaticHessian:
    """The Jacobian of a gradient at the points x, by automatic differentiation.

    Args:
        gradient: A function that returns the gradient, ``... x q x d``, at points of that shape.
        x: The points, ``... x q x d``.
        further: Whether results can be differentiated in the points and in the parameters of the gradient.
    """

    def __init__(self, gradient: Callable[[Tensor], Tensor], x: Tensor, further: bool) -> None:
        self._function, self._further = gradient, further
        self._x = x if x.requires_grad else x.detach().requires_grad_(True)

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient at the points, ``... x q x d``."""
        with torch.enable_grad():
            return self._function(self._x)

    def dense(self) -> Tensor:
        """The dense Jacobian of the gradient at every point, ``... x q x d x d``."""
        gradient, x = self.gradient, self._x
        if not gradient.requires_grad:
            return torch.zeros_like(x).unsqueeze(-1).expand(*x.shape, x.shape[-1])
        rows = [
            torch.autograd.grad(
                gradient, x, unit.expand_as(gradient), True, create_graph=self._further, materialize_grads=True
            )[0]
            for unit in torch.eye(x.shape[-1], dtype=gradient.dtype, device=gradient.device)
        ]
        missing = gradient.isnan()
        return torch.stack(rows, dim=-2).masked_fill(missing.unsqueeze(-1) | missing.unsqueeze(-2), torch.nan)


def kernel_hessian(kernel: KernelSnapshot, X: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """Computes ∇²ₓ Σ_τ α_τ k(x, x_τ) at the points x, ``... x q x d x d``.

    Args:
        kernel: The kernel.
        X: The data, ``batch x n x d``.
        x: The points, ``... x q x d``, with all batch dimensions of X.
        alpha: α, ``batch x n``, float64.
    """
    if isinstance(kernel, StationaryKernel):
        return _stationary_hessian(kernel, X, x, alpha)

    def gradient(z: Tensor) -> Tensor:
        first = kernel_blocks(kernel, z.double(), X.double()).first
        return (first.mT @ alpha[..., None, :, None]).squeeze(-1)

    return AutomaticHessian(gradient, x, x.requires_grad or alpha.requires_grad).dense()


def mean_hessian(mean: Mean, x: Tensor, further: bool) -> AutomaticHessian:
    """∇²m at the points x, ``... x q x d``, with ∇m as its ``gradient``; ``further`` is as in ``AutomaticHessian``."""

    def gradient(z: Tensor) -> Tensor:
        value = mean(z).sum()
        if not value.requires_grad:
            return torch.zeros_like(z)
        return torch.autograd.grad(value, z, create_graph=True, materialize_grads=True)[0]

    return AutomaticHessian(gradient, x, further)


def _stationary_hessian(kernel: StationaryKernel, X: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    seen_X, seen, precision = kernel.seen_inputs(X), kernel.seen_inputs(x), kernel.precision.to(x.dtype)
    known = one_pass.one_pass(kernel, seen_X, seen, alpha)
    weights = alpha.unsqueeze(-2)
    outer = (4 * kernel.outputscale.double() * kernel.profile.h2(known.r2) * weights).to(x.dtype)
    own = (known.c * weights).sum(-1, keepdim=True).to(x.dtype) * precision
    Z = (seen.unsqueeze(-2) - seen_X.unsqueeze(-3)) * precision.unsqueeze(-2)
    hessian = torch.diag_embed(own.expand(seen.shape)) + (Z.mT * outer.unsqueeze(-2)) @ Z
    return over_all_inputs(hessian, kernel.active_dims, x.shape[-1], -1, -2)
