"""Differences of prior and explained variances, which rounding may make negative, with a floor of ε times the prior.

With a floor of 0, rounding errors, which depend on the units, would decide whether a difference is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.linalg.cholesky import EPS


def remaining(prior: Tensor, explained: Tensor) -> Tensor:
    """The larger of prior − explained and ε prior, for variances."""
    return (prior - explained).maximum(EPS * prior)


def remaining_covariance(prior: Tensor, explained: Tensor) -> Tensor:
    """prior − explained for covariances, ``... x n x n``, with the floor of ``remaining`` on the diagonal."""
    left = prior - explained
    before, after = (torch.diagonal(matrix, dim1=-2, dim2=-1) for matrix in (prior, left))
    lacking = EPS * before - after
    return left + torch.diag_embed(lacking.clamp_min(0.0)) if bool((lacking > 0).any()) else left
