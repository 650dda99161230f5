"""A derived GP over samples of its hyper-parameters, and the mixture posterior of its gradient."""

from __future__ import annotations

from typing import Any, Self

import torch
from botorch.posteriors import GPyTorchPosterior
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior, batched_bisect
from torch import Tensor

from surrogates.checks import check_points
from surrogates.gradient_posterior import GradientPosterior
from surrogates.inference import cached_with_graph
from surrogates.models.derived_gp import DerivedGP


class GradientMixturePosterior(GradientPosterior):
    """The equally weighted mixture of the gradient's Gaussian posteriors under S hyper-parameter samples.

    As in BoTorch's ``GaussianMixturePosterior``, ``mean``, ``variance`` and the other methods of ``GradientPosterior``
    keep the samples' dimension, ``batch x S x q x d``; ``quantile`` and the methods that begin with ``mixture`` average
    over it. ``rsample`` draws from every component, so that all draws together are draws from the mixture.
    ``surrogates.FullyBayesianDerivedGP.gradient_posterior`` makes one.
    """

    def __repr__(self) -> str:
        """The shape and units of the gradients, and the numbers of hyper-parameter samples and observations."""
        *batch, samples, q, d = self._extended_shape()
        shape = " x ".join(map(str, [*batch, q, d]))
        return (
            f"GradientMixturePosterior({samples} samples of {shape}, {self.dtype}, {self.device}; outcome per unit of "
            f"input; given n = {self._conditioning.num_observations} values)"
        )

    @cached_with_graph
    def mixture_mean(self) -> Tensor:
        """E ∇f(x) = mean_s ∇μ_s(x), ``batch x q x d``."""
        return self.mean.mean(MCMC_DIM)

    @cached_with_graph
    def mixture_variance(self) -> Tensor:
        """The variance of every partial derivative, mean_s σ²_s + var_s ∇μ_s (total variance), ``batch x q x d``."""
        return self.variance.mean(MCMC_DIM) + self._spread.square().mean(MCMC_DIM)

    @cached_with_graph
    def mixture_trace(self) -> Tensor:
        """E‖∇f(x) − mixture_mean‖², the trace of the mixture's covariance, ``batch x q``."""
        return self.trace.mean(MCMC_DIM + 1) + self._spread.square().sum(-1).mean(MCMC_DIM + 1)

    @cached_with_graph
    def mixture_covariance_matrix(self) -> Tensor:
        """mean_s ∂σ²_s(x) + cov_s ∇μ_s(x), dense, ``batch x q x d x d``."""
        between = self._spread.unsqueeze(-1) * self._spread.unsqueeze(-2)
        return (self.covariance_matrix + between).mean(MCMC_DIM - 1)

    def mixture_positive_probability(self, u: Tensor | None = None) -> Tensor:
        """The probability that a partial or a directional derivative is positive, mean_s ``positive_probability``.

        Args:
            u: The directions, broadcastable to ``batch x S x q x d``, or None for every partial derivative.

        Returns:
            The probabilities, ``batch x q x d``, or ``batch x q`` along u.
        """
        return self.positive_probability(u).mean(MCMC_DIM if u is None else MCMC_DIM + 1)

    def quantile(self, value: Tensor) -> Tensor:
        """The marginal quantiles of the mixture, ``k x batch x q x d`` for k values in (0, 1).

        Raises:
            ValueError: If a value is not in (0, 1).
        """
        return mixture_quantiles(self.mean, self.variance, value)

    @cached_with_graph
    def _spread(self) -> Tensor:
        return self.mean - self.mixture_mean.unsqueeze(MCMC_DIM)


class ValueMixturePosterior(GaussianMixturePosterior):
    """BoTorch's ``GaussianMixturePosterior`` with results that scale exactly with units and offsets of the outcome.

    BoTorch computes ``mixture_variance`` as a difference of squares, which loses digits to an offset, and widens the
    interval in which it searches quantiles by 1e-6 in the user's unit.
    """

    @property
    def mixture_variance(self) -> Tensor:
        """mean_s σ²_s + var_s μ_s (total variance), ``batch x q x m``."""
        spread = self.mean - self.mixture_mean.unsqueeze(MCMC_DIM)
        return self.variance.mean(MCMC_DIM) + spread.square().mean(MCMC_DIM)

    def quantile(self, value: Tensor) -> Tensor:
        """The marginal quantiles of the mixture, ``k x batch x q x m`` for k values in (0, 1).

        Raises:
            ValueError: If a value is not in (0, 1).
        """
        found = mixture_quantiles(self.mean, self.variance, value)
        return found if value.numel() > 1 else found[0]


def mixture_quantiles(mean: Tensor, variance: Tensor, value: Tensor) -> Tensor:
    """The quantiles, ``k x ...``, of equally weighted mixtures of normal distributions; components are ``MCMC_DIM``.

    Raises:
        ValueError: If a value is not in (0, 1).
    """
    value = value.to(mean).reshape(-1)
    if not bool(((value > 0) & (value < 1)).all()):
        raise ValueError(f"Quantile levels must be in (0, 1), got {value.tolist()}.")
    # Centred and in units of the widest component, so that an offset or small unit costs no digits.
    middle = mean.mean(MCMC_DIM, keepdim=True)
    deviation = variance.sqrt().clamp_min(torch.finfo(mean.dtype).tiny)
    unit = deviation.amax(MCMC_DIM, keepdim=True)
    parts = torch.distributions.Normal((mean - middle) / unit, deviation / unit)

    def share(at: Tensor) -> Tensor:
        return parts.cdf(at.unsqueeze(MCMC_DIM)).mean(MCMC_DIM)

    found = []
    for level in value:
        ends = parts.icdf(level)
        bounds = torch.stack([ends.amin(MCMC_DIM) - 1e-3, ends.amax(MCMC_DIM) + 1e-3])
        found.append(batched_bisect(share, level.item(), bounds, max_steps=64))
    return middle.squeeze(MCMC_DIM) + unit.squeeze(MCMC_DIM) * torch.stack(found)


class FullyBayesianDerivedGP(DerivedGP):
    """A ``DerivedGP`` averaged over S hyper-parameter samples, as BoTorch's ``SaasFullyBayesianSingleTaskGP``.

    ``surrogates.sample_hyperparameters`` makes one. It is a batch of S models of the same data, with S as the last
    batch dimension, and follows BoTorch's conventions for fully Bayesian models: points are ``batch x q x d`` without a
    dimension for the samples, posteriors have that dimension at ``MCMC_DIM``, ``mixture_mean`` and ``mixture_variance``
    average over it, and BoTorch's acquisition functions average their values over it.

    ``add_observations``, with X of ``S x m x d``, and ``condition_on_observations`` keep the hyper-parameter samples.
    After many new observations, call ``sample_hyperparameters`` again.
    """

    _is_fully_bayesian = True
    _is_ensemble = True

    @property
    def num_mcmc_samples(self) -> int:
        """S, the number of samples of the hyper-parameters."""
        return self.train_targets.shape[-2]

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The mixture posterior of f, a BoTorch ``GaussianMixturePosterior`` of shape ``batch x S x q x 1``.

        Under a nonlinear outcome transform it is BoTorch's ``TransformedPosterior`` of that shape. Arguments and errors
        are ``DerivedGP.posterior``'s.
        """
        posterior = super().posterior(self._for_all_samples(X), *args, **kwargs)
        if isinstance(posterior, GPyTorchPosterior):
            return ValueMixturePosterior(posterior.distribution)
        return posterior

    def gradient_posterior(self, X: Tensor) -> GradientMixturePosterior:
        """The mixture posterior of ∇f at X, in outcome units per unit of input.

        The other gradient methods of ``DerivedGP`` have a dimension for the samples before q: joint posteriors and
        covariances are computed within each sample.
        """
        current = self._current()
        self._affine_outcome_transform()
        z, slope, _ = self._points(X)
        return GradientMixturePosterior(current.conditioning, z, current.outcome_scale, None, slope)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """``DerivedGP.condition_on_observations``, which shares inputs without a dimension for the samples.

        Args:
            X: The new inputs: ``m x d`` for outcomes that are the same under every sample, ``batch x m x d`` for
                fantasies, or ``batch x S x m x d`` for outcomes of that batch.
            Y: The new outcomes in the user's units: ``m x 1``, ``fantasies x batch x S x m x 1``, or ``batch x S x m x
                1``.
            noise: Their noise variances in *transformed* units, as in BoTorch, shaped as Y.
            **kwargs: Passed to GPyTorch.
        """
        if X.dim() == 2 and Y.dim() == 2:
            X, Y = (data.expand(*self.batch_shape, *data.shape) for data in (X, Y))
            noise = noise if noise is None else noise.expand(Y.shape)
        elif X.dim() < Y.dim():
            X = X.unsqueeze(MCMC_DIM) if Y.dim() - X.dim() > 1 else X
            X = X.expand(*Y.shape[:-2], *X.shape[-2:])
        return super().condition_on_observations(X, Y, noise, **kwargs)

    def _for_all_samples(self, X: Tensor) -> Tensor:
        """The checked points with a dimension for the samples, ``batch x 1 x q x d``."""
        check_points(X, self.num_inputs, self.train_inputs[0])
        return X.unsqueeze(MCMC_DIM)
