"""Quantities with posterior uncertainty, given by samples or by a normal distribution at each point of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates.checks import check_number
from surrogates.models.fully_bayesian import mixture_quantiles
from surrogates.normal import positive_probability


@dataclass(frozen=True)
class Estimate:
    """A quantity with its posterior mean, variance and samples.

    Attributes:
        mean: The posterior mean, of the quantity's shape.
        variance: The posterior variance, of the same shape.
        samples: Samples from the posterior, with S in the first dimension.
    """

    mean: Tensor
    variance: Tensor
    samples: Tensor

    @classmethod
    def from_samples(cls, samples: Tensor) -> Estimate:
        """Makes an estimate with the mean and variance of the samples."""
        return cls(samples.mean(0), samples.var(0), samples)

    def interval(self, level: float = 0.95) -> Tensor:
        """The central posterior interval from quantiles of the samples; the first dimension has lower and upper end.

        Args:
            level: The probability of the interval, in (0, 1).

        Raises:
            TypeError: If the level is not a number.
            ValueError: If the level is not in (0, 1).
        """
        return torch.quantile(self.samples, tails(level).to(self.samples), dim=0)


@dataclass(frozen=True)
class Band:
    """The marginal posterior of a function at G points of a grid: a mixture of M normal distributions.

    Attributes:
        part_means: The means of the normals, ``batch x M x G``; M = 1 unless the model is fully Bayesian.
        part_variances: The variances of the normals, ``batch x M x G``.
    """

    part_means: Tensor
    part_variances: Tensor

    @property
    def mean(self) -> Tensor:
        """The posterior mean, ``batch x G``."""
        return self.part_means.mean(-2)

    @property
    def variance(self) -> Tensor:
        """The posterior variance, ``batch x G``: the mean of the M variances plus the variance of the M means."""
        return self.part_variances.mean(-2) + self.part_means.var(-2, correction=0)

    def interval(self, level: float = 0.95) -> Tensor:
        """The central posterior interval at every point of the grid, ``2 x batch x G``, with lower and upper end.

        The intervals are pointwise: ``level`` is the probability at each point, not for the whole curve.

        Args:
            level: The probability of the interval, in (0, 1).

        Raises:
            TypeError: If the level is not a number.
            ValueError: If the level is not in (0, 1).
        """
        return mixture_quantiles(
            self.part_means.unsqueeze(-1), self.part_variances.unsqueeze(-1), tails(level)
        ).squeeze(-1)

    def positive_probability(self) -> Tensor:
        """The probability that the function is positive, for each point of the grid, ``batch x G``."""
        return positive_probability(self.part_means, self.part_variances).mean(-2)


def tails(level: float) -> Tensor:
    """The probabilities (1 − level)/2 and (1 + level)/2 of the ends of a central interval, ``2``."""
    number = check_number("level", level)
    if not 0.0 < number < 1.0:
        raise ValueError(f"level must be in (0, 1), such as 0.95, got {number:g}.")
    return torch.tensor([0.5 - number / 2, 0.5 + number / 2], dtype=torch.float64)
