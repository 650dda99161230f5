"""The chain rule through BoTorch's transforms: slopes of affine input transforms, scales of outcome transforms."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.transforms.input import (
    AffineInputTransform,
    ChainedInputTransform,
    InputStandardize,
    InputTransform,
    Normalize,
)
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from torch import Tensor

_AFFINE_INPUTS = (AffineInputTransform, Normalize, InputStandardize)


def check_transforms(inputs: InputTransform | None, outcomes: OutcomeTransform | None) -> None:
    """Raises a ValueError, which names the accepted ones, for transforms that are not affine at all times.

    Through any other the gradient is no longer Gaussian, or its chain rule is not known here.
    """
    for transform in _parts(inputs):
        if type(transform) not in _AFFINE_INPUTS:
            raise ValueError(
                f"input_transform {type(transform).__name__} is not affine: its gradient posterior is not known "
                "here. Accepted are Normalize, InputStandardize, AffineInputTransform and chains of them."
            )
        if not (transform.transform_on_train and transform.transform_on_eval):
            raise ValueError(
                f"input_transform {type(transform).__name__} must be applied in training and evaluation alike "
                "(transform_on_train=True, transform_on_eval=True), so that points and data have the same units."
            )
    for transform in _parts(outcomes):
        if type(transform) is not Standardize:
            raise ValueError(
                f"outcome_transform {type(transform).__name__} is not affine: the gradient of the untransformed "
                "outcome is not Gaussian. Accepted are Standardize, chains of it, and None."
            )


def freeze_input_bounds(transform: InputTransform | None) -> None:
    """Stops input transforms from learning their coefficients anew at every refit.

    One far point would otherwise change the units of every lengthscale.
    """
    for part in _parts(transform):
        part.learn_coefficients = False


def input_slope(transform: InputTransform | None, X: Tensor) -> Tensor | None:
    """dz/dx of z = (x − offset)/coefficient along every input, ``batch x 1 x d``, or None where it is 1.

    Args:
        transform: An affine input transform, a chain of them, or None.
        X: Any tensor of the model's dtype and device, ``... x d``.
    """
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


def outcome_scale(transform: OutcomeTransform | None) -> Tensor | None:
    """dy/dy' of a standardised outcome y' = (y − mean)/scale, ``batch x 1``, or None where it is 1."""
    scale: Tensor | None = None
    for part in _parts(transform):
        step = part.stdvs.detach()[..., 0]
        scale = step if scale is None else scale * step
    return scale


def outcome_shift(transform: OutcomeTransform | None) -> Tensor | None:
    """The y that the standardised outcome 0 stands for, ``batch x 1``, or None where it is 0."""
    shift: Tensor | None = None
    for part in reversed(_parts(transform)):
        mean, scale = part.means.detach()[..., 0], part.stdvs.detach()[..., 0]
        shift = mean if shift is None else mean + scale * shift
    return shift


def _parts(transform: torch.nn.Module | None) -> list[Any]:
    if transform is None:
        return []
    if isinstance(transform, (ChainedInputTransform, ChainedOutcomeTransform)):
        return [leaf for part in transform.values() for leaf in _parts(part)]
    return [transform]
