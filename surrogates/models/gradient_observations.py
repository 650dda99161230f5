"""A GP conditioned on function values and on observed derivatives.

References:
    D. Eriksson, K. Dong, E. Lee, D. Bindel and A. G. Wilson, Scaling Gaussian process regression with
    derivatives, NeurIPS 2018 (the joint covariance, which GPyTorch's ``RBFKernelGrad`` forms).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self, cast

import torch
from botorch.exceptions import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.likelihood import Likelihood
from gpytorch.means import Mean
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from surrogates.checks import check_data, check_every_outcome
from surrogates.derivative_conditioning import DerivativeConditioning, Observations
from surrogates.inference import outside_inference_mode
from surrogates.kernels.blocks import check_kernel, kernel_values, snapshot
from surrogates.kernels.jets import jet_width, unit_jets
from surrogates.kernels.makers import NOISE_AS_GIVEN, gaussian_likelihood
from surrogates.linalg.cholesky import extended_factor, jittered_factor
from surrogates.models.caches import CachedConditioning, ModelSnapshot, prior_mean
from surrogates.models.derivative_data import (
    DerivativeNoise,
    check_derivatives,
    joined_entries,
    observed_somewhere,
    rows_with_data,
)
from surrogates.models.gradient_model import GradientModel
from surrogates.models.transforms import check_input_slope, input_chain, is_affine_input
from surrogates.models.unobserved import silenced
from surrogates.normal import UnitFreeNormal


class GradientObservationGP(GradientModel):
    """A GP conditioned on values, gradients and, optionally, Hessians observed at n points.

    Any entry may be NaN, which means not observed; a point may have a gradient and no value. Conditioning on N observed
    entries takes O(N³), by Cholesky in float64. The model has the posteriors of ``DerivedGP``, in the user's units.
    Values are standardised as y' = (y − mean)/scale; derivatives are divided by the scale.

    ``condition_on_observations`` and ``fantasize`` add values only; ``add_observations`` adds derivatives too.

    Args:
        train_X: The inputs, ``batch x n x d``.
        train_Y: The outcomes, ``batch x n x m``, modelled independently.
        train_G: The gradients, in outcome units per unit of input, ``batch x n (x m) x d``.
        train_Yvar: The noise variances of the values, ``batch x n x m``. With None, one noise variance is inferred for
            the values and derivatives of an outcome, for inputs of about unit range. NaN values may have NaN variances.
        train_Gvar: The noise variances of ``train_G``, of the same shape; required with ``train_Yvar``.
        covar_module: The kernel of the values: any kernel of ``DerivedGP`` that has ∂²k/∂x∂x'. The default is a scaled
            ARD ``MaternKernel(nu=2.5)``. ``RBFKernelGrad`` and ``Matern52KernelGrad`` have the same effect as
            ``RBFKernel`` and ``MaternKernel(nu=2.5)``.
        train_H: The symmetric Hessians, in outcome units per squared unit of input, ``batch x n (x m) x d x d``, or
            None. One of the entries (i, j) and (j, i) may be NaN. They need a kernel with four derivatives.
        train_Hvar: The noise variances of ``train_H``, of the same shape; required with ``train_Yvar``. For i < j the
            variance at (i, j) is used unless it is NaN, otherwise that at (j, i).
        mean_module: Any GPyTorch mean.
        likelihood: A Gaussian likelihood with one noise variance, or None.
        outcome_transform: ``Standardize`` (the default), chains of it, or None.
        input_transform: An elementwise, differentiable input transform, as in ``DerivedGP``.

    Raises:
        TypeError: If data are not floating point tensors, or the kernel is not supported.
        ValueError: If shapes, dtypes or devices do not match, an outcome has no observed value, an entry is infinite, a
            variance is negative or missing, the outcome transform is nonlinear, or the kernel or the input transform
            does not have the derivatives that are needed.
    """

    likelihood: Any
    _entries: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_G: Tensor,
        train_Yvar: Tensor | None = None,
        train_Gvar: Tensor | None = None,
        covar_module: Kernel | None = None,
        *,
        train_H: Tensor | None = None,
        train_Hvar: Tensor | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        check_data(train_X, train_Y, train_Yvar, num_outputs=None, unobserved=True)
        check_every_outcome(train_Y)
        check_derivatives("train_", train_X, train_Y, train_Yvar, train_G, train_Gvar, train_H, train_Hvar)
        check_input_slope(input_transform)
        d, m = train_X.shape[-1], train_Y.shape[-1]
        if covar_module is not None:
            check_kernel(covar_module, d, of_derivatives=True)
        batch = torch.Size([*train_X.shape[:-2], *((m,) if m > 1 else ())])
        if likelihood is None and train_Yvar is None:
            likelihood = gaussian_likelihood(1e-4, dtype=train_X.dtype, batch_shape=batch)
        kernel = covar_module or ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d, batch_shape=batch), batch_shape=batch)
        self._order = 1 if train_H is None else 2
        X, Y, Yvar, *derivatives = rows_with_data(
            train_X, train_Y, train_Yvar, train_G, train_Gvar, train_H, train_Hvar
        )
        super().__init__(X, Y, Yvar, likelihood, kernel, mean_module, outcome_transform, input_transform)
        if covar_module is None:
            self._subset_batch_dict = {
                "mean_module.raw_constant": -1,
                "covar_module.raw_outputscale": -1,
                "covar_module.base_kernel.raw_lengthscale": -3,
                "likelihood.noise_covar.raw_noise": -2,
            }
        values, noise = self.train_targets, self.likelihood.noise if self._fixed_noise else None
        if self._missing is not None:
            values = values.masked_fill(self._missing, torch.nan)
        with torch.no_grad():
            z = self.transform_inputs(self.train_inputs[0])[..., :1, :]
            unit_jets(snapshot(kernel), z, z, self._order, self._order)
        self._observe(*self._entries_of(values, noise, *derivatives))

    @property
    def _fixed_noise(self) -> bool:
        return isinstance(self.likelihood, FixedNoiseGaussianLikelihood)

    @property
    def _width(self) -> int:
        """The number of entries at each point."""
        return jet_width(self.num_inputs, self._order)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior of the observed entries, ``batch x N``, in training mode; of the values at x in evaluation mode.

        Raises:
            UnsupportedError: If x is the model's own ``train_inputs[0]``, as in BoTorch's ``loo_cv``.
        """
        if x is self.train_inputs[0]:
            raise UnsupportedError(
                "loo_cv does not support observed derivatives. Make a model without each point in turn instead: "
                "GradientObservationGP(X[others], Y[others], G[others])."
            )
        kernel = snapshot(self.covar_module, detach=False)
        if self.training:
            observations = self._observations(x, *input_chain(getattr(self, "input_transform", None), x, True))
            mean, covariance = observations.mean(self.mean_module, True), observations.covariance(kernel)
            return MultivariateNormal(mean.to(x), to_linear_operator(covariance.to(x)))
        return MultivariateNormal(self.mean_module(x), to_linear_operator(kernel_values(kernel, x, x).to(x)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """GPyTorch's call, in transformed units.

        In training it is the prior of the observed entries, in evaluation the posterior of the values, ``batch x q``.
        """
        if self.training or settings.prior_mode.on():
            # Views: forward recognises loo_cv by its use of the data's own tensor.
            return super().__call__(*(x.view_as(x) for x in args), **kwargs)
        (x,), conditioning = args, self.conditioning
        return UnitFreeNormal(self._mean(conditioning, x), conditioning.value_covariance(x, x).to(x))

    def add_observations(
        self,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        G: Tensor | None = None,
        Gvar: Tensor | None = None,
        H: Tensor | None = None,
        Hvar: Tensor | None = None,
    ) -> None:
        """Conditions the model on more observations in place; the factor is recomputed at the next use.

        Hyper-parameters and transforms are not refitted. If an error is raised, the model is unchanged.

        Args:
            X: The new inputs, ``batch x n' x d``.
            Y: The new outcomes, ``batch x n' x m``. Any entry of Y, G and H may be NaN, which means not observed.
            Yvar: The noise variances of Y in the user's units; required with ``train_Yvar``, otherwise not accepted.
            G: The new gradients, ``batch x n' (x m) x d``, or None if none was observed.
            Gvar: The noise variances of G; required if G and ``Yvar`` are given.
            H: The new Hessians, ``batch x n' (x m) x d x d``, or None; not accepted without ``train_H``.
            Hvar: The noise variances of H; required if H and ``Yvar`` are given.

        Raises:
            TypeError: If an argument is not a floating point tensor.
            ValueError: If shapes, dtypes or devices do not match, an entry is infinite, or a variance is missing,
                negative or not accepted.
        """
        self._check_new(X, Y, Yvar)
        if H is not None and self._order == 1:
            raise ValueError("H needs a model that was made with train_H; make a new model.")
        shape = (*X.shape[:-1], *((self.num_outputs,) if self.num_outputs > 1 else ()), self.num_inputs)
        G = X.new_full(shape, torch.nan) if G is None else G
        H = X.new_full((*shape, self.num_inputs), torch.nan) if H is None and self._order == 2 else H
        if Yvar is not None:
            Gvar, Hvar = (
                torch.full_like(t, torch.nan) if t is not None and v is None and bool(t.isnan().all()) else v
                for t, v in ((G, Gvar), (H, Hvar))
            )
        check_derivatives("", X, Y, Yvar, G, Gvar, H, Hvar)
        X, Y, Yvar, *derivatives = rows_with_data(X, Y, Yvar, G, Gvar, H, Hvar)
        self.eval()
        with torch.no_grad():
            original, z, values, noise = self._transformed(X, Y, Yvar)
            targets, variances = self._entries_of(values, noise, *derivatives)
            known, before = self._all_entries(self._seen_targets), None
            if variances is not None:
                before = torch.cat([self._all_entries(self.likelihood.noise_covar.noise), variances], dim=-1)
            if self._original_train_inputs is not None:
                self._original_train_inputs = torch.cat([self._original_train_inputs, original], dim=-2)
            ExactGP.set_train_data(self, torch.cat([self.train_inputs[0], z], dim=-2), strict=False)
            self._observe(torch.cat([known, targets], dim=-1), before)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        """GPyTorch's ``get_fantasy_model``: a copy that is also conditioned on new values.

        All fantasies share the factor of the model's data.

        Args:
            inputs: The new inputs in transformed units, ``batch x n' x d``.
            targets: The new values in transformed units, ``batch x n'``.
            **kwargs: ``noise``, the variances of the new values, ``batch x n'``; required if the model has
                ``train_Yvar``. If the model infers its noise, ``noise`` fixes all noise variances of the copy.
        """
        noise, (z,) = kwargs.get("noise"), self.train_inputs
        shapes = (z.shape[:-2], inputs.shape[:-2], targets.shape[:-1])
        try:
            batch = torch.broadcast_shapes(*shapes)
        except RuntimeError:
            own, X, Y = map(tuple, shapes)
            raise ValueError(f"Batch shapes must broadcast; the model has {own}, X has {X} and Y has {Y}.") from None
        conditioning = self._current().conditioning

        def joined(old: Tensor, new: Tensor, dims: int) -> Tensor:
            return torch.cat([t.expand(*batch, *t.shape[t.dim() - dims :]) for t in (old, new)], dim=-dims)

        missing = targets.isnan()
        tensors = [z, self.train_targets, self._original_train_inputs]
        tensors += [self.likelihood.noise_covar.noise] if self._fixed_noise else []
        # deepcopy refuses tensors with a graph; clone accepts them.
        model = copy.deepcopy(self, {id(t): t.clone() for t in tensors if t is not None})
        new = (z.shape[-2] + torch.arange(inputs.shape[-2], device=z.device)) * self._width
        ExactGP.set_train_data(
            model, joined(z, inputs, 2), joined(self.train_targets, targets.masked_fill(missing, 0.0), 1), strict=False
        )
        model._entries = torch.cat([self._entries, new])
        model._missing = self._missing_and(missing, batch)
        if noise is not None:
            model._set_noise(joined(self._noise(z, self.train_targets.shape).to(noise), noise, 1))
        model._leading_factor = conditioning.factor.detach() if self._leading_factor is None else self._leading_factor
        model._snapshot = ModelSnapshot(model)
        return model

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """GPyTorch's ``set_train_data``, with inputs in the user's units and targets in transformed units.

        Args:
            inputs: The inputs, ``batch x n x d``, or None to keep the inputs.
            targets: All entries of the n points, NaN if not observed; the N observed entries, if the same entries are
                observed as before; or None to keep the targets.
            strict: Whether shape, dtype and device must stay the same.

        Raises:
            RuntimeError: If ``strict`` and a shape, dtype or device changes.
            ValueError: If inputs, targets and fixed noise do not match.
        """
        X = self.train_inputs[0] if inputs is None else (inputs if isinstance(inputs, Tensor) else inputs[0])
        given, entries = self.train_targets if targets is None else targets, self._entries
        every = X.shape[-2] * self._width
        if targets is not None and targets.shape[-1] == every:
            entries = observed_somewhere(targets)
            targets = targets[..., entries]
        elif X.shape[-2] != self.train_inputs[0].shape[-2] or given.shape[-1] != len(entries):
            raise ValueError(
                f"For inputs of shape {tuple(X.shape)} targets must hold all {every} entries, NaN if not observed, "
                f"got {given.shape[-1]}."
            )
        if self._fixed_noise and len(entries) != self.likelihood.noise_covar.noise.shape[-1]:
            raise ValueError("The model's fixed noise belongs to other observations; make a new model.")
        super().set_train_data(inputs, targets, strict)
        self._entries = entries

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True, keep_transforms: bool = True, **assign: bool
    ) -> Any:
        """BoTorch's ``load_state_dict``; ``keep_transforms=False`` keeps the data in transformed units instead."""
        scale, shift = (None if t is None else t.clone() for t in (self.outcome_scale, self.outcome_shift))
        result = super().load_state_dict(state_dict, strict, False, **assign)
        if keep_transforms and scale is not None and shift is not None:
            values = self._are_values
            new_scale, new_shift = cast(Tensor, self.outcome_scale), cast(Tensor, self.outcome_shift)
            targets = (self._seen_targets * scale + torch.where(values, shift - new_shift, 0.0)) / new_scale
            self._missing = None
            if self._fixed_noise:
                self._set_noise(self.likelihood.noise_covar.noise * (scale / new_scale) ** 2)
            self.set_train_data(targets=targets)
        return result

    @property
    def _are_values(self) -> Tensor:
        """A mask of the N targets: True for values, False for derivatives."""
        return self._entries % self._width == 0

    @property
    def _seen_targets(self) -> Tensor:
        """The targets, ``batch (x m) x N``, NaN if an element of the batch has no observation."""
        return self.train_targets if self._missing is None else self.train_targets.masked_fill(self._missing, torch.nan)

    def _observations(self, x: Tensor, z: Tensor, slope: Tensor | None, bend: Tensor | None) -> Observations:
        if slope is not None and slope.dim() == x.dim() - 1 + (self.num_outputs == 1) and self.num_outputs > 1:
            slope = slope.unsqueeze(-3)
        return Observations(z, self._order, self._entries, slope, bend)

    def _made(self, detach: bool) -> CachedConditioning:
        """Computes the conditioning of the present data, from a new factor or by extending the leading factor."""
        (X,), transform = self.train_inputs, getattr(self, "input_transform", None)
        check_kernel(self.covar_module, X.shape[-1], of_derivatives=True)
        original = X if self._original_train_inputs is None else self._original_train_inputs
        z, slope, bend = input_chain(transform, original, not detach)
        if transform is None or not any(p.requires_grad for p in transform.parameters()):
            z = X  # fantasies may carry derivatives in X
        z = z.detach().clone() if detach else z
        observations, kernel = self._observations(original, z, slope, bend), snapshot(self.covar_module, detach)
        observations.check_second_derivatives(kernel)
        noise = torch.diag_embed(self._noise(X, self.train_targets.shape))
        leading = self._leading_factor if detach and self._missing is None else None
        if leading is None:
            factor = self._factor(observations.covariance(kernel) + noise)
        else:
            known = leading.shape[-1]
            new = observations.after(int(self._entries[known - 1]) // self._width + 1)
            factor = extended_factor(leading, new.covariance(kernel, observations) + noise[..., known:, :])
        residuals = (self.train_targets - observations.mean(self.mean_module, not detach)).double()
        alpha = torch.cholesky_solve(residuals.unsqueeze(-1), factor).squeeze(-1)
        mean, scale = prior_mean(self.mean_module, detach), self.outcome_scale
        constant = observations.slope if is_affine_input(transform) else None
        made = DerivativeConditioning(kernel, mean, z, factor, alpha, constant, observations=observations)
        return CachedConditioning(made, None if scale is None else scale.clone())

    def _factor(self, covariance: Tensor) -> Tensor:
        """The factor of the observations' covariance, scaled to unit variances before a jitter is added.

        Values and derivatives have different units. The scales are powers of two, so that scaling does not round.
        """
        diagonal = torch.diagonal(covariance, dim1=-2, dim2=-1)
        if bool(diagonal.isnan().any()):
            raise ValueError(
                "A derivative was given for an input in which the kernel has none, such as a category; pass NaN there."
            )
        units = torch.exp2(diagonal.detach().log2().div(2.0).round())
        scaled = covariance / units.unsqueeze(-1) / units.unsqueeze(-2)
        own = torch.diagonal(scaled, dim1=-2, dim2=-1)
        return units.unsqueeze(-1) * jittered_factor(silenced(scaled, self._missing), own)

    @outside_inference_mode
    def _prepare_prediction(self) -> None:
        """Does nothing: GPyTorch's caches are not used."""

    def _observe(self, targets: Tensor, noise: Tensor | None) -> None:
        """Sets all n·e entries as targets, ``batch (x m) x n·e``, NaN if not observed."""
        self._entries = observed_somewhere(targets)
        missing = targets[..., self._entries].isnan()
        self._missing = missing if bool(missing.any()) else None
        ExactGP.set_train_data(self, targets=targets[..., self._entries].masked_fill(missing, 0.0), strict=False)
        if noise is not None:
            self._set_noise(noise[..., self._entries])
        self._clear_cache()

    def _set_noise(self, noise: Tensor) -> None:
        """Fixes the targets' noise variances, ``batch (x m) x N``; missing targets get the mean of the values'."""
        if self._missing is not None:
            known = noise.masked_fill(self._missing, torch.nan)[..., self._are_values]
            noise = torch.where(self._missing, known.nanmean(-1, keepdim=True), noise)
        with NOISE_AS_GIVEN:
            self.likelihood = DerivativeNoise(noise, self._are_values)

    def _all_entries(self, kept: Tensor) -> Tensor:
        """A quantity of the N targets, ``batch x N``, for all n·e entries, NaN for unobserved ones."""
        every = self.train_inputs[0].shape[-2] * self._width
        return kept.new_full((*kept.shape[:-1], every), torch.nan).index_copy(-1, self._entries, kept)

    def _entries_of(
        self, values: Tensor, noise: Tensor | None, *derivatives: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """All entries in transformed units, ``batch (x m) x n·e``, and their noise variances."""
        scale = self.outcome_scale
        unit = values.new_ones(1) if scale is None else scale
        G, Gvar, H, Hvar = (
            t if t is None or self.num_outputs == 1 else t.movedim(values.dim() - 1, values.dim() - 2)
            for t in derivatives
        )
        G, Gvar, H, Hvar = (
            t if t is None else t / unit.pow(power)[(..., *(None,) * order)]
            for t, order, power in ((G, 1, 1), (Gvar, 1, 2), (H, 2, 1), (Hvar, 2, 2))
        )
        return joined_entries(values, G, H), None if noise is None else joined_entries(noise, Gvar, Hvar)
