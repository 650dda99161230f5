"""A Gaussian process that is 0 at one point, its pin: values relative to the best one, from the best point.

Its kernel is, with m(r) = (1 + √5 r/ℓ + 5r²/(3ℓ²)) exp(−√5 r/ℓ) of Matérn 5/2 and ℓ = 4,

    k(u, v) = w u·v + ½ (u·v)² + ¼ w ‖u‖²‖v‖² + a [m(‖u − v‖) − m(‖u‖) − m(‖v‖) + 1],

the covariance of a random linear form, a random quadratic form, a random multiple of ‖u‖² (a curvature that all
directions share), and g − g(0) for a Matérn process g. Every term vanishes at u = 0, so that the process is g less its
true value at the pin, and needs no mean. The lengthscale is not fitted: points have a root mean square length of 1, so
that with ℓ = 4 g is a smooth correction of the quadratic all over them, and a says how much of one. With a shorter ℓ,
under which few values are often most likely, it is a bump about each of them, which says nothing of what is between.
Values have noise of variance s²: that of f(uᵢ) − f(pin) is eᵢ − e, e the pin's, and adds s²(I + 11ᵀ) to the covariance;
without noise the model holds the known values exactly. Everything is float64 on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from surrogates.linalg.cholesky import NotPositiveDefiniteError, correlation_factor

LINEAR = 100.0
"""w, the prior variance of a gradient's coordinate and of the curvature that all directions share, in units of a
mixed second derivative's."""

QUADRATIC, SHARED = 1.0, 0.25
"""The weights of the quadratic form, and of ‖u‖² in units of w."""

LENGTHSCALE = 4.0
"""ℓ, in units of the points' root mean square length."""

AMPLITUDES = (1e-6, 1e4)
"""The limits of a. Beyond them differences of m cancel to nothing."""

NOISES = (1e-8, 1e4)
"""The limits of s² where it is not 0, in units of k; ``LINEAR`` is the variance of f where ‖u‖ = 1."""

LOUDEST = 1e100
"""The most variance of noise in units of the values' squares: nothing is seen under more, and that may overflow."""

EVIDENCE = 3.0
"""Noise is taken for some where −2 log marginal likelihood falls by more than this."""

FACTOR = 10.0
"""The first factor between neighbours of a search."""

FIRST, LATER = 28, 8
"""The most likelihoods that a first search for a and s², and a later one, may take."""

RATE = math.sqrt(5.0) / LENGTHSCALE
"""s of m for each unit of distance."""

CURVATURE = RATE**2 / 3.0
"""−m''(0)."""


class Shape(NamedTuple):
    """The hyper-parameters a and s², the latter in units of k, which the scale multiplies too."""

    amplitude: float = 1.0
    noise: float = 0.0


@dataclass(frozen=True)
class PinnedData:
    """Points relative to the pin, and all that likelihoods of several shapes have in common.

    Attributes:
        U: points, ``n x d``, none of them 0.
        y: their values less the pin's, shape ``n``, divided by the largest of them.
        unit: that largest value; 1 if all are 0.
        polynomial: w u·v + ½(u·v)² + ¼w‖u‖²‖v‖², ``n x n``.
        bend: m(‖u − v‖) − m(‖u‖) − m(‖v‖) + 1, ``n x n``.
        variance: that of a value's noise in the square of the unit, where it is known; 0: it is not, or there is none.
    """

    U: Tensor
    y: Tensor
    unit: float
    polynomial: Tensor
    bend: Tensor
    variance: float = 0.0

    @classmethod
    def of(cls, U: Tensor, values: Tensor, variance: float = 0.0) -> PinnedData:
        """The data of points, ``n x d``, values relative to the pin's, shape ``n``, and a known variance of noise."""
        unit = float(values.abs().max()) or 1.0
        gram = U @ U.mT
        squares = gram.diagonal().clone()
        between = torch.add(squares[:, None], squares).sub_(gram, alpha=2.0).clamp_min_(0.0)
        between.fill_diagonal_(0.0)
        lost = 1.0 - matern(squares.sqrt())
        bend = matern(between.sqrt_()).add_(lost[:, None] - 1.0).add_(lost)
        polynomial = gram.mul(0.5 * QUADRATIC).add_(LINEAR).mul_(gram).addr_(squares, squares, alpha=SHARED * LINEAR)
        variance = min(variance / unit / unit, LOUDEST)
        return cls(U, values / unit, unit, polynomial, bend, variance)

    def factored(self, shape: Shape) -> tuple[Tensor, Tensor, float]:
        """The Cholesky factor of k's correlations, ``n x n``, k's standard deviations, shape ``n``, and log det k.

        Raises:
            NotPositiveDefiniteError: if no jitter makes the matrix positive definite.
        """
        a, noise = shape
        K = torch.add(self.polynomial, self.bend, alpha=a)
        if noise:
            K.add_(noise).diagonal().add_(noise)
        factor, deviations = correlation_factor(K)
        return factor, deviations, 2.0 * float((factor.diagonal() * deviations).log().sum())

    def loss(self, shape: Shape) -> float:
        """−2 log marginal likelihood but for a constant, at the scale of ``_scale``; inf where k has no factor."""
        try:
            factor, deviations, determinant = self.factored(shape)
        except NotPositiveDefiniteError:
            return math.inf
        white = torch.linalg.solve_triangular(factor, (self.y / deviations)[:, None], upper=False)
        square = float(white.square().sum())
        if self.variance:
            scale = self._scale(white, shape)
            return determinant + len(self.y) * math.log(scale) + square / scale
        return determinant + len(self.y) * math.log(max(square, 1e-300))

    def _scale(self, white: Tensor, shape: Shape) -> float:
        """σ²: what makes s² the known variance, or the most likely one where that is not known."""
        return self.variance / shape.noise if self.variance else float(white.square().mean()) or 1.0

    def fitted(self, start: Shape | None, noisy: bool | None = False) -> Shape:
        """The most likely shape that a pattern search from ``start`` finds; None starts at a = 1, and looks longer.

        The search compares a, and s² where there is noise, with its neighbours by a factor of ten, moves to the best
        neighbour, and takes the root of the factor where none is better, at most three times.

        Args:
            start: where it begins.
            noisy: whether values have noise; None: whether they do is asked, see ``EVIDENCE``.
        """
        left, stride = (FIRST, 1.0) if start is None else (LATER, 0.5)
        start = start or Shape()
        if noisy is False or (noisy is None and start.noise == 0.0):
            still = self._searched(start._replace(noise=0.0), left, stride)
            if noisy is None:
                loud = self._searched(still[1]._replace(noise=1.0), left, 1.0)
                return loud[1] if loud[0] < still[0] - EVIDENCE else still[1]
            return still[1]
        if start.noise == 0.0:
            # The largest value is 1, of which LINEAR is the variance in units of k.
            guess = LINEAR * self.variance if self.variance else 1.0
            start = start._replace(noise=min(max(guess, NOISES[0]), NOISES[1]))
        return self._searched(start, left + left // 2, stride)[1]

    def excess(self, shape: Shape) -> float:
        """What −2 log marginal likelihood rises by if a shape's noise is taken away and a is fitted anew.

        The search begins at the shape's own a, as for a later fit, and at 1, as for a first one.
        """
        still = self._searched(shape._replace(noise=0.0), LATER, 0.5), self._searched(Shape(), FIRST, 1.0)
        return min(still)[0] - self.loss(shape)

    def _searched(self, start: Shape, left: int, stride: float) -> tuple[float, Shape]:
        """The pattern search of ``fitted`` with ``left`` likelihoods; s² stays 0 where it is."""
        limits = [(math.log(low), math.log(high)) for low, high in (AMPLITUDES, NOISES)[: 2 if start.noise else 1]]
        now = [min(max(math.log(number), low), high) for number, (low, high) in zip(start, limits, strict=False)]

        def shape(logarithms: list[float]) -> Shape:
            return Shape(*map(math.exp, logarithms))

        best = self.loss(shape(now))
        while left > 0 and stride > 0.1:
            trials = []
            for i, (low, high) in enumerate(limits):
                for sign in (1.0, -1.0):
                    moved = list(now)
                    moved[i] = min(max(now[i] + sign * stride * math.log(FACTOR), low), high)
                    if moved != now and left > 0:
                        left -= 1
                        trials.append((self.loss(shape(moved)), moved))
            value, moved = min(trials, default=(math.inf, now))
            if value < best:
                best, now = value, moved
            else:
                stride *= 0.5
        return best, shape(now)

    def model(self, shape: Shape) -> PinnedModel:
        """The posterior.

        Raises:
            NotPositiveDefiniteError: if the points are too near to each other.
        """
        factor, deviations, _ = self.factored(shape)
        white = torch.linalg.solve_triangular(factor, (self.y / deviations)[:, None], upper=False)
        alpha = torch.linalg.solve_triangular(factor.mT, white, upper=True)[:, 0] / deviations
        return PinnedModel(self, shape, factor, deviations, alpha, self._scale(white, shape))


class PinnedModel:
    """The posterior of f − f(pin) given the data: its mean, derivatives of the mean, and the gradient's covariance.

    Args:
        data: the data.
        shape: a and s².
        factor: the Cholesky factor of the correlations, ``n x n``.
        deviations: prior standard deviations, shape ``n``.
        alpha: k⁻¹y in the data's unit, shape ``n``.
        scale: σ², by which k is multiplied, in the square of the data's unit.
    """

    def __init__(
        self, data: PinnedData, shape: Shape, factor: Tensor, deviations: Tensor, alpha: Tensor, scale: float
    ) -> None:
        self.data, self.shape, self.scale = data, shape, scale
        self._factor, self._deviations, self._alpha = factor, deviations, alpha
        self._linear = LINEAR * (alpha @ data.U)
        self._quadratic = QUADRATIC * (data.U * alpha[:, None]).mT @ data.U
        self._quadratic.diagonal().add_(2.0 * SHARED * LINEAR * float(alpha @ data.U.square().sum(1)))
        self._norms = torch.linalg.vector_norm(data.U, dim=1)
        total = float(alpha.sum())
        self._total, self._offset = total, total - float(alpha @ matern(self._norms))

    def means(self) -> Tensor:
        """μ at the data's points, shape ``n``: their values less the part of them that is noise."""
        return self.data.unit * (self.data.y - self.shape.noise * (self._alpha + self._total))

    @property
    def noise(self) -> float:
        """s², the variance of a value's noise."""
        return self.shape.noise * self.scale * self.data.unit**2

    def mean(self, v: Tensor) -> float:
        """μ(v), shape ``d`` to a number."""
        here = torch.linalg.vector_norm(self.data.U - v, dim=1)
        bend = float(self._alpha @ matern(here)) - self._total * _matern(float(v.norm())) + self._offset
        quadratic = float(v @ (self._linear + 0.5 * (self._quadratic @ v)))
        return self.data.unit * (quadratic + self.shape.amplitude * bend)

    def derivatives(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """∇μ(v), shape ``d``, and ∇²μ(v), ``d x d``; O(n d²)."""
        w = torch.cat([self.data.U - v, -v[None]])
        alpha = torch.cat([self._alpha, self._alpha.new_full((1,), -self._total)])
        s = torch.linalg.vector_norm(w, dim=1) * RATE
        decay = (alpha * torch.exp(-s)).mul_(self.shape.amplitude * CURVATURE)
        slopes = decay * (1.0 + s)
        bent = self._quadratic @ v
        hessian = self._quadratic + (w * decay[:, None]).mT @ w * RATE**2
        hessian.diagonal().sub_(slopes.sum())
        return self.data.unit * (self._linear + bent + slopes @ w), self.data.unit * hessian

    def gradient_covariance(self) -> Tensor:
        """cov ∇f at the pin, ``d x d``; O(n² d)."""
        return self.slope_covariance(torch.eye(self.data.U.shape[1], dtype=self.data.U.dtype))

    def slope_covariance(self, directions: Tensor) -> Tensor:
        """cov of the slopes at the pin along directions, ``d x m``, shape ``m x m``; O(n² m)."""
        bent, s = self.shape.amplitude * CURVATURE, RATE * self._norms
        prior = LINEAR + bent
        weights = (LINEAR + bent * (1.0 + s) * torch.exp(-s)) / self._deviations
        cross = (self.data.U @ directions) * weights[:, None]
        white = torch.linalg.solve_triangular(self._factor, cross, upper=False)
        covariance = prior * (directions.mT @ directions) - white.mT @ white
        return covariance * (self.scale * self.data.unit) * self.data.unit


def matern(distances: Tensor) -> Tensor:
    """m, a new tensor: (1 + s + s²/3) exp(−s) for s = √5 r/ℓ."""
    t = distances * -RATE
    return (t / 3.0).sub_(1.0).mul_(t).add_(1.0).mul_(t.exp_())


def _matern(distance: float) -> float:
    s = RATE * distance
    return (1.0 + s + s * s / 3.0) * math.exp(-s)
