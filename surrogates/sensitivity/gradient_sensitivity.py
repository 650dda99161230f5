"""Derivative-based global sensitivity measures with posterior uncertainty.

References:
    I. M. Sobol' and S. Kucherenko, Derivative based global sensitivity measures and their link with global sensitivity
        indices, Mathematics and Computers in Simulation 79, 2009.
    M. De Lozzo and A. Marrel, Estimation of the derivative-based global sensitivity measures using a Gaussian process
        metamodel, SIAM/ASA Journal on Uncertainty Quantification 4, 2016.
    N. Wycoff, M. Binois and S. M. Wild, Sequential learning of active subspaces, Journal of Computational and
        Graphical Statistics 30, 2021.
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
    """Global sensitivity measures from the posterior of a model's gradient.

    E denotes an average over the inputs. It is taken at N points: the sample X, or scrambled Sobol' points in the box.
    The joint posterior of f and ∇f at the N points is sampled once, in O((Nd)³); each sample gives one value of every
    average, so that all averages have a posterior.

    Averages over a box also have an integration error, which decreases with N. To reduce it, the posterior mean of E ∇f
    ∇fᵀ is computed in closed form (RBF kernel, constant mean, affine input transform) or otherwise from 16 N points.
    The samples of each ∂ᵢf are then multiplied by a constant such that E (∂ᵢf)² has this mean.

    All shapes below are for one outcome. With m > 1 outcomes, m is the last dimension of the batch. For a fully
    Bayesian model all results are for the mixture over hyper-parameter samples; for other models the uncertainty
    assumes the fitted hyper-parameters.

    Args:
        model: A model with a ``joint_posterior`` of values and gradients, such as ``surrogates.DerivedGP``.
        bounds: The box, ``2 x d``, with uniform weight. Give either bounds or X.
        X: The sample of the inputs, ``N x d``, with equal weights.
        num_points: N for a box; use a power of 2.
        num_samples: S, the number of joint samples; a fully Bayesian model draws ⌈S/M⌉ per hyper-parameter sample.
        seed: The seed of the Sobol' points and of the samples.

    Raises:
        TypeError: If the model has no ``joint_posterior``, the box or sample is not a floating point tensor, or a
            number is not an integer.
        ValueError: If the box or sample does not fit the model, there are too many points for a joint covariance, the
            outcome transform is not linear, or sample paths have no gradient.

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
            closed_form = mean_outer_product(model, bounds)
            outer = _outer_product_at(model, bounds, _MORE * num_points, seed) if closed_form is None else closed_form
        measure = torch.diagonal(outer, dim1=-2, dim2=-1)
        # The mean has the smaller integration error: rescale the variances and samples at the N points to it.
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
        """νᵢ = E (∂f/∂xᵢ)², ``batch x d``, in squared outcome units per squared unit of input.

        With m and Σ the posterior mean and covariance of ∂ᵢf at the N points, νᵢ has the posterior mean (‖m‖² + tr Σ)/N
        and variance (2 tr Σ² + 4 mᵀΣm)/N² (De Lozzo and Marrel 2016).
        """
        mean = torch.diagonal(self._outer, dim1=-2, dim2=-1)
        return Estimate(mean, self._measure_variance, self._gradients.square().mean(-2))

    def total_index_bound(self) -> Estimate:
        """The upper bound νᵢ (bᵢ − aᵢ)²/(π² V) on the total Sobol' index of every input, ``batch x d``.

        V is the variance of f over the box with sides [aᵢ, bᵢ] (Sobol' and Kucherenko 2009, Theorem 2). The posterior
        includes the uncertainty of ν and of V. Total indices do not exceed 1, so bounds above 1 are not informative.

        Raises:
            ValueError: If X was given, because the bound assumes a uniform distribution on a box.
        """
        if self._widths is None:
            raise ValueError("The bound on total Sobol' indices assumes a box; give bounds instead of X.")
        variance = self._values.var(-1, correction=0).unsqueeze(-1)
        return Estimate.from_samples(self._gradients.square().mean(-2) * self._widths.square() / (pi**2 * variance))

    def gradient_norm(self, scale: Tensor | None = None) -> Estimate:
        """The mean norm of the scaled gradient, E ‖s ∘ ∇f‖, ``batch``.

        Args:
            scale: The units s of the inputs, positive, ``d``. The default is the widths of the box or the standard
                deviations of the sample, so that the result is in outcome units. Pass ones for E ‖∇f‖.

        Raises:
            ValueError: If an entry of the scale is not positive and finite.
        """
        return Estimate.from_samples((self._gradients * self._units(scale)).norm(dim=-1).mean(-1))

    def active_subspace(self, scale: Tensor | None = None) -> ActiveSubspace:
        """The posterior of C = E (s ∘ ∇f)(s ∘ ∇f)ᵀ, with the eigenvalues and eigenvectors of C.

        For a box and an RBF kernel, the posterior mean of C is exact (Wycoff, Binois and Wild 2021).

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


def _outer_product_at(model: Any, bounds: Tensor, num_points: int, seed: int) -> Tensor:
    """The mean of E ∇f ∇fᵀ over Sobol' points of a box, a few at a time, so that no covariance is large."""
    points = averaging_points(bounds, None, num_points, seed)
    few = [_mean_outer_product(*joint_moments(model, part)) * len(part) for part in points.split(_FEW)]
    return torch.stack(few).sum(0) / len(points)


def _measure_variance(mean: Tensor, covariance: Tensor) -> Tensor:
    """The variance of the mean square of every partial derivative over the points, ``batch x d``."""
    # Fourth powers of an outcome may leave the range of float32.
    gradient, N = mean[..., 1:].double(), mean.shape[-2]
    own = torch.diagonal(covariance, dim1=-3, dim2=-1)[..., 1:].double()
    along = torch.einsum("...pi,...pqi,...qi->...i", gradient, own, gradient)
    return ((2 * own.square().sum((-3, -2)) + 4 * along) / N**2).to(mean)
