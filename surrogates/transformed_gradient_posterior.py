"""The posterior of a gradient under a nonlinear outcome transform."""

from __future__ import annotations

import copy

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from surrogates.inference import outside_inference_mode
from surrogates.normal import UnitFreeMultitaskNormal
from surrogates.point_posterior import PointPosterior


class TransformedGradientPosterior(PointPosterior):
    """The posterior of ∇f for f = g(h), where h is a GP and g is the inverse of the outcome transform.

    h and ∇h are jointly Gaussian, but ∇f = g'(h) ∇h is not if g is nonlinear, as for ``Log`` and ``Power``. The
    posterior has exact joint samples and the delta-method mean g'(E h) E∇h, which is the gradient of the median of f if
    g is monotone. The moments of ∇f have no general formula, and some do not exist, so ``mean`` and ``variance`` raise
    an error. Create it with ``surrogates.DerivedGP.transformed_gradient_posterior``.

    Args:
        joint: The mean, ``batch (x m) x q x (d+1)``, and the covariance, ``batch (x m) x q(d+1) x q(d+1)``, of (h, ∇h).
        outcome_transform: The transform that g inverts, in evaluation mode, or None for g(h) = h.
        X: The points in the user's units, ``batch x q x d``.
        num_outputs: The number m of outcomes.
    """

    def __init__(
        self, joint: tuple[Tensor, Tensor], outcome_transform: OutcomeTransform | None, X: Tensor, num_outputs: int
    ) -> None:
        super().__init__(X.clone(), num_outputs > 1)
        self._mean, covariance = joint
        self._joint = GPyTorchPosterior(UnitFreeMultitaskNormal(self._mean, covariance))
        self._transform = copy.deepcopy(outcome_transform)

    @property
    def _about(self) -> str:
        through = type(self._transform).__name__
        return f"outcome per unit of input, not Gaussian through {through}: samples and delta_method_mean"

    @property
    @outside_inference_mode
    def delta_method_mean(self) -> Tensor:
        """The delta-method mean g'(E h) E∇h, ``batch x q (x m) x d``, a first-order approximation of the mean."""
        return self._chained(self._mean)

    @property
    def mean(self) -> Tensor:
        """Not available: raises a NotImplementedError. Use ``delta_method_mean`` or the mean of samples."""
        raise self._not_gaussian("mean")

    @property
    def variance(self) -> Tensor:
        """Not available: raises a NotImplementedError. Use the variance of samples."""
        raise self._not_gaussian("variance")

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._shape

    @property
    def base_sample_shape(self) -> torch.Size:
        """``batch (x m) x q x (d+1)``: a standard normal number for each entry of h and ∇h."""
        return self._joint.base_sample_shape

    @outside_inference_mode
    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Samples from standard normal base samples, ``sample_shape x base_sample_shape``."""
        if not self._mean.numel():
            return base_samples.new_empty(self._extended_shape(torch.Size(sample_shape)))
        return self._chained(self._joint.rsample_from_base_samples(sample_shape, base_samples))

    @property
    def _shape(self) -> torch.Size:
        *batch, q, width = self._mean.shape
        if self._several_outputs:
            *batch, m = batch
            return torch.Size([*batch, q, m, width - 1])
        return torch.Size([*batch, q, width - 1])

    def _chained(self, joint: Tensor) -> Tensor:
        """g'(h) ∇h, ``... x q (x m) x d``, from (h, ∇h), ``... (x m) x q x (d+1)``."""
        value, gradient = joint[..., 0], joint[..., 1:]
        value = value.mT if self._several_outputs else value.unsqueeze(-1)
        with torch.enable_grad():
            h = value if value.requires_grad else value.detach().requires_grad_(True)
            outcome = h if self._transform is None else self._transform.untransform(h, X=self._x)[0]
            (slope,) = torch.autograd.grad(outcome.sum(), h, create_graph=value.requires_grad)
        return gradient.transpose(-3, -2) * slope.unsqueeze(-1) if self._several_outputs else gradient * slope

    def _not_gaussian(self, moment: str) -> NotImplementedError:
        return NotImplementedError(
            f"The gradient is not Gaussian under outcome_transform {type(self._transform).__name__}, and its {moment} "
            "has no closed form. Use delta_method_mean, or the moments of samples from rsample."
        )
