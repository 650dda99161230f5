"""A derived GP averaged over hyper-parameter samples, and the mixture posterior of its gradient."""

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
    return results for each hyper-parameter sample, ``batch x S x q x d``. ``quantile`` and the methods that begin with
    ``mixture`` average over the samples. ``rsample`` draws equally from all components; all draws together are a sample
    of the mixture. Create it with ``surrogates.FullyBayesianDerivedGP.gradient_posterior``.
    """

    def __repr__(self) -> str:
        """The shape and units of the gradients, and the numbers of hyper-parameter samples and observations."""
        *batch, samples, q, d = self._extended_shape()
        shape = " x ".join(map(str, [*batch, q, d]))
        return f"GradientMixturePosterior({samples} samples of {shape}, {self.dtype}, {self.device}; {self._about})"

    @cached_with_graph
    def mixture_mean(self) -> Tensor:
        """The mean of the mixture, E ∇f(x) = mean_s ∇μ_s(x), ``batch x q x d``."""
        return self.mean.mean(MCMC_DIM)

    @cached_with_graph
    def mixture_variance(self) -> Tensor:
        """The variance of every partial derivative, mean_s σ²_s + var_s ∇μ_s, ``batch x q x d``."""
        return self.variance.mean(MCMC_DIM) + self._spread.square().mean(MCMC_DIM)

    @cached_with_graph
    def mixture_trace(self) -> Tensor:
        """E‖∇f(x) − mixture_mean‖², the trace of the mixture's covariance, ``batch x q``."""
        return self.trace.mean(MCMC_DIM + 1) + self._spread.square().sum(-1).mean(MCMC_DIM + 1)

    @cached_with_graph
    def mixture_covariance_matrix(self) -> Tensor:
        """The covariance of the gradient, mean_s ∂σ²_s(x) + cov_s ∇μ_s(x), dense, ``batch x q x d x d``."""
        between = self._spread.unsqueeze(-1) * self._spread.unsqueeze(-2)
        return (self.covariance_matrix + between).mean(MCMC_DIM - 1)

    def mixture_positive_probability(self, u: Tensor | None = None) -> Tensor:
        """The probability that a partial or directional derivative is positive, averaged over the samples.

        Args:
            u: The directions, broadcastable to ``batch x S x q x d``, or None for every partial derivative.

        Returns:
            The probabilities, ``batch x q x d``, or ``batch x q`` if u is given.
        """
        return self.positive_probability(u).mean(MCMC_DIM if u is None else MCMC_DIM + 1)

    def quantile(self, value: Tensor) -> Tensor:
        """The mixture's quantiles of each partial derivative, ``k x batch x q x d``, for k values in (0, 1).

        Raises:
            ValueError: If a value is not in (0, 1).
        """
        return mixture_quantiles(self.mean, self.variance, value)

    @cached_with_graph
    def _spread(self) -> Tensor:
        return self.mean - self.mixture_mean.unsqueeze(MCMC_DIM)


class ValueMixturePosterior(GaussianMixturePosterior):
    """BoTorch's ``GaussianMixturePosterior`` with a variance and quantiles that are exact for any unit and offset."""

    @property
    def mixture_variance(self) -> Tensor:
        """The variance mean_s σ²_s + var_s μ_s, ``batch x q x m``."""
        spread = self.mean - self.mixture_mean.unsqueeze(MCMC_DIM)
        return self.variance.mean(MCMC_DIM) + spread.square().mean(MCMC_DIM)

    def quantile(self, value: Tensor) -> Tensor:
        """The mixture's quantiles at each point, ``k x batch x q x m``, for k values in (0, 1).

        Raises:
            ValueError: If a value is not in (0, 1).
        """
        found = mixture_quantiles(self.mean, self.variance, value)
        return found if value.numel() > 1 else found[0]


def mixture_quantiles(mean: Tensor, variance: Tensor, value: Tensor) -> Tensor:
    """The quantiles, ``k x ...``, of equally weighted mixtures of normals, with the components at ``MCMC_DIM``.

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
    """A ``DerivedGP`` averaged over S hyper-parameter samples, like BoTorch's ``SaasFullyBayesianSingleTaskGP``.

    Create it with ``surrogates.sample_hyperparameters``. It is a batch of S models of the same data, with S as the last
    batch dimension. As in BoTorch's fully Bayesian models, points are ``batch x q x d``, posteriors have a dimension of
    size S at ``MCMC_DIM``, over which ``mixture_mean``, ``mixture_variance`` and acquisition functions average.

    ``add_observations``, with X of ``S x m x d``, and ``condition_on_observations`` keep the hyper-parameter samples.
    After many new observations, call ``sample_hyperparameters`` again.
    """

    _is_fully_bayesian = True
    _is_ensemble = True

    @property
    def num_mcmc_samples(self) -> int:
        """The number S of hyper-parameter samples."""
        return self.train_targets.shape[-2]

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The mixture posterior of f, a BoTorch ``GaussianMixturePosterior`` of shape ``batch x S x q x 1``.

        Under a nonlinear outcome transform it is a BoTorch ``TransformedPosterior`` of the same shape. Arguments and
        errors are as in ``DerivedGP.posterior``.
        """
        posterior = super().posterior(self._for_all_samples(X), *args, **kwargs)
        if isinstance(posterior, GPyTorchPosterior):
            return ValueMixturePosterior(posterior.distribution)
        return posterior

    def gradient_posterior(self, X: Tensor) -> GradientMixturePosterior:
        """The mixture posterior of ∇f at X, in outcome units per unit of input.

        All other gradient methods of ``DerivedGP`` return results for each sample, with S before q.
        """
        current = self._current()
        self._affine_outcome_transform()
        z, slope, _ = self._points(X)
        return GradientMixturePosterior(current.conditioning, z, current.outcome_scale, None, slope)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Returns a copy conditioned on more observations; all samples share X unless X has a dimension of size S.

        Args:
            X: The new inputs: ``m x d``, or ``batch x m x d`` with fantasies, or ``batch x S x m x d``.
            Y: The new outcomes in the user's units, in the same three cases: ``m x 1``,
                ``fantasies x batch x S x m x 1``, or ``batch x S x m x 1``.
            noise: The noise variances of Y in *transformed* units, as in BoTorch, shaped as Y.
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
