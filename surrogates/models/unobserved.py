"""Missing values: NaN outcomes in a batch whose elements have observed different rows.

A row that no element of the batch has observed is dropped. The elements share their inputs, so that a row which only
some have observed stays, without influence on the others: in the covariance its noise variance is largest/ε², where ε
is the precision of the dtype; in the marginal likelihood it is an independent normal value at its mean with variance
1/(2π), whose log density is 0.
"""

from __future__ import annotations

from math import pi
from typing import Any

import torch
from torch import Tensor

SILENT = 1 / (2 * pi)
"""The variance of a normal distribution whose density at its mean is 1."""


def observed_rows(X: Tensor, Y: Tensor, *others: Tensor | None) -> list[Any]:
    """Copies of the data without the rows in which Y is NaN throughout.

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
    """The noise variances, ``... x n``, with those of missing observations replaced by the mean of the others."""
    return torch.where(missing, noise.masked_fill(missing, torch.nan).nanmean(-1, keepdim=True), noise)


def silenced(covariance: Tensor, missing: Tensor | None) -> Tensor:
    """The covariance of the observations, ``batch x n x n``, with a huge variance added to the missing ones."""
    if missing is None:
        return covariance
    largest = torch.diagonal(covariance.detach(), dim1=-2, dim2=-1).amax(-1, keepdim=True)
    return covariance + torch.diag_embed(missing * largest / torch.finfo(covariance.dtype).eps ** 2)


def apart(covariance: Tensor, missing: Tensor, variance: Tensor | float) -> Tensor:
    """The covariance, ``batch x n x n``, in which missing observations are independent with the given variance."""
    kept = ~missing
    return covariance * (kept.unsqueeze(-1) & kept.unsqueeze(-2)) + torch.diag_embed(missing * variance)
