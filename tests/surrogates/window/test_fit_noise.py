"""``WindowSurrogate.fit_noise``: noise that is there is found, curvature is not taken for it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from surrogates.kernels.makers import rbf_kernel
from surrogates.kernels.stationary import radial_profile
from surrogates.window import marginal_likelihood
from surrogates.window.local_options import LocalSurrogateOptions
from surrogates.window.marginal_likelihood import log_likelihood
from surrogates.window.window_surrogate import SHORTER


def fitted(width, noise, seed, n=60, d=5, nugget=1e-6, steep=1.0):
    """A surrogate of a quadratic at points of a cube of a width, and whether its values show noise."""
    draws = np.random.default_rng(seed)
    X = torch.from_numpy(0.5 + width * draws.uniform(-1.0, 1.0, (n, d)))
    slope, curvature = (torch.from_numpy(draws.uniform(-2.0, 2.0, d)) for _ in range(2))
    y = (X - 0.5) @ (steep * slope) + (X - 0.5).square() @ curvature
    y += torch.from_numpy(noise * draws.standard_normal(n))
    surrogate = LocalSurrogateOptions(n, 1.0, nugget, kernel="rbf").surrogate(X[0])
    surrogate.append(X, y)
    surrogate.begin(X[0])
    return surrogate, surrogate.fit_noise(nugget)


def test_the_likelihood_is_the_normal_densitys_at_the_best_mean_and_scale():
    draws = np.random.default_rng(0)
    X, y, ratio = draws.uniform(size=(12, 3)), draws.standard_normal(12), 0.03
    D = np.square(X[:, None] - X).sum(-1)
    R = np.exp(-0.5 * D / 0.7**2) + ratio * np.eye(12)
    ones = np.ones(12)
    mean = ones @ np.linalg.solve(R, y) / (ones @ np.linalg.solve(R, ones))
    scale = (y - mean) @ np.linalg.solve(R, y - mean) / 12
    expected = multivariate_normal(mean * ones, scale * R).logpdf(y)
    profile = radial_profile(rbf_kernel(1.0).base_kernel)
    found = log_likelihood(profile.h(torch.from_numpy(D) / 0.7**2), torch.from_numpy(y), ratio)
    assert found == pytest.approx(expected, rel=1e-10)
    assert log_likelihood(torch.ones(3, 3).double(), torch.randn(3).double(), 0.0) == -math.inf


@pytest.mark.parametrize("width", [0.3, 1e-2, 1e-3, 1e-4])
def test_exact_values_show_none_however_narrow_the_window_is(width):
    for seed in range(5):
        surrogate, noisy = fitted(width, 0.0, seed)
        D = torch.cdist(surrogate.window.X, surrogate.window.X).square()
        expected = max(4 * torch.finfo(torch.float64).eps * 60, 1e-6 * min(1.0, float(D.median())))
        assert not noisy
        assert surrogate.hyperparameters.noise_ratio == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("width", [1e-2, 1e-3])
def test_curvature_that_the_lengthscale_does_not_expect_is_no_noise(width):
    """Near a stationary point the values are more curved than steep."""
    assert not any(fitted(width, 0.0, seed, steep=3.0 * width)[1] for seed in range(5))


@pytest.mark.parametrize(("width", "noise"), [(0.3, 0.05), (1e-2, 1e-2), (1e-3, 1e-3)])
def test_noise_of_the_size_of_the_values_is_found(width, noise):
    found = [fitted(width, noise, seed)[1] for seed in range(10)]
    assert sum(found) >= 9


def test_a_window_that_fills_after_its_noise_was_found_is_factored():
    """Four queries at a corner, where candidates are clamped to the same point, and sixty more."""
    corner, away = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    surrogate = LocalSurrogateOptions(64, 1.0, 1e-6, kernel="rbf").surrogate(corner)
    first = torch.stack([corner, corner, corner, away])
    surrogate.append(first, first.sum(1))
    surrogate.begin(corner)
    surrogate.fit_noise(1e-6)
    surrogate.append(corner.expand(60, 2), torch.zeros(60).double())
    surrogate.begin(corner)
    assert bool(surrogate.gradient_posterior(corner).mean.isfinite().all())


def test_the_gradient_is_nearer_with_the_noise_that_was_found():
    """Against the same window with the nugget of exact values; the truth is the quadratic's slope at the middle."""
    worse = []
    for seed in range(10):
        surrogate, noisy = fitted(1e-2, 3e-3, seed)
        draws = np.random.default_rng(seed)
        draws.uniform(size=(60, 5))
        slope = torch.from_numpy(draws.uniform(-2.0, 2.0, 5))
        middle = torch.full((5,), 0.5, dtype=torch.float64)

        def error(surrogate=surrogate, slope=slope, middle=middle):
            surrogate.begin(middle)
            return float((surrogate.gradient_posterior(middle).mean[0] * surrogate.scale - slope).norm())

        with_noise = error()
        surrogate._change(replace(surrogate.hyperparameters, noise_ratio=1e-10))
        worse.append(error() / with_noise)
        assert noisy
    assert np.median(worse) > 1.2


@pytest.mark.parametrize(
    ("width", "noise", "steep", "seed", "nugget", "factors"),
    [
        (0.3, 0.05, 1.0, 0, 1e-6, 13),  # at ℓ = 1 noise is likelier than exact values at any
        (1e-2, 3e-3, 1.0, 1, 1e-6, 70),  # at a shorter one only
        (1e-2, 0.0, 0.03, 0, 1e-6, 70),
        (0.3, 0.0, 1.0, 0, 1e-6, 8),
        (0.3, 0.05, 1.0, 0, 3.0, 1),
    ],
)
def test_the_answer_is_that_of_all_likelihoods(width, noise, steep, seed, nugget, factors, monkeypatch):
    """By the normal density; other lengthscales are not looked at where the kernel's own says enough."""
    factored, factor = [], marginal_likelihood.factor
    monkeypatch.setattr(marginal_likelihood, "factor", lambda R: factored.append(len(R)) or factor(R))
    surrogate, noisy = fitted(width, noise, seed, n=24, nugget=nugget, steep=steep)
    y, X = surrogate.window.y.numpy() / surrogate.scale, surrogate.window.X.numpy()
    D = np.square(X[:, None] - X).sum(-1)
    least = max(4 * np.finfo(float).eps * 24, nugget * min(1.0, np.quantile(D, 0.5, method="lower")))
    ratios = [least] + [ratio for ratio in least * 10.0 ** np.arange(1, 16) if ratio < 1.0]
    table = np.array([[profiled(D / shorter**2, y, ratio) for ratio in ratios] for shorter in (1.0, *SHORTER)])
    loud, still = max(table[0].max(), table[1:, ::2].max()), table[:, 0].max()
    assert noisy == (noise > 0.0 and nugget < 1.0) == bool(table[0].max() > table[0, 0] + 3.0 and loud > still + 3.0)
    expected = ratios[int(table[0].argmax())] if noisy else least
    assert surrogate.hyperparameters.noise_ratio == pytest.approx(expected, rel=1e-6)
    assert len(factored) <= factors


def profiled(D, y, ratio):
    """The normal density's logarithm at the best mean and scale, by solves with the whole matrix."""
    n, ones, R = len(y), np.ones(len(y)), np.exp(-0.5 * D) + ratio * np.eye(len(y))
    mean = ones @ np.linalg.solve(R, y) / (ones @ np.linalg.solve(R, ones))
    scale = (y - mean) @ np.linalg.solve(R, y - mean) / n
    return -0.5 * (n * math.log(2 * math.pi * scale) + np.linalg.slogdet(R)[1] + n)
