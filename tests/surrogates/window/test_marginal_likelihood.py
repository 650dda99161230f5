import math

import gpytorch
import numpy as np
import pytest
import torch

from surrogates import gaussian_likelihood, matern_kernel
from surrogates.kernels.stationary import radial_profile
from surrogates.window.marginal_likelihood import fit_isotropic, generalised_least_squares, negative_log_likelihood

MATERN = radial_profile(matern_kernel(1.0).base_kernel)


def data(n=40, d=3, noise=0.1, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    y = (3 * X).sin().sum(-1) + noise * torch.randn(n, generator=g, dtype=torch.float64) + 5.0
    return X, y, torch.cdist(X, X).square()


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, X, y, likelihood, kernel, mean):
        super().__init__(X, y, likelihood)
        self.covar_module, self.mean_module = kernel, gpytorch.means.ConstantMean()
        self.mean_module.constant.data = torch.tensor(mean, dtype=torch.float64)

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def log_likelihood(X, y, lengthscale, outputscale, noise, mean):
    """GPyTorch's, by Cholesky."""
    kernel = matern_kernel(lengthscale, outputscale)
    model = ExactGP(X, y, gaussian_likelihood(noise), kernel, mean)
    with gpytorch.settings.fast_computations(False, False, False):
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        return float(mll(model(X), y)) * len(y)


@pytest.mark.slip(
    "surrogates/window/marginal_likelihood.py",
    "outputscale = float(y @ a) / len(y) if noise is None",
    "outputscale = float(y @ a) if noise is None",
    "the best outputscale without 1/n",
)
@pytest.mark.parametrize("noise", [None, 0.02])
def test_likelihood_is_gpytorchs_at_the_fit_and_lower_around_it(noise):
    X, y, D = data()
    fit = fit_isotropic(D, y, MATERN, lengthscales=(0.05, 20.0), noise=noise)
    s2 = fit.outputscale * fit.noise_ratio
    R = MATERN.h(D / fit.lengthscale**2) + fit.noise_ratio * torch.eye(len(y), dtype=torch.float64)
    mean = float(generalised_least_squares(y, torch.linalg.cholesky(R))[0])
    best = log_likelihood(X, y, fit.lengthscale, fit.outputscale, s2, mean)
    value, _ = negative_log_likelihood(D, y, MATERN, fit.lengthscale, fit.noise_ratio, noise)
    assert value == pytest.approx(-best, rel=1e-9)
    assert noise is None or s2 == pytest.approx(noise, rel=1e-12)
    factors = [0.97, 1.03]
    around = (
        [(f, 1.0, 1.0, 0.0) for f in factors]
        + [(1.0, f, 1.0, 0.0) for f in factors]
        + [(1, 1, 1, 0.1), (1, 1, 1, -0.1)]
    )
    around += [(1.0, 1.0, f, 0.0) for f in factors] if noise is None else []
    for f, g, h, shift in around:
        assert log_likelihood(X, y, f * fit.lengthscale, g * fit.outputscale, h * s2, mean + shift) < best


@pytest.mark.parametrize("noise", [None, 0.02])
def test_derivatives_are_those_of_the_value(noise):
    _, y, D = data()

    def value(theta):
        return negative_log_likelihood(D, y, MATERN, math.exp(theta[0]), math.exp(theta[1]), noise)

    theta, step = np.log([0.7, 0.03]), 1e-5
    gradient = value(theta)[1]
    for j in range(2):
        e = step * np.eye(2)[j]
        assert gradient[j] == pytest.approx((value(theta + e)[0] - value(theta - e)[0]) / (2 * step), rel=1e-6)


def test_scaling_and_shifting_the_values_scales_and_shifts_the_fit():
    _, y, D = data()
    fit = fit_isotropic(D, y, MATERN, lengthscales=(0.05, 20.0))
    other = fit_isotropic(D, 100 * y - 7, MATERN, lengthscales=(0.05, 20.0))
    assert other.lengthscale == pytest.approx(fit.lengthscale, rel=1e-4)
    assert other.noise_ratio == pytest.approx(fit.noise_ratio, rel=1e-3)
    assert other.outputscale == pytest.approx(1e4 * fit.outputscale, rel=1e-3)


def test_ranges_hold():
    _, y, D = data()
    fit = fit_isotropic(D, y, MATERN, lengthscales=(3.0, 4.0), noise_ratios=(0.5, 0.6), start=(0.1, 1e-3))
    assert fit.lengthscale * (1 + 1e-12) >= 3.0 and fit.lengthscale <= 4.0 * (1 + 1e-12)
    assert fit.noise_ratio * (1 + 1e-12) >= 0.5 and fit.noise_ratio <= 0.6 * (1 + 1e-12)


def test_a_noise_free_line_takes_the_least_noise():
    X, _, D = data(noise=0.0)
    fit = fit_isotropic(D, X[:, 0], MATERN, lengthscales=(0.05, 20.0), noise_ratios=(1e-8, 1.0))
    assert fit.noise_ratio < 1e-7 and fit.lengthscale > 5.0
