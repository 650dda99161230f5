"""The base class of the derived GPs, with the posteriors of the gradient and the Hessian."""

from __future__ import annotations

from typing import cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from surrogates.checks import check_not_traced, check_points
from surrogates.conditioning import Conditioning
from surrogates.gradient_posterior import GradientPosterior
from surrogates.hessian_posterior import HessianPosterior
from surrogates.inference import outside_inference_mode
from surrogates.models.cholesky_gp import CholeskyGP, derivatives_are_asked_for
from surrogates.models.transforms import (
    check_input_slope,
    is_affine_input,
    is_affine_outcome,
    outcome_scale,
    outcome_shift,
    transformed_with_slope,
)
from surrogates.normal import UnitFreeMultitaskNormal
from surrogates.transformed_gradient_posterior import TransformedGradientPosterior


class GradientModel(CholeskyGP):
    """A Cholesky GP with posteriors of the gradient and the Hessian of f, in the user's units."""

    @outside_inference_mode
    def gradient_posterior(self, X: Tensor) -> GradientPosterior:
        """The Gaussian posterior of ∇f at X, in outcome units per unit of input.

        With m > 1 outcomes, the shape of the mean is ``batch x q x m x d``.

        Args:
            X: The points, ``batch x q x d``.

        Raises:
            TypeError: If X is not a floating point tensor.
            ValueError: If X has another d, dtype or device than the data, or holds NaN or inf; if the input transform
                is not elementwise and differentiable; or if the outcome transform is nonlinear, under which the
                gradient is not Gaussian (use ``transformed_gradient_posterior``).
        """
        current = self._current()
        self._affine_outcome_transform()
        z, slope, _ = self._points(X)
        return GradientPosterior(current.conditioning, z, current.outcome_scale, None, slope, self.num_outputs > 1)

    @outside_inference_mode
    def hessian_posterior(self, X: Tensor) -> HessianPosterior:
        """The Gaussian posterior of ∇²f at X, in outcome units per squared unit of input.

        With m > 1 outcomes, the shape of the mean is ``batch x q x m x d x d``. X and errors are as in
        ``gradient_posterior``; Matérn 1/2 raises a ValueError too.
        """
        current = self._current()
        self._affine_outcome_transform()
        z, slope, bend = self._points(X)
        chain = None if slope is None or bend is None else (slope, bend)
        return HessianPosterior(current.conditioning, z, current.outcome_scale, self.num_outputs > 1, chain)

    @outside_inference_mode
    def transformed_gradient_posterior(self, X: Tensor) -> TransformedGradientPosterior:
        """The posterior of ∇f at X under any outcome transform; it gives samples and a delta-method mean.

        X and errors are as in ``hessian_posterior``, except that the outcome transform may be nonlinear.
        """
        conditioning = self.conditioning
        joint = self._joint(conditioning, *self._points(X)[:2])
        return TransformedGradientPosterior(joint, getattr(self, "outcome_transform", None), X, self.num_outputs)

    @outside_inference_mode
    def joint_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of (f, ∇f), event shape ``q x (d+1)``, in GPyTorch's interleaved order.

        For RBF and Matérn 5/2 it is the posterior of ``RBFKernelGrad`` and ``Matern52KernelGrad`` given values only.
        The covariance is dense, ``q(d+1) x q(d+1)``. With m > 1 independent outcomes, m is the last batch dimension. X
        and errors are as in ``gradient_posterior``; Matérn 1/2 raises a ValueError too.
        """
        conditioning = self.conditioning
        z, slope, _ = self._points(X)
        scale, shift = self.outcome_scale, self.outcome_shift
        mean, covariance = self._joint(conditioning, z, slope)
        if scale is not None:
            mean = mean * scale.unsqueeze(-1)
            covariance = covariance * scale.unsqueeze(-1).square()
        if shift is not None:
            mean = torch.cat([mean[..., :1] + shift.unsqueeze(-1), mean[..., 1:]], dim=-1)
        return GPyTorchPosterior(UnitFreeMultitaskNormal(mean, covariance))

    @outside_inference_mode
    def value_gradient_covariance(self, X: Tensor, X_gradient: Tensor) -> Tensor:
        """The posterior covariance of f(x) and ∇f(x') for every pair of points, ``batch (x m) x q x q' x d``.

        Errors are as in ``joint_posterior``.

        Args:
            X: The points x of the values, ``batch x q x d``.
            X_gradient: The points x' of the gradients, ``batch x q' x d``.
        """
        conditioning = self.conditioning
        check_points(X_gradient, self.num_inputs, conditioning.X, "X_gradient")
        values, (gradients, slope, _) = self._points(X)[0], self._points(X_gradient)
        covariance = conditioning.value_gradient_covariance(values, gradients).to(X)
        covariance = covariance if slope is None else covariance * slope.unsqueeze(-3)
        scale = self.outcome_scale
        return covariance if scale is None else covariance * scale.square()[..., None, None]

    @property
    def outcome_scale(self) -> Tensor | None:
        """The slope dy/dy' of the outcome transform, ``batch (x m) x 1``, or None if it is 1."""
        return outcome_scale(self._affine_outcome_transform())

    @property
    def outcome_shift(self) -> Tensor | None:
        """The outcome whose transformed value is 0, ``batch (x m) x 1``, or None if it is 0."""
        return outcome_shift(self._affine_outcome_transform())

    def _affine_outcome_transform(self) -> OutcomeTransform | None:
        transform = cast(OutcomeTransform | None, self._modules.get("outcome_transform"))
        if transform is not None and not is_affine_outcome(transform):
            raise ValueError(
                f"outcome_transform {type(transform).__name__} is not linear, so that the gradient is not Gaussian. "
                "Use transformed_gradient_posterior for samples and a delta-method mean, or model the transformed "
                "outcomes, whose gradient is Gaussian."
            )
        return transform

    def _points(self, X: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The transformed points, ``batch (x 1) x q x d``, dz/dx and d²z/dx² there, or None if dz/dx is constant.

        They share no storage with X.
        """
        X = self._for_all_samples(X)
        check_points(X, self.num_inputs, self.train_inputs[0])
        check_not_traced("X", X)
        # getattr of a missing attribute of a Module takes several microseconds; a dictionary look-up does not.
        transform = cast(InputTransform | None, self._modules.get("input_transform"))
        slope: Tensor | None = None
        bend: Tensor | None = None
        if transform is None:
            z = X.clone()
        elif is_affine_input(transform):
            z = transform(X)
            z = z.clone() if z is X else z
        else:
            check_input_slope(transform)
            wanted = torch.is_grad_enabled() and (X.requires_grad or derivatives_are_asked_for())
            z, slope, bend = transformed_with_slope(transform, X, wanted)
        if self.num_outputs == 1:
            return z, slope, bend
        slope, bend = (None if t is None else t.unsqueeze(-3) for t in (slope, bend))
        return z.unsqueeze(-3), slope, bend

    def _for_all_samples(self, X: Tensor) -> Tensor:
        """The points as the model takes them; a fully Bayesian model adds a dimension for its samples."""
        return X

    def _mean(self, conditioning: Conditioning, z: Tensor) -> Tensor:
        """The posterior mean of the values in the model's outcome units, ``... x q``."""
        prior = self.mean_module(z) if conditioning.prior_mean is None else conditioning.prior_mean(z)
        if conditioning.prior_mean is None and not conditioning.requires_grad:
            prior = prior.detach()
        return prior + (conditioning.across(z) @ conditioning.alpha.unsqueeze(-1)).squeeze(-1).to(z.dtype)

    def _joint(self, conditioning: Conditioning, z: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean, ``... x q x (d+1)``, and the dense covariance of (f, ∇f) in the model's outcome units."""
        value = self._mean(conditioning, z)
        gradient, covariance = conditioning.mean(z), conditioning.joint_covariance(z).to(z.dtype)
        if slope is not None:
            gradient = gradient * slope
            units = torch.cat([torch.ones_like(slope[..., :1]), slope], dim=-1).flatten(-2)
            covariance = covariance * units.unsqueeze(-1) * units.unsqueeze(-2)
        return torch.cat([value.unsqueeze(-1), gradient], dim=-1), covariance
