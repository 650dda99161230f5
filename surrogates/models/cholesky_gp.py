"""``SingleTaskGP`` with Cholesky inference at any n, observations added in O(n²), and missing outcomes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self, cast

import gpytorch
import torch
from botorch import settings as botorch_settings
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.likelihood import Likelihood
from gpytorch.means import Mean
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator import to_linear_operator
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor

from surrogates.checks import check_data, check_floating, check_observed, check_points, check_same_kind
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
from surrogates.models.transforms import (
    freeze_input_bounds,
    input_slope,
    is_affine_input,
    is_affine_outcome,
    outcome_scale,
    standardize,
)
from surrogates.models.unobserved import SILENT, apart, filled_noise, observed_rows, silenced
from surrogates.moving import move_module_attributes
from surrogates.normal import UnitFreeNormal, unit_free
from surrogates.stationary_conditioning import make_conditioning


class CholeskyGP(SingleTaskGP):
    """``SingleTaskGP`` with Cholesky inference at any n; ``DerivedGP`` adds the gradient.

    The Cholesky factor and α are computed once per data set and hyper-parameters, and fill GPyTorch's caches. The
    arguments are as in ``SingleTaskGP``; an outcome that is NaN was not observed.
    """

    prediction_strategy: DefaultPredictionStrategy | None
    covar_module: Kernel
    mean_module: Mean

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        self._cached: CachedConditioning | None = None
        self._snapshot: ModelSnapshot | None = None
        # The factor of the rows that a fantasy model shares with the model that it extends.
        self._leading_factor: Tensor | None = None
        # True for targets that were not observed, ``batch (x m) x n``; None if all were.
        self._missing: Tensor | None = None
        Y, Yvar, missing = train_Y, train_Yvar, train_Y.isnan()
        ragged = bool(missing.any())
        given = cast(OutcomeTransform | None, None if outcome_transform is DEFAULT else outcome_transform)
        learned: OutcomeTransform | None = standardize(Y) if outcome_transform is DEFAULT else None
        if ragged and given is not None:
            learned, given = given.train(), None
        if learned is not None:
            with torch.no_grad():
                z = self.transform_inputs(train_X, input_transform) if ragged else None
            Y, Yvar = learned(Y, Yvar, X=z)
        validated = botorch_settings.validate_input_scaling.on()
        if ragged:
            Y, validated = Y.masked_fill(missing, 0.0), False
            Yvar = None if Yvar is None else filled_noise(Yvar.mT, missing.mT).mT
        with NOISE_AS_GIVEN, botorch_settings.validate_input_scaling(validated):
            super().__init__(train_X, Y, Yvar, likelihood, covar_module, mean_module, given, input_transform)
        if learned is not None:
            self.outcome_transform = learned
        if ragged:
            self._missing = missing.squeeze(-1) if self.num_outputs == 1 else missing.mT
        freeze_input_bounds(input_transform)
        # The user's d; an input transform may change the number of inputs.
        self.num_inputs = self.train_inputs[0].shape[-1]

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, without the cached factor, which a copy computes again."""
        return {**vars(self), "_cached": None, "_snapshot": None}

    @property
    def conditioning(self) -> Conditioning:
        """The model conditioned on its data under the current hyper-parameters, with L and α.

        The result is cached until the data, a hyper-parameter or a module changes
        (``surrogates.models.caches.ModelSnapshot``). Like ``posterior``, it puts the model in evaluation mode. Under
        BoTorch's ``propagate_grads`` it is not cached and can be differentiated in data and hyper-parameters.
        """
        return self._current().conditioning

    @property
    def observation_noise(self) -> Tensor:
        """The mean noise variance of the observations in transformed units, ``batch (x m)``, float64."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and derivatives_are_asked_for()):
            return self._noise(self.train_inputs[0], self.train_targets.shape).mean(-1)

    def add_observations(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Conditions the model on more observations in place, in O(n²) per observation.

        Hyper-parameters and transforms are not refitted. Batched and multi-output models are factorised again. If an
        error is raised, the model is unchanged. Unlike ``condition_on_observations``, this method changes the model
        itself, and takes noise variances in the user's units.

        Args:
            X: The new inputs, ``batch x n' x d``.
            Y: The new outcomes, ``batch x n' x m``, NaN where an outcome was not observed.
            Yvar: The noise variances of Y in the user's units, ``batch x n' x m``; required if the model was made with
                ``train_Yvar``, otherwise not accepted.

        Raises:
            TypeError: If an argument is not a floating point tensor.
            ValueError: If shapes, dtypes or devices do not match, an entry is infinite, X or a required variance is
                NaN, all outcomes are NaN, or Yvar is missing or not accepted.
            NotPositiveDefiniteError: If a new point duplicates another one and the noise is almost 0.
        """
        cached: CachedConditioning | None = None
        with suppress(OpaqueKernelError):
            cached = self._current()
        self._check_new(X, Y, Yvar)
        if bool(Y.isnan().all()):
            raise ValueError("Y holds only NaN; give at least one observed outcome.")
        with torch.no_grad():
            X, Y, Yvar = observed_rows(X, Y, Yvar)
            original, z, targets, noise = self._transformed(X, Y, Yvar)
            if cached is not None and z.dim() == 2 and self._missing is None:
                self._append(cached, X, z, targets, noise)
            else:
                self._concatenate(original, z, targets, noise)

    def _check_new(self, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
        """Raises an error if new observations do not fit the model, or Yvar is missing or not accepted."""
        check_data(X, Y, Yvar, prefix="", num_outputs=self.num_outputs, unobserved=True)
        check_same_kind("X", X, "the model", self.train_inputs[0])
        if X.shape[:-2] != self.batch_shape or X.shape[-1] != self.num_inputs:
            accepted = " x ".join(str(size) for size in (*self.batch_shape, "n'", self.num_inputs))
            raise ValueError(f"X must be of shape {accepted}, got {tuple(X.shape)}.")
        fixed = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if fixed != (Yvar is not None):
            raise ValueError(
                "The model was made with train_Yvar: new observations need Yvar."
                if fixed
                else "The model infers its noise, so Yvar is not accepted; to fix the noise, pass train_Yvar."
            )

    def _transformed(self, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The inputs for each outcome, and inputs, targets and noise variances in transformed units."""
        z = self._transformed_data(X)
        if hasattr(self, "outcome_transform"):
            Y, Yvar = self.outcome_transform(Y, Yvar, X=z)
        original = (X if self.num_outputs == 1 else X.unsqueeze(-3)).expand(self._aug_batch_shape + X.shape[-2:])
        return original, *self._transform_tensor_args(z, Y, Yvar)

    def _append(self, cached: CachedConditioning, X: Tensor, z: Tensor, targets: Tensor, noise: Tensor | None) -> None:
        """Appends one outcome's observations to the data and the factor of an unbatched model."""
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
        # The conditioning has views of the growing storage; the model has copies.
        inputs = data.inputs.rows
        ExactGP.set_train_data(self, inputs.clone(), data.targets.rows.clone(), strict=False)
        alpha = data.factor.solve((data.targets.rows - self.mean_module(inputs)).double())
        updated = make_conditioning(kernel, old.prior_mean, inputs, data.factor.L, alpha, old.slope)
        self._cached, self._snapshot = CachedConditioning(updated, cached.outcome_scale, data), ModelSnapshot(self)

    def _concatenate(self, X: Tensor, z: Tensor, targets: Tensor, noise: Tensor | None) -> None:
        """Appends to the data of a batched or multi-output model; the factor is computed at the next use."""
        missing = targets.isnan()
        self._missing = self._missing_and(missing)
        if noise is not None:
            covariance = self.likelihood.noise_covar
            both = torch.cat([covariance.noise, noise], dim=-1)
            covariance.noise = both if self._missing is None else filled_noise(both, self._missing)
        targets, original = targets.masked_fill(missing, 0.0), self._original_train_inputs
        inputs, targets = torch.cat([self.train_inputs[0], z], dim=-2), torch.cat([self.train_targets, targets], dim=-1)
        ExactGP.set_train_data(self, inputs, targets, strict=False)
        if original is not None:
            self._original_train_inputs = torch.cat([original, X], dim=-2)

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Checks X and returns ``SingleTaskGP.posterior``; a narrower dtype of X is converted to the data's.

        The first call for new data fills GPyTorch's caches, O(n³). Later calls cost O(n²) per point.

        Raises:
            TypeError: If X is not a floating point tensor.
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

        With ``detach_test_caches`` off, as under BoTorch's ``propagate_grads``, GPyTorch computes its caches itself, so
        that they carry derivatives in the hyper-parameters.
        """
        if self.training or gpytorch.settings.prior_mode.on():
            prior = super().__call__(*args, **kwargs)
            return self._prior_of_observed(prior) if self.training and self._missing is not None else prior
        if not derivatives_are_asked_for():
            self._prepare_prediction()
        elif self._missing is not None and self.prediction_strategy is None:
            self.prediction_strategy = make_prediction_strategy(self, None, self._missing)
        with gpytorch.settings.max_cholesky_size(torch.iinfo(torch.int64).max):
            predicted = super().__call__(*args, **kwargs)
        return UnitFreeNormal(predicted.mean, predicted.lazy_covariance_matrix)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Returns a copy conditioned on more observations, as in BoTorch; ``posterior`` need not be called before.

        Args:
            X: The new inputs, ``batch x n' x d``.
            Y: The new outcomes in the user's units, ``batch x n' x m``, NaN where an outcome was not observed.
            noise: The noise variances of Y in *transformed* units, as in BoTorch, ``batch x n' x m``; required if the
                model was made with ``train_Yvar``.
            **kwargs: Passed to GPyTorch.

        Raises:
            TypeError: If X or Y is not a floating point tensor.
            ValueError: If X has another d, dtype or device than the data, Y has another n' or m, X holds NaN, X or Y
                holds inf, all of Y is NaN, or a required noise is missing.
        """
        check_points(X, self.num_inputs, self.train_inputs[0])
        check_floating("Y", Y)
        if Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise ValueError(
                f"Y must be of shape batch x {X.shape[-2]} x {self.num_outputs} for X of shape {tuple(X.shape)}, got "
                f"{tuple(Y.shape)}."
            )
        check_same_kind("Y", Y, "X", X)
        check_observed("Y", Y, "noise", noise)
        if Y.numel() and bool(Y.isnan().all()):
            raise ValueError("Y holds only NaN; give at least one observed outcome.")
        if noise is None and isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            raise ValueError(
                "The model was made with train_Yvar: new observations need noise= in transformed units. Alternatively, "
                "pass Yvar= in the user's units to add_observations."
            )
        self.eval()
        model = cast(Self, super().condition_on_observations(X, Y, noise=noise, **kwargs))
        if model._original_train_inputs is not None:
            # BoTorch does not expand the untransformed inputs over the fantasies' dimension.
            model._original_train_inputs = model._original_train_inputs.expand(model.train_inputs[0].shape)
        return model

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        """GPyTorch's ``get_fantasy_model``; it needs no earlier prediction, and targets may be NaN."""
        missing = targets.isnan()
        if new := bool(missing.any()):
            targets = targets.masked_fill(missing, 0.0)
            if kwargs.get("noise") is not None:
                kwargs["noise"] = kwargs["noise"].masked_fill(missing, 1.0)  # until the mean is known
        self._prepare_prediction()
        if self.prediction_strategy is None:
            self(*self.train_inputs)
        # GPyTorch deep-copies the model; the caches are removed so that they are not copied.
        cached, snapshot, leading = self._cached, self._snapshot, self._leading_factor
        self._cached = self._snapshot = self._leading_factor = None
        try:
            with gpytorch.settings.max_cholesky_size(torch.iinfo(torch.int64).max), NOISE_AS_GIVEN:
                model = cast(Self, super().get_fantasy_model(inputs, targets, **kwargs))
        finally:
            self._cached, self._snapshot, self._leading_factor = cached, snapshot, leading
        model._missing = self._missing_and(missing, model.train_targets.shape[:-1])
        if new:
            if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
                noise = model.likelihood.noise_covar
                noise.noise = filled_noise(noise.noise, cast(Tensor, model._missing))
            model._clear_cache()
        elif not (inputs.requires_grad or targets.requires_grad):
            keep_updated_mean_cache(model.prediction_strategy)
        model._snapshot = ModelSnapshot(model)
        model._leading_factor = leading if cached is None else cached.conditioning.factor
        return model

    def subset_output(self, idcs: list[int]) -> Self:
        """BoTorch's ``subset_output``: a copy of the model with the outcomes ``idcs``."""
        model = cast(Self, super().subset_output(idcs))
        original = model._original_train_inputs
        if original is not None and model.num_outputs < self.num_outputs:
            model._original_train_inputs = original[..., idcs if len(idcs) > 1 else idcs[0], :, :]
        if self._missing is not None and model.num_outputs < self.num_outputs:
            model._missing = self._missing[..., idcs if len(idcs) > 1 else idcs[0], :]
        return model

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """BoTorch's ``load_state_dict``; the inputs are transformed again with the loaded coefficients."""
        training = self.training
        self.train()
        try:
            return super().load_state_dict(*args, **kwargs)
        finally:
            self.train(training)
            self._clear_cache()

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """GPyTorch's ``set_train_data``, in training or evaluation mode.

        Inputs are in the user's units, targets in transformed units. A NaN target was not observed.
        """
        if targets is not None:
            missing = targets.isnan()
            self._missing = missing if bool(missing.any()) else None
            targets = targets.masked_fill(missing, 0.0)
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
        """The transformed inputs of observations, ``batch x n x d``."""
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
        """The conditioning of the present data and hyper-parameters, recomputed if either has changed."""
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
        """Clears the caches if data, hyper-parameters or modules have changed since they were filled."""
        if self._snapshot is not None and self._snapshot.matches(self):
            return
        self._clear_cache()
        if self._has_transformed_inputs and self._original_train_inputs is not None:
            # The input transform may have changed.
            ExactGP.set_train_data(self, self._transformed_data(self._original_train_inputs), strict=False)
        self._snapshot = ModelSnapshot(self)

    def _made(self, detach: bool) -> CachedConditioning:
        """Computes the conditioning of the present data, from a new factor or by extending the leading factor."""
        X, leading = self.train_inputs[0], self._leading_factor if detach else None
        if detach:
            X = X.detach().clone()
        elif self._has_transformed_inputs and self._original_train_inputs is not None:
            # BoTorch transforms the training inputs without a graph.
            X = self.input_transform.preprocess_transform(self._original_train_inputs)
        check_kernel(self.covar_module, X.shape[-1])
        kernel = snapshot(self.covar_module, detach)
        known = 0 if leading is None or self._missing is not None else leading.shape[-1]
        noise = torch.diag_embed(self._noise(X, self.train_targets.shape))[..., known:, :]
        if leading is None or self._missing is not None:
            covariance = kernel_values(kernel, X, X)
            covariance = covariance + noise
            factor = jittered_factor(silenced(covariance, self._missing), torch.diagonal(covariance, dim1=-2, dim2=-1))
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
        """The likelihood's noise variance at every observation, ``batch x n``, float64."""
        zeros = torch.zeros(shape, dtype=X.dtype, device=X.device)
        silent = MultivariateNormal(zeros, ZeroLinearOperator(*shape, shape[-1], dtype=X.dtype, device=X.device))
        noise = self.likelihood(silent, [X]).lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2).double()
        if not bool((noise.isfinite() & (noise >= 0)).all()):
            raise ValueError(f"The likelihood's noise must be finite and non-negative, got {noise.min().item():g}.")
        return noise

    @outside_inference_mode
    def _prepare_prediction(self) -> None:
        """Fills GPyTorch's caches from the Cholesky factor if they are empty."""
        self._forget_what_changed()
        if self.prediction_strategy is None:
            # GPyTorch fills its own caches for kernels that only GPyTorch can evaluate.
            with suppress(OpaqueKernelError):
                self.prediction_strategy = make_prediction_strategy(self, self.conditioning, self._missing)

    def _prior_of_observed(self, prior: MultivariateNormal) -> MultivariateNormal:
        """The prior of the targets in which missing targets contribute a factor of 1 to the likelihood."""
        missing = cast(Tensor, self._missing)
        variance = SILENT - self._noise(self.train_inputs[0], missing.shape).to(prior.mean)
        covariance = apart(prior.lazy_covariance_matrix.to_dense(), missing, variance)
        return MultivariateNormal(torch.where(missing, self.train_targets, prior.mean), to_linear_operator(covariance))

    def _missing_and(self, new: Tensor, batch: torch.Size | None = None) -> Tensor | None:
        """The mask of missing targets, ``batch x (n + n')``, after new ones are appended; None if none is missing."""
        if self._missing is None and not bool(new.any()):
            return None
        old = torch.zeros_like(self.train_targets, dtype=torch.bool) if self._missing is None else self._missing
        batch = new.shape[:-1] if batch is None else batch
        return torch.cat([part.expand(*batch, part.shape[-1]) for part in (old, new)], dim=-1)

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        Y, Yvar = super()._extract_targets_and_noise()
        if self._missing is not None:
            Y = Y.masked_fill(self._missing.mT if self.num_outputs > 1 else self._missing.unsqueeze(-1), torch.nan)
        return Y, Yvar


def derivatives_are_asked_for() -> bool:
    """Whether BoTorch's or GPyTorch's settings request derivatives in data and hyper-parameters."""
    return botorch_settings.propagate_grads.on() or gpytorch.settings.detach_test_caches.off()
