"""Samples of this library's posteriors from an explicit generator."""

from __future__ import annotations

import torch
from botorch.posteriors.posterior import Posterior
from torch import Tensor


def rsample_by_generator(
    posterior: Posterior, sample_shape: torch.Size | None, generator: torch.Generator | None
) -> Tensor:
    """Draws samples of a posterior, ``sample_shape x ...``, from normal numbers of a generator.

    Args:
        posterior: A posterior with ``base_sample_shape`` and ``rsample_from_base_samples``.
        sample_shape: The shape of the samples. None means one sample.
        generator: The generator. None means the device's global one, as in BoTorch.
    """
    sample_shape = torch.Size([1]) if sample_shape is None else torch.Size(sample_shape)
    shape = sample_shape + posterior.base_sample_shape
    base = torch.randn(shape, dtype=posterior.dtype, device=posterior.device, generator=generator)
    return posterior.rsample_from_base_samples(sample_shape, base)
