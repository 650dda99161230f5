"""The posterior of one function's pinned Gaussian process given its values at a few points, float64 on the CPU.

The kernel and the noise are defined in ``surrogates.pinned.prior``. For one data set of few
points this is faster than a GPyTorch model with the kernel of ``surrogates.pinned.kernel``.
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
"""The largest noise variance in units of the values' squares: more would hide the values too, and may overflow."""

FINEST = 1.3
"""A search for hyper-parameters ends where neighbours differ by less than this factor."""

TIED = 1e-3
"""Values of −2 log likelihood that differ by less may be equal but for rounding."""


@dataclass(frozen=True)
class Conditioned:
    """The process given noisy values at some points: covariances, which do not depend on the values.

    Attributes:
        prior: the kernel's constants.
        U: the points, ``n x d``.
        params: a and s².
        factor: the Cholesky factor of the values' correlations, ``n x n``.
        deviations: the values' prior standard deviations, shape ``n``.
        weights: the noise variances of the values and, last, of the pin's in units of s², shape ``n + 1``; None: all 1.
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
        """Conditions the process on values at the points U, ``n x d``; ``parts`` are ``prior.parts(U)`` where known.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        polynomial, bracket = parts or prior.parts(U)
        K = torch.add(polynomial, bracket, alpha=params.amplitude)
        if params.noise:
            own, pin = (1.0, 1.0) if weights is None else (weights[:-1], float(weights[-1]))
            K.add_(params.noise * pin).diagonal().add_(params.noise * own)
        return cls(prior, U, params, *correlation_factor(K), weights)

    @property
    def pin_noise(self) -> float:
        """The variance of the noise of the pin's value, in units of k."""
        return self.params.noise * (1.0 if self.weights is None else float(self.weights[-1]))

    def white(self, columns: Tensor) -> Tensor:
        """L⁻¹D⁻¹C of columns C, ``n x m``, where the covariance of the values is D L Lᵀ D."""
        return torch.linalg.solve_triangular(self.factor, columns / self.deviations[:, None], upper=False)

    def slope_covariance(self, z: Tensor) -> Tensor:
        """cov ∇f(z), ``d x d``, for z of shape ``d``; O(n² d)."""
        prior, a = self.prior, self.params.amplitude
        white = self.white(pinned_blocks(prior, a, self.U, z[None]).second[:, 0])
        own = cast(Tensor, pinned_blocks(prior, a, z[None], z[None], mixed=True).mixed)
        return own[0, 0] - white.mT @ white

    def noise_shares(self) -> Tensor:
        """The posterior variances of the noise in the values and, last, in the pin's, over s², shape ``n + 1``."""
        inverse_factor = self.white(torch.eye(len(self.U), dtype=self.U.dtype))
        columns = torch.cat([inverse_factor, inverse_factor.sum(1, keepdim=True)], dim=1)
        weights = torch.ones(columns.shape[1], dtype=self.U.dtype) if self.weights is None else self.weights
        return weights * (1.0 - self.params.noise * weights * columns.square().sum(0)).clamp_min(0.0)

    def gains(self, candidates: Tensor, z: Tensor, map: Tensor, least: float = 1e-9) -> Tensor:
        """How much f's value at each candidate lowers tr cov ∇f(z), for the gradient in s with u = map s; shape ``m``.

        It is ‖Rⱼ‖²/(Vⱼ + s²), where R is the covariance of the candidates' values with ∇f(z) and V their variances.
        V is at least ``least`` of its prior value: smaller differences are rounding errors.
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
        U: points, ``n x d``, none of them 0.
        y: their values minus the value at the pin, shape ``n``, divided by the largest |difference|.
        unit: the largest |difference|; 1 if all are 0.
        parts: ``prior.parts(U)``.
        variance: the variance of a value's noise, in units of unit², if it is known; 0: unknown, or no noise.
        weights: the noise variances of the values and, last, of the pin's in units of ``variance``, shape ``n + 1``;
            None: all 1.
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
            U: points, ``n x d``.
            values: their values minus the value at the pin, shape ``n``.
            variance: the variance of a value's noise, if it is known; 0 if it is unknown, or without noise.
            prior: the kernel's constants.
            weights: as in the class.
        """
        prior, unit = prior or PinnedPrior(), float(values.abs().max()) or 1.0
        return cls(prior, U, values / unit, unit, prior.parts(U), min(variance / unit / unit, LOUDEST), weights)

    def conditioned(self, params: Hyperparameters) -> Conditioned:
        """The process conditioned on values at the data's points; ``NotPositiveDefiniteError`` as for the model."""
        return Conditioned.on(self.prior, self.U, params, self.parts, self.weights)

    def loss(self, params: Hyperparameters) -> float:
        """−2 log marginal likelihood at its scale σ², up to a constant; inf if k is not positive definite."""
        try:
            given = self.conditioned(params)
        except NotPositiveDefiniteError:
            return math.inf
        white, diagonal = given.white(self.y[:, None]), given.factor.diagonal() * given.deviations
        square, n = float(white.square().sum()), len(self.y)
        scale = self._scale(square / n, params)
        return 2.0 * float(diagonal.log().sum()) + square / scale + n * math.log(scale)

    def model(self, params: Hyperparameters) -> PinnedModel:
        """The posterior given the data.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        given = self.conditioned(params)
        white = given.white(self.y[:, None])
        alpha = torch.linalg.solve_triangular(given.factor.mT, white, upper=True)[:, 0] / given.deviations
        return PinnedModel(self, given, alpha, self._scale(float(white.square().mean()), params))

    def _scale(self, likely: float, params: Hyperparameters) -> float:
        """σ²: the known variance of noise over s², or the most likely scale."""
        return self.variance / params.noise if self.variance else likely or 1.0


class Likelihood(Protocol):
    """Data whose likelihood a ``ShapeSearch`` evaluates."""

    @property
    def prior(self) -> PinnedPrior:
        """The kernel's constants."""

    @property
    def variance(self) -> float:
        """The variance of a value's noise, in units of the data's unit²; 0: unknown, or no noise."""

    def loss(self, params: Hyperparameters) -> float:
        """−2 log marginal likelihood up to a constant; inf if k is not positive definite."""


@dataclass(frozen=True)
class ShapeSearch:
    """A pattern search for a and s² with a few evaluations of the likelihood, accurate to a factor of 10^(1/8).

    BFGS (``surrogates.window.box_descent``) finds likelier values, but it needs derivatives, and runs of the optimizer
    end no lower with it.

    Attributes:
        amplitudes: the limits of a. Beyond them, differences of the Matérn correlation m are lost to rounding.
        noises: the limits of s² where it is not 0.
        evidence: noise is assumed if it lowers −2 log marginal likelihood by more than this.
        first: the most evaluations in a search without a start.
        later: the most evaluations in a search from a start.
    """

    amplitudes: tuple[float, float] = (1e-6, 1e4)
    noises: tuple[float, float] = (1e-8, 1e4)
    evidence: float = 3.0
    first: int = 28
    later: int = 8

    def fitted(self, data: Likelihood, start: Hyperparameters | None, noisy: bool | None = False) -> Hyperparameters:
        """Finds the most likely params.

        The search compares a, and s² if there is noise, with neighbours a factor of ten away. It moves to the best one,
        or takes the square root of the factor if none is better.

        Args:
            data: the data.
            start: the hyper-parameters to begin with; None: a = 1, with a longer search.
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
        """The rise of −2 log marginal likelihood if the noise is taken away and a is fitted again."""
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
    """The posterior of f − f(pin): its mean, the mean's derivatives, and the gradient's covariance at the pin.

    Args:
        data: the data.
        given: the process conditioned on values at their points.
        alpha: k⁻¹y in the data's unit, shape ``n``.
        scale: σ², in the square of the data's unit.
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
        """μ at the data's points, shape ``n``: their values minus the estimated noise."""
        noise = self._noise_weights * self._weights
        return self.data.unit * (self.data.y - self.params.noise * (noise[:-1] - noise[-1]))

    def noise_posterior(self) -> tuple[Tensor, Tensor]:
        """The posterior mean and standard deviation of the noise in the data's values and, last, in the pin's.

        With the pin's noise e and those of the other values eᵢ, the data are f(uᵢ) − f(pin) + eᵢ − e, so that
        E eᵢ = s²αᵢ, E e = −s² Σα, and their variances are s²(1 − s²(k⁻¹)ᵢᵢ) and s²(1 − s² 1ᵀk⁻¹1) times σ², where each
        s² is multiplied by the value's weight.

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
        """The variance of a value's noise."""
        return self.params.noise * self.scale * self.data.unit**2

    def mean(self, v: Tensor) -> float:
        """μ(v), shape ``d`` to a number."""
        distances = torch.linalg.vector_norm(self._points - v, dim=1)
        bracket = float(self._weights @ self.data.prior.matern(distances)) - self._offset
        quadratic = float(v @ (self._linear + 0.5 * (self._quadratic @ v)))
        return self.data.unit * (quadratic + self.params.amplitude * bracket)

    def means_at(self, V: Tensor) -> Tensor:
        """μ at several points, ``n x d``, shape ``n``."""
        distances = torch.cdist(V, self._points, compute_mode="donot_use_mm_for_euclid_dist")
        bracket = self.data.prior.matern(distances) @ self._weights - self._offset
        quadratic = V @ self._linear + 0.5 * (V @ self._quadratic * V).sum(1)
        return self.data.unit * (quadratic + self.params.amplitude * bracket)

    def deviations_at(self, V: Tensor) -> Tensor:
        """The posterior standard deviations of f − f(pin) at several points, ``n x d``, shape ``n``."""
        prior, a = self.data.prior, self.params.amplitude
        white = self.given.white(pinned_values(prior, a, self.data.U, V))
        variance = pinned_values(prior, a, V[:, None], V[:, None])[:, 0, 0]
        return self.data.unit * (self.scale * (variance - white.square().sum(0)).clamp_min(0.0)).sqrt()

    def derivatives(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """∇μ(v), shape ``d``, and ∇²μ(v), ``d x d``; O(n d²)."""
        prior, w = self.data.prior, self._points - v
        s = torch.linalg.vector_norm(w, dim=1) * prior.rate
        decay = (self._weights * torch.exp(-s)).mul_(self.params.amplitude * prior.curvature)
        slopes = decay * (1.0 + s)
        hessian = self._quadratic + (w * decay[:, None]).mT @ w * prior.rate**2
        hessian.diagonal().sub_(slopes.sum())
        return self.data.unit * (self._linear + self._quadratic @ v + slopes @ w), self.data.unit * hessian

    def gradient_covariance(self) -> Tensor:
        """cov ∇f at the pin, ``d x d``; O(n² d)."""
        prior, curvature = self.data.prior, self.params.amplitude * self.data.prior.curvature
        s = prior.rate * torch.linalg.vector_norm(self.data.U, dim=1, keepdim=True)
        white = self.given.white(self.data.U * (prior.linear + curvature * (1.0 + s) * torch.exp(-s)))
        covariance = (white.mT @ white).neg_()
        covariance.diagonal().add_(prior.linear + curvature)
        return covariance * (self.scale * self.data.unit) * self.data.unit
