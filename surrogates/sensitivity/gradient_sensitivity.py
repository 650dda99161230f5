"""Derivative-based global sensitivity measures with their posterior uncertainty.

References:
    I. M. Sobol' and S. Kucherenko, Derivative based global sensitivity measures and their link with global sensitivity
        indices, Mathematics and Computers in Simulation 79, 2009.
    M. De Lozzo and A. Marrel, Estimation of the derivative-based global sensitivity measures using a Gaussian process
        metamodel, SIAM/ASA Journal on Uncertainty Quantification 4, 2016.
"""

from __future__ import annotations

from math import pi
from typing import Any

import torch
from botorch.posteriors.fully_bayesian import MCMC_DIM
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from surrogates.checks import check_integer, check_positive, positive_integer
from surrogates.inference import outside_inference_mode
from surrogates.sensitivity.active_subspace import ActiveSubspace
from surrogates.sensitivity.averages import averaging_points, joint_moments
from surrogates.sensitivity.closed_form import mean_outer_product
from surrogates.sensitivity.estimate import Estimate


class GradientSensitivity:
    """What a model's gradient says of the inputs' importance, over a box or a sample of the inputs.

    Averages are over N points: those of the sample, or scrambled Sobol' points of the box. f and ∇f at all of them
    are jointly normal, and their joint samples give the posterior of every average, O((Nd)³) once. Averages over a
    box have an integration error beside their posterior uncertainty; more points make it smaller.

    Shapes are those of one outcome; m > 1 outcomes are the last dimension of the batch. Of a fully Bayesian model the
    mixture over its hyper-parameters is taken; other models are taken as if their hyper-parameters were known.

    Args:
        model: A model with a ``joint_posterior`` of values and gradients, such as ``surrogates.DerivedGP``.
        bounds: The box over which averages are uniform, ``2 x d``. Either this or X is needed.
        X: The sample over which averages are taken, ``N x d``.
        num_points: N for a box. Powers of 2 are best.
        num_samples: S, the number of joint samples; of each of a fully Bayesian model's M parts they are ⌈S/M⌉.
        seed: The seed of the Sobol' points and of the samples.

    Raises:
        TypeError: If the model has no ``joint_posterior``, the box or sample is no floating point tensor, or a number
            is no integer.
        ValueError: If the box or sample does not fit, there are too many points for a joint covariance, the outcome
            transform is not linear, or sample paths have no gradient.

    Example:
        >>> sensitivity = GradientSensitivity(model, bounds=bounds)
        >>> sensitivity.total_index_bound().mean, sensitivity.total_index_bound().interval(0.95)
    """

    @outside_inference_mode
    @torch.no_grad()
    def __init__(
        self,
        model: Any,
        *,
        bounds: Tensor | None = None,
        X: Tensor | None = None,
        num_points: int = 256,
        num_samples: int = 512,
        seed: int = 0,
    ) -> None:
        points = averaging_points(bounds, X, num_points, seed)
        self._widths = None if bounds is None else bounds[1] - bounds[0]
        self._scale = points.std(0) if self._widths is None else self._widths
        joint, covariance = joint_moments(model, points)
        mean, parts = joint.mean, is_ensemble(model)
        closed_form = None if bounds is None else mean_outer_product(model, bounds)
        outer = _mean_outer_product(mean, covariance) if closed_form is None else closed_form
        measure, variance = torch.diagonal(outer, dim1=-2, dim2=-1), _measure_variance(mean, covariance)
        count = -(-positive_integer("num_samples", num_samples) // (mean.shape[MCMC_DIM] if parts else 1))
        generator = torch.Generator().manual_seed(check_integer("seed", seed, 0))
        base = torch.randn(count, *mean.shape, generator=generator, dtype=torch.float64).to(mean)
        samples = joint.distribution.rsample(base_samples=base)
        if parts:
            samples = samples.movedim(MCMC_DIM, 0).flatten(0, 1)
            variance = variance.mean(-2) + measure.var(-2, correction=0)
            outer = outer.mean(MCMC_DIM)
        self._outer, self._measure_variance = outer, variance
        self._values, self._gradients = samples[..., 0], samples[..., 1:]

    def derivative_measure(self) -> Estimate:
        """ν_i = E (∂f/∂xᵢ)² over the inputs, ``batch x d``, in squared outcome units per squared unit of input.

        The posterior mean is exact for a box under an RBF kernel, and at the N points otherwise, as the variance is:
        with m and Σ the moments of ∂ᵢf at the N points, (‖m‖² + tr Σ)/N and (2 tr Σ² + 4 mᵀΣm)/N².
        """
        mean = torch.diagonal(self._outer, dim1=-2, dim2=-1)
        return Estimate(mean, self._measure_variance, self._gradients.square().mean(-2))

    def total_index_bound(self) -> Estimate:
        """The upper bound ν_i (bᵢ − aᵢ)²/(π² V) on the total Sobol' index of every input, ``batch x d``.

        V is the variance of f over the box. Every sample has its own V, whose uncertainty is thus included
        (Sobol' and Kucherenko 2009, Theorem 2). The bound may exceed 1, and then says nothing.

        Raises:
            ValueError: If averages are over a sample: the bound holds for a uniform distribution.
        """
        if self._widths is None:
            raise ValueError("The bound on total Sobol' indices holds over a box; give bounds instead of X.")
        variance = self._values.var(-1, correction=0).unsqueeze(-1)
        return Estimate.from_samples(self._gradients.square().mean(-2) * self._widths.square() / (pi**2 * variance))

    def gradient_norm(self, scale: Tensor | None = None) -> Estimate:
        """E ‖s ∘ ∇f‖ over the inputs, ``batch``.

        Args:
            scale: The units s of the inputs, positive, ``d``. None stands for the widths of the box, or the standard
                deviations of the sample, which give outcome units; ones give E ‖∇f‖ in the user's units.

        Raises:
            ValueError: If an entry of the scale is not positive and finite.
        """
        return Estimate.from_samples((self._gradients * self._units(scale)).norm(dim=-1).mean(-1))

    def active_subspace(self, scale: Tensor | None = None) -> ActiveSubspace:
        """The posterior of C = E (s ∘ ∇f)(s ∘ ∇f)ᵀ over the inputs, and of its eigenvalues and eigenvectors.

        The posterior mean of C is in closed form for a box under an RBF kernel, constant mean and affine input
        transform (Wycoff, Binois and Wild 2021), and else at the N points.

        Args:
            scale: The units s of the inputs, as in ``gradient_norm``.

        Raises:
            ValueError: If an entry of the scale is not positive and finite.
        """
        s = self._units(scale)
        gradients = self._gradients * s
        samples = gradients.mT @ gradients / gradients.shape[-2]
        return ActiveSubspace(self._outer * s.unsqueeze(-1) * s, samples, s)

    def _units(self, scale: Tensor | None) -> Tensor:
        units = self._scale if scale is None else torch.as_tensor(scale).to(self._scale).expand(self._scale.shape)
        check_positive("scale", units)
        return units


def _mean_outer_product(mean: Tensor, covariance: Tensor) -> Tensor:
    """The mean over the points of E ∇f ∇fᵀ, ``batch x d x d``."""
    gradient = mean[..., 1:]
    own = torch.diagonal(covariance, dim1=-4, dim2=-2).mean(-1)[..., 1:, 1:]
    return gradient.mT @ gradient / mean.shape[-2] + own


def _measure_variance(mean: Tensor, covariance: Tensor) -> Tensor:
    """The variance of the mean square of every partial derivative over the points, ``batch x d``."""
    gradient, N = mean[..., 1:], mean.shape[-2]
    own = torch.diagonal(covariance, dim1=-3, dim2=-1)[..., 1:]
    along = torch.einsum("...pi,...pqi,...qi->...i", gradient, own, gradient)
    return (2 * own.square().sum((-3, -2)) + 4 * along) / N**2
