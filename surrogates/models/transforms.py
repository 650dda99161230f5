"""Derivatives of BoTorch's input and outcome transforms, for the chain rule."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.transforms.input import (
    AffineInputTransform,
    ChainedInputTransform,
    InputStandardize,
    InputTransform,
    Log10,
    Normalize,
    Round,
    Warp,
)
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from torch import Tensor

_AFFINE_INPUTS = (AffineInputTransform, Normalize, InputStandardize)
_ELEMENTWISE_INPUTS = (*_AFFINE_INPUTS, Log10, Round, Warp)


def is_affine_input(transform: InputTransform | None) -> bool:
    """Whether the transform is affine and applied to both data and points, so that dz/dx is constant."""
    return all(
        type(part) in _AFFINE_INPUTS and part.transform_on_train and part.transform_on_eval
        for part in _parts(transform)
    )


def is_affine_outcome(transform: OutcomeTransform | None) -> bool:
    """Whether dy/dy' is constant, so that the gradient of the untransformed outcome is Gaussian."""
    return transform is None or all(type(part) is Standardize for part in _parts(transform))


def keeps_inputs(transform: InputTransform | None) -> bool:
    """Whether the transform is elementwise, so that each zᵢ is a function of xᵢ alone."""
    return all(type(part) in _ELEMENTWISE_INPUTS for part in _parts(transform))


def check_input_slope(transform: InputTransform | None) -> None:
    """Raises a ``ValueError`` if an input transform is not elementwise and differentiable."""
    for part in _parts(transform):
        if type(part) not in _ELEMENTWISE_INPUTS:
            raise ValueError(
                f"There is no gradient through input_transform {type(part).__name__}, which is not known to be "
                "elementwise and differentiable. Use Normalize, InputStandardize, AffineInputTransform, Log10, "
                "Warp, Round(approximate=True) or a chain of these. The posterior of the values exists."
            )
        if type(part) is Round and (not part.approximate or part.categorical_features):
            raise ValueError(
                "There is no gradient through input_transform Round, which is constant between its steps. Use "
                "Round(approximate=True) without categorical_features. The posterior of the values exists."
            )


def freeze_input_bounds(transform: InputTransform | None) -> None:
    """Stops input transforms from learning their coefficients again at a refit.

    Without this, one distant new point would change the units of every lengthscale.
    """
    for part in _parts(transform):
        if isinstance(part, _AFFINE_INPUTS):
            part.learn_coefficients = False


def standardize(Y: Tensor) -> Standardize:
    """Returns BoTorch's ``Standardize``, fitted to the mean and standard deviation of outcomes ``batch x n x m``.

    NaN outcomes are ignored. Outcomes are divided by any positive standard deviation, whereas ``Standardize(m)``
    replaces a standard deviation below 1e-8 by 1. Outcomes that are all equal are not scaled.
    """
    largest, least = (torch.where(Y.isnan(), end, Y) for end in (-torch.inf, torch.inf))
    largest, least = largest.amax(-2, keepdim=True), least.amin(-2, keepdim=True)
    constant = largest == least
    transform = Standardize(Y.shape[-1], batch_shape=Y.shape[:-2], min_stdv=torch.finfo(Y.dtype).tiny)
    transform(torch.where(constant, 0.0, Y))
    transform.means = torch.where(constant, largest, transform.means)
    return transform.eval()


def input_slope(transform: InputTransform | None, X: Tensor) -> Tensor | None:
    """dz/dx of an affine transform, ``batch x 1 x d``, with X's dtype and device, or None if it is 1."""
    slope: Tensor | None = None
    for part in _parts(transform):
        coefficient = torch.atleast_2d(part.coefficient.detach().to(X))
        step = coefficient if part.reverse else 1 / coefficient
        indices = getattr(part, "indices", None)
        if indices is not None:
            ones = torch.ones(*step.shape[:-1], X.shape[-1], dtype=X.dtype, device=X.device)
            step = ones.index_copy(-1, indices, step.expand(*step.shape[:-1], len(indices)))
        slope = step if slope is None else slope * step
    return None if slope is None else slope.expand(*slope.shape[:-1], X.shape[-1])


def transformed_with_slope(transform: InputTransform, X: Tensor, create_graph: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns z, dzᵢ/dxᵢ and d²zᵢ/dxᵢ² of an elementwise transform at the points, each ``batch x q x d``.

    Args:
        transform: A transform that ``check_input_slope`` accepts, in evaluation mode.
        X: The points, ``batch x q x d``.
        create_graph: Whether the results can be differentiated in X and in the transform's parameters.
    """
    with torch.enable_grad():
        # A copy, as X may have been made in inference mode.
        x = X if X.requires_grad else X.detach().clone().requires_grad_(True)
        z = transform(x)
        if z.shape != x.shape:
            # A batch of warps: each has a copy of the points.
            x = x.expand(z.shape)
            z = transform(x)
        (slope,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        bend = torch.zeros_like(slope)
        if slope.requires_grad:
            (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=create_graph, materialize_grads=True)
    return (z, slope, bend) if create_graph else (z.detach(), slope.detach(), bend)


def input_chain(
    transform: InputTransform | None, X: Tensor, create_graph: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns z, dz/dx (None if it is 1) and d²z/dx² (None if it is 0) of a transform at points."""
    if transform is None:
        return X, None, None
    if is_affine_input(transform):
        return transform(X), input_slope(transform, X), None
    return transformed_with_slope(transform, X, create_graph)


def outcome_scale(transform: OutcomeTransform | None) -> Tensor | None:
    """dy/dy' of an affine outcome transform, ``batch (x m) x 1``, or None if it is 1."""
    scale: Tensor | None = None
    for part in _parts(transform):
        step = _by_output(part.stdvs)
        scale = step if scale is None else scale * step
    return scale


def outcome_shift(transform: OutcomeTransform | None) -> Tensor | None:
    """The outcome y at y' = 0 of an affine outcome transform, ``batch (x m) x 1``, or None if it is 0."""
    shift: Tensor | None = None
    for part in reversed(_parts(transform)):
        mean, scale = _by_output(part.means), _by_output(part.stdvs)
        shift = mean if shift is None else mean + scale * shift
    return shift


def _by_output(coefficient: Tensor) -> Tensor:
    """``batch x m x 1`` of a coefficient of ``batch x 1 x m``, or ``batch x 1`` for one outcome."""
    coefficient = coefficient.detach()
    return coefficient[..., 0] if coefficient.shape[-1] == 1 else coefficient.mT


def _parts(transform: torch.nn.Module | None) -> list[Any]:
    if transform is None:
        return []
    if isinstance(transform, (ChainedInputTransform, ChainedOutcomeTransform)):
        return [leaf for part in transform.values() for leaf in _parts(part)]
    return [transform]
