"""Values that were not observed: NaN among the outcomes of a batch whose elements have observed different rows.

A row that no element of the batch has observed is left out of the data. Another one stays, as the elements have their
inputs in common, and takes part in nothing: the factor has it with a variance of largest/ε², ε being the precision of
the dtype, which leaves no trace in what is solved for; and the marginal likelihood has it as an independent normal
value on its mean with a variance of 1/(2π), whose logarithmic density is 0.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

SILENT = 1 / (2 * pi)
"""The variance of a normal distribution whose density at its mean is 1."""


def observed_rows(X: Tensor, Y: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    """Copies of the inputs and of what was observed there, without the rows in which Y is NaN throughout.

    Args:
        X: The inputs, ``batch x n x d``.
        Y: What decides, ``batch x n x m``.
        *others: What else each row has, ``batch x n x ...``, or None.
    """
    dim = X.dim() - 2
    seen = (~Y.isnan()).movedim(dim, 0).flatten(1).any(-1)
    every = bool(seen.all())
    kept = seen.nonzero().squeeze(-1)
    return [None if t is None else t.clone() if every else t.index_select(dim, kept) for t in (X, Y, *others)]


def filled_noise(noise: Tensor, missing: Tensor) -> Tensor:
    """Noise variances, ``... x n``, with the mean of those that were observed where nothing was observed."""
    return torch.where(missing, noise.masked_fill(missing, torch.nan).nanmean(-1, keepdim=True), noise)


def silenced(covariance: Tensor, missing: Tensor | None) -> Tensor:
    """A covariance of observations, ``batch x n x n``, to which the missing ones are as good as absent."""
    if missing is None:
        return covariance
    largest = torch.diagonal(covariance.detach(), dim1=-2, dim2=-1).amax(-1, keepdim=True)
    return covariance + torch.diag_embed(missing * largest / torch.finfo(covariance.dtype).eps ** 2)


def apart(covariance: Tensor, missing: Tensor, variance: Tensor | float) -> Tensor:
    """A covariance, ``batch x n x n``, in which the missing observations are independent and have a given variance."""
    kept = ~missing
    return covariance * (kept.unsqueeze(-1) & kept.unsqueeze(-2)) + torch.diag_embed(missing * variance)
