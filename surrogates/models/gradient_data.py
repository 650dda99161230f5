"""Checks of what is given to a GP on values and gradients, made once, at the public boundary."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from torch import Tensor

from surrogates.checks import check_data, check_finite, check_floating, check_nonnegative, check_same_kind
from surrogates.kernels.stationary import unscaled


def check_gradient_data(X: Tensor, Y: Tensor, G: Tensor, Yvar: Tensor | None, Gvar: Tensor | None) -> None:
    """Refuses data that a GP on values and gradients cannot be conditioned on.

    Args:
        X: The inputs, ``n x d``.
        Y: The outcomes, ``n x 1``.
        G: The gradients, ``n x d``, NaN where a partial derivative was not observed.
        Yvar: The noise variances of the values, ``n x 1``, or None.
        Gvar: Those of the partial derivatives, ``n x d``, given with ``Yvar`` or not at all.

    Raises:
        TypeError: If something is no floating point tensor.
        ValueError: If shapes do not fit, an entry is infinite, or NaN where it may not be, dtypes or devices are mixed,
            or a variance is negative or given without the other.
    """
    check_data(X, Y, Yvar)
    if X.dim() != 2:
        raise ValueError(f"train_X must be of shape n x d (no batches here), got {tuple(X.shape)}.")
    if (Yvar is None) != (Gvar is None):
        raise ValueError("train_Yvar and train_Gvar are given together, or neither is.")
    for name, tensor in (("train_G", G), ("train_Gvar", Gvar)):
        if tensor is None:
            continue
        check_floating(name, tensor)
        if tensor.shape != X.shape:
            raise ValueError(f"{name} must be of shape {tuple(X.shape)} as train_X is, got {tuple(tensor.shape)}.")
        check_same_kind(name, tensor, "train_X", X)
    if bad := int(G.isinf().sum()):
        raise ValueError(f"train_G holds {bad} infinite entries; a partial derivative that was not observed is NaN.")
    if Gvar is not None:
        if bad := int((Gvar.isinf() | Gvar.isnan() & ~G.isnan()).sum()):
            raise ValueError(
                f"train_Gvar holds {bad} entries that are inf, or NaN where train_G is observed; it may be NaN only "
                "where train_G is."
            )
        check_nonnegative("train_Gvar", Gvar[~Gvar.isnan()])


def check_values(X: Tensor, Y: Tensor) -> None:
    """Refuses what are no values, ``batch x m x 1``, at the points X, ``batch x m x d``."""
    check_floating("Y", Y)
    check_same_kind("Y", Y, "X", X)
    if Y.dim() < 2 or Y.shape[-2:] != (X.shape[-2], 1):
        raise ValueError(
            f"Y must be of shape batch x {X.shape[-2]} x 1 for X of shape {tuple(X.shape)}, got {tuple(Y.shape)}."
        )
    check_finite("Y", Y)


def check_noise(name: str, noise: Any, like: Tensor) -> None:
    """Refuses what are no variances of observations, ``batch x q x 1``."""
    check_floating(name, noise)
    check_same_kind(name, noise, "the data", like)
    try:
        fits = noise.dim() > 1 and torch.broadcast_shapes(noise.shape, like.shape) == like.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must be of shape {tuple(like.shape)}, or broadcast to it, got {tuple(noise.shape)}.")
    check_finite(name, noise)
    check_nonnegative(name, noise)


def observed_targets(X: Tensor, y: Tensor, before: tuple[torch.Size, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The observed targets, ``N``, and their numbers among all n(d+1) entries.

    Args:
        X: The inputs, ``n x d``.
        y: All n(d+1) entries, NaN where there was no observation, or the N observed ones where these are as before.
        before: The shape of the inputs, the targets and their numbers as they were.

    Raises:
        ValueError: If inputs and targets have batches, or do not fit.
    """
    if X.dim() != 2 or y.dim() != 1:
        raise ValueError(
            f"Training data are set without batches, got {tuple(X.shape)} inputs and {tuple(y.shape)} targets."
        )
    shape, targets, observed = before
    entries = X.shape[0] * (X.shape[1] + 1)
    if y is not targets and len(y) == entries:
        (observed,) = torch.where(~y.isnan())
        return y[observed], observed
    if X.shape != shape or y.shape != targets.shape:
        raise ValueError(
            f"For inputs of shape {tuple(X.shape)} targets must be all {entries} entries, NaN where there was no "
            f"observation, got {len(y)}."
        )
    return y, observed


def broadcast_batches(model: torch.Size, **others: torch.Size) -> torch.Size:
    """The batch shape of a model and what is given to it.

    Raises:
        ValueError: If there is none.
    """
    try:
        return torch.broadcast_shapes(model, *others.values())
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in others.items())
        raise ValueError(f"Batch shapes do not broadcast: the model has {tuple(model)}, {shapes}.") from None


def check_gradient_kernel(kernel: Kernel, d: int) -> None:
    """Refuses a kernel that does not form the covariance of values and gradients."""
    if kernel.active_dims is not None:
        raise ValueError(
            f"A kernel of values and gradients sees all inputs, got active_dims {kernel.active_dims.tolist()}."
        )
    base, _ = unscaled(kernel)
    if type(base) not in (RBFKernelGrad, Matern52KernelGrad):
        raise TypeError(
            f"{type(base).__name__} does not form the joint covariance of values and gradients. Accepted are "
            "exactly RBFKernelGrad and Matern52KernelGrad, in ScaleKernels."
        )
    if base.lengthscale.shape[-1] not in (1, d):
        raise ValueError(f"The kernel has {base.lengthscale.shape[-1]} lengthscales for {d} inputs, not 1 or {d}.")
