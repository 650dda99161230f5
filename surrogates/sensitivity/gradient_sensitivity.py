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

_MORE, _FEW = 16, 32


class GradientSensitivity:
    """What a model's gradient says of the inputs' importance, over a box or a sample of the inputs.

    Averages are over N points: those of the sample, or scrambled Sobol' points of the box. f and ∇f at all of them
    are jointly normal, and their joint samples give the posterior of every average, O((Nd)³) once. Averages over a
    box have an integration error beside their posterior uncertainty, which more points make smaller. The posterior
    mean of E ∇f ∇fᵀ over a box is computed in closed form where there is one (RBF kernel, constant mean, affine input
    transform) and otherwise at 16 N Sobol' points, and the sampled ∂ᵢf are multiplied by one number for each input so
    that the posterior mean of E (∂ᵢf)² is this one.

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
        draws = positive_integer("num_samples", num_samples)
        points = averaging_points(bounds, X, num_points, seed)
        self._widths = None if bounds is None else bounds[1] - bounds[0]
        self._scale = points.std(0) if self._widths is None else self._widths
        joint, covariance = joint_moments(model, points)
        mean, parts = joint.mean, is_ensemble(model)
        at_points = outer = _mean_outer_product(joint, covariance)
        if bounds is not None:
            outer = mean_outer_product(model, bounds)
            outer = _outer_product_at_more_points(model, bounds, num_points, seed) if outer is None else outer
        measure = torch.diagonal(outer, dim1=-2, dim2=-1)
        # Samples and variances at the N points follow the mean, whose integration error is smaller.
        ratio = measure / torch.diagonal(at_points, dim1=-2, dim2=-1).clamp_min(torch.finfo(mean.dtype).tiny)
        variance = _measure_variance(mean, covariance) * ratio.square()
        count = -(-draws // (mean.shape[MCMC_DIM] if parts else 1))
        generator = torch.Generator().manual_seed(check_integer("seed", seed, 0))
        base = torch.randn(count, *mean.shape, generator=generator, dtype=torch.float64).to(mean)
        samples = joint.distribution.rsample(base_samples=base)
        values, gradients = samples[..., 0], samples[..., 1:] * ratio.sqrt().unsqueeze(-2)
        if parts:
            values, gradients = values.movedim(-2, 0).flatten(0, 1), gradients.movedim(MCMC_DIM, 0).flatten(0, 1)
            variance = variance.mean(-2) + measure.var(-2, correction=0)
            outer = outer.mean(MCMC_DIM)
        self._outer, self._measure_variance, self._values, self._gradients = outer, variance, values, gradients

    def derivative_measure(self) -> Estimate:
        """ν_i = E (∂f/∂xᵢ)² over the inputs, ``batch x d``, in squared outcome units per squared unit of input.

        With m and Σ the posterior moments of ∂ᵢf at the N points, the mean over these has the posterior mean
        (‖m‖² + tr Σ)/N and the posterior variance (2 tr Σ² + 4 mᵀΣm)/N²: those of a quadratic form in normal variables.
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

        The posterior mean of C over a box under an RBF kernel is that of Wycoff, Binois and Wild (2021).

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


def _mean_outer_product(joint: Any, covariance: Tensor) -> Tensor:
    """The mean over the points of E ∇f ∇fᵀ, ``batch x d x d``."""
    gradient = joint.mean[..., 1:]
    own = torch.diagonal(covariance, dim1=-4, dim2=-2).mean(-1)[..., 1:, 1:]
    return gradient.mT @ gradient / gradient.shape[-2] + own


def _outer_product_at_more_points(model: Any, bounds: Tensor, num_points: int, seed: int) -> Tensor:
    """The mean of E ∇f ∇fᵀ over 16 times as many points of a box, of which few at a time need no large covariance."""
    points = averaging_points(bounds, None, _MORE * num_points, seed)
    few = [_mean_outer_product(*joint_moments(model, part)) * len(part) for part in points.split(_FEW)]
    return torch.stack(few).sum(0) / len(points)


def _measure_variance(mean: Tensor, covariance: Tensor) -> Tensor:
    """The variance of the mean square of every partial derivative over the points, ``batch x d``."""
    # Fourth powers of an outcome may leave the range of float32.
    gradient, N = mean[..., 1:].double(), mean.shape[-2]
    own = torch.diagonal(covariance, dim1=-3, dim2=-1)[..., 1:].double()
    along = torch.einsum("...pi,...pqi,...qi->...i", gradient, own, gradient)
    return ((2 * own.square().sum((-3, -2)) + 4 * along) / N**2).to(mean)
