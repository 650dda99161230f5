"""The posterior of a pinned Gaussian process given values at a few points: the fast engine.

Everything is float64 on the CPU. ``surrogates.pinned.kernel.PinnedKernel`` is the same process as a GPyTorch kernel, for
a ``DerivedGP``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates.linalg.cholesky import correlation_factor
from surrogates.pinned.prior import PinnedPrior, Shape

LOUDEST = 1e100
"""The largest variance of noise in units of the values' squares: under more nothing is seen, and it may overflow."""


@dataclass(frozen=True)
class PinnedData:
    """Values at points relative to the pin, and what likelihoods of different shapes have in common.

    Attributes:
        prior: the kernel's constants.
        U: points relative to the pin, ``n x d``, none of them 0.
        y: their values less the pin's, shape ``n``, divided by the largest of them.
        unit: that largest value; 1 if all are 0.
        polynomial: the polynomial part of the kernel, ``n x n``.
        bracket: what a multiplies in the kernel, ``n x n``.
        variance: the variance of a value's noise in the square of the unit where it is known; 0: unknown, or no noise.
    """

    prior: PinnedPrior
    U: Tensor
    y: Tensor
    unit: float
    polynomial: Tensor
    bracket: Tensor
    variance: float = 0.0

    @classmethod
    def of(cls, U: Tensor, values: Tensor, variance: float = 0.0, prior: PinnedPrior | None = None) -> PinnedData:
        """Makes the data of points, ``n x d``, and values less the pin's, shape ``n``, with a known noise variance."""
        prior = prior or PinnedPrior()
        unit = float(values.abs().max()) or 1.0
        return cls(prior, U, values / unit, unit, *prior.parts(U), min(variance / unit / unit, LOUDEST))

    def conditioned(self, shape: Shape) -> Conditioned:
        """The prior given noisy values at the points.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        K = torch.add(self.polynomial, self.bracket, alpha=shape.amplitude)
        if shape.noise:
            K.add_(shape.noise).diagonal().add_(shape.noise)
        return Conditioned(self.prior, self.U, shape, *correlation_factor(K))

    def loss(self, shape: Shape) -> float:
        """−2 log marginal likelihood but for a constant, at the scale of ``_scale``; inf where k has no factor."""
        try:
            given = self.conditioned(shape)
        except ArithmeticError:
            return math.inf
        white = given.white(self.y[:, None])
        square = float(white.square().sum())
        determinant = 2.0 * float((given.factor.diagonal() * given.deviations).log().sum())
        if self.variance:
            scale = self._scale(white, shape)
            return determinant + len(self.y) * math.log(scale) + square / scale
        return determinant + len(self.y) * math.log(max(square, 1e-300))

    def model(self, shape: Shape) -> PinnedModel:
        """The posterior given the data.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        given = self.conditioned(shape)
        white = given.white(self.y[:, None])
        alpha = torch.linalg.solve_triangular(given.factor.mT, white, upper=True)[:, 0] / given.deviations
        return PinnedModel(self, given, alpha, self._scale(white, shape))

    def _scale(self, white: Tensor, shape: Shape) -> float:
        """σ², which multiplies k: the known variance of noise over s², or the most likely scale."""
        return self.variance / shape.noise if self.variance else float(white.square().mean()) or 1.0


@dataclass(frozen=True)
class Conditioned:
    """The pinned process given noisy values at some points: covariances, which do not depend on the values.

    Attributes:
        prior: the kernel's constants.
        U: the points, ``n x d``.
        shape: a and s².
        factor: the Cholesky factor of the values' correlations, ``n x n``.
        deviations: the values' prior standard deviations, shape ``n``.
    """

    prior: PinnedPrior
    U: Tensor
    shape: Shape
    factor: Tensor
    deviations: Tensor

    @classmethod
    def on(cls, prior: PinnedPrior, U: Tensor, shape: Shape) -> Conditioned:
        """Conditions the prior on values at the points U, ``n x d``, that are still to come."""
        return PinnedData(prior, U, U[:, 0], 1.0, *prior.parts(U)).conditioned(shape)

    def white(self, columns: Tensor) -> Tensor:
        """L⁻¹D⁻¹C of columns C, ``n x m``, with the covariance D L Lᵀ D."""
        return torch.linalg.solve_triangular(self.factor, columns / self.deviations[:, None], upper=False)

    def slope_covariance(self, z: Tensor) -> Tensor:
        """cov ∇f(z), ``d x d``, for z of shape ``d``."""
        white = self.white(self.prior.slopes(self.U, z, self.shape.amplitude))
        return self.prior.slope_covariance(z, self.shape.amplitude) - white.mT @ white

    def gains(self, candidates: Tensor, z: Tensor, map: Tensor, least: float = 1e-9) -> Tensor:
        """The decrease of the trace of cov ∇f(z), in the variables of u = map s, by f at each candidate, shape ``m``.

        It is ‖Rⱼ‖²/(Vⱼ + s²), where R is the covariance of the candidates' values with ∇f(z) and V their variances.
        V is at least ``least`` of its prior value: smaller differences are rounding errors.
        """
        shape, prior = self.shape, self.prior
        polynomial, bracket = prior.parts(self.U, candidates)
        white = self.white(polynomial + shape.amplitude * bracket + shape.noise)
        slopes = prior.slopes(candidates, z, shape.amplitude)
        R = (slopes - white.mT @ self.white(prior.slopes(self.U, z, shape.amplitude))) @ map
        polynomial, bracket = (part.diagonal() for part in prior.parts(candidates))
        variance = polynomial + shape.amplitude * bracket + shape.noise
        V = torch.maximum(variance - white.square().sum(0), least * variance)
        return R.square().sum(1) / (V + shape.noise)


class PinnedModel:
    """The posterior of f − f(pin): its mean, the mean's derivatives, and the gradient's covariance at the pin.

    Args:
        data: the data.
        given: the prior conditioned on their values.
        alpha: k⁻¹y in the data's unit, shape ``n``.
        scale: σ², which multiplies k, in the square of the data's unit.
    """

    def __init__(self, data: PinnedData, given: Conditioned, alpha: Tensor, scale: float) -> None:
        self.data, self.shape, self.scale, self._given = data, given.shape, scale, given
        prior, self._alpha, self._total = data.prior, alpha, float(alpha.sum())
        self._linear = prior.linear * (alpha @ data.U)
        self._quadratic = prior.quadratic * (data.U * alpha[:, None]).mT @ data.U
        shared = 2.0 * prior.shared * prior.linear * float(alpha @ data.U.square().sum(1))
        self._quadratic.diagonal().add_(shared)
        # The bracket is a sum over the points and, with the opposite weight, the pin.
        self._points = torch.cat([data.U, torch.zeros_like(data.U[:1])])
        self._weights = torch.cat([alpha, alpha.new_full((1,), -self._total)])
        self._norms = torch.linalg.vector_norm(data.U, dim=1)
        self._offset = self._total - float(alpha @ prior.matern(self._norms))

    def means(self) -> Tensor:
        """μ at the data's points, shape ``n``: their values less the part of them that is noise."""
        return self.data.unit * (self.data.y - self.shape.noise * (self._alpha + self._total))

    @property
    def noise(self) -> float:
        """The variance of a value's noise."""
        return self.shape.noise * self.scale * self.data.unit**2

    def mean(self, v: Tensor) -> float:
        """μ(v), shape ``d`` to a number."""
        here = torch.linalg.vector_norm(self.data.U - v, dim=1)
        t = self.data.prior.rate * float(v.norm())
        at_pin = (1.0 + t + t * t / 3.0) * math.exp(-t)
        bracket = float(self._alpha @ self.data.prior.matern(here)) - self._total * at_pin + self._offset
        quadratic = float(v @ (self._linear + 0.5 * (self._quadratic @ v)))
        return self.data.unit * (quadratic + self.shape.amplitude * bracket)

    def derivatives(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """∇μ(v), shape ``d``, and ∇²μ(v), ``d x d``; O(n d²)."""
        prior, w = self.data.prior, self._points - v
        s = torch.linalg.vector_norm(w, dim=1) * prior.rate
        decay = (self._weights * torch.exp(-s)).mul_(self.shape.amplitude * prior.bend)
        slopes = decay * (1.0 + s)
        hessian = self._quadratic + (w * decay[:, None]).mT @ w * prior.rate**2
        hessian.diagonal().sub_(slopes.sum())
        return self.data.unit * (self._linear + self._quadratic @ v + slopes @ w), self.data.unit * hessian

    def gradient_covariance(self) -> Tensor:
        """cov ∇f at the pin, ``d x d``; O(n² d)."""
        return self.slope_covariance(torch.eye(self.data.U.shape[1], dtype=self.data.U.dtype))

    def slope_covariance(self, directions: Tensor) -> Tensor:
        """cov of the slopes at the pin along directions, ``d x m``, shape ``m x m``; O(n² m)."""
        prior = self.data.prior
        bent, s = self.shape.amplitude * prior.bend, prior.rate * self._norms
        weights = (prior.linear + bent * (1.0 + s) * torch.exp(-s)) / self._given.deviations
        cross = (self.data.U @ directions) * weights[:, None]
        white = torch.linalg.solve_triangular(self._given.factor, cross, upper=False)
        covariance = (prior.linear + bent) * (directions.mT @ directions) - white.mT @ white
        return covariance * (self.scale * self.data.unit) * self.data.unit
