"""Derivative blocks of kernels: ∂k/∂x, ∂²k/∂x∂x', for sums and products of stationary kernels too.

The blocks are dense (``... x q x n x d`` and ``... x q x n x d x d``) and serve every supported kernel. A single
stationary kernel has no need of them for the mean, the trace and directional variances: there
``surrogates.conditioning`` works with ``q x n`` numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from torch import Tensor

from surrogates.kernels.distances import pairwise_squared_distances, squared_distances
from surrogates.kernels.radial import (
    RadialProfile,
    UnsupportedKernelError,
    gradient_at_datum,
    no_gradient_covariance,
    radial_profile,
)


@dataclass(frozen=True)
class StationaryKernel:
    """o h(r²) over some of the inputs, read from a GPyTorch kernel; nothing is copied but hyper-parameters.

    Attributes:
        profile: h and its derivatives.
        outputscale: o, ``batch x 1 x 1`` or ``1 x 1``.
        precision: 1/ℓ², ``batch x 1 x d`` (ARD) or ``batch x 1 x 1`` (isotropic).
        active_dims: The inputs that the kernel sees, or None for all.
    """

    profile: RadialProfile
    outputscale: Tensor
    precision: Tensor
    active_dims: Tensor | None

    @property
    def isotropic(self) -> bool:
        """Whether one lengthscale serves all inputs."""
        return self.precision.shape[-1] == 1


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


def as_stationary(kernel: Kernel) -> StationaryKernel | None:
    """The kernel as o h(r²) where it is one stationary kernel in any number of ``ScaleKernel``s, else None.

    Raises:
        UnsupportedKernelError: For a kernel that is neither that nor a sum or product.
    """
    active_dims = kernel.active_dims
    outputscale: Tensor | None = None
    while type(kernel) is ScaleKernel:
        scale = kernel.outputscale.detach()[..., None, None]
        outputscale = scale if outputscale is None else outputscale * scale
        kernel = kernel.base_kernel
    if type(kernel) in (AdditiveKernel, ProductKernel):
        return None
    profile = radial_profile(kernel)
    precision = kernel.lengthscale.detach() ** -2
    if outputscale is None:
        outputscale = torch.ones_like(precision[..., :1])
    return StationaryKernel(profile, outputscale, precision, active_dims)


def kernel_blocks(kernel: Kernel, x1: Tensor, x2: Tensor, mixed: bool = False) -> Blocks:
    """k, ∂k/∂x, ∂k/∂x' and, if asked, ∂²k/∂x∂x' for every pair of points.

    Args:
        kernel: RBF, Matérn or RQ, scaled, summed and multiplied; isotropic or ARD, on any ``active_dims``.
        x1: ``... x q x d``.
        x2: ``... x n x d``.
        mixed: Whether to form the ``d x d`` second derivatives.

    Returns:
        The blocks in the inputs' own units. Sums add block by block; a product ab has
        ∂ᵢ∂'ⱼ(ab) = a ∂ᵢ∂'ⱼb + ∂ᵢa ∂'ⱼb + ∂'ⱼa ∂ᵢb + b ∂ᵢ∂'ⱼa.

    Raises:
        UnsupportedKernelError: Where the tree holds a kernel of any other exact type.
        ValueError: For ``mixed`` blocks of Matérn 1/2.
    """
    stationary = as_stationary(kernel)
    if stationary is not None:
        return _stationary_blocks(stationary, x1, x2, mixed)
    active_dims = kernel.active_dims
    z1, z2 = (x1, x2) if active_dims is None else (x1[..., active_dims], x2[..., active_dims])
    blocks = _composite_blocks(kernel, z1, z2, mixed)
    return blocks if active_dims is None else _embedded(blocks, active_dims, x1.shape[-1])


def check_kernel(kernel: Kernel, d: int) -> None:
    """Refuse what values alone cannot be modelled with, or hyper-parameters that are not finite and positive.

    Args:
        kernel: Of the values.
        d: The number of inputs.

    Raises:
        UnsupportedKernelError: Naming the kernel and those that are supported.
        TypeError: For a kernel of values and gradients together.
        ValueError: Naming the hyper-parameter, or for lengthscales or ``active_dims`` that do not fit d.
    """
    if not isinstance(kernel, Kernel):
        raise UnsupportedKernelError(kernel)
    if kernel.active_dims is not None:
        if not bool(((kernel.active_dims >= 0) & (kernel.active_dims < d)).all()):
            raise ValueError(f"The kernel's active_dims must be in [0, {d}), got {kernel.active_dims.tolist()}.")
        d = len(kernel.active_dims)
    while type(kernel) is ScaleKernel:
        _check_positive("outputscale", kernel.outputscale)
        kernel = kernel.base_kernel
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
    _check_positive("lengthscale", kernel.lengthscale)
    if kernel.lengthscale.shape[-1] not in (1, d):
        raise ValueError(
            f"The kernel has {kernel.lengthscale.shape[-1]} lengthscales for {d} inputs; accepted are 1 and {d}."
        )
    if profile.alpha is not None:
        _check_positive("alpha", profile.alpha)


def _check_positive(name: str, value: Tensor) -> None:
    if not bool((value.isfinite() & (value > 0)).all()):
        raise ValueError(f"The kernel's {name} must be finite and positive, got {value.detach().flatten().tolist()}.")


def kernel_values(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """k(x, x') for every pair, ``... x q x n``, float64, exact at and near coincident points.

    GPyTorch expands the square of the distance, which costs digits between close points; and it works in the
    dtype of x, where n x n algebra here is float64 throughout.

    Args:
        kernel: Any supported kernel.
        x1: ``... x q x d``.
        x2: ``... x n x d``.

    Raises:
        UnsupportedKernelError: Where the tree holds a kernel of any other exact type.
    """
    stationary = as_stationary(kernel)
    if kernel.active_dims is not None:
        x1, x2 = x1[..., kernel.active_dims], x2[..., kernel.active_dims]
    if stationary is not None:
        r2 = stationary_distances(stationary, x1, x2)
        return stationary.outputscale.double() * stationary.profile.h(r2)
    scale: Tensor | float = 1.0
    while type(kernel) is ScaleKernel:
        scale = scale * kernel.outputscale.detach().double()[..., None, None]
        kernel = kernel.base_kernel
    parts = [kernel_values(part, x1, x2) for part in kernel.kernels]
    combine = torch.add if type(kernel) is AdditiveKernel else torch.mul
    return scale * reduce(combine, parts)


def stationary_distances(kernel: StationaryKernel, x1: Tensor, x2: Tensor) -> Tensor:
    """r² for every pair, ``... x q x n``, float64, for points of the inputs that the kernel sees."""
    if x1 is x2 and not x1.requires_grad:
        return pairwise_squared_distances(x1, kernel.precision)
    centre = x1.mean(dim=-2, keepdim=True)
    return squared_distances(x1 - centre, x2 - centre, kernel.precision.to(x1.dtype)).double().clamp_min(0.0)


def prior_gradient_variance(kernel: Kernel, d: int) -> Tensor:
    """The diagonal of ∂ₓ∂ₓ' k at x = x', which is all of it and the same everywhere.

    For o h(r²) it is −2 o h'(0)/ℓᵢ². Sums add; in a product every first derivative vanishes at x = x', so each
    factor's diagonal is multiplied by the values of the others.

    Args:
        kernel: Any supported kernel.
        d: The number of inputs.

    Returns:
        ``batch x d``, or ``d``.

    Raises:
        ValueError: For Matérn 1/2.
    """
    return _prior(kernel, d)[1]


def _prior(kernel: Kernel, d: int) -> tuple[Tensor, Tensor]:
    """k(x, x), ``batch x 1``, and the diagonal of ∂∂'k(x, x), ``batch x d``."""
    stationary = as_stationary(kernel)
    if stationary is not None:
        value = stationary.outputscale[..., 0, :]
        width = d if stationary.active_dims is None else len(stationary.active_dims)
        diagonal = (stationary.profile.prior_curvature * value * stationary.precision[..., 0, :]).expand(
            *torch.broadcast_shapes(value.shape[:-1], stationary.precision.shape[:-2]), width
        )
    else:
        scale: Tensor | float = 1.0
        node, width = kernel, d if kernel.active_dims is None else len(kernel.active_dims)
        while type(node) is ScaleKernel:
            scale = scale * node.outputscale.detach()[..., None]
            node = node.base_kernel
        value, diagonal = _prior(node.kernels[0], width)
        for part in node.kernels[1:]:
            other, other_diagonal = _prior(part, width)
            if type(node) is AdditiveKernel:
                value, diagonal = value + other, diagonal + other_diagonal
            else:
                value, diagonal = value * other, diagonal * other + value * other_diagonal
        value, diagonal = scale * value, scale * diagonal
    if kernel.active_dims is not None:
        diagonal = diagonal.new_zeros(*diagonal.shape[:-1], d).index_copy(-1, kernel.active_dims, diagonal)
    return value, diagonal


def _stationary_blocks(kernel: StationaryKernel, x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
    d = x1.shape[-1]
    if kernel.active_dims is not None:
        x1, x2 = x1[..., kernel.active_dims], x2[..., kernel.active_dims]
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


def _composite_blocks(kernel: Kernel, x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
    if type(kernel) is ScaleKernel:
        # A ScaleKernel has taken its base kernel's active_dims for its own: they are applied already.
        blocks = _composite_blocks(kernel.base_kernel, x1, x2, mixed)
        return _scaled(blocks, kernel.outputscale.detach())
    if type(kernel) not in (AdditiveKernel, ProductKernel):
        raise UnsupportedKernelError(kernel)
    parts = [kernel_blocks(part, x1, x2, mixed) for part in kernel.kernels]
    combine = _sum if type(kernel) is AdditiveKernel else _product
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result


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
