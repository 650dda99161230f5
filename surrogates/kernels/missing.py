"""Marks derivatives that do not exist by NaN in a kernel's blocks, and warns of them."""

from __future__ import annotations

import warnings

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from surrogates.kernels.registry import Blocks, mapped


def missing_inputs(blocks: Blocks) -> Tensor:
    """A mask of the inputs in which derivatives between two points do not exist, ``... x q x n x d``."""
    missing = blocks.first.isnan() | blocks.second.isnan()
    return missing if blocks.mixed is None else missing | torch.diagonal(blocks.mixed, dim1=-2, dim2=-1).isnan()


def unmarked(blocks: Blocks) -> Blocks:
    """Returns the blocks with 0 instead of NaN."""
    return mapped(blocks, lambda part, k: part.masked_fill(part.isnan(), 0.0) if k else part)


def marked(blocks: Blocks, missing: Tensor) -> Blocks:
    """Returns the blocks with NaN in the inputs of the mask ``missing``, ``... x q x n x d``."""
    masks = missing, missing.unsqueeze(-1) | missing.unsqueeze(-2)
    return mapped(blocks, lambda part, k: part.masked_fill(masks[k - 1], torch.nan) if k else part)


def warn_of_missing(missing: Tensor) -> None:
    """Warns if a derivative does not exist in some input, the last dimension of the mask ``missing``."""
    inputs = missing.reshape(-1, missing.shape[-1]).any(0).nonzero().squeeze(-1).tolist()
    if inputs:
        warnings.warn(
            f"The kernel has no derivative in the inputs {inputs} at a point (categorical inputs, or a kernel with a "
            "kink, such as MaternKernel(nu=0.5)): partial derivatives in these inputs are NaN, all others are right.",
            NumericalWarning,
            stacklevel=3,
        )
