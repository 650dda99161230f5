"""Exact derivatives of any GPyTorch kernel, by automatic differentiation of its own formula, in float64.

All points x are shifted by s and all x' by t. ``torch.func.jvp`` gives ∂/∂s of all entries of the kernel matrix at
once, so ∂k/∂x takes d evaluations. For ∂²k/∂x∂x' each of the q·d rows of ∂k/∂x is then differentiated backward in x'. A
closed form is faster by these factors.

At r = 0 the chain rule through r = √Σδ² gives 0/0, although a smooth k that is even in r has the derivative ∂_s∂_t k =
k''(r) δ_s·δ_t. There r is replaced by δ·w with w = δ_s/‖δ_s‖: its derivatives ‖δ_s‖ and δ_t·w have the product δ_s·δ_t.
If a first derivative depends on the sign of w, k has a kink and no derivative.

A formula may have another kink, such as |x − x'|, where PyTorch returns an arbitrary number. Increments of f detect a
kink: E(f(x + hu) − f(x))²/h² converges to the variance of uᵀ∇f(x) as h → 0, but grows as 1/h at a kink.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import gpytorch
import torch
from gpytorch.kernels import (
    GridInterpolationKernel,
    GridKernel,
    HammingIMQKernel,
    IndexKernel,
    InducingPointKernel,
    Kernel,
    MultiDeviceKernel,
    RFFKernel,
)
from torch import Tensor
from torch.func import jvp

from surrogates.kernels.errors import OpaqueKernelError, UnsupportedKernelError
from surrogates.kernels.registry import Blocks, KernelFunctions, copied, mapped
from surrogates.kernels.stationary import unscaled

_KINK = 1e-9
_ROUNDING = 1e-9
_INDICES = (IndexKernel, HammingIMQKernel)
_STRUCTURES = (GridInterpolationKernel, GridKernel, InducingPointKernel, MultiDeviceKernel)


def differentiated(kernel: Kernel, detach: bool) -> KernelFunctions:
    """Returns the values of a copy of a kernel, with its ``active_dims`` and scales, and their automatic derivatives.

    Args:
        kernel: A kernel of any type.
        detach: Whether the hyper-parameters are detached from autograd.

    Raises:
        UnsupportedKernelError: If the kernel's value is not a function of two points; the message states the reason.
    """
    _refuse_what_is_no_function(kernel)
    tensors = [*kernel.parameters(), *kernel.buffers()]
    memo: dict[int, Any] = {id(t): _frozen(t, detach) for t in tensors}
    frozen, distances = copy.deepcopy(kernel, memo), _Distances()
    for module in frozen.modules():
        if isinstance(module, Kernel):
            module.covar_dist = distances

    def values(x1: Tensor, x2: Tensor) -> Tensor:
        try:
            return _matrix(frozen, x1.double(), x2.double())
        finally:
            distances.begin(())

    def blocks(x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
        try:
            found = _Derivatives(frozen, distances, x1.double(), x2.double()).blocks(mixed)
        except RuntimeError as error:
            raise ValueError(
                f"{type(unscaled(kernel)[0]).__name__} cannot be differentiated automatically, because PyTorch's "
                f"forward mode fails ({error}). Register the kernel's derivatives with surrogates.register_kernel."
            ) from error
        finally:
            distances.begin(())
        return mapped(found, lambda part, k: part.to(x1.dtype))

    return KernelFunctions(values, blocks, type(unscaled(kernel)[0]).__name__)


def _refuse_what_is_no_function(kernel: Kernel) -> None:
    probe = torch.zeros(1, 1)
    if kernel.num_outputs_per_input(probe, probe) != 1:
        raise UnsupportedKernelError(kernel, "has several outputs per point; use a kernel with one output.")
    for part in (module for module in kernel.modules() if isinstance(module, Kernel)):
        if isinstance(part, _INDICES):
            raise OpaqueKernelError(part, "has no gradient: its inputs are indices or categories.")
        if isinstance(part, _STRUCTURES):
            raise OpaqueKernelError(
                part, "approximates its base kernel by structure in the data; use the base kernel itself."
            )
        if isinstance(part, RFFKernel) and not hasattr(part, "randn_weights"):
            raise OpaqueKernelError(part, "has not drawn its features yet; pass num_dims to its constructor.")


def _frozen(tensor: Tensor, detach: bool) -> Tensor:
    tensor = copied(tensor, detach)
    return tensor.double() if tensor.is_floating_point() else tensor


class _Derivatives:
    """The derivatives of the matrix of a kernel between the points x, ``... x q x d``, and x', ``... x n x d``."""

    def __init__(self, kernel: Kernel, distances: _Distances, x1: Tensor, x2: Tensor) -> None:
        self._kernel, self._distances = kernel, distances
        self._n = x2.shape[-2]
        # A formula may ignore x' if both sets are equal; one more x' makes them differ.
        self._x1, self._x2 = x1, x2 if x1.shape[-2] != self._n else torch.cat([x2, x2[..., :1, :]], dim=-2)
        self._units = list(torch.eye(x1.shape[-1], dtype=x1.dtype, device=x1.device))
        self._zero = torch.zeros_like(self._units[0])

    def blocks(self, mixed: bool) -> Blocks:
        """The blocks between all pairs of points, with NaN for every derivative that does not exist."""
        value = self._matrix(self._zero, self._zero)
        vanishes = any(bool((difference == 0).all(-1).any()) for difference in self._distances.differences)
        batch = value.shape[:-2]
        # Each kernel of a batch has its own copy of the points, so that derivatives are separate.
        self._x1, self._x2 = (x.expand(*batch, *x.shape[-2:]) for x in (self._x1, self._x2))
        first, second, rows = [], [], []
        for u in self._units:
            directions, kink = self._directions(u) if vanishes else ((), 0.0)
            first.append(self._slope(u, self._zero, directions, kink * float(value.detach().abs().max())))
            if mixed:
                rows.append(self._curvature(u, directions))
            directions, kink = self._directions(u, of_second=True) if vanishes else ((), 0.0)
            second.append(self._slope(self._zero, u, directions, kink * float(value.detach().abs().max())))
        block = torch.stack(rows, dim=-2) if mixed else None
        kinks = self._kinks_of_its_own(torch.zeros_like(value)[..., None, None] if block is None else block)
        by_x, by_other = (
            torch.where(found.isfinite() & ~kinks, found, torch.nan)
            for found in (torch.stack(first, dim=-1), torch.stack(second, dim=-1))
        )
        if block is not None:
            either = kinks.unsqueeze(-1) | kinks.unsqueeze(-2)
            block = torch.where(block.isfinite() & ~either, block, torch.nan)
        return Blocks(value, by_x, by_other, block)

    def _kinks_of_its_own(self, block: Tensor) -> Tensor:
        """Whether increments from a point in both sets exceed the derivative's variance, ``q x n x d``.

        The variance is compared if it is known. Points that differ only in inputs that the kernel ignores are equal.
        """
        seen = range(len(self._units)) if self._kernel.active_dims is None else self._kernel.active_dims.tolist()
        same = (self._x1.unsqueeze(-2) == self._x2[..., : self._n, :].unsqueeze(-3))[..., seen].all(-1)
        same = same.reshape(-1, *same.shape[-2:]).any(0)
        kinks = torch.zeros(*same.shape, len(self._units), dtype=torch.bool, device=same.device)
        variances = torch.diagonal(block, dim1=-2, dim2=-1).expand(*block.shape[:-2], len(self._units))
        for row in same.any(-1).nonzero().squeeze(-1).tolist():
            point, columns = self._x1[..., row : row + 1, :].detach(), same[row]
            variance = variances[..., row, columns, :].detach().abs().amax(-2)
            for i in seen:
                kinks[row, columns, i] = self._increments_grow(point, self._units[i], variance[..., i])
        return kinks

    def _increments_grow(self, point: Tensor, u: Tensor, variance: Tensor) -> bool:
        """Whether the smallest increments along u above rounding exceed O(h²); the point is ``batch x 1 x d``."""
        # The unit of h is the largest coordinate, or 1 if that is 0.
        largest = max(float((x.detach() @ u).abs().max()) for x in (self._x1, self._x2)) or 1.0
        powers = torch.arange(2, 13, dtype=point.dtype, device=point.device)
        for enlarged in (0, 10, 20):
            steps = largest * 10.0 ** (enlarged - powers)
            line = torch.cat([point, point + steps.unsqueeze(-1) * u], dim=-2)
            self._distances.begin(())
            try:
                with torch.no_grad():
                    k = _matrix(self._kernel, line, line)
            except RuntimeError:  # steps that leave the domain of the kernel
                return False
            variances = torch.diagonal(k, dim1=-2, dim2=-1)
            size = variances[..., 1:] + variances[..., :1]
            increments = size - 2 * k[..., 0, 1:]
            rates = increments / steps**2
            known = increments > _ROUNDING * size.abs()
            last = known.cumprod(-1).sum(-1, keepdim=True) - 1
            if bool((last >= 1).any()):
                smallest, before = (rates.gather(-1, (last - back).clamp_min(0)).squeeze(-1) for back in (0, 1))
                return bool(((last.squeeze(-1) >= 1) & (smallest > 5 * before) & (smallest > 4 * variance)).any())
        return False

    def _matrix(self, s: Tensor, t: Tensor, directions: Sequence[Tensor] = ()) -> Tensor:
        """k(x + s, x' + t), ``... x q x n``."""
        self._distances.begin(directions)
        return _matrix(self._kernel, self._x1 + s, self._x2 + t)[..., : self._n]

    def _directions(self, u: Tensor, of_second: bool = False) -> tuple[list[Tensor], float]:
        """The unit directions w of the differences if x, or x', moves along u, and the size of a kink.

        A first derivative at r = 0 is about 1e-16 k ‖δ_s‖ by rounding, and about k ‖δ_s‖ at a kink.
        """

        def differences(s: Tensor) -> tuple[Tensor, ...]:
            self._matrix(*(self._zero, s) if of_second else (s, self._zero))
            return tuple(self._distances.differences)

        directions, largest = [], 0.0
        for moved in jvp(differences, (self._zero,), (u,))[1]:
            moves, length = _apart(moved)
            directions.append(torch.where(moves.unsqueeze(-1), moved / length.unsqueeze(-1), 0.0))
            largest = max(largest, float(torch.where(moves, length, 0.0).max()))
        return directions, _KINK * largest

    def _slope(self, u: Tensor, v: Tensor, directions: Sequence[Tensor], kink: float) -> Tensor:
        """d/ds of k(x + s u, x' + s v) at s = 0, ``... x q x n``, NaN where the sides of r = 0 differ by a kink."""

        def slope(signed: Sequence[Tensor]) -> Tensor:
            return cast(Tensor, jvp(lambda s, t: self._matrix(s, t, signed), (self._zero, self._zero), (u, v))[1])

        result = slope(directions)
        if not directions:
            return result
        kinked = (result - slope([-w for w in directions])).abs() > kink
        return result.masked_fill(kinked, torch.nan)

    def _curvature(self, u: Tensor, directions: Sequence[Tensor]) -> Tensor:
        """∂'∂_s of k(x + s u, x'), ``... x q x n x d``."""
        leaves = (self._x1, self._x2, *self._kernel.parameters(), *self._kernel.buffers())
        further = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves)
        with torch.enable_grad():
            t = torch.zeros_like(self._x2).requires_grad_(True)
            slope = jvp(lambda s: self._matrix(s, t, directions), (self._zero,), (u,))[1]
            if not slope.requires_grad:
                return torch.zeros(*slope.shape, len(u), dtype=slope.dtype, device=slope.device)
            rows = [
                torch.autograd.grad(row.sum(), t, retain_graph=True, create_graph=further, materialize_grads=True)[0]
                for row in slope.unbind(-2)
            ]
            return torch.stack(rows, dim=-3)[..., : self._n, :]


class _Distances:
    """GPyTorch's ``Kernel.covar_dist`` from differences, with derivatives also at coincident points.

    Attributes:
        differences: The differences δ of the distances r evaluated since ``begin``, ``... x q x n x d``.
        directions: w for each of them, along which r is continued from 0; empty if no derivative is computed.
    """

    def __init__(self) -> None:
        self.begin(())

    def begin(self, directions: Sequence[Tensor]) -> None:
        """Begins an evaluation of the kernel."""
        self.differences: list[Tensor] = []
        self.directions = directions

    def __call__(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        square_dist: bool = False,
        **params: Any,
    ) -> Tensor:
        """r or r² between the points x, ``... x q x d``, and x', ``... x n x d``; arguments are ``covar_dist``'s."""
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        difference = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        if square_dist:
            return difference.square().sum(-1)
        apart, length = _apart(difference)
        continued = torch.zeros_like(length)
        if self.directions:
            continued = (difference * self.directions[len(self.differences)]).sum(-1)
        self.differences.append(difference)
        return torch.where(apart, length, continued)


def _matrix(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """k(x, x') by plain PyTorch operations, ``... x q x n``."""
    with gpytorch.settings.lazily_evaluate_kernels(False), gpytorch.settings.trace_mode(True):
        return cast(Tensor, kernel(x1, x2).to_dense())


def _apart(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Whether δ is not 0, and its length, 1 if it is 0."""
    square = difference.square().sum(-1)
    apart = square > 0
    return apart, torch.where(apart, square, torch.ones_like(square)).sqrt()
