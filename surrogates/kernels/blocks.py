"""Derivative blocks of kernels, ∂k/∂x and ∂²k/∂x∂x', for sums and products too.

A kernel is converted to a snapshot of one of three types. A ``StationaryKernel`` is a function of r². A
``GeneralKernel`` is given by functions of (x, x'): those of ``surrogates.kernels.registry``, or automatic derivatives.
A ``CompositeKernel`` is a sum or product of snapshots.

The blocks are dense, ``... x q x n x d`` and ``... x q x n x d x d``. For a single stationary kernel,
``surrogates.stationary_conditioning`` computes the mean, the trace and directional variances without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from torch import Tensor

from surrogates.checks import check_finite, check_positive
from surrogates.kernels.automatic import differentiated
from surrogates.kernels.distances import pairwise_squared_distances, squared_distances
from surrogates.kernels.errors import (
    UnsupportedKernelError,
    gradient_at_datum,
    no_gradient,
    no_gradient_covariance,
)
from surrogates.kernels.missing import marked, missing_inputs, unmarked, warn_of_missing
from surrogates.kernels.registry import Blocks, KernelFunctions, copied, mapped, read_registered
from surrogates.kernels.stationary import StationaryKernel, as_stationary, over_all_inputs, unscaled


@dataclass(frozen=True)
class CompositeKernel:
    """A snapshot of a sum or product of GPyTorch kernels, which later changes of the kernels do not affect.

    Attributes:
        is_product: Whether the parts are multiplied instead of added.
        parts: The summands or factors.
        outputscale: The outputscale of the whole kernel, ``batch``, or None for 1.
        active_dims: The inputs of the whole kernel, or None for all.
    """

    is_product: bool
    parts: tuple[KernelSnapshot, ...]
    outputscale: Tensor | None
    active_dims: Tensor | None


@dataclass(frozen=True)
class GeneralKernel:
    """A snapshot of a GPyTorch kernel that is given by functions for its values and their derivatives.

    Attributes:
        functions: The values and the blocks, as functions of the kernel's inputs.
        outputscale: The kernel's outputscale, ``batch``, or None for 1.
        active_dims: The kernel's inputs, or None for all.
    """

    functions: KernelFunctions
    outputscale: Tensor | None = None
    active_dims: Tensor | None = None


KernelSnapshot = StationaryKernel | CompositeKernel | GeneralKernel
"""A kernel with copies of its hyper-parameters."""


def snapshot(kernel: Kernel | KernelSnapshot, detach: bool = True) -> KernelSnapshot:
    """Returns a snapshot of a kernel, which later changes of the kernel do not affect.

    Args:
        kernel: Any kernel whose value is a function of two points.
        detach: Whether hyper-parameters are detached from autograd.

    Raises:
        UnsupportedKernelError: If a part of the kernel is not a function of two points.
    """
    if isinstance(kernel, StationaryKernel | CompositeKernel | GeneralKernel):
        return kernel
    stationary = as_stationary(kernel, detach=detach)
    if stationary is not None:
        return stationary
    base, outputscales = unscaled(kernel)
    scale = reduce(torch.mul, [copied(scale, detach) for scale in outputscales]) if outputscales else None
    active_dims = None if kernel.active_dims is None else kernel.active_dims.clone()
    if type(base) in (AdditiveKernel, ProductKernel):
        parts = tuple(snapshot(part, detach) for part in base.kernels)
        return CompositeKernel(type(base) is ProductKernel, parts, scale, active_dims)
    functions = read_registered(base, detach)
    if isinstance(functions, KernelFunctions):
        return GeneralKernel(functions, scale, active_dims)
    return GeneralKernel(differentiated(kernel, detach))


def kernel_blocks(kernel: Kernel | KernelSnapshot, x1: Tensor, x2: Tensor, mixed: bool = False) -> Blocks:
    """Computes k, ∂k/∂x, ∂k/∂x' and, if ``mixed``, ∂²k/∂x∂x' for every pair of points, in the units of x1 and x2.

    A product ab has ∂ᵢ∂'ⱼ(ab) = a ∂ᵢ∂'ⱼb + ∂ᵢa ∂'ⱼb + ∂'ⱼa ∂ᵢb + b ∂ᵢ∂'ⱼa. If a part of the kernel has no derivative in
    an input, such as a category, the derivatives in this input are NaN, with a warning.

    Args:
        kernel: Any kernel whose value is a function of two points, or its ``snapshot``.
        x1: The points x, ``... x q x d``.
        x2: The points x', ``... x n x d``.
        mixed: Whether to compute ∂²k/∂x∂x', ``d x d`` for each pair.

    Raises:
        UnsupportedKernelError: If a part of the kernel is not a function of two points.
        ValueError: If the kernel has no derivative in any input at a pair of points. Matérn 1/2 has no ∂²k/∂x∂x', and
            no ∂k/∂x at x = x'.
    """
    kernel = snapshot(kernel)
    blocks = existing_blocks(kernel, x1, x2, mixed)
    if not (isinstance(kernel, StationaryKernel) and kernel.profile.has_gradient):
        missing = missing_inputs(blocks)
        if bool(missing.all(-1).any()):
            raise _refusal(kernel, x1, x2, mixed)
        warn_of_missing(missing)
    return blocks


def existing_blocks(kernel: KernelSnapshot, x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
    """Computes ``kernel_blocks`` with NaN, instead of an error or a warning, where a derivative does not exist."""
    if isinstance(kernel, StationaryKernel):
        return _stationary_blocks(kernel, x1, x2, mixed)
    active_dims = kernel.active_dims
    z1, z2 = (x1, x2) if active_dims is None else (x1[..., active_dims], x2[..., active_dims])
    if isinstance(kernel, CompositeKernel):
        # A ScaleKernel takes over its base kernel's active_dims, which are applied already.
        parts = [existing_blocks(part, z1, z2, mixed) for part in kernel.parts]
        blocks = reduce(_product if kernel.is_product else _sum, parts)
    else:
        blocks = kernel.functions.blocks(z1, z2, mixed)
    blocks = mapped(blocks, lambda part, k: scaled(part, kernel, 2 + k))
    return _embedded(blocks, active_dims, x1.shape[-1])


def _refusal(kernel: KernelSnapshot, x1: Tensor, x2: Tensor, mixed: bool) -> ValueError:
    """The error for a kernel without a derivative between two points; it names the first such part."""
    if isinstance(kernel, StationaryKernel):
        return (no_gradient_covariance if mixed else gradient_at_datum)(kernel.profile.title)
    if isinstance(kernel, GeneralKernel):
        return no_gradient(kernel.functions.title)
    z1, z2 = (x1, x2) if kernel.active_dims is None else (x1[..., kernel.active_dims], x2[..., kernel.active_dims])
    lacking = [part for part in kernel.parts if bool(missing_inputs(existing_blocks(part, z1, z2, mixed)).any())]
    return _refusal(lacking[0], z1, z2, mixed)


def check_kernel(kernel: Kernel, d: int, of_derivatives: bool = False) -> None:
    """Checks that a kernel can be the covariance of function values with d inputs.

    Args:
        kernel: The covariance of the values.
        d: The number of inputs.
        of_derivatives: Whether derivatives are observed too. A kernel of values and gradients, such as
            ``RBFKernelGrad``, is then accepted, and its covariance of values is checked.

    Raises:
        UnsupportedKernelError: If the kernel, or a part of the kernel, is not a function of two points.
        TypeError: If a part is a kernel of values and gradients, and ``of_derivatives`` is False.
        ValueError: If a hyper-parameter is not finite and positive, or lengthscales or ``active_dims`` do not fit d.
    """
    if not isinstance(kernel, Kernel):
        raise UnsupportedKernelError(kernel, "is not a GPyTorch kernel.")
    if kernel.active_dims is not None:
        if not bool(((kernel.active_dims >= 0) & (kernel.active_dims < d)).all()):
            raise ValueError(f"The kernel's active_dims must be in [0, {d}), got {kernel.active_dims.tolist()}.")
        d = len(kernel.active_dims)
    kernel, outputscales = unscaled(kernel)
    for outputscale in outputscales:
        check_positive("The kernel's outputscale", outputscale)
    if type(kernel) in (AdditiveKernel, ProductKernel):
        for part in kernel.kernels:
            check_kernel(part, d, of_derivatives)
        return
    if not of_derivatives and type(kernel) in (RBFKernelGrad, Matern52KernelGrad):
        raise TypeError(
            f"{type(kernel).__name__} is the covariance of values and gradients. If only values are observed, use "
            "RBFKernel or MaternKernel(nu=2.5), which give the same gradient posterior; if gradients are observed too, "
            "use GradientObservationGP."
        )
    read = snapshot(kernel)
    for name in ("lengthscale", "alpha", "period_length", "variance", "mixture_scales", "mixture_means"):
        value = getattr(kernel, name, None)
        if isinstance(value, Tensor):
            check_positive(f"The kernel's {name}", value)
    if isinstance(read, StationaryKernel):
        if read.precision.shape[-1] not in (1, d):
            raise ValueError(
                f"The kernel has {read.precision.shape[-1]} lengthscales for {d} inputs; accepted are 1 and {d}."
            )
        return
    for name, parameter in kernel.named_parameters():
        check_finite(f"The kernel's {name}", parameter)
    if kernel.ard_num_dims not in (None, d):
        raise ValueError(f"{type(kernel).__name__} has ard_num_dims={kernel.ard_num_dims} for {d} inputs.")


def kernel_values(kernel: Kernel | KernelSnapshot, x1: Tensor, x2: Tensor) -> Tensor:
    """Computes k(x, x') for every pair, ``... x q x n``, in float64.

    Unlike GPyTorch's values, the results keep full precision for points that are close to each other.

    Args:
        kernel: Any kernel whose value is a function of two points, or its ``snapshot``.
        x1: The points x, ``... x q x d``.
        x2: The points x', ``... x n x d``.
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
    if isinstance(kernel, GeneralKernel):
        return scaled(kernel.functions.values(x1, x2).double(), kernel, 2)
    parts = [kernel_values(part, x1, x2) for part in kernel.parts]
    return scaled(reduce(torch.mul if kernel.is_product else torch.add, parts), kernel, 2)


def is_uniform(kernel: KernelSnapshot) -> bool:
    """Whether ∂ₓ∂ₓ' k at x = x' is known to be the same diagonal matrix at every x."""
    if isinstance(kernel, CompositeKernel):
        return all(map(is_uniform, kernel.parts))
    return isinstance(kernel, StationaryKernel)


def prior_gradient_variance(kernel: Kernel | KernelSnapshot, d: int) -> Tensor:
    """The prior variance of every partial derivative, ``batch x d`` or ``d``, of a kernel for which it is constant.

    It is the diagonal of ∂ₓ∂ₓ' k at x = x': −2 o h'(0)/ℓᵢ² for o h(r²). For a sum the diagonals add. In a product, the
    diagonal of each factor is multiplied by the other factors, because first derivatives vanish at x = x'.

    Args:
        kernel: A function of r², a sum or product of such functions, or their ``snapshot``.
        d: The number of inputs.

    Raises:
        ValueError: For Matérn 1/2, and for kernels whose variance depends on x (use ``prior_gradient_covariance``).
    """
    kernel = snapshot(kernel)
    if not is_uniform(kernel):
        raise ValueError(
            "The prior variance of the gradient depends on the point unless the kernel is a function of r², or a sum "
            "or product of such functions; use prior_gradient_covariance(kernel, x) for the covariance at points x."
        )
    variance = _prior(kernel, d)[1]
    missing = variance.isnan()
    if bool(missing.all(-1).any()):
        origin = variance.new_zeros(1, d)
        raise _refusal(kernel, origin, origin, True)
    warn_of_missing(missing)
    return variance


def prior_gradient_covariance(kernel: Kernel | KernelSnapshot, x: Tensor) -> Tensor:
    """∂ₓ∂ₓ' k at x = x', the prior covariance of the gradient at every point, dense, ``... x q x d x d``.

    Args:
        kernel: Any kernel whose value is a function of two points, or its ``snapshot``.
        x: The points, ``... x q x d``.

    Raises:
        UnsupportedKernelError: If a part of the kernel is not a function of two points.
        ValueError: If a sample path has no gradient at a point.
    """
    kernel = snapshot(kernel)
    points = [x[..., j : j + 1, :] for j in range(x.shape[-2])]
    blocks = [kernel_blocks(kernel, point, point, mixed=True).mixed for point in points]
    return torch.cat([block.squeeze(-3) for block in blocks if block is not None], dim=-3)


def _prior(kernel: KernelSnapshot, d: int) -> tuple[Tensor, Tensor]:
    """k(x, x), ``batch x 1``, and the diagonal of ∂∂'k(x, x), ``batch x d``."""
    width = d if kernel.active_dims is None else len(kernel.active_dims)
    assert not isinstance(kernel, GeneralKernel)
    if isinstance(kernel, StationaryKernel):
        outputscale = kernel.outputscale[..., 0, :]
        value = kernel.profile.prior_value * outputscale
        curvature = kernel.profile.prior_curvature if kernel.profile.has_gradient else torch.nan
        diagonal = (curvature * outputscale * kernel.precision[..., 0, :]).expand(
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
        value, diagonal = scaled(value, kernel, 1), scaled(diagonal, kernel, 1)
    return value, over_all_inputs(diagonal, kernel.active_dims, d, -1)


def _stationary_blocks(kernel: StationaryKernel, x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
    d = x1.shape[-1]
    x1, x2 = kernel.seen_inputs(x1), kernel.seen_inputs(x2)
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    precision = kernel.precision.unsqueeze(-2)
    scaled = difference * precision
    r2 = (difference * scaled).sum(-1)
    profile, outputscale = kernel.profile, kernel.outputscale
    c = 2 * outputscale * profile.h1(r2)
    first = c.unsqueeze(-1) * scaled
    block = None
    if not profile.has_gradient:
        first = first.masked_fill((r2 == 0).unsqueeze(-1), torch.nan)
        # The block exists between distinct points, but quantities computed from it do not.
        block = torch.full_like(scaled.unsqueeze(-1) * scaled.unsqueeze(-2), torch.nan) if mixed else None
    elif mixed:
        outer = scaled.unsqueeze(-1) * scaled.unsqueeze(-2)
        eye = torch.diag_embed(precision.expand(*precision.shape[:-1], x1.shape[-1]))
        block = -(c[..., None, None] * eye + (4 * outputscale * profile.h2(r2))[..., None, None] * outer)
    blocks = Blocks(outputscale * profile.h(r2), first, -first, block)
    return _embedded(blocks, kernel.active_dims, d)


def scaled(value: Tensor, kernel: CompositeKernel | GeneralKernel, dims: int) -> Tensor:
    """The value times the kernel's outputscale; ``dims`` dimensions of the value follow the batch."""
    outputscale = kernel.outputscale
    return value if outputscale is None else outputscale.to(value.dtype)[(..., *(None,) * dims)] * value


def _sum(a: Blocks, b: Blocks) -> Blocks:
    mixed = None if a.mixed is None or b.mixed is None else a.mixed + b.mixed
    return Blocks(a.value + b.value, a.first + b.first, a.second + b.second, mixed)


def _product(a: Blocks, b: Blocks) -> Blocks:
    if bool((missing := missing_inputs(a) | missing_inputs(b)).any()):
        return marked(_product(unmarked(a), unmarked(b)), missing)
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


def _embedded(blocks: Blocks, active_dims: Tensor | None, d: int) -> Blocks:
    """The blocks over all d inputs, zero along inputs that the kernel does not use."""
    return mapped(blocks, lambda part, k: over_all_inputs(part, active_dims, d, *(-1, -2)[:k]))
