"""The posterior of a pinned Gaussian process for one small data set, in float64 on the CPU.

``surrogates.pinned.prior`` defines the kernel and the noise. For one small data set this module is faster than a
GPyTorch model with ``PinnedKernel``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Protocol, cast

import torch
from torch import Tensor

from surrogates.linalg.cholesky import NotPositiveDefiniteError, correlation_factor
from surrogates.pinned.kernel import pinned_blocks, pinned_values
from surrogates.pinned.prior import Hyperparameters, PinnedPrior

LOUDEST = 1e100
"""The largest noise variance, in units of the largest squared value; a larger one might overflow."""

FINEST = 1.3
"""A search for hyper-parameters ends when neighbours differ by less than this factor."""

TIED = 1e-3
"""A smaller difference of two values of −2 log likelihood may be rounding error."""


@dataclass(frozen=True)
class Conditioned:
    """Covariances of the process conditioned on noisy values at n points; they do not depend on the values.

    Attributes:
        prior: the kernel's constants.
        U: the points minus the pin, ``n x d``.
        params: a and s².
        factor: the Cholesky factor L of the values' prior correlations, ``n x n``.
        deviations: the values' prior standard deviations, the diagonal of D, shape ``n``.
        weights: the noise variances of the n values and, last, of the value at the pin, in units of s², shape
            ``n + 1``; None: all are 1.
    """

    prior: PinnedPrior
    U: Tensor
    params: Hyperparameters
    factor: Tensor
    deviations: Tensor
    weights: Tensor | None = None

    @classmethod
    def on(
        cls,
        prior: PinnedPrior,
        U: Tensor,
        params: Hyperparameters,
        parts: tuple[Tensor, Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Conditioned:
        """Conditions the process on values at the points U, ``n x d``; ``parts``, if given, is ``prior.parts(U)``.

        Raises:
            NotPositiveDefiniteError: if points are too close to each other.
        """
        polynomial, bracket = parts or prior.parts(U)
        K = torch.add(polynomial, bracket, alpha=params.amplitude)
        if params.noise:
            own, pin = (1.0, 1.0) if weights is None else (weights[:-1], float(weights[-1]))
            K.add_(params.noise * pin).diagonal().add_(params.noise * own)
        return cls(prior, U, params, *correlation_factor(K), weights)

    @property
    def pin_noise(self) -> float:
        """The noise variance of the value at the pin, in units of k."""
        return self.params.noise * (1.0 if self.weights is None else float(self.weights[-1]))

    def white(self, columns: Tensor) -> Tensor:
        """Computes L⁻¹D⁻¹C for columns C, ``n x m``, where D L Lᵀ D is the prior covariance of the values."""
        return torch.linalg.solve_triangular(self.factor, columns / self.deviations[:, None], upper=False)

    def slope_covariance(self, z: Tensor) -> Tensor:
        """The posterior covariance of ∇f(z), ``d x d``, for z of shape ``d``, in O(n² d)."""
        prior, a = self.prior, self.params.amplitude
        white = self.white(pinned_blocks(prior, a, self.U, z[None]).second[:, 0])
        own = cast(Tensor, pinned_blocks(prior, a, z[None], z[None], mixed=True).mixed)
        return own[0, 0] - white.mT @ white

    def noise_shares(self) -> Tensor:
        """Posterior noise variances of the n values and, last, of the value at the pin, over s², shape ``n + 1``."""
        inverse_factor = self.white(torch.eye(len(self.U), dtype=self.U.dtype))
        columns = torch.cat([inverse_factor, inverse_factor.sum(1, keepdim=True)], dim=1)
        weights = torch.ones(columns.shape[1], dtype=self.U.dtype) if self.weights is None else self.weights
        return weights * (1.0 - self.params.noise * weights * columns.square().sum(0)).clamp_min(0.0)

    def gains(self, candidates: Tensor, z: Tensor, map: Tensor, least: float = 1e-9) -> Tensor:
        """The decrease of tr cov ∇f(z) if f is evaluated at each of m candidates, shape ``m``.

        The decrease is ‖Rⱼ‖²/(Vⱼ + s²), where R, ``m x d``, is the covariance of the candidates' values with ∇f(z), and
        V are the values' variances, at least ``least`` times the prior variances because of rounding. The gradient is
        with respect to t, where u = map t.
        """
        prior, a, noise = self.prior, self.params.amplitude, self.pin_noise
        white = self.white(pinned_values(prior, a, self.U, candidates) + noise)
        slopes = self.white(pinned_blocks(prior, a, self.U, z[None]).second[:, 0])
        R = pinned_blocks(prior, a, candidates, z[None]).second[:, 0] - white.mT @ slopes
        variance = pinned_values(prior, a, candidates[:, None], candidates[:, None])[:, 0, 0] + noise
        V = torch.maximum(variance - white.square().sum(0), least * variance)
        return (R @ map).square().sum(1) / (V + self.params.noise)


@dataclass(frozen=True)
class PinnedData:
    """Values at points relative to the pin, and the parts of the kernel that do not depend on hyper-parameters.

    Attributes:
        prior: the kernel's constants.
        U: the points minus the pin, ``n x d``, without the pin itself.
        y: the values at the points minus the value at the pin, over ``unit``, shape ``n``.
        unit: the largest absolute difference from the value at the pin; 1 if all differences are 0.
        parts: ``prior.parts(U)``.
        variance: the noise variance of a value, in units of unit², if it is known; 0: unknown, or no noise.
        weights: the noise variances of the n values and, last, of the value at the pin, in units of ``variance``, shape
            ``n + 1``; None: all are 1.
    """

    prior: PinnedPrior
    U: Tensor
    y: Tensor
    unit: float
    parts: tuple[Tensor, Tensor]
    variance: float = 0.0
    weights: Tensor | None = None

    @classmethod
    def of(
        cls,
        U: Tensor,
        values: Tensor,
        variance: float = 0.0,
        prior: PinnedPrior | None = None,
        weights: Tensor | None = None,
    ) -> PinnedData:
        """Creates the data from unscaled values.

        Args:
            U: the points minus the pin, ``n x d``.
            values: the values at the points minus the value at the pin, shape ``n``.
            variance: the noise variance of a value, if it is known; 0: unknown, or no noise.
            prior: the kernel's constants.
            weights: as in ``PinnedData``.
        """
        prior, unit = prior or PinnedPrior(), float(values.abs().max()) or 1.0
        return cls(prior, U, values / unit, unit, prior.parts(U), min(variance / unit / unit, LOUDEST), weights)

    def conditioned(self, params: Hyperparameters) -> Conditioned:
        """The process conditioned on values at the points; raises the errors of ``model``."""
        return Conditioned.on(self.prior, self.U, params, self.parts, self.weights)

    def loss(self, params: Hyperparameters) -> float:
        """−2 log marginal likelihood at σ², up to a constant; inf if k is not positive definite."""
        try:
            given = self.conditioned(params)
        except NotPositiveDefiniteError:
            return math.inf
        white, diagonal = given.white(self.y[:, None]), given.factor.diagonal() * given.deviations
        square, n = float(white.square().sum()), len(self.y)
        scale = self._scale(square / n, params)
        return 2.0 * float(diagonal.log().sum()) + square / scale + n * math.log(scale)

    def model(self, params: Hyperparameters) -> PinnedModel:
        """The posterior of f − f(pin) given the data.

        Raises:
            NotPositiveDefiniteError: if points are too close to each other.
        """
        given = self.conditioned(params)
        white = given.white(self.y[:, None])
        alpha = torch.linalg.solve_triangular(given.factor.mT, white, upper=True)[:, 0] / given.deviations
        return PinnedModel(self, given, alpha, self._scale(float(white.square().mean()), params))

    def _scale(self, likely: float, params: Hyperparameters) -> float:
        """σ²: the known variance of noise over s², or the most likely scale."""
        return self.variance / params.noise if self.variance else likely or 1.0


class Likelihood(Protocol):
    """The protocol of data to which a ``ShapeSearch`` fits hyper-parameters."""

    @property
    def prior(self) -> PinnedPrior:
        """The kernel's constants."""

    @property
    def variance(self) -> float:
        """The noise variance of a value, in units of the data's unit²; 0: unknown, or no noise."""

    def loss(self, params: Hyperparameters) -> float:
        """−2 log marginal likelihood up to a constant; inf if k is not positive definite."""


@dataclass(frozen=True)
class ShapeSearch:
    """A pattern search for a and s² with a few evaluations of the likelihood, accurate to a factor of 10^(1/8).

    BFGS (``surrogates.window.box_descent``) reaches a higher likelihood, but does not improve the trust region.

    Attributes:
        amplitudes: the bounds of a. Beyond them, differences of the Matérn correlation m are lost to rounding.
        noises: the bounds of s² unless it is 0.
        evidence: noise is assumed if it lowers −2 log marginal likelihood by more than this number.
        first: the largest number of evaluations in a search without a start.
        later: the largest number of evaluations in a search from a start.
    """

    amplitudes: tuple[float, float] = (1e-6, 1e4)
    noises: tuple[float, float] = (1e-8, 1e4)
    evidence: float = 3.0
    first: int = 28
    later: int = 8

    def fitted(self, data: Likelihood, start: Hyperparameters | None, noisy: bool | None = False) -> Hyperparameters:
        """Finds the most likely a and s².

        The search compares a, and s² if there is noise, with neighbours that differ by a factor of ten. It moves to the
        best neighbour; if none is better, it replaces the factor by the square root of the factor.

        Args:
            data: the data.
            start: the hyper-parameters at which the search starts; None: a = 1, with a longer search.
            noisy: whether values have noise; None: ``evidence`` decides.
        """
        left, factor = (self.first, 10.0) if start is None else (self.later, 10.0**0.5)
        start = start or Hyperparameters()
        if noisy is False:
            start = replace(start, noise=0.0)
        elif noisy and start.noise == 0.0:
            # The largest value is 1, and its prior variance about w in units of k.
            guess = data.prior.linear * data.variance if data.variance else 1.0
            start = replace(start, noise=_within(guess, self.noises))
        loss, best = self._searched(data, start, left + left // 2 if start.noise else left, factor)
        if noisy is None and start.noise == 0.0:
            loud = self._searched(data, replace(best, noise=1.0), left, 10.0)
            best = loud[1] if loud[0] < loss - self.evidence else best
        return best

    def excess(self, data: Likelihood, params: Hyperparameters) -> float:
        """The increase of −2 log marginal likelihood if the noise is set to 0 and a is fitted again."""
        return self._searched(data, Hyperparameters(), self.first, 10.0)[0] - data.loss(params)

    def _searched(
        self, data: Likelihood, start: Hyperparameters, left: int, factor: float
    ) -> tuple[float, Hyperparameters]:
        """The least loss and its hyper-parameters, after about ``left`` evaluations; a noise of 0 stays 0."""
        best = data.loss(start), start
        losses = {start.rounded: best[0]}
        while left > 0 and factor > FINEST:
            a, noise, moves = best[1].amplitude, best[1].noise, (factor, 1.0 / factor)
            trials = [Hyperparameters(_within(a * move, self.amplitudes), noise) for move in moves]
            trials += [Hyperparameters(a, _within(noise * move, self.noises)) for move in moves if noise]
            left -= len(trials)
            # Trials that were clearly worse before are not evaluated again.
            trials = [trial for trial in trials if losses.get(trial.rounded, -math.inf) < best[0] + TIED]
            found = [(data.loss(trial), trial) for trial in trials]
            losses |= {trial.rounded: loss for loss, trial in found}
            lowest = min(found, key=itemgetter(0), default=best)
            best, factor = (lowest, factor) if lowest[0] < best[0] else (best, factor**0.5)
        return best


def _within(x: float, limits: tuple[float, float]) -> float:
    return min(max(x, limits[0]), limits[1])


class PinnedModel:
    """The posterior of f − f(pin): the mean μ, derivatives of μ, and the covariance of ∇f at the pin.

    Args:
        data: the data.
        given: the covariances of the process, conditioned on values at the data points.
        alpha: k⁻¹y for ``data.y``, shape ``n``.
        scale: σ², in units of ``data.unit`` squared.
    """

    def __init__(self, data: PinnedData, given: Conditioned, alpha: Tensor, scale: float) -> None:
        self.data, self.params, self.scale, self.given = data, given.params, scale, given
        prior, U, self._alpha = data.prior, data.U, alpha
        self._linear = prior.linear * (alpha @ U)
        self._quadratic = prior.quadratic * (U * alpha[:, None]).mT @ U
        self._quadratic.diagonal().add_(2.0 * prior.shared * prior.linear * float(alpha @ U.square().sum(1)))
        # The bracket is a sum over the points and, with the opposite weight, the pin.
        self._points = torch.cat([U, torch.zeros_like(U[:1])])
        self._weights = torch.cat([alpha, -alpha.sum()[None]])
        self._offset = float(self._weights @ prior.matern(torch.linalg.vector_norm(self._points, dim=1)))

    def means(self) -> Tensor:
        """μ at the data points, shape ``n``: the values minus the estimated noise."""
        noise = self._noise_weights * self._weights
        return self.data.unit * (self.data.y - self.params.noise * (noise[:-1] - noise[-1]))

    def noise_posterior(self) -> tuple[Tensor, Tensor]:
        """The posterior mean and standard deviation of the noise in the n values and, last, in the value at the pin.

        With the noise e of the value at the pin and eᵢ of the other values, the data are f(uᵢ) − f(pin) + eᵢ − e. Hence
        E eᵢ = s²αᵢ and E e = −s² Σα, with the variances σ²s²(1 − s²(k⁻¹)ᵢᵢ) and σ²s²(1 − s² 1ᵀk⁻¹1). Each s² is
        multiplied by the weight of the value.

        Returns:
            Two tensors of shape ``n + 1``.
        """
        means = self.data.unit * self.params.noise * self._noise_weights * self._weights
        return means, (self.noise * self.given.noise_shares()).sqrt()

    @property
    def _noise_weights(self) -> Tensor:
        weights = self.given.weights
        return torch.ones_like(self._weights) if weights is None else weights

    @property
    def noise(self) -> float:
        """The noise variance of a value."""
        return self.params.noise * self.scale * self.data.unit**2

    def mean(self, v: Tensor) -> float:
        """The posterior mean μ(v) at one point v of shape ``d``."""
        distances = torch.linalg.vector_norm(self._points - v, dim=1)
        bracket = float(self._weights @ self.data.prior.matern(distances)) - self._offset
        quadratic = float(v @ (self._linear + 0.5 * (self._quadratic @ v)))
        return self.data.unit * (quadratic + self.params.amplitude * bracket)

    def means_at(self, V: Tensor) -> Tensor:
        """The posterior mean μ at several points V, ``n x d``; the result has shape ``n``."""
        distances = torch.cdist(V, self._points, compute_mode="donot_use_mm_for_euclid_dist")
        bracket = self.data.prior.matern(distances) @ self._weights - self._offset
        quadratic = V @ self._linear + 0.5 * (V @ self._quadratic * V).sum(1)
        return self.data.unit * (quadratic + self.params.amplitude * bracket)

    def deviations_at(self, V: Tensor) -> Tensor:
        """The posterior standard deviations of f − f(pin) at points V, ``n x d``; the result has shape ``n``."""
        prior, a = self.data.prior, self.params.amplitude
        white = self.given.white(pinned_values(prior, a, self.data.U, V))
        variance = pinned_values(prior, a, V[:, None], V[:, None])[:, 0, 0]
        return self.data.unit * (self.scale * (variance - white.square().sum(0)).clamp_min(0.0)).sqrt()

    def derivatives(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """∇μ(v), shape ``d``, and ∇²μ(v), ``d x d``, in O(n d²)."""
        prior, w = self.data.prior, self._points - v
        s = torch.linalg.vector_norm(w, dim=1) * prior.rate
        decay = (self._weights * torch.exp(-s)).mul_(self.params.amplitude * prior.curvature)
        slopes = decay * (1.0 + s)
        hessian = self._quadratic + (w * decay[:, None]).mT @ w * prior.rate**2
        hessian.diagonal().sub_(slopes.sum())
        return self.data.unit * (self._linear + self._quadratic @ v + slopes @ w), self.data.unit * hessian

    def gradient_covariance(self) -> Tensor:
        """The posterior covariance of ∇f at the pin, ``d x d``, in O(n² d)."""
        prior, curvature = self.data.prior, self.params.amplitude * self.data.prior.curvature
        s = prior.rate * torch.linalg.vector_norm(self.data.U, dim=1, keepdim=True)
        white = self.given.white(self.data.U * (prior.linear + curvature * (1.0 + s) * torch.exp(-s)))
        covariance = (white.mT @ white).neg_()
        covariance.diagonal().add_(prior.linear + curvature)
        return covariance * (self.scale * self.data.unit) * self.data.unit
