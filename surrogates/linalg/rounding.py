"""Differences of prior and explained variances, at least ε times the prior, as rounding may make them negative.

The floor is not 0, because rounding alone, which depends on the units, would decide whether a difference exceeds 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.linalg.cholesky import EPS


def remaining(prior: Tensor, explained: Tensor) -> Tensor:
    """prior − explained, at least ε prior, for variances."""
    return (prior - explained).maximum(EPS * prior)


def remaining_covariance(prior: Tensor, explained: Tensor) -> Tensor:
    """prior − explained for covariances, ``... x n x n``, with ``remaining`` variances on the diagonal."""
    left = prior - explained
    before, after = (torch.diagonal(matrix, dim1=-2, dim2=-1) for matrix in (prior, left))
    lacking = EPS * before - after
    return left + torch.diag_embed(lacking.clamp_min(0.0)) if bool((lacking > 0).any()) else left
