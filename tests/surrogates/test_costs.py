"""Every cost that a docstring documents, counted; ``benchmark derived-gp`` has their growth in time."""

import pytest
import torch

from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    GradientInformation,
    GradientObservationGP,
    gaussian_likelihood,
    matern_kernel,
    rbf_kernel,
)
from tests.surrogates.gp_models import points
from tests.surrogates.uncompiled import uncompiled
from tests.work import work_of


def gp_of(n, d, kernel=None):
    X = points(n, d)
    likelihood = gaussian_likelihood(1e-2)
    return DerivedGP(X, X[:, :1].sin(), likelihood=likelihood, covar_module=kernel or matern_kernel(d**0.5))


def posterior_of(gp, q=1, seed=5):
    _ = gp.conditioning
    return gp.gradient_posterior(points(q, gp.num_inputs, seed))


def test_a_trace_of_few_inputs_inverts_nothing_nor_does_it_after_an_observation():
    n, d = 300, 2
    gp = gp_of(n, d)
    for seed in (5, 6, 7):
        posterior = posterior_of(gp, seed=seed)
        work = work_of(lambda p=posterior: p.trace)
        assert not work.factored
        assert work.columns == d
        assert work.multiplications <= 2 * n**2 * d
        gp.add_observations(points(1, d, seed + 20), torch.zeros(1, 1, dtype=torch.float64))


def test_many_traces_share_one_inverse():
    n, d = 60, 4
    gp = gp_of(n, d)
    posteriors = [posterior_of(gp, seed=seed) for seed in range(100)]
    work = work_of(lambda: [posterior.trace for posterior in posteriors])
    assert work.factored == [n]
    assert work.columns < n


def test_a_trace_of_many_inputs_is_two_products_of_matrices_whatever_d_is():
    for n, d in ((20, 300), (20, 3000)):
        gp = gp_of(n, d)
        first, later = posterior_of(gp), posterior_of(gp, 3, 6)
        assert work_of(lambda p=first: p.trace).factored == [n]
        _ = later.mean
        work = work_of(lambda p=later: p.trace)
        assert not work.factored and not work.columns
        assert work.multiplications <= 3 * 2 * n**2
        assert work.largest <= 3 * n


def test_a_mean_is_one_pass_without_a_copy_of_the_data(monkeypatch):
    n, d = 400, 10_000
    gp = gp_of(n, d)
    posterior = posterior_of(gp)
    uncompiled(monkeypatch)
    work = work_of(lambda: posterior.mean)
    assert not work.factored and not work.columns
    assert work.multiplications <= 2 * n * d
    assert work.largest <= n * d / 4


def test_variances():
    n, d, q = 40, 30, 3
    gp = gp_of(n, d)
    posterior = posterior_of(gp, q)
    work = work_of(lambda: posterior.variance)
    assert not work.factored
    assert work.columns == q * d
    assert work.multiplications <= 2 * q * n**2 * d
    posterior = posterior_of(gp, q)
    work = work_of(lambda: posterior.directional_variance(torch.ones(d, dtype=torch.float64)))
    assert not work.factored
    assert work.columns == q
    assert work.multiplications <= 2 * q * (n**2 + n * d)
    assert work.largest <= max(n * d, n**2)


def test_a_spectral_norm_below_the_dimension_is_known():
    posterior = posterior_of(gp_of(10, 200))
    work = work_of(lambda: posterior.spectral_norm)
    assert not work.factored and not work.columns and not work.multiplications


def test_samples_of_one_gradient_form_nothing_of_the_dimension_squared():
    n, d = 10, 400
    posterior = posterior_of(gp_of(n, d))
    work = work_of(lambda: posterior.rsample(torch.Size([2]), generator=torch.Generator().manual_seed(0)))
    assert work.factored == [n]
    assert work.columns == d
    assert work.largest <= 2 * n * d


def test_an_observation_is_appended():
    n, d = 200, 3
    gp = gp_of(n, d)
    gp.add_observations(points(1, d, 20), torch.zeros(1, 1, dtype=torch.float64))
    x, y = points(1, d, 21), torch.zeros(1, 1, dtype=torch.float64)
    work = work_of(lambda: (gp.add_observations(x, y), gp.conditioning))
    assert set(work.factored) <= {1}
    assert work.multiplications <= 8 * n**2
    assert work.largest < n**2


def test_a_value_posterior_inverts_the_factor_once():
    n = 60
    gp = gp_of(n, 3)
    assert work_of(lambda: gp.posterior(points(1, 3, 6)).variance).columns >= n
    later = work_of(lambda: gp.posterior(points(2, 3, 7)).variance)
    assert not later.factored and later.columns < n
    assert later.multiplications <= 4 * 2 * n**2


def test_information_of_many_candidates():
    n, d, m = 40, 5, 30
    gp = gp_of(n, d)
    information = GradientInformation(gp, points(1, d, 4))
    _ = gp.conditioning
    candidates = points(m, d, 5)[:, None]
    work = work_of(lambda: information(candidates))
    assert not work.factored
    assert work.multiplications <= 8 * (n**2 * m + n * m * d)
    assert work.largest <= 2 * m * max(n, d)


@pytest.mark.parametrize("n", [20, 60])
def test_fourier_surrogates_run_in_the_smaller_of_rows_and_features(n):
    M, d = 32, 50
    X = points(n, d)
    features = FourierFeatures(rbf_kernel(d**0.5), d, M, seed=0)
    surrogate = FourierSurrogate(features, 1e-2)
    work = work_of(lambda: surrogate.fit(X, X[:, 0]).weights)
    assert max(work.factored) == min(n, M)
    work = work_of(lambda: surrogate.append(X[:2] + 0.1, X[:2, 0]).weights)
    assert max(work.factored) <= 2
    assert work.multiplications <= 2 * 8 * (n**2 + M**2 + n * M + 2 * M * d)
    if n < M:
        work = work_of(lambda: surrogate.gradient_posterior(X[:1]).variance)
        assert not work.factored and work.columns == d
        assert work.largest <= max(n * M, (n + 2) * d, M * d // 2)
        assert work.multiplications <= 4 * (n * M * d + n**2 * d)


def test_observed_gradients_are_factorised_once_and_shared_by_fantasies():
    n, d = 8, 3
    X = points(n, d)
    gp = GradientObservationGP(X, X[:, :1], X)
    N = n * (d + 1)
    assert work_of(lambda: gp.gradient_posterior(points(1, d, 5)).mean).factored == [N]
    assert not work_of(lambda: gp.joint_posterior(points(1, d, 6)).mean).factored
    fantasies = gp.condition_on_observations(points(1, d, 7), torch.zeros(5, 1, 1, dtype=torch.float64))
    assert set(work_of(lambda: fantasies.posterior(points(1, d, 8)).mean).factored) == {1}
