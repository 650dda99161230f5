"""The base class of posteriors of derivatives, with the common part of BoTorch's posterior protocol."""

from __future__ import annotations

from abc import abstractmethod

import torch
from botorch.posteriors.posterior import Posterior
from torch import Tensor


class PointPosterior(Posterior):
    """A posterior at ``batch x q`` points, whose samples are computed from standard normal base samples.

    Args:
        x: The points, ``batch x q x d``.
        several_outputs: Whether there are m > 1 outcomes.
    """

    def __init__(self, x: Tensor, several_outputs: bool) -> None:
        self._x = x
        self._several_outputs = several_outputs

    def __repr__(self) -> str:
        """Shows the shape and units of the samples, and what they are conditioned on."""
        shape = " x ".join(map(str, self._extended_shape()))
        return f"{type(self).__name__}({shape}, {self.dtype}, {self.device}; {self._about})"

    @property
    @abstractmethod
    def _about(self) -> str:
        """The units of the samples, and what they are conditioned on."""

    @property
    def device(self) -> torch.device:
        """The device of the points."""
        return self._x.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the points and of all results. ``n x n`` matrices are always float64."""
        return self._x.dtype

    @property
    def batch_range(self) -> tuple[int, int]:
        """The t-batch dimensions of ``base_sample_shape``."""
        return 0, -3 if self._several_outputs else -2

    def rsample(self, sample_shape: torch.Size | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Joint samples at the q points, ``sample_shape x batch x q x ...``.

        Args:
            sample_shape: The shape of the samples. The default is one sample.
            generator: The generator of the base samples. The default is the device's global one, as in BoTorch.
        """
        sample_shape = torch.Size([1]) if sample_shape is None else torch.Size(sample_shape)
        shape = sample_shape + self.base_sample_shape
        base = torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        return self.rsample_from_base_samples(sample_shape, base)

    def check_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> None:
        """Raises a ValueError unless the base samples are of shape ``sample_shape x base_sample_shape``."""
        accepted = (*sample_shape, *self.base_sample_shape)
        if base_samples.shape != accepted:
            raise ValueError(f"base_samples must be of shape {accepted}, got {tuple(base_samples.shape)}.")
