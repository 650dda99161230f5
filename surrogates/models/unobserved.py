"""Missing (NaN) outcomes in a batch whose elements may miss different rows.

A row that is missing in all elements of the batch is dropped. Any other row is kept, because the elements share their
inputs, but has no influence on the elements in which it is missing. In the covariance, such a row has the noise
variance v/ε², where v is the largest variance and ε the precision of the dtype. In the marginal likelihood, it is an
independent normal value at its mean with variance 1/(2π), whose log density is 0.
"""

from __future__ import annotations

from math import pi
from typing import Any

import torch
from torch import Tensor

SILENT = 1 / (2 * pi)
"""The variance of a normal distribution whose density at its mean is 1."""


def observed_rows(X: Tensor, Y: Tensor, *others: Tensor | None) -> list[Any]:
    """Copies the data without the rows in which all of Y is NaN.

    Args:
        X: The inputs, ``batch x n x d``.
        Y: The outcomes that decide which rows are kept, ``batch x n x m``.
        *others: Other tensors with the same rows, ``batch x n x ...``, or None.
    """
    dim = X.dim() - 2
    seen = (~Y.isnan()).movedim(dim, 0).flatten(1).any(-1)
    every = bool(seen.all())
    kept = seen.nonzero().squeeze(-1)
    return [None if t is None else t.clone() if every else t.index_select(dim, kept) for t in (X, Y, *others)]


def filled_noise(noise: Tensor, missing: Tensor) -> Tensor:
    """Replaces the noise variances, ``... x n``, of missing observations by the mean of the others."""
    return torch.where(missing, noise.masked_fill(missing, torch.nan).nanmean(-1, keepdim=True), noise)


def silenced(covariance: Tensor, missing: Tensor | None) -> Tensor:
    """Adds a huge variance to the missing observations in a covariance, ``batch x n x n``."""
    if missing is None:
        return covariance
    largest = torch.diagonal(covariance.detach(), dim1=-2, dim2=-1).amax(-1, keepdim=True)
    return covariance + torch.diag_embed(missing * largest / torch.finfo(covariance.dtype).eps ** 2)


def apart(covariance: Tensor, missing: Tensor, variance: Tensor | float) -> Tensor:
    """Makes missing observations independent, with the given variance, in a covariance, ``batch x n x n``."""
    kept = ~missing
    return covariance * (kept.unsqueeze(-1) & kept.unsqueeze(-2)) + torch.diag_embed(missing * variance)
