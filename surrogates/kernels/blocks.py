"""Derivative blocks of kernels: ∂k/∂x and ∂²k/∂x∂x', for sums and products of stationary kernels too.

The blocks are dense (``... x q x n x d`` and ``... x q x n x d x d``) and serve every supported kernel. A single
stationary kernel has no need of them for the mean, the trace and directional variances: there
``surrogates.stationary_conditioning`` works with ``q x n`` numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from torch import Tensor

from surrogates.checks import check_positive
from surrogates.kernels.distances import pairwise_squared_distances, squared_distances
from surrogates.kernels.stationary import (
    StationaryKernel,
    UnsupportedKernelError,
    as_stationary,
    copied,
    gradient_at_datum,
    no_gradient_covariance,
    radial_profile,
    unscaled,
)


@dataclass(frozen=True)
class Blocks:
    """A kernel and its derivatives between two sets of points.

    Attributes:
        value: k(x, x'), ``... x q x n``.
        first: ∂k/∂x, ``... x q x n x d``.
        second: ∂k/∂x', ``... x q x n x d``.
        mixed: ∂²k/∂xᵢ∂x'ⱼ, ``... x q x n x d x d``, or None where it was not asked for.
    """

    value: Tensor
    first: Tensor
    second: Tensor
    mixed: Tensor | None


@dataclass(frozen=True)
class CompositeKernel:
    """A sum or product of kernels over some of the inputs, as a GPyTorch kernel was when read; it shares no storage.

    Attributes:
        is_product: Whether the parts are multiplied; else they are added.
        parts: The kernels that are combined.
        outputscales: What the whole is multiplied with, each ``batch``.
        active_dims: The inputs that the whole sees, or None for all of them.
    """

    is_product: bool
    parts: tuple[KernelSnapshot, ...]
    outputscales: tuple[Tensor, ...]
    active_dims: Tensor | None


KernelSnapshot = StationaryKernel | CompositeKernel
"""The numbers of a GPyTorch kernel at one moment."""


def snapshot(kernel: Kernel | KernelSnapshot, detach: bool = True) -> KernelSnapshot:
    """The numbers of a kernel as they are now: changes of the kernel do not reach them. A snapshot is its own.

    Args:
        kernel: RBF, Matérn or RQ, scaled, summed and multiplied; isotropic or ARD, on any ``active_dims``.
        detach: Whether hyper-parameters are numbers, or carry their derivatives.

    Raises:
        UnsupportedKernelError: If the tree holds a kernel of any other exact type.
    """
    if isinstance(kernel, StationaryKernel | CompositeKernel):
        return kernel
    stationary = as_stationary(kernel, detach=detach)
    if stationary is not None:
        return stationary
    base, outputscales = unscaled(kernel)
    return CompositeKernel(
        type(base) is ProductKernel,
        tuple(snapshot(part, detach) for part in base.kernels),
        tuple(copied(scale, detach) for scale in outputscales),
        None if kernel.active_dims is None else kernel.active_dims.clone(),
    )


def kernel_blocks(kernel: Kernel | KernelSnapshot, x1: Tensor, x2: Tensor, mixed: bool = False) -> Blocks:
    """k, ∂k/∂x, ∂k/∂x' and, if asked for, ∂²k/∂x∂x' for every pair of points, in the inputs' own units.

    Sums add block by block; a product ab has ∂ᵢ∂'ⱼ(ab) = a ∂ᵢ∂'ⱼb + ∂ᵢa ∂'ⱼb + ∂'ⱼa ∂ᵢb + b ∂ᵢ∂'ⱼa.

    Args:
        kernel: RBF, Matérn or RQ, scaled, summed and multiplied; isotropic or ARD, on any ``active_dims``; or what
            ``snapshot`` made of it.
        x1: The points x, ``... x q x d``.
        x2: The points x', ``... x n x d``.
        mixed: Whether to form the ``d x d`` second derivatives.

    Raises:
        UnsupportedKernelError: If the tree holds a kernel of any other exact type.
        ValueError: If ``mixed`` blocks of Matérn 1/2 are asked for, or its ∂k/∂x between coincident points.
    """
    kernel = snapshot(kernel)
    if isinstance(kernel, StationaryKernel):
        return _stationary_blocks(kernel, x1, x2, mixed)
    active_dims = kernel.active_dims
    z1, z2 = (x1, x2) if active_dims is None else (x1[..., active_dims], x2[..., active_dims])
    blocks = _composite_blocks(kernel, z1, z2, mixed)
    return blocks if active_dims is None else _embedded(blocks, active_dims, x1.shape[-1])


def check_kernel(kernel: Kernel, d: int) -> None:
    """Refuses a kernel that values alone cannot be modelled with, or bad hyper-parameters.

    Args:
        kernel: The covariance of the values.
        d: The number of inputs.

    Raises:
        UnsupportedKernelError: If a kernel of the tree is not supported; the message names it and those that are.
        TypeError: If a kernel is that of values and gradients together.
        ValueError: If a hyper-parameter is not finite and positive, or lengthscales or ``active_dims`` do not fit d.
    """
    if not isinstance(kernel, Kernel):
        raise UnsupportedKernelError(kernel)
    if kernel.active_dims is not None:
        if not bool(((kernel.active_dims >= 0) & (kernel.active_dims < d)).all()):
            raise ValueError(f"The kernel's active_dims must be in [0, {d}), got {kernel.active_dims.tolist()}.")
        d = len(kernel.active_dims)
    kernel, outputscales = unscaled(kernel)
    for outputscale in outputscales:
        check_positive("The kernel's outputscale", outputscale)
    if type(kernel) in (AdditiveKernel, ProductKernel):
        for part in kernel.kernels:
            check_kernel(part, d)
        return
    profile = radial_profile(kernel)
    if type(kernel) in (RBFKernelGrad, Matern52KernelGrad):
        raise TypeError(
            f"{type(kernel).__name__} is the covariance of values and gradients together. Where only values are "
            "observed, give RBFKernel or MaternKernel(nu=2.5): the gradient posterior is the same. Observed gradients "
            "go to DerivedGP.with_gradients."
        )
    check_positive("The kernel's lengthscale", kernel.lengthscale)
    if kernel.lengthscale.shape[-1] not in (1, d):
        raise ValueError(
            f"The kernel has {kernel.lengthscale.shape[-1]} lengthscales for {d} inputs; accepted are 1 and {d}."
        )
    if profile.alpha is not None:
        check_positive("The kernel's alpha", profile.alpha)


def kernel_values(kernel: Kernel | KernelSnapshot, x1: Tensor, x2: Tensor) -> Tensor:
    """k(x, x') for every pair, ``... x q x n``, float64, exact at and near coincident points.

    GPyTorch expands the square of the distance, which costs digits between close points; and it works in the
    dtype of x, where n x n algebra here is float64 throughout.

    Args:
        kernel: Any supported kernel, or its ``snapshot``.
        x1: The points x, ``... x q x d``.
        x2: The points x', ``... x n x d``.

    Raises:
        UnsupportedKernelError: If the tree holds a kernel of any other exact type.
    """
    kernel = snapshot(kernel)
    same = x1 is x2
    if kernel.active_dims is not None:
        x1 = x1[..., kernel.active_dims]
        x2 = x1 if same else x2[..., kernel.active_dims]
    if isinstance(kernel, StationaryKernel):
        if same and not x1.requires_grad:
            r2 = pairwise_squared_distances(x1, kernel.precision)
        else:
            centre, precision = x1.mean(dim=-2, keepdim=True), kernel.precision.to(x1.dtype)
            r2 = squared_distances(x1 - centre, x2 - centre, precision).double().clamp_min(0.0)
        return kernel.outputscale.double() * kernel.profile.h(r2)
    scale: Tensor | float = 1.0
    for outputscale in kernel.outputscales:
        scale = scale * outputscale.double()[..., None, None]
    parts = [kernel_values(part, x1, x2) for part in kernel.parts]
    return scale * reduce(torch.mul if kernel.is_product else torch.add, parts)


def prior_gradient_variance(kernel: Kernel | KernelSnapshot, d: int) -> Tensor:
    """The diagonal of ∂ₓ∂ₓ' k at x = x', which is all of it and the same everywhere, ``batch x d`` or ``d``.

    For o h(r²) it is −2 o h'(0)/ℓᵢ². Sums add; in a product every first derivative vanishes at x = x', so each
    factor's diagonal is multiplied by the values of the others.

    Args:
        kernel: Any supported kernel, or its ``snapshot``.
        d: The number of inputs.

    Raises:
        ValueError: For Matérn 1/2.
    """
    return _prior(snapshot(kernel), d)[1]


def _prior(kernel: KernelSnapshot, d: int) -> tuple[Tensor, Tensor]:
    """k(x, x), ``batch x 1``, and the diagonal of ∂∂'k(x, x), ``batch x d``."""
    width = d if kernel.active_dims is None else len(kernel.active_dims)
    if isinstance(kernel, StationaryKernel):
        value = kernel.outputscale[..., 0, :]
        diagonal = (kernel.profile.prior_curvature * value * kernel.precision[..., 0, :]).expand(
            *torch.broadcast_shapes(value.shape[:-1], kernel.precision.shape[:-2]), width
        )
    else:
        value, diagonal = _prior(kernel.parts[0], width)
        for part in kernel.parts[1:]:
            other, other_diagonal = _prior(part, width)
            if kernel.is_product:
                value, diagonal = value * other, diagonal * other + value * other_diagonal
            else:
                value, diagonal = value + other, diagonal + other_diagonal
        scale: Tensor | float = 1.0
        for outputscale in kernel.outputscales:
            scale = scale * outputscale[..., None]
        value, diagonal = scale * value, scale * diagonal
    if kernel.active_dims is not None:
        diagonal = diagonal.new_zeros(*diagonal.shape[:-1], d).index_copy(-1, kernel.active_dims, diagonal)
    return value, diagonal


def _stationary_blocks(kernel: StationaryKernel, x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
    d = x1.shape[-1]
    x1, x2 = kernel.seen_inputs(x1), kernel.seen_inputs(x2)
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    precision = kernel.precision.unsqueeze(-2)
    scaled = difference * precision
    r2 = (difference * scaled).sum(-1)
    profile, outputscale = kernel.profile, kernel.outputscale
    if mixed and not profile.has_gradient:
        raise no_gradient_covariance()
    if not profile.has_gradient and bool((r2 == 0).any()):
        raise gradient_at_datum()
    first = (2 * outputscale * profile.h1(r2)).unsqueeze(-1) * scaled
    block = None
    if mixed:
        outer = scaled.unsqueeze(-1) * scaled.unsqueeze(-2)
        eye = torch.diag_embed(precision.expand(*precision.shape[:-1], x1.shape[-1]))
        h1 = (2 * outputscale * profile.h1(r2))[..., None, None]
        h2 = (4 * outputscale * profile.h2(r2))[..., None, None]
        block = -(h1 * eye + h2 * outer)
    blocks = Blocks(outputscale * profile.h(r2), first, -first, block)
    return blocks if kernel.active_dims is None else _embedded(blocks, kernel.active_dims, d)


def _composite_blocks(kernel: CompositeKernel, x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
    # A ScaleKernel has taken its base kernel's active_dims for its own: they are applied already.
    parts = [kernel_blocks(part, x1, x2, mixed) for part in kernel.parts]
    blocks = reduce(_product if kernel.is_product else _sum, parts)
    for outputscale in reversed(kernel.outputscales):
        blocks = _scaled(blocks, outputscale)
    return blocks


def _scaled(blocks: Blocks, outputscale: Tensor) -> Blocks:
    o = outputscale[..., None, None]
    mixed = None if blocks.mixed is None else o[..., None, None] * blocks.mixed
    return Blocks(o * blocks.value, o[..., None] * blocks.first, o[..., None] * blocks.second, mixed)


def _sum(a: Blocks, b: Blocks) -> Blocks:
    mixed = None if a.mixed is None or b.mixed is None else a.mixed + b.mixed
    return Blocks(a.value + b.value, a.first + b.first, a.second + b.second, mixed)


def _product(a: Blocks, b: Blocks) -> Blocks:
    av, bv = a.value.unsqueeze(-1), b.value.unsqueeze(-1)
    mixed = None
    if a.mixed is not None and b.mixed is not None:
        mixed = (
            av.unsqueeze(-1) * b.mixed
            + bv.unsqueeze(-1) * a.mixed
            + a.first.unsqueeze(-1) * b.second.unsqueeze(-2)
            + b.first.unsqueeze(-1) * a.second.unsqueeze(-2)
        )
    return Blocks(a.value * b.value, av * b.first + bv * a.first, av * b.second + bv * a.second, mixed)


def _embedded(blocks: Blocks, active_dims: Tensor, d: int) -> Blocks:
    """The blocks over all d inputs, zero along those that the kernel does not see."""

    def widen(block: Tensor, dim: int) -> Tensor:
        shape = list(block.shape)
        shape[dim] = d
        return block.new_zeros(shape).index_copy(dim, active_dims, block)

    mixed = None if blocks.mixed is None else widen(widen(blocks.mixed, -1), -2)
    return Blocks(blocks.value, widen(blocks.first, -1), widen(blocks.second, -1), mixed)
