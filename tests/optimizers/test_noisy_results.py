"""A result has the query of least posterior mean if values are noisy, and the best query in every other run."""

import math

import numpy as np
import pytest
import torch

from optimizers import run
from optimizers.registry import method_class

SD = 0.3
BOX = [(-3.0, 3.0)] * 2


def truth(x):
    return float((torch.as_tensor(x).double() - 0.5).square().sum())


def noisy_run(method, seed, options, sd=SD):
    rng = np.random.default_rng(seed)
    optimizer = method_class(method)([2.0, -1.5], bounds=BOX, max_queries=60, seed=seed, store_points=True, **options)
    return run(optimizer, lambda x: truth(x) + sd * rng.standard_normal())


NOISY = [
    pytest.param("trust_region", {"noise": SD**2}, marks=pytest.mark.slow),
    ("trust_region", {}),
    ("zord", {"noise": SD**2}),
    pytest.param("turbo", {"noisy": True}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("method", "options"), NOISY, ids=str)
def test_x_is_the_query_of_least_mean_and_its_value_nearer_the_truth_than_the_luckiest(method, options):
    """Over seeds: ``fun`` was the luckiest value, two deviations of the noise under the truth."""
    errors, lucky = [], []
    for seed in range(5):
        result = noisy_run(method, seed, options)
        assert bool((result.history.x == result.x).all(dim=1).any())
        assert 0.0 < result.fun_std < SD
        assert result.best_fun == float(result.history.y.min()) < truth(result.best_x)
        errors.append(result.fun - truth(result.x))
        lucky.append(result.best_fun - truth(result.best_x))
    assert np.abs(np.mean(errors)) < 0.4 * np.abs(np.mean(lucky))


@pytest.mark.parametrize(
    "method",
    ["trust_region", "zord", "rgf", "es", *(pytest.param(name, marks=pytest.mark.slow) for name in ("turbo", "cobbo"))],
)
def test_without_noise_x_is_the_best_query(method):
    result = noisy_run(method, 0, {}, sd=0.0)
    assert result.fun == result.best_fun == float(result.history.y.min()) and result.fun_std == 0.0
    assert torch.equal(result.x, result.best_x)


def test_ripples_of_a_function_without_noise_are_not_noise():
    optimizer = method_class("trust_region")([2.0, -1.5], bounds=BOX, max_queries=60)
    result = run(optimizer, lambda x: truth(x) + 0.3 * math.sin(1e4 * float(x.sum())))
    assert optimizer.state.run.noisy is False and result.fun == result.best_fun and result.fun_std == 0.0


def test_ripples_of_noisy_values_that_the_model_smooths_over_are_not_noise_either():
    """On Rastrigin's function ``fun`` was ten of its deviations away from the truth."""
    for seed in range(4):
        rng = np.random.default_rng(seed)

        def rastrigin(x, rng=rng):
            return float((x.square() - 10.0 * torch.cos(2.0 * math.pi * x) + 10.0).sum()) + 0.01 * rng.standard_normal()

        x0 = rng.uniform(-4.0, 4.0, 2)
        result = run(method_class("trust_region")(x0, bounds=[(-5.12, 5.12)] * 2, max_queries=80, seed=seed), rastrigin)
        assert result.fun_std < 0.1
