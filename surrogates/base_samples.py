"""Base samples of this project's posteriors, from an explicit generator or BoTorch's samplers."""

from __future__ import annotations

import torch
from botorch.posteriors.posterior import Posterior
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from torch import Tensor
from torch.quasirandom import SobolEngine


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


def make_sampler(
    posterior: Posterior, sample_shape: torch.Size, *, seed: int | None = None
) -> SobolQMCNormalSampler | IIDNormalSampler:
    """Sobol' base samples if their dimension allows it, as BoTorch's ``get_sampler`` for its own posteriors."""
    dimension = posterior.base_sample_shape[posterior.batch_range[1] :].numel()
    sampler = SobolQMCNormalSampler if dimension <= SobolEngine.MAXDIM else IIDNormalSampler
    return sampler(sample_shape=sample_shape, seed=seed)
