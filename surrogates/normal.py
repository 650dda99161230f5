"""GPyTorch's normal distributions without absolute minima of variances.

GPyTorch raises variances to 1e-10 (float32: 1e-6), and adds a jitter of at least 1e-8 (float32: 1e-6) to singular
covariances. Both change the results if outcomes or partial derivatives are small numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from surrogates.inference import cached_with_graph
from surrogates.linalg.cholesky import covariance_root


class UnitFreeNormal(MultivariateNormal):
    """GPyTorch's ``MultivariateNormal`` with results that scale with the units.

    ``variance`` is the covariance's diagonal; entries that are not positive become the dtype's smallest normal number.
    Samples have these variances, because ``covariance_root`` adds no absolute jitter.

    Args:
        mean: The mean, ``batch x N``.
        covariance_matrix: The covariance, ``batch x N x N``, which is factorised when samples are first drawn.
        **options: Further arguments of ``MultivariateNormal``.
    """

    def __init__(self, mean: Tensor, covariance_matrix: Any, **options: Any) -> None:
        super().__init__(mean, to_linear_operator(covariance_matrix), **options)

    @property
    def variance(self) -> Tensor:
        """The variance of every entry, ``batch x N``, positive."""
        diagonal = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        return diagonal.expand(self._batch_shape + self._event_shape).clamp_min(torch.finfo(diagonal.dtype).tiny)

    def rsample(self, sample_shape: torch.Size = torch.Size(), base_samples: Tensor | None = None) -> Tensor:  # noqa: B008
        """Draws samples, ``sample_shape x batch x N``, from base samples of this shape or the global generator."""
        shape = self.loc.shape
        if base_samples is None:
            drawn = torch.randn(*shape, torch.Size(sample_shape).numel(), dtype=self.loc.dtype, device=self.loc.device)
        else:
            sample_shape = base_samples.shape[: base_samples.dim() - len(shape)]
            drawn = base_samples.reshape(sample_shape.numel(), *shape).movedim(0, -1)
        return self.loc + (self._root @ drawn).movedim(-1, 0).reshape(*sample_shape, *shape)

    @cached_with_graph
    def _root(self) -> Tensor:
        return covariance_root(self.lazy_covariance_matrix.to_dense()).to(self.loc)


class UnitFreeMultitaskNormal(MultitaskMultivariateNormal, UnitFreeNormal):
    """GPyTorch's ``MultitaskMultivariateNormal`` as a ``UnitFreeNormal``, with GPyTorch's arguments."""


def unit_free(posterior: GPyTorchPosterior) -> GPyTorchPosterior:
    """Returns a BoTorch posterior with the distribution as a ``UnitFreeNormal``."""
    normal = posterior.distribution
    if isinstance(normal, UnitFreeNormal):
        return posterior
    covariance = normal.lazy_covariance_matrix
    if not isinstance(normal, MultitaskMultivariateNormal):
        return type(posterior)(UnitFreeNormal(normal.mean, covariance))
    return type(posterior)(UnitFreeMultitaskNormal(normal.mean, covariance, interleaved=normal._interleaved))


def positive_probability(mean: Tensor, variance: Tensor) -> Tensor:
    """P(z > 0) = Φ(mean/√variance) for normal z, elementwise; ½ where the mean and the variance are 0."""
    return torch.special.ndtr(mean / variance.sqrt().clamp_min(torch.finfo(mean.dtype).tiny))
