"""Pinned Gaussian processes of several functions that share points, hyper-parameters and one Cholesky factor.

``surrogates.pinned.prior`` defines the kernel, and ``surrogates.pinned.engine`` has the posterior of one function. Each
function has its own scale σ². Means and gradients use NumPy, which is faster than torch for small arrays.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.engine import Conditioned
from surrogates.pinned.prior import Hyperparameters, PinnedPrior


class PinnedColumns:
    """Values of m functions at points relative to the pin; a ``ShapeSearch`` fits their common hyper-parameters.

    Args:
        prior: the kernel's constants.
        U: the points minus the pin, ``n x d``, without the pin itself.
        Y: the functions' values minus their values at the pin, ``n x m``.
        shares: the weight of each function in the likelihood, shape ``m``.

    Attributes:
        variance: always 0, which means that the noise variance is unknown.
    """

    variance = 0.0

    def __init__(self, prior: PinnedPrior, U: Tensor, Y: Tensor, shares: Tensor) -> None:
        self.prior, self.U = prior, U
        units = Y.abs().amax(0)
        self.units = torch.where(units > 0.0, units, 1.0)
        self.y, self._shares, self._parts = Y / self.units, shares, prior.parts(U)

    def loss(self, params: Hyperparameters) -> float:
        """The weighted sum of the functions' −2 log marginal likelihoods, up to a constant.

        Each function has its most likely scale σ². The result is inf if k is not positive definite.
        """
        try:
            given = Conditioned.on(self.prior, self.U, params, self._parts)
        except NotPositiveDefiniteError:
            return math.inf
        squares = given.white(self.y).square().mean(0)
        logs = torch.where(squares > 0.0, squares, 1.0).log()
        determinant = 2.0 * float((given.factor.diagonal() * given.deviations).log().sum())
        return float(self._shares @ (determinant + len(self.y) * (logs + 1.0)))


class ColumnsModel:
    """The posterior of m functions minus their values at the pin: means, gradients of the means, and the variance.

    Args:
        given: the covariances of the process, conditioned on values at the points.
        Y: the functions' values minus their values at the pin, ``n x m``.

    Attributes:
        deviations: σ of each function, shape ``m``.
        noise: s².
        pin_offsets: the functions' posterior means at the pin minus the values observed at the pin, shape ``m``.
    """

    def __init__(self, given: Conditioned, Y: Tensor) -> None:
        prior, noise = given.prior, given.params.noise
        white = given.white(Y)
        alpha = torch.linalg.solve_triangular(given.factor.mT, white, upper=True) / given.deviations[:, None]
        self.deviations = white.square().mean(0).sqrt().numpy()
        self._given, self._alpha, self._prior, self.noise = given, alpha.numpy(), prior, noise
        self._U, self._a = given.U.numpy(), given.params.amplitude
        self._squares = (self._U**2).sum(1)
        self._lost = self._matern(np.sqrt(self._squares))
        self._sums, self._shared = self._alpha.sum(0), 2.0 * prior.shared * prior.linear * self._alpha.T @ self._squares
        # The noise e of the pin's value is in every difference, and E[e | data] = −s² Σᵢ αᵢ.
        self.pin_offsets = noise * self._sums
        self._at_data = (Y - noise * (alpha + alpha.sum(0))).numpy()

    def means_at_data(self) -> np.ndarray:
        """The posterior means at the data points, ``n x m``: the values minus the estimated noise."""
        return self._at_data

    def means(self, v: np.ndarray) -> np.ndarray:
        """The posterior means at a point v, ``d``; the result has shape ``m``."""
        return self._covariances(v) @ self._alpha

    def gradients(self, v: np.ndarray) -> np.ndarray:
        """The gradients of the posterior means at a point v, ``m x d``."""
        a, factor, decay, at_pin = self._slopes(v)
        G = (self._alpha * (factor + a * decay)[:, None]).T @ self._U
        return G + (self._shared + a * (at_pin * self._sums - self._alpha.T @ decay))[:, None] * v

    def weighted_hessian(self, weights: np.ndarray) -> np.ndarray:
        """Computes Σⱼ wⱼ ∇²μⱼ at the pin, ``d x d``, for weights of shape ``m``."""
        beta, prior, a = self._alpha @ weights, self._prior, self._a
        s = prior.rate * np.sqrt(self._squares)
        decay = a * prior.curvature * np.exp(-s)
        H = (self._U * (beta * (prior.quadratic + decay * prior.rate**2))[:, None]).T @ self._U
        shift = self._shared @ weights + float(beta @ (a * prior.curvature - decay * (1.0 + s)))
        H[np.diag_indices_from(H)] += shift
        return H

    def weighted_hessian_at(self, weights: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Computes Σⱼ wⱼ ∇²μⱼ at a point, ``d x d``, for weights of shape ``m``."""
        beta, prior = self._alpha @ weights, self._prior
        # The bracket is a sum over the points and, with the opposite weight, the pin.
        W = np.concatenate([self._U, np.zeros((1, len(v)))]) - v
        s = prior.rate * np.sqrt((W**2).sum(1))
        decay = np.append(beta, -beta.sum()) * (self._a * prior.curvature) * np.exp(-s)
        H = prior.quadratic * (self._U * beta[:, None]).T @ self._U + (W * decay[:, None]).T @ W * prior.rate**2
        H[np.diag_indices_from(H)] += self._shared @ weights - decay @ (1.0 + s)
        return H

    def deviation(self, v: np.ndarray) -> tuple[float, np.ndarray]:
        """The posterior standard deviation at a point v for σ = 1, and its gradient, shape ``d``.

        It is the standard deviation of f(v) minus the noisy value observed at the pin.
        """
        prior, a = self._prior, self._a
        square, r = float(v @ v), math.sqrt(v @ v)
        _, factor, decay, at_pin = self._slopes(v)
        cross = self._covariances(v) + self.noise
        own = prior.linear * square * (1.0 + prior.shared * square) + 0.5 * prior.quadratic * square**2
        own += 2.0 * a * (1.0 - float(self._matern(np.array(r)))) + self.noise
        slope = 2.0 * (prior.linear * (1.0 + 2.0 * prior.shared * square) + prior.quadratic * square + a * at_pin) * v
        white = self._given.white(torch.from_numpy(cross)[:, None])
        solved = torch.linalg.solve_triangular(self._given.factor.mT, white, upper=True)[:, 0] / self._given.deviations
        w = solved.numpy()
        shared = 2.0 * prior.shared * prior.linear * float(w @ self._squares)
        fall = (w * (factor + a * decay)) @ self._U + (shared + a * (at_pin * w.sum() - w @ decay)) * v
        variance = max(own - float(white.square().sum()), 1e-12 * own)
        root = math.sqrt(variance)
        return root, (0.5 * slope - fall) / max(root, 1e-150)

    def _covariances(self, v: np.ndarray) -> np.ndarray:
        """k(v, uᵢ), shape ``n``."""
        prior, inner, square = self._prior, self._U @ v, float(v @ v)
        between = self._matern(np.sqrt(((self._U - v) ** 2).sum(1)))
        polynomial = inner * (prior.linear + 0.5 * prior.quadratic * inner)
        polynomial += (prior.shared * prior.linear * square) * self._squares
        return polynomial + self._a * (between - self._lost + (1.0 - float(self._matern(np.array(math.sqrt(square))))))

    def _slopes(self, v: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float]:
        """The factors of ∂k(v, uᵢ)/∂v: w + q uᵢ·v and the decay at v − uᵢ, shape ``n``, and the decay at v."""
        prior = self._prior
        factor = prior.linear + prior.quadratic * (self._U @ v)
        s = prior.rate * np.sqrt(((self._U - v) ** 2).sum(1))
        at_pin = prior.rate * math.sqrt(v @ v)
        decay = prior.curvature * (1.0 + s) * np.exp(-s)
        return self._a, factor, decay, prior.curvature * (1.0 + at_pin) * math.exp(-at_pin)

    def _matern(self, r: np.ndarray) -> np.ndarray:
        s = self._prior.rate * r
        values: np.ndarray = (1.0 + s + s * s / 3.0) * np.exp(-s)
        return values
