"""A GP conditioned on function values and on observed gradients, in GPyTorch's KernelGrad order.

References:
    D. Eriksson, K. Dong, E. Lee, D. Bindel and A. G. Wilson, Scaling Gaussian process regression with
    derivatives, NeurIPS 2018 (the joint covariance, which GPyTorch's ``RBFKernelGrad`` forms).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self, cast

import torch
from botorch import settings as botorch_settings
from botorch.exceptions import UnsupportedError
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.posteriors import GPyTorchPosterior
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMeanGrad, Mean
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from surrogates.checks import check_points
from surrogates.kernels.blocks import snapshot
from surrogates.kernels.makers import NOISE_AS_GIVEN, gaussian_likelihood
from surrogates.models.caches import ModelSnapshot, prior_mean
from surrogates.models.gradient_data import (
    broadcast_batches,
    check_gradient_data,
    check_gradient_kernel,
    check_noise,
    check_values,
    observed_targets,
)
from surrogates.models.interleaved import InterleavedNoise, gradients_of, values_among
from surrogates.models.joint_conditioning import JointConditioning
from surrogates.models.transforms import standardize
from surrogates.moving import move_module_attributes
from surrogates.normal import UnitFreeMultitaskNormal, UnitFreeNormal


class GradientObservationGP(ExactGP, GPyTorchModel, FantasizeMixin):
    """A GP on the value at every one of n points and on what was observed of the gradient there.

    Of the n(d+1) entries y₁, ∂₁y₁, …, ∂_d y₁, y₂, … it is conditioned on the N observed ones, by Cholesky in float64.
    The others have no row in any matrix, in the marginal likelihood neither. Where gradients can be observed they are
    worth d values each; where only values can, ``surrogates.DerivedGP`` gives the same posterior in O(n³) instead of
    O(n³d³). Targets are standardised: y' = (y − mean)/scale and ∇y' = ∇y/scale, as a gradient has no offset.
    Variances, given noise and samples have no floor, in whatever units.

    Data have no batches. Fantasies, as ``qKnowledgeGradient`` makes them, are models of a batch shape, which have the
    n points that they come from in common and factorise these once.

    Args:
        train_X: The inputs, ``n x d``.
        train_Y: The outcomes, ``n x 1``.
        train_G: The gradients in outcome units per unit of input, ``n x d``, NaN where a partial derivative was not
            observed.
        train_Yvar: The noise variances of the values, ``n x 1``, or None to infer one noise for all observations: one
            number for values and for partial derivatives, which fits inputs of about unit range.
        train_Gvar: The noise variances of the partial derivatives, ``n x d``, given with ``train_Yvar`` or not at all.
            They may be NaN where ``train_G`` is.
        covar_module: ``RBFKernelGrad`` or ``Matern52KernelGrad``, in any number of ``ScaleKernel``s. The default is a
            scaled ARD ``Matern52KernelGrad``.

    Raises:
        TypeError: If data are not floating point tensors, or the kernel is another.
        ValueError: If shapes do not fit, there are no data, an entry is infinite, or NaN where it may not be, dtypes
            or devices are mixed, a variance is negative or given without the other, or the kernel sees some inputs
            only.
    """

    _num_outputs = 1
    likelihood: Any
    _mean: Tensor
    _scale: Tensor
    _observed: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_G: Tensor,
        train_Yvar: Tensor | None = None,
        train_Gvar: Tensor | None = None,
        covar_module: Kernel | None = None,
    ) -> None:
        check_gradient_data(train_X, train_Y, train_G, train_Yvar, train_Gvar)
        if covar_module is not None:
            check_gradient_kernel(covar_module, train_X.shape[-1])
        (n, d), dtype = train_X.shape, train_X.dtype
        transform = standardize(train_Y)
        mean, scale = transform.means.squeeze(), transform.stdvs.squeeze()
        # Point by point: y₁, ∂₁y₁, …, ∂_d y₁, y₂, …
        targets = torch.cat([train_Y - mean, train_G], dim=-1).flatten()
        (observed,) = torch.where(~targets.isnan())
        if train_Yvar is None or train_Gvar is None:
            likelihood = gaussian_likelihood(1e-4, dtype)
        else:
            noise = torch.cat([train_Yvar, train_Gvar], dim=-1).flatten()
            with NOISE_AS_GIVEN:
                likelihood = InterleavedNoise(noise[observed] / scale**2)
        super().__init__(train_X.clone(), targets[observed] / scale, likelihood)
        self._cached: JointConditioning | None = None
        self._snapshot: ModelSnapshot | None = None
        # The elements of a batch have so many leading points, with their targets and noise, in common.
        self._num_shared = n
        self.register_buffer("_mean", mean)
        self.register_buffer("_scale", scale)
        self.register_buffer("_observed", observed, persistent=False)
        self.mean_module = ConstantMeanGrad()
        self.covar_module = covar_module or ScaleKernel(Matern52KernelGrad(ard_num_dims=d))
        self.to(train_X)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles take: they factorise anew."""
        return {**vars(self), "_cached": None, "_snapshot": None}

    def _apply(self, fn: Any, *args: Any) -> Self:
        self._cached = self._snapshot = None
        super()._apply(fn, *args)
        move_module_attributes(self, fn)
        return self

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior of the q(d+1) values and partial derivatives at x, ``batch x q x d``.

        Raises:
            UnsupportedError: If x is the model's own ``train_inputs[0]``, as in BoTorch's ``loo_cv``.
        """
        if x is self._inputs:
            raise UnsupportedError(
                "loo_cv takes a model for one of n values, and this one is of values and partial derivatives: make a "
                "model without the point, GradientObservationGP(X[others], Y[others], G[others]), for each point."
            )
        return MultivariateNormal(self.mean_module(x).flatten(-2), self.covar_module(x))

    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """GPyTorch's call, in standardised units.

        In training mode it gives the prior of the N observed entries, of which the marginal likelihood is; in
        evaluation mode the posterior of all q(d+1) entries at the points.
        """
        if self.training:
            # Views, as the prior of the data's own tensor is what loo_cv asks for.
            prior, kept = super().__call__(*(x.view_as(x) for x in args), **kwargs), self._observed
            covariance = prior.lazy_covariance_matrix.to_dense()[..., kept, :][..., kept]
            return MultivariateNormal(prior.mean[..., kept], to_linear_operator(covariance))
        if settings.prior_mode.on():
            return cast(MultivariateNormal, super().__call__(*args, **kwargs))
        (X,) = args
        mean, covariance = self._conditioned(X, gradients=True)
        return UnitFreeNormal(mean.to(X), covariance.to(X))

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """The posterior of the values, event shape ``q x 1``, for acquisition functions.

        Args:
            X: The points, ``batch x q x d``.
            output_indices: None or [0], as there is one outcome.
            observation_noise: Whether it is the posterior of observations of the value. Their noise is the inferred
                one, or the mean of ``train_Yvar`` as in BoTorch, or that of a tensor of variances in the user's units,
                which broadcasts to ``batch x q x 1``.
            posterior_transform: A posterior transform of BoTorch, or None.

        Raises:
            TypeError: If X or a noise that is no bool is no floating point tensor.
            ValueError: If the points or the noise do not fit, a variance is negative, or another outcome is asked for.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"There is one outcome: output_indices must be None or [0], got {output_indices!r}.")
        mean, covariance = self._scaled(X, gradients=False)
        if observation_noise is not False:
            if observation_noise is not True:
                check_noise("observation_noise", observation_noise, mean.unsqueeze(-1))
            noise = self._value_noise() if observation_noise is True else observation_noise
            covariance = covariance + torch.diag_embed(noise.squeeze(-1).expand(mean.shape))
        posterior = GPyTorchPosterior(UnitFreeNormal(mean + self._mean, covariance))
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def gradient_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of the gradients at X, ``batch x q x d``, dense, with event shape ``q x d``."""
        mean, covariance = self._scaled(X, gradients=True)
        mean, covariance = gradients_of(mean, covariance, X.shape[-1])
        return GPyTorchPosterior(UnitFreeMultitaskNormal(mean, covariance))

    def joint_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of (f, ∇f) at X, ``batch x q x d``, with event shape ``q x (d+1)``, as GPyTorch's."""
        mean, covariance = self._scaled(X, gradients=True)
        mean = mean.unflatten(-1, (X.shape[-2], X.shape[-1] + 1))
        mean = torch.cat([mean[..., :1] + self._mean, mean[..., 1:]], dim=-1)
        return GPyTorchPosterior(UnitFreeMultitaskNormal(mean, covariance))

    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> Self:
        """A copy that is conditioned on more values too; the gradients at the new points are not observed.

        Hyper-parameters and the standardisation stay as they are. Shapes broadcast: from Y of
        ``fantasies x batch x m x 1`` comes a model of the batch shape ``fantasies x batch``.

        Args:
            X: The new inputs, ``batch x m x d``.
            Y: The new outcomes in the user's units, ``batch x m x 1``.
            noise: Their noise variances in the user's units, ``batch x m x 1``, needed where the model was made with
                ``train_Yvar``. If it is given where the noise is inferred, all noise of the copy is fixed.

        Raises:
            TypeError: If something is no floating point tensor.
            ValueError: If shapes, dtypes or devices do not fit, an entry is NaN or infinite, a variance is negative,
                or there is no noise where it is needed.
        """
        self._check_points(X)
        check_values(X, Y)
        if noise is not None:
            check_noise("noise", noise, Y)
            noise = noise.expand(*noise.shape[:-2], X.shape[-2], 1).squeeze(-1) / self._scale**2
        return self.get_fantasy_model(X, (Y.squeeze(-1) - self._mean) / self._scale, noise)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None) -> Self:
        """GPyTorch's ``get_fantasy_model``: ``condition_on_observations`` in standardised units, without its checks.

        Args:
            inputs: The new inputs, ``batch x m x d``.
            targets: The new values, ``batch x m``.
            noise: Their noise variances, ``batch x m``, or None.

        Raises:
            ValueError: If there is no noise where it is needed, or batch shapes do not broadcast.
        """
        if self._fixed_noise and noise is None:
            raise ValueError("The model was made with train_Yvar: new observations need noise=, in the user's units.")
        batch = broadcast_batches(self.batch_shape, X=inputs.shape[:-2], Y=targets.shape[:-1])
        n, (m, d) = self._inputs.shape[-2], inputs.shape[-2:]

        def joined(old: Tensor, new: Tensor, dims: int) -> Tensor:
            return torch.cat([t.expand(*batch, *t.shape[t.dim() - dims :]) for t in (old, new)], dim=-dims)

        tensors = [self._inputs, self._targets, self._mean, self._scale]
        tensors += [self.likelihood.noise_covar.noise] if self._fixed_noise else []
        # What has a history can be cloned but not copied.
        model = copy.deepcopy(self, {id(t): t.clone() for t in tensors})
        ExactGP.set_train_data(model, joined(self._inputs, inputs, 2), joined(self._targets, targets, 1), False)
        entries = (n + torch.arange(m, device=inputs.device)) * (d + 1)
        model._observed = torch.cat([self._observed, entries])
        if noise is not None:
            variances = joined(self._noise().to(noise), noise, 1)
            with NOISE_AS_GIVEN:
                model.likelihood = InterleavedNoise(variances)
        if not batch:
            model._num_shared = n + m
        elif self._snapshot is not None and self._snapshot.matches(self):
            model._cached, model._snapshot = self._cached, ModelSnapshot(model)
        return model

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any) -> Self:
        """BoTorch's ``fantasize``: models that are conditioned on values drawn at X from ``posterior``, with noise.

        The batch shape of the fantasies is ``sampler.sample_shape x batch``. Gradients at X are not observed.

        Args:
            X: The points, ``batch x q x d``.
            sampler: A sampler of BoTorch.
            observation_noise: The noise variances of the values in the user's units, ``batch x q x 1`` or
                ``batch x 1 x 1``, or None for the inferred noise or the mean of ``train_Yvar``.
            **kwargs: ``propagate_grads``, as BoTorch takes it.

        Raises:
            TypeError: If X or the noise is no floating point tensor.
            ValueError: If the points or the noise do not fit, or a variance is negative.
        """
        self._check_points(X)
        if observation_noise is None and self._fixed_noise:
            # BoTorch's mean is over the noise of the partial derivatives, too.
            observation_noise = self._value_noise()
        return super().fantasize(X, sampler, observation_noise, **kwargs)

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """GPyTorch's ``set_train_data``, in standardised units and without batches.

        Args:
            inputs: The inputs, ``n x d``, or None to keep them.
            targets: All n(d+1) entries, NaN where there was no observation, or only the N observed ones where these
                are the same as before, or None to keep them.
            strict: Whether shape, dtype and device must be as before.

        Raises:
            RuntimeError: If something is not as before and must be.
            ValueError: If inputs, targets and fixed noise do not fit.
        """
        X = self._inputs if inputs is None else (inputs if isinstance(inputs, Tensor) else inputs[0]).clone()
        y = self._targets if targets is None else targets
        y, observed = observed_targets(X, y, (self._inputs.shape, self._targets, self._observed))
        if self._fixed_noise and y.shape != self.likelihood.noise.shape:
            raise ValueError("The fixed noise is that of other observations: make a new model.")
        super().set_train_data(None if inputs is None else X, None if targets is None else y.clone(), strict)
        self._observed, self._num_shared = observed, X.shape[0]

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True, keep_transforms: bool = True, **assign: bool
    ) -> None:
        """BoTorch's ``load_state_dict``: the standardisation is loaded, too.

        The data stay what they are in the user's units, or in standardised units if ``keep_transforms`` is False.
        ``assign`` is for versions of BoTorch that have it (0.18).
        """
        mean, scale = self._mean.clone(), self._scale.clone()
        super().load_state_dict(state_dict, strict, keep_transforms, **assign)
        if not keep_transforms or (torch.equal(mean, self._mean) and torch.equal(scale, self._scale)):
            return
        offsets = torch.where(values_among(self._observed, self._inputs.shape[-1]), mean - self._mean, 0)
        ExactGP.set_train_data(self, targets=(self._targets * scale + offsets) / self._scale)
        if self._fixed_noise:
            self.likelihood.noise_covar.noise = self.likelihood.noise_covar.noise * (scale / self._scale) ** 2

    @property
    def _inputs(self) -> Tensor:
        (inputs,) = cast(tuple[Tensor], self.train_inputs)
        return inputs

    @property
    def _targets(self) -> Tensor:
        return cast(Tensor, self.train_targets)

    @property
    def _fixed_noise(self) -> bool:
        return isinstance(self.likelihood, FixedNoiseGaussianLikelihood)

    def _noise(self) -> Tensor:
        """The noise variances of the observed entries in standardised units, ``batch x N``, float64."""
        noise = self.likelihood.noise.double().expand(self._targets.shape)
        return noise if botorch_settings.propagate_grads.on() else noise.detach()

    def _value_noise(self) -> Tensor:
        """The mean noise variance of the values in the user's units, ``batch x 1 x 1``."""
        values = values_among(self._observed, self._inputs.shape[-1])
        return (self._noise()[..., values].mean(-1) * self._scale**2).to(self._scale)[..., None, None]

    def _check_points(self, X: Tensor) -> torch.Size:
        """The batch shape of the model and the points together."""
        check_points(X, self._inputs.shape[-1], self._inputs)
        return broadcast_batches(self.batch_shape, X=X.shape[:-2])

    def _scaled(self, X: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """``_conditioned`` in the user's units, without the values' offset."""
        mean, covariance = self._conditioned(X, gradients)
        return (mean * self._scale).to(X), (covariance * self._scale**2).to(X)

    def _conditioned(self, X: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Posterior mean and covariance in standardised units, float64.

        It is conditioned on the points that the elements of the batch have in common, by their factor, and then on
        the values that each has of its own.

        Args:
            X: The points, ``batch x q x d``.
            gradients: Whether they are of the q(d+1) values and partial derivatives, or of the q values.
        """
        batch, (q, d) = self._check_points(X), X.shape[-2:]
        self.eval()
        if not torch.Size([*batch, q]).numel():
            mean = torch.zeros(*batch, q * (d + 1 if gradients else 1), dtype=torch.float64, device=X.device)
            return mean, mean.unsqueeze(-1) * mean.unsqueeze(-2)
        shared = self._conditioning()
        own, known = self._inputs[..., len(shared.X) :, :], len(shared.alpha)
        if own.shape[-2]:
            values, noise = self._targets[..., known:], self._noise()[..., known:]
            return shared.posterior_with(own, values, noise, X, gradients)
        mean, covariance, _ = shared.posterior(X, gradients)
        return mean.expand(*batch, -1), covariance.expand(*batch, -1, -1)

    def _conditioning(self) -> JointConditioning:
        """It is kept as long as it holds, and made with its derivatives under BoTorch's ``propagate_grads``."""
        if botorch_settings.propagate_grads.on():
            return self._made(detach=False)
        if self._cached is None or self._snapshot is None or not self._snapshot.matches(self):
            with torch.no_grad():
                self._cached, self._snapshot = self._made(detach=True), ModelSnapshot(self)
        return self._cached

    def _made(self, detach: bool) -> JointConditioning:
        first = (0,) * len(self.batch_shape)
        X = self._inputs[first][: self._num_shared]
        X = X.detach().clone() if detach else X
        check_gradient_kernel(self.covar_module, X.shape[-1])
        kernel, mean = snapshot(self.covar_module, detach), cast(Mean, prior_mean(self.mean_module, detach))
        observed = self._observed[self._observed < X.shape[0] * (X.shape[1] + 1)]
        targets, noise = (t[first][: len(observed)] for t in (self._targets, self._noise()))
        return JointConditioning.of(kernel, mean, X, observed, targets, noise)
