"""Hessians in x of weighted sums of kernels, Σ_τ α_τ k(x, x_τ), as products with vectors, dense, and inverted.

For a stationary kernel o h(r²), with Z the ``n x d`` matrix of rows (x − x_τ)/ℓ², c = 2 o h'(r²) and e = 4 o h''(r²),
it is (Σ_τ c_τ α_τ) diag(1/ℓ²) + Zᵀ diag(e ∘ α) Z, whose product with a vector is one pass over the data. For any other
kernel it is the automatic derivative of the gradient, exact and slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from gpytorch.means import Mean
from torch import Tensor

from surrogates.compiled import compiled
from surrogates.kernels import one_pass
from surrogates.kernels.blocks import CompositeKernel, KernelSnapshot, kernel_blocks
from surrogates.kernels.errors import no_hessian
from surrogates.kernels.radial_jets import check_four_derivatives
from surrogates.kernels.stationary import StationaryKernel, over_all_inputs

_BLOCK_ELEMENTS = 1 << 19


def check_has_hessian(kernel: KernelSnapshot, covariance: bool = False) -> None:
    """Raises a ValueError if second derivatives are known not to exist under a part of the kernel.

    Args:
        kernel: The kernel.
        covariance: Whether their covariance is needed, not only their mean. The mean does not exist under Matérn 1/2,
            the covariance also not under Matérn 3/2.
    """
    if isinstance(kernel, CompositeKernel):
        for part in kernel.parts:
            check_has_hessian(part, covariance)
    elif isinstance(kernel, StationaryKernel):
        if not kernel.profile.has_gradient:
            raise no_hessian(kernel.profile.title)
        if covariance:
            check_four_derivatives(kernel)


class StationaryHessian:
    """∇²ₓ Σ_τ α_τ k(x, x_τ) of a stationary kernel at the points x: a diagonal matrix and n signed outer products.

    Args:
        kernel: The kernel.
        X: The data, ``batch x n x d``.
        x: The points, ``... x q x d``.
        alpha: α, ``batch x n``, float64.
    """

    def __init__(self, kernel: StationaryKernel, X: Tensor, x: Tensor, alpha: Tensor) -> None:
        self._kernel, self._shape, self._alpha = kernel, x.shape, alpha
        self._X, self._x = kernel.seen_inputs(X), kernel.seen_inputs(x)

    def times(self, v: Tensor) -> Tensor:
        """The products with the vectors v, ``... x q x d``, one for every point."""
        v, precision, (own, outer) = self._kernel.seen_inputs(v), self._kernel.precision.to(v.dtype), self._weights
        along, product = v * precision, own.to(v.dtype) * v
        points = [slice(j, j + 1) for j in range(self._shape[-2])]
        products = [
            self._plus_outer_products(product[..., one, :], one, outer[..., one, :], along[..., one, :])
            for one in points
        ]
        product = products[0] if len(products) == 1 else torch.cat([product[..., :0, :], *products], dim=-2)
        return self._over_all_inputs(product * precision, -1)

    def dense(self) -> Tensor:
        """The matrix, ``... x q x d x d``."""
        own, outer = (part.to(self._x.dtype) for part in self._weights)
        precision = self._kernel.precision.to(self._x.dtype)
        diagonal = torch.diag_embed((own * precision).expand(self._x.shape))
        Z = (self._x.unsqueeze(-2) - self._X.unsqueeze(-3)) * precision.unsqueeze(-2)
        dense = diagonal + (Z.mT * outer.unsqueeze(-2)) @ Z
        return self._over_all_inputs(dense, -1, -2)

    def shifted_inverse(self, slope: Tensor, shift: Tensor) -> Callable[[Tensor], Tensor]:
        """Returns a function that multiplies vectors, ``... x q x d``, by (S H S + λI)⁻¹, with ``n x n`` algebra.

        With E = (Σ_τ c_τ α_τ) S diag(1/ℓ²) S + λI, Y = Z S and W = diag(e ∘ α) it is Woodbury's E⁻¹ − E⁻¹Yᵀ (I + W Y
        E⁻¹ Yᵀ)⁻¹ W Y E⁻¹, where neither E nor W need be positive. Where E or the system of n equations is singular, the
        product is not finite.

        Args:
            slope: The diagonal of S, ``... x 1 x d``.
            shift: λ, ``... x q x 1``.
        """
        own, outer = self._weights
        slope = slope.double().expand(self._shape)
        precision = self._kernel.precision.double()
        E = shift + slope.square() * self._over_all_inputs((own * precision).expand(self._x.shape), -1)
        seen = self._kernel.seen_inputs
        scales, seen_E = precision * seen(slope), seen(E)
        eye = torch.eye(self._X.shape[-2], dtype=torch.float64, device=E.device)
        factors = []
        for j in range(self._shape[-2]):
            gram: Tensor | float = 0.0
            for columns, Y in self._columns(j, scales):
                gram = gram + (Y / seen_E[..., j : j + 1, columns]) @ Y.mT
            factors.append(torch.linalg.lu_factor_ex(eye + outer[..., j, :, None] * gram))

        def inverse_times(v: Tensor) -> Tensor:
            result = v.double() / E
            corrections = [seen(result)[..., :0, :]]
            for j, (lu, pivots, info) in enumerate(factors):
                one = slice(j, j + 1)
                along = sum(Y @ seen(result)[..., one, columns].mT for columns, Y in self._columns(j, scales))
                solved = torch.linalg.lu_solve(lu, pivots, outer[..., j, :, None] * along)
                solved = solved.masked_fill((info != 0)[..., None, None], torch.nan)
                parts = [(Y.mT @ solved).mT for _, Y in self._columns(j, scales)]
                corrections.append(torch.cat(parts, dim=-1) / seen_E[..., one, :])
            return result - self._over_all_inputs(torch.cat(corrections, dim=-2), -1)

        return inverse_times

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        """Σ_τ c_τ α_τ, ``... x q x 1``, and e ∘ α, ``... x q x n``, float64, with their graphs."""
        with torch.enable_grad():
            known = one_pass.one_pass(self._kernel, self._X, self._x, self._alpha)
            alpha = self._alpha.unsqueeze(-2)
            e = 4 * self._kernel.outputscale.double() * self._kernel.profile.h2(known.r2)
            return (known.c * alpha).sum(-1, keepdim=True), e * alpha

    def _plus_outer_products(self, product: Tensor, one: slice, weights: Tensor, u: Tensor) -> Tensor:
        """A vector plus Σ_τ w_τ (x − x_τ)(x − x_τ)·u of one point, ``... x 1 x d``, in blocks of a few megabytes."""
        X, x = self._X, self._x[..., one, :]
        loops = compiled("kernels.hessian_product_numba")
        if loops is not None and _compiled_serves(X, x, product, weights, u):
            return loops.plus_outer_products(product, X, x, weights, u)
        step = max(1, _BLOCK_ELEMENTS // X.shape[-1])
        for start in range(0, X.shape[-2], step):
            difference = x - X[..., start : start + step, :]
            along = (u @ difference.mT).double()
            product = product + (weights[..., start : start + step] * along).to(u.dtype) @ difference
        return product

    def _columns(self, j: int, scales: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yields the columns of Y = Z S of one point, float64, a few megabytes at a time, and which they are."""
        n, d = self._X.shape[-2:]
        step = max(1, _BLOCK_ELEMENTS // n)
        for start in range(0, d, step):
            columns = slice(start, min(start + step, d))
            difference = self._x[..., j : j + 1, columns] - self._X[..., columns]
            yield columns, difference.double() * scales[..., j : j + 1, columns]

    def _over_all_inputs(self, value: Tensor, *dims: int) -> Tensor:
        return over_all_inputs(value, self._kernel.active_dims, self._shape[-1], *dims)


class AutomaticHessian:
    """The Jacobian of a gradient at each point x, by automatic differentiation.

    Args:
        gradient: A function that returns the gradient, ``... x q x d``, at points of that shape.
        x: The points, ``... x q x d``.
        further: Whether results carry derivatives in the points and in the parameters of the gradient.
    """

    def __init__(self, gradient: Callable[[Tensor], Tensor], x: Tensor, further: bool) -> None:
        self._function, self._further = gradient, further
        self._x = x if x.requires_grad else x.detach().requires_grad_(True)

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient itself, ``... x q x d``."""
        with torch.enable_grad():
            return self._function(self._x)

    @cached_property
    def vanishes(self) -> bool:
        """Whether the gradient is known not to depend on the point."""
        if not self.gradient.requires_grad:
            return True
        ones = torch.ones_like(self.gradient)
        (found,) = torch.autograd.grad(self.gradient, self._x, ones, retain_graph=True, allow_unused=True)
        return found is None

    def times(self, v: Tensor) -> Tensor:
        """The products with the vectors v, ``... x q x d``, one for every point."""
        vectors = v.expand(torch.broadcast_shapes(v.shape, self._x.shape))
        if self.vanishes:
            return torch.zeros_like(vectors)
        flat = vectors.reshape(vectors.shape[: vectors.dim() - self._x.dim()].numel(), *self._x.shape)
        products = [
            torch.autograd.grad(self.gradient, self._x, one, retain_graph=True, create_graph=self._further)[0]
            for one in flat.to(self.gradient.dtype)
        ]
        product = torch.stack(products).reshape(vectors.shape).to(v.dtype)
        return product.masked_fill(self.gradient.isnan(), torch.nan)

    def dense(self) -> Tensor:
        """The matrix, ``... x q x d x d``."""
        d = self._x.shape[-1]
        units = torch.eye(d, dtype=self._x.dtype, device=self._x.device)
        dense = self.times(units.reshape(d, *(1,) * (self._x.dim() - 1), d)).movedim(0, -2)
        return dense.masked_fill(self.gradient.isnan().unsqueeze(-1), torch.nan)


Hessian = StationaryHessian | AutomaticHessian


def kernel_hessian(kernel: KernelSnapshot, X: Tensor, x: Tensor, alpha: Tensor) -> Hessian:
    """∇²ₓ Σ_τ α_τ k(x, x_τ) at the points x, ``... x q x d``, already broadcast with the batch."""
    if isinstance(kernel, StationaryKernel):
        return StationaryHessian(kernel, X, x, alpha)

    def gradient(z: Tensor) -> Tensor:
        first = kernel_blocks(kernel, z.double(), X.double()).first
        return (first.mT @ alpha[..., None, :, None]).squeeze(-1)

    return AutomaticHessian(gradient, x, x.requires_grad or alpha.requires_grad)


def mean_hessian(mean: Mean, x: Tensor, further: bool) -> AutomaticHessian:
    """∇²m and, as its ``gradient``, ∇m at the points x, ``... x q x d``; ``further`` is ``AutomaticHessian``'s."""

    def gradient(z: Tensor) -> Tensor:
        value = mean(z).sum()
        if not value.requires_grad:
            return torch.zeros_like(z)
        return torch.autograd.grad(value, z, create_graph=True, materialize_grads=True)[0]

    return AutomaticHessian(gradient, x, further)


def _compiled_serves(X: Tensor, x: Tensor, product: Tensor, weights: Tensor, u: Tensor) -> bool:
    """Whether the compiled loop applies: one vector of one point, one data set, on the CPU, without autograd."""
    return (
        X.dim() == x.dim() == u.dim() == 2
        and X.device.type == "cpu"
        and X.dtype == x.dtype == u.dtype
        and X.dtype in (torch.float32, torch.float64)
        and X.stride(-1) == 1
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in (X, x, product, weights, u)))
    )
