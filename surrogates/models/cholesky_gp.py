"""BoTorch's SingleTaskGP on one Cholesky factor that is kept, grows with the data, and fills GPyTorch's caches."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self, cast

import gpytorch
import torch
from botorch import settings as botorch_settings
from botorch.models import SingleTaskGP
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import Mean
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor

from surrogates.checks import check_data, check_finite, check_floating, check_points, check_same_kind
from surrogates.conditioning import Conditioning
from surrogates.inference import outside_inference_mode
from surrogates.kernels.blocks import check_kernel, kernel_values, snapshot
from surrogates.kernels.errors import OpaqueKernelError
from surrogates.kernels.makers import NOISE_AS_GIVEN
from surrogates.linalg.cholesky import extended_factor, jittered_factor
from surrogates.models.caches import (
    CachedConditioning,
    GrowingData,
    ModelSnapshot,
    keep_updated_mean_cache,
    make_prediction_strategy,
    prior_mean,
)
from surrogates.models.transforms import input_slope, is_affine_input, is_affine_outcome, outcome_scale
from surrogates.moving import move_module_attributes
from surrogates.normal import UnitFreeNormal, unit_free
from surrogates.stationary_conditioning import make_conditioning


class CholeskyGP(SingleTaskGP):
    """``SingleTaskGP`` by Cholesky at any n: what ``DerivedGP`` is beside its gradients.

    The factor L and α are computed once for the data and hyper-parameters of the moment, and GPyTorch's caches are
    filled from them. The arguments are ``SingleTaskGP``'s.
    """

    prediction_strategy: DefaultPredictionStrategy | None
    covar_module: Kernel
    mean_module: Mean

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._cached: CachedConditioning | None = None
        self._snapshot: ModelSnapshot | None = None
        # L of the data that a fantasy shares with the model that it was made from.
        self._leading_factor: Tensor | None = None
        super().__init__(*args, **kwargs)
        # d as the user has it, which an input transform may change.
        self.num_inputs = self.train_inputs[0].shape[-1]

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles take: they factorise anew."""
        return {**vars(self), "_cached": None, "_snapshot": None}

    @property
    def conditioning(self) -> Conditioning:
        """L, α and what gradient posteriors derive from them, for the data and hyper-parameters of this moment.

        It is a value: what happens to the model later does not reach it, and it is computed once until something
        that it depends on has changed (``surrogates.models.caches.ModelSnapshot``), also where GPyTorch's own cache
        would have stayed. Reading it puts the model in evaluation mode, as ``posterior`` does. Where derivatives in
        data and hyper-parameters are asked for, under BoTorch's ``propagate_grads``, it is made anew with these.
        """
        return self._current().conditioning

    @property
    def observation_noise(self) -> Tensor:
        """s² of one more observation in transformed units, ``batch (x m)``, float64: the mean where they differ."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and derivatives_are_asked_for()):
            return self._noise(self.train_inputs[0], self.train_targets.shape).mean(-1)

    def add_observations(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Conditions on more observations, in place, in O(n²) for each, in amortised storage.

        Hyper-parameters and the statistics of the transforms stay as they are. A model with batches or more than one
        outcome is factorised anew.
        BoTorch's ``condition_on_observations`` returns a copy instead, and takes its ``noise`` in transformed units.
        Where an error is raised, the model is as it was.

        Args:
            X: The new inputs, ``batch x n' x d``.
            Y: The new outcomes, ``batch x n' x m``.
            Yvar: Their noise variances in the user's units, ``batch x n' x m``, needed where the model was made with
                ``train_Yvar`` and refused where it was not.

        Raises:
            TypeError: If something is no floating point tensor.
            ValueError: If shapes, dtypes or devices do not fit, an entry is NaN or infinite, or Yvar is missing or
                given against the model.
            NotPositiveDefiniteError: If a new point cannot be told from an old one.
        """
        cached: CachedConditioning | None = None
        with suppress(OpaqueKernelError):
            cached = self._current()
        check_data(X, Y, Yvar, prefix="", num_outputs=self.num_outputs)
        check_same_kind("X", X, "the model", self.train_inputs[0])
        if X.shape[:-2] != self.batch_shape or X.shape[-1] != self.num_inputs:
            accepted = " x ".join(str(size) for size in (*self.batch_shape, "n'", self.num_inputs))
            raise ValueError(f"X must be of shape {accepted}, got {tuple(X.shape)}.")
        fixed = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if fixed != (Yvar is not None):
            raise ValueError(
                "The model was made with train_Yvar: new observations need Yvar."
                if fixed
                else "The model infers its noise: new observations take no Yvar (make it with train_Yvar instead)."
            )
        with torch.no_grad():
            z = self._transformed_data(X)
            if hasattr(self, "outcome_transform"):
                Y, Yvar = self.outcome_transform(Y, Yvar, X=z)
            original = (X if self.num_outputs == 1 else X.unsqueeze(-3)).expand(self._aug_batch_shape + X.shape[-2:])
            z, targets, noise = self._transform_tensor_args(z, Y, Yvar)
            if cached is not None and z.dim() == 2:
                self._append(cached, X, z, targets, noise)
            else:
                self._concatenate(original, z, targets, noise)

    def _append(self, cached: CachedConditioning, X: Tensor, z: Tensor, targets: Tensor, noise: Tensor | None) -> None:
        """Appends to the data and the factor of a model without batch, of one outcome."""
        old = cached.conditioning
        kernel, data = old.kernel, cached.growing
        if data is None:
            known = None if noise is None else self.likelihood.noise_covar.noise
            original = self._original_train_inputs if hasattr(self, "input_transform") else None
            data = GrowingData(old.X, original, self.train_targets, known, old.factor)
        corner = self._noise(z, targets.shape) if noise is None else (noise + self.likelihood.second_noise).double()
        data.factor.append(kernel_values(kernel, z, old.X), kernel_values(kernel, z, z) + torch.diag_embed(corner))
        data.inputs.append(z)
        data.targets.append(targets)
        if data.original_inputs is not None:
            data.original_inputs.append(X)
            self._original_train_inputs = data.original_inputs.rows
        if data.noise is not None and noise is not None:
            data.noise.append(noise)
            self.likelihood.noise_covar.noise = data.noise.rows
        # The model has a copy of the inputs, which the conditioning takes from the storage itself.
        inputs = data.inputs.rows
        ExactGP.set_train_data(self, inputs.clone(), data.targets.rows.clone(), strict=False)
        alpha = data.factor.solve((data.targets.rows - self.mean_module(inputs)).double())
        updated = make_conditioning(kernel, old.prior_mean, inputs, data.factor.L, alpha, old.slope)
        self._cached, self._snapshot = CachedConditioning(updated, cached.outcome_scale, data), ModelSnapshot(self)

    def _concatenate(self, X: Tensor, z: Tensor, targets: Tensor, noise: Tensor | None) -> None:
        """Appends to the data of another model, whose factor is made anew when it is next asked for."""
        if noise is not None:
            covariance = self.likelihood.noise_covar
            covariance.noise = torch.cat([covariance.noise, noise], dim=-1)
        original = self._original_train_inputs
        inputs, targets = torch.cat([self.train_inputs[0], z], dim=-2), torch.cat([self.train_targets, targets], dim=-1)
        ExactGP.set_train_data(self, inputs, targets, strict=False)
        if original is not None:
            self._original_train_inputs = torch.cat([original, X], dim=-2)

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """``SingleTaskGP.posterior``, with X checked; as there, points of a narrower dtype than the data's are taken.

        The first call for new data inverts the factor for GPyTorch's caches, O(n³); later ones cost O(n²) a point.

        Args:
            X: The points, ``batch x q x d``.
            *args: As ``SingleTaskGP.posterior`` takes them.
            **kwargs: As ``SingleTaskGP.posterior`` takes them.

        Raises:
            TypeError: If X is no floating point tensor.
            ValueError: If X has another d, a wider dtype or another device than the data, or holds NaN or inf.
        """
        data = self.train_inputs[0]
        if isinstance(X, Tensor) and X.is_floating_point() and torch.promote_types(X.dtype, data.dtype) == data.dtype:
            X = X.to(data.dtype)
        check_points(X, self.num_inputs, data)
        posterior = super().posterior(X, *args, **kwargs)
        return unit_free(posterior) if type(posterior) is GPyTorchPosterior else posterior

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """GPyTorch's call: the prior in training mode, the posterior in evaluation mode.

        Where derivatives with respect to hyper-parameters are asked for (``detach_test_caches`` off, as under
        BoTorch's ``propagate_grads``), GPyTorch computes its caches itself.
        """
        if self.training or gpytorch.settings.prior_mode.on():
            return super().__call__(*args, **kwargs)
        if not derivatives_are_asked_for():
            self._prepare_prediction()
        with gpytorch.settings.max_cholesky_size(torch.iinfo(torch.int64).max):
            predicted = super().__call__(*args, **kwargs)
        return UnitFreeNormal(predicted.mean, predicted.lazy_covariance_matrix)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """BoTorch's ``condition_on_observations``, which returns a copy; here it needs no prediction beforehand.

        Args:
            X: The new inputs, ``batch x n' x d``.
            Y: The new outcomes in the user's units, ``batch x n' x m``.
            noise: Their noise variances in *transformed* units, as BoTorch has it, ``batch x n' x m``, needed where
                the model was made with ``train_Yvar``.
            **kwargs: As GPyTorch takes them.

        Raises:
            TypeError: If X or Y is no floating point tensor.
            ValueError: If X has another d, dtype or device than the data, Y has another n' or m, X or Y holds NaN or
                inf, or there is no noise where it is needed.
        """
        check_points(X, self.num_inputs, self.train_inputs[0])
        check_floating("Y", Y)
        if Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise ValueError(
                f"Y must be of shape batch x {X.shape[-2]} x {self.num_outputs} for X of shape {tuple(X.shape)}, got "
                f"{tuple(Y.shape)}."
            )
        check_finite("Y", Y)
        if noise is None and isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            raise ValueError(
                "The model was made with train_Yvar: new observations need noise= (here in transformed units; "
                "add_observations takes Yvar= in yours)."
            )
        self.eval()
        model = cast(Self, super().condition_on_observations(X, Y, noise=noise, **kwargs))
        if model._original_train_inputs is not None:
            # Fantasies at the same points: BoTorch leaves these without the fantasies' dimension.
            model._original_train_inputs = model._original_train_inputs.expand(model.train_inputs[0].shape)
        return model

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        """GPyTorch's ``get_fantasy_model``; here it needs no prediction beforehand."""
        self._prepare_prediction()
        if self.prediction_strategy is None:
            self(*self.train_inputs)
        # GPyTorch copies the model: what the copy does not need is put aside.
        cached, snapshot, leading = self._cached, self._snapshot, self._leading_factor
        self._cached = self._snapshot = self._leading_factor = None
        try:
            with gpytorch.settings.max_cholesky_size(torch.iinfo(torch.int64).max), NOISE_AS_GIVEN:
                model = cast(Self, super().get_fantasy_model(inputs, targets, **kwargs))
        finally:
            self._cached, self._snapshot, self._leading_factor = cached, snapshot, leading
        if not (inputs.requires_grad or targets.requires_grad):
            keep_updated_mean_cache(model.prediction_strategy)
        model._snapshot = ModelSnapshot(model)
        model._leading_factor = leading if cached is None else cached.conditioning.factor
        return model

    def subset_output(self, idcs: list[int]) -> Self:
        """BoTorch's ``subset_output``, a copy with some of the outcomes; it takes the untransformed inputs along."""
        model = cast(Self, super().subset_output(idcs))
        original = model._original_train_inputs
        if original is not None and model.num_outputs < self.num_outputs:
            model._original_train_inputs = original[..., idcs if len(idcs) > 1 else idcs[0], :, :]
        return model

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """BoTorch's ``load_state_dict``, in any mode; it transforms the inputs by what has been loaded."""
        training = self.training
        self.train()
        try:
            return super().load_state_dict(*args, **kwargs)
        finally:
            self.train(training)
            self._clear_cache()

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """GPyTorch's ``set_train_data``, in any mode; it takes inputs in the user's units, targets in transformed."""
        targets = None if targets is None else targets.clone()
        if inputs is not None:
            self._leading_factor = None
            inputs = tuple(t.clone() for t in ((inputs,) if isinstance(inputs, Tensor) else inputs))
        if inputs is not None and self._has_transformed_inputs:
            (original,) = inputs
            super().set_train_data(self._transformed_data(original), targets, strict)
            self._original_train_inputs = original
            return
        super().set_train_data(inputs, targets, strict)

    def _transformed_data(self, X: Tensor) -> Tensor:
        """Inputs of observations as the model conditions on them, ``batch x n x d`` in and out."""
        with torch.no_grad():
            return self.input_transform.preprocess_transform(X) if hasattr(self, "input_transform") else X

    @outside_inference_mode
    def _set_transformed_inputs(self) -> None:
        if hasattr(self, "input_transform") and not self._has_transformed_inputs:
            original = self.train_inputs[0]
            super()._set_transformed_inputs()
            self._original_train_inputs = original

    def _revert_to_original_inputs(self) -> None:
        if hasattr(self, "input_transform") and self._has_transformed_inputs:
            self._has_transformed_inputs = False
            super().set_train_data(self._original_train_inputs, strict=False)

    def _apply(self, fn: Any, *args: Any) -> Self:
        self._clear_cache()
        super()._apply(fn, *args)
        move_module_attributes(self, fn)
        return self

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._cached = self._snapshot = self._leading_factor = None

    @outside_inference_mode
    def _current(self) -> CachedConditioning:
        """The conditioning of the present data under the present hyper-parameters, made anew where it has to be."""
        if self.training:
            self.eval()
        if derivatives_are_asked_for():
            return self._made(detach=False)
        self._forget_what_changed()
        if self._cached is None:
            with torch.no_grad():
                self._cached = self._made(detach=True)
        return self._cached

    def _forget_what_changed(self) -> None:
        """Clears what was computed with other modules, hyper-parameters or data than the present ones."""
        if self._snapshot is not None and self._snapshot.matches(self):
            return
        self._clear_cache()
        if self._has_transformed_inputs and self._original_train_inputs is not None:
            # The input transform may be what has changed.
            ExactGP.set_train_data(self, self._transformed_data(self._original_train_inputs), strict=False)
        self._snapshot = ModelSnapshot(self)

    def _made(self, detach: bool) -> CachedConditioning:
        """The conditioning of the present data, from a new factor or one that extends the leading factor."""
        X, leading = self.train_inputs[0], self._leading_factor if detach else None
        if detach:
            X = X.detach().clone()
        elif self._has_transformed_inputs and self._original_train_inputs is not None:
            # BoTorch transforms the data without derivatives.
            X = self.input_transform.preprocess_transform(self._original_train_inputs)
        check_kernel(self.covar_module, X.shape[-1])
        kernel = snapshot(self.covar_module, detach)
        known = 0 if leading is None else leading.shape[-1]
        noise = torch.diag_embed(self._noise(X, self.train_targets.shape))[..., known:, :]
        if leading is None:
            factor = jittered_factor(kernel_values(kernel, X, X) + noise)
        else:
            factor = extended_factor(leading, kernel_values(kernel, X[..., known:, :], X) + noise)
        residuals = (self.train_targets - self.mean_module(X)).double()
        alpha = torch.cholesky_solve(residuals.unsqueeze(-1), factor).squeeze(-1)
        inputs, outcomes = (getattr(self, name, None) for name in ("input_transform", "outcome_transform"))
        slope = input_slope(inputs, X) if is_affine_input(inputs) else None
        if slope is not None and self.num_outputs > 1:
            slope = slope.unsqueeze(-3)
        mean = prior_mean(self.mean_module, detach)
        scale = outcome_scale(outcomes) if is_affine_outcome(outcomes) else None
        made = make_conditioning(kernel, mean, X, factor, alpha, slope)
        return CachedConditioning(made, None if scale is None else scale.clone())

    def _noise(self, X: Tensor, shape: torch.Size) -> Tensor:
        """The likelihood's noise at every observation, ``batch x n``, float64."""
        zeros = torch.zeros(shape, dtype=X.dtype, device=X.device)
        silent = MultivariateNormal(zeros, ZeroLinearOperator(*shape, shape[-1], dtype=X.dtype, device=X.device))
        noise = self.likelihood(silent, [X]).lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2).double()
        if not bool((noise.isfinite() & (noise >= 0)).all()):
            raise ValueError(f"The likelihood's noise must be finite and non-negative, got {noise.min().item():g}.")
        return noise

    @outside_inference_mode
    def _prepare_prediction(self) -> None:
        """Fills GPyTorch's caches from our factor where they are empty."""
        self._forget_what_changed()
        if self.prediction_strategy is None:
            # What only GPyTorch can compute it predicts with by its own caches.
            with suppress(OpaqueKernelError):
                self.prediction_strategy = make_prediction_strategy(self, self.conditioning)


def derivatives_are_asked_for() -> bool:
    """Whether derivatives in data and hyper-parameters are: BoTorch's ``propagate_grads``, GPyTorch's caches kept."""
    return botorch_settings.propagate_grads.on() or gpytorch.settings.detach_test_caches.off()
