"""A GP conditioned on function values and on observed gradients, in GPyTorch's KernelGrad order.

References:
    D. Eriksson, K. Dong, E. Lee, D. Bindel and A. G. Wilson, Scaling Gaussian process regression with
    derivatives, NeurIPS 2018 (the joint covariance, which GPyTorch's ``RBFKernelGrad`` forms).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from botorch import settings as botorch_settings
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMeanGrad
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from surrogates.checks import check_data, check_finite, check_floating, check_nonnegative, check_points, check_same_kind
from surrogates.kernels.makers import gaussian_likelihood
from surrogates.kernels.stationary import unscaled
from surrogates.models.caches import ModelSnapshot


class _InterleavedNoise(FixedNoiseGaussianLikelihood):
    """Fixed noise of n(d+1) observations: given n inputs, GPyTorch would look for n variances and drop these."""

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Any:
        return super()._shaped_noise_covar(base_shape, **kwargs)


class GradientObservationGP(ExactGP, GPyTorchModel):
    """A GP on n(d+1) observations: the value and the d partial derivatives at every point, point by point.

    Where gradients can be observed they are worth d values each; where only values can, ``surrogates.DerivedGP``
    gives the same posterior in O(n³) instead of O(n³d³). Targets are standardised: y' = (y − mean)/scale and
    ∇y' = ∇y/scale, as a gradient has no offset. There are no batches.

    Args:
        train_X: The inputs, ``n x d``.
        train_Y: The outcomes, ``n x 1``.
        train_G: The gradients in outcome units per unit of input, ``n x d``.
        train_Yvar: The noise variances of the values, ``n x 1``, or None to infer one noise for all observations.
        train_Gvar: The noise variances of the partial derivatives, ``n x d``, given with ``train_Yvar`` or not at all.
        covar_module: ``RBFKernelGrad`` or ``Matern52KernelGrad``, in any number of ``ScaleKernel``s. The default is a
            scaled ARD ``Matern52KernelGrad``.

    Raises:
        TypeError: If data are not floating point tensors, or the kernel is another.
        ValueError: If shapes do not fit, there are no data, an entry is NaN or infinite, dtypes or devices are mixed,
            a variance is negative or given without the other, or the kernel sees some inputs only.
    """

    _num_outputs = 1
    _mean: Tensor
    _scale: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_G: Tensor,
        train_Yvar: Tensor | None = None,
        train_Gvar: Tensor | None = None,
        covar_module: Kernel | None = None,
    ) -> None:
        _check(train_X, train_Y, train_G, train_Yvar, train_Gvar)
        if covar_module is not None:
            _check_kernel(covar_module)
        d, dtype = train_X.shape[-1], train_X.dtype
        mean = train_Y.mean()
        deviation = train_Y.std() if len(train_Y) > 1 else torch.zeros_like(mean)
        scale = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        if train_Yvar is None or train_Gvar is None:
            likelihood = gaussian_likelihood(1e-4, dtype)
        else:
            noise = torch.cat([train_Yvar, train_Gvar], dim=-1).flatten() / scale**2
            likelihood = _InterleavedNoise(noise)
        # Point by point: y₁, ∂₁y₁, …, ∂_d y₁, y₂, …
        targets = torch.cat([(train_Y - mean) / scale, train_G / scale], dim=-1).flatten()
        super().__init__(train_X, targets, likelihood)
        self._snapshot: ModelSnapshot | None = None
        self.register_buffer("_mean", mean)
        self.register_buffer("_scale", scale)
        self.mean_module = ConstantMeanGrad()
        self.covar_module = covar_module or ScaleKernel(Matern52KernelGrad(ard_num_dims=d))
        self.to(train_X)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior of the q(d+1) values and partial derivatives at x, ``batch x q x d``."""
        return MultivariateNormal(self.mean_module(x).flatten(-2), self.covar_module(x))

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
            observation_noise: False, as the noise of a value and of a derivative differ.
            posterior_transform: A posterior transform of BoTorch, or None.

        Raises:
            TypeError: If X is no floating point tensor.
            ValueError: If the points do not fit, or another outcome or observation noise is asked for.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"There is one outcome: output_indices must be None or [0], got {output_indices!r}.")
        if observation_noise is not False:
            raise ValueError(
                "GradientObservationGP.posterior gives the noise-free value: observation_noise must be False."
            )
        mean, covariance = self._joint(X)
        width = X.shape[-1] + 1
        posterior = GPyTorchPosterior(
            MultivariateNormal(mean[..., ::width] + self._mean, to_linear_operator(covariance[..., ::width, ::width]))
        )
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def gradient_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of the gradients at X, ``batch x q x d``, dense, with event shape ``q x d``."""
        mean, covariance = self._joint(X)
        q, d = X.shape[-2:]
        keep = torch.arange(q * (d + 1), device=X.device).reshape(q, d + 1)[:, 1:].flatten()
        covariance = covariance[..., keep, :][..., keep]
        return GPyTorchPosterior(
            MultitaskMultivariateNormal(mean[..., keep].reshape(*mean.shape[:-1], q, d), to_linear_operator(covariance))
        )

    def joint_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of (f, ∇f) at X, ``batch x q x d``, with event shape ``q x (d+1)``, as GPyTorch's."""
        mean, covariance = self._joint(X)
        q, d = X.shape[-2:]
        mean = mean.reshape(*mean.shape[:-1], q, d + 1)
        mean = torch.cat([mean[..., :1] + self._mean, mean[..., 1:]], dim=-1)
        return GPyTorchPosterior(MultitaskMultivariateNormal(mean, to_linear_operator(covariance)))

    @property
    def _inputs(self) -> Tensor:
        (inputs,) = cast(tuple[Tensor], self.train_inputs)
        return inputs

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the q(d+1) flattened outcomes in the user's scale, without the values' offset."""
        check_points(X, self._inputs.shape[-1], self._inputs)
        self.eval()
        if self._snapshot is None or not self._snapshot.matches(self):
            self.prediction_strategy = None
            self._snapshot = ModelSnapshot(self)
        with gpt_posterior_settings(), settings.max_cholesky_size(torch.iinfo(torch.int64).max):
            if botorch_settings.propagate_grads.on():
                self.prediction_strategy = None
            mvn = self(X)
        return mvn.mean * self._scale, mvn.covariance_matrix * self._scale**2


def _check(X: Tensor, Y: Tensor, G: Tensor, Yvar: Tensor | None, Gvar: Tensor | None) -> None:
    check_data(X, Y, Yvar)
    if X.dim() != 2:
        raise ValueError(f"train_X must be of shape n x d (no batches here), got {tuple(X.shape)}.")
    if (Yvar is None) != (Gvar is None):
        raise ValueError("train_Yvar and train_Gvar are given together, or neither is.")
    for name, tensor in (("train_G", G), ("train_Gvar", Gvar)):
        if tensor is None:
            continue
        check_floating(name, tensor)
        if tensor.shape != X.shape:
            raise ValueError(f"{name} must be of shape {tuple(X.shape)} as train_X is, got {tuple(tensor.shape)}.")
        check_same_kind(name, tensor, "train_X", X)
        check_finite(name, tensor)
    if Gvar is not None:
        check_nonnegative("train_Gvar", Gvar)


def _check_kernel(kernel: Kernel) -> None:
    """Refuses a kernel that does not form the covariance of values and gradients."""
    if kernel.active_dims is not None:
        raise ValueError(
            f"A kernel of values and gradients sees all inputs, got active_dims {kernel.active_dims.tolist()}."
        )
    base, _ = unscaled(kernel)
    if type(base) not in (RBFKernelGrad, Matern52KernelGrad):
        raise TypeError(
            f"{type(base).__name__} does not form the joint covariance of values and gradients. Accepted are "
            "exactly RBFKernelGrad and Matern52KernelGrad, in ScaleKernels."
        )
