"""The registry of kernels: the hyper-parameters and derivatives of a GPyTorch kernel, by its type.

RBF, Matérn and RQ are built in (``surrogates.kernels.stationary``), further closed forms are registered in
``surrogates.kernels.closed_forms``, and users register their own kernels by ``register_kernel``. Any other kernel is
differentiated automatically (``surrogates.kernels.automatic``), which is exact and slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates.kernels.errors import no_gradient_covariance


@dataclass(frozen=True)
class Blocks:
    """A kernel and its derivatives between two sets of points.

    Attributes:
        value: k(x, x'), ``... x q x n``.
        first: ∂k/∂x, ``... x q x n x d``.
        second: ∂k/∂x', ``... x q x n x d``.
        mixed: ∂²k/∂xᵢ∂x'ⱼ, ``... x q x n x d x d``, or None if it was not requested.
    """

    value: Tensor
    first: Tensor
    second: Tensor
    mixed: Tensor | None


def mapped(blocks: Blocks, change: Callable[[Tensor, int], Tensor]) -> Blocks:
    """Applies ``change(part, k)`` to the value (k = 0), the first derivatives (k = 1) and any mixed ones (k = 2)."""
    mixed = None if blocks.mixed is None else change(blocks.mixed, 2)
    return Blocks(change(blocks.value, 0), change(blocks.first, 1), change(blocks.second, 1), mixed)


@dataclass(frozen=True)
class RadialFunctions:
    """A stationary kernel k(x, x') = h(r²) with r² = Σᵢ (xᵢ − x'ᵢ)²/ℓᵢ², given by h and its derivatives in r².

    Each function maps r², ``batch x q x n``, to a tensor of the same shape; hyper-parameters have the shape
    ``batch x 1 x 1``. If h'(0) is not finite, gradient covariances raise a ``ValueError``.

    Attributes:
        h: h(r²); h(0) is the prior variance of a value.
        h1: dh/d(r²).
        h2: d²h/d(r²)². h''(0) > 0 determines the variance of second derivatives. If h'' is infinite at 0 but grows more
            slowly than 1/r², return 0 at 0; second derivatives then have no variance.
        lengthscale: ℓ, ``batch x 1 x d`` or ``batch x 1 x 1``.
        title: The kernel's name in messages.
    """

    h: Callable[[Tensor], Tensor]
    h1: Callable[[Tensor], Tensor]
    h2: Callable[[Tensor], Tensor]
    lengthscale: Tensor
    title: str = "The kernel"

    name: ClassVar[str] = "registered"
    alpha: ClassVar[None] = None

    @cached_property
    def has_gradient(self) -> bool:
        """Whether sample paths have a gradient, that is, whether h'(0) is finite."""
        return bool(self._slope.isfinite().all())

    @property
    def prior_curvature(self) -> Tensor:
        """−2h'(0), ``batch x 1``; multiplied by o/ℓ², it is the prior variance of one partial derivative.

        Raises:
            ValueError: If h'(0) is not finite.
        """
        if not self.has_gradient:
            raise no_gradient_covariance(self.title)
        return -2 * self._slope

    @property
    def prior_value(self) -> Tensor:
        """The prior variance h(0) of a value, ``batch x 1``."""
        return self.h(torch.zeros_like(self.lengthscale[..., :1]))[..., 0, :]

    @property
    def _slope(self) -> Tensor:
        return self.h1(torch.zeros_like(self.lengthscale[..., :1]))[..., 0, :]


@dataclass(frozen=True)
class KernelFunctions:
    """A kernel given by two functions of its inputs x, ``... x q x d``, and x', ``... x n x d``.

    Attributes:
        values: Maps (x, x') to k(x, x'), ``... x q x n``.
        blocks: Maps (x, x', mixed) to ``Blocks``; ``mixed`` requests ∂²k/∂x∂x'. Missing derivatives are NaN.
        title: The kernel's name in messages.
    """

    values: Callable[[Tensor, Tensor], Tensor]
    blocks: Callable[[Tensor, Tensor, bool], Blocks]
    title: str = "The kernel"


Copied = Callable[[Tensor], Tensor]
Reader = Callable[[Any, Copied], RadialFunctions | KernelFunctions]

_READERS: dict[type[Kernel], Reader] = {}


def register_kernel(kind: type[Kernel], read: Reader) -> None:
    """Registers the derivatives of a kernel type, either h, h' and h'' of r² or functions of (x, x').

    Kernels that are not registered are differentiated automatically, which is exact and slower. ``ScaleKernel``, sums,
    products and ``active_dims`` are applied to the result of ``read``.

    Example:
        The kernel 1/(1 + r²)², which GPyTorch does not have:

        >>> class Lorentz(Kernel):
        ...     has_lengthscale = True
        ...     def forward(self, x1, x2, diag=False, **params):
        ...         r2 = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag)
        ...         return (1 + r2) ** -2
        >>> def read(kernel, copied):
        ...     return RadialFunctions(
        ...         h=lambda r2: (1 + r2) ** -2,
        ...         h1=lambda r2: -2 * (1 + r2) ** -3,
        ...         h2=lambda r2: 6 * (1 + r2) ** -4,
        ...         lengthscale=copied(kernel.lengthscale),
        ...     )
        >>> register_kernel(Lorentz, read)

    Args:
        kind: The kernel's exact type; its subclasses are not registered. An earlier registration is replaced.
        read: A function ``read(kernel, copied)`` that returns ``RadialFunctions`` or ``KernelFunctions``. It must copy
            each hyper-parameter by the function ``copied``, so that results are differentiable in hyper-parameters and
            independent of later changes of the kernel.

    Raises:
        TypeError: If ``kind`` is not a subclass of ``Kernel``.
    """
    if not (isinstance(kind, type) and issubclass(kind, Kernel)):
        raise TypeError(f"kind must be a subclass of gpytorch.kernels.Kernel, got {kind!r}.")
    _READERS[kind] = read


def read_registered(kernel: Kernel, detach: bool) -> RadialFunctions | KernelFunctions | None:
    """Returns the functions registered for the kernel's exact type, with its current hyper-parameters, or None."""
    read = _READERS.get(type(kernel))
    return None if read is None else read(kernel, partial(copied, detach=detach))


def copied(hyperparameter: Tensor, detach: bool = True) -> Tensor:
    """Copies a tensor; if ``detach``, the copy is detached from autograd."""
    return (hyperparameter.detach() if detach else hyperparameter).clone()
