"""Fits the hyper-parameters of an isotropic Gaussian process to squared distances, by marginal likelihood.

One evaluation takes a Cholesky factorisation and an inverse, O(n³), for any d, whereas GPyTorch's fit recomputes
distances, O(n²d), at every step.

References:
    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, eqs. 5.8 and 5.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

import numpy as np
import torch
from torch import Tensor

from surrogates.kernels.stationary import RadialProfile
from surrogates.linalg.cholesky import NotPositiveDefiniteError, factor
from surrogates.threads import small_algebra
from surrogates.window.box_descent import Array, Rectangle, minimize_in_rectangle

GRID = 8
"""The number of lengthscales among which a fit chooses its start."""

STEPS = 30
"""The largest number of BFGS steps of a fit."""


@dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters of y ~ N(m 1, o (h(D/ℓ²) + ρ I)), for standardised values y.

    Attributes:
        lengthscale: ℓ, in search coordinates.
        outputscale: o.
        noise_ratio: ρ, the noise variance over o.
    """

    lengthscale: float
    outputscale: float = 1.0
    noise_ratio: float = 1e-6


def fit_isotropic(
    D: Tensor,
    y: Tensor,
    profile: RadialProfile,
    *,
    lengthscales: tuple[float, float],
    noise_ratios: tuple[float, float] = (1e-6, 1.0),
    start: tuple[float, float] | None = None,
    noise: float | None = None,
) -> Hyperparameters:
    """Maximizes the likelihood over ℓ and ρ, with the most likely m and o for each (ℓ, ρ).

    With R = h(D/ℓ²) + ρI, m = 1ᵀR⁻¹y / 1ᵀR⁻¹1 and o = (y − m)ᵀR⁻¹(y − m)/n, or o = s²/ρ if the noise variance s² is
    known. BFGS in log ℓ and log ρ (``surrogates.window.box_descent``) starts at the most likely of ``GRID``
    lengthscales in equal ratios and of ``start``. The result depends on the arguments only.

    Args:
        D: The squared distances in the Euclidean metric, ``n x n``, float64.
        y: The values, ``n``, float64, finite and not all equal.
        profile: The profile h of the kernel.
        lengthscales: The bounds of ℓ, positive.
        noise_ratios: The bounds of ρ, positive.
        start: ℓ and ρ of an earlier fit, or None.
        noise: s² in y's squared units, or None if it is fitted.
    """
    lower, upper = ((log(lengthscales[i]), log(noise_ratios[i])) for i in range(2))
    rectangle = Rectangle(lower, upper)

    def objective(theta: Array) -> tuple[float, tuple[float, float]]:
        return negative_log_likelihood(D, y, profile, exp(theta[0]), exp(theta[1]), noise)

    def likelihood(theta: tuple[float, float]) -> float:
        return log_likelihood(profile.h(D / exp(theta[0]) ** 2), y, exp(theta[1]), noise)

    scale, ratio = np.clip((log(start[0]), log(start[1])) if start else (lower[0], log(1e-4)), lower, upper).tolist()
    across = [lower[0] + (upper[0] - lower[0]) * i / (GRID - 1) for i in range(GRID)]
    starts = [(other, ratio) for other in across] + ([(scale, ratio)] if start else [])
    with small_algebra(len(y) ** 3):
        found = minimize_in_rectangle(objective, max(starts, key=likelihood), rectangle, STEPS)
        lengthscale, noise_ratio = exp(found.x[0]), exp(found.x[1])
        outputscale = _concentrated(profile.h(D / lengthscale**2), y, noise_ratio, noise)[0]
    return Hyperparameters(lengthscale, outputscale, noise_ratio)


def negative_log_likelihood(
    D: Tensor, y: Tensor, profile: RadialProfile, lengthscale: float, noise_ratio: float, noise: float | None = None
) -> tuple[float, tuple[float, float]]:
    """−log N(y | m 1, o R) at the most likely m and o, and the derivatives in (log ℓ, log ρ).

    If ``noise`` is given, o = noise/ρ. If R is not positive definite, the value is inf and the derivatives are 0.
    """
    n, r2 = len(y), D / lengthscale**2
    try:
        outputscale, L, a = _concentrated(profile.h(r2), y, noise_ratio, noise)
    except NotPositiveDefiniteError:
        return inf, (0.0, 0.0)
    value = _value(y, outputscale, L, a)
    inner = torch.cholesky_inverse(L) - torch.outer(a, a) / outputscale
    scale = -float((inner * profile.h1(r2) * r2).sum())
    ratio = 0.5 * noise_ratio * float(inner.diagonal().sum())
    if noise is not None:
        ratio -= 0.5 * (n - float(y @ a) / outputscale)
    return value, (scale, ratio)


def _value(y: Tensor, outputscale: float, L: Tensor, a: Tensor) -> float:
    """−log N(y), given o, the factor of R and R⁻¹(y − m)."""
    quadratic = float(y @ a) / outputscale
    return 0.5 * (len(y) * log(2 * torch.pi * outputscale) + quadratic) + float(L.diagonal().log().sum())


def log_likelihood(K: Tensor, y: Tensor, noise_ratio: float, noise: float | None = None) -> float:
    """log N(y | m 1, o R) at the most likely m and o, with R = K + ρI; −inf if R is not positive definite."""
    try:
        outputscale, L, a = _concentrated(K, y, noise_ratio, noise)
    except NotPositiveDefiniteError:
        return -inf
    return -_value(y, outputscale, L, a)


def _concentrated(K: Tensor, y: Tensor, noise_ratio: float, noise: float | None) -> tuple[float, Tensor, Tensor]:
    """The best o, the factor of R = K + ρI, and R⁻¹(y − m) with the best m."""
    R = K.clone()
    R.diagonal().add_(noise_ratio)
    L = factor(R)
    mean, solved = generalised_least_squares(y, L)
    a = solved[:, 0] - mean * solved[:, 1]
    outputscale = float(y @ a) / len(y) if noise is None else noise / noise_ratio
    return outputscale, L, a


def generalised_least_squares(y: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """The mean 1ᵀA⁻¹y/1ᵀA⁻¹1 with A = L Lᵀ, and the matrix (A⁻¹y, A⁻¹1), ``n x 2``."""
    solved = torch.cholesky_solve(torch.stack([y, torch.ones_like(y)], dim=1), L)
    return solved[:, 0].sum() / solved[:, 1].sum(), solved
