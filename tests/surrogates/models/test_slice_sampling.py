"""Last states of many chains against the distribution functions of their densities."""

import math

import pytest
import torch
from scipy import stats

from surrogates.models.slice_sampling import slice_sample

SEEDS = range(4)


def last_states(log_density, start, steps, seed):
    return slice_sample(log_density, start.double(), steps, torch.Generator().manual_seed(seed))


def bimodal(u):
    """0.3 N(-2, 0.5²) + 0.7 N(3, 1)."""
    near = math.log(0.3 / 0.5) - 2 * (u + 2).square()
    return torch.logaddexp(near, math.log(0.7) - 0.5 * (u - 3).square())


ONE_DIMENSION = {
    "two modes": (bimodal, lambda x: 0.3 * stats.norm.cdf(x, -2, 0.5) + 0.7 * stats.norm.cdf(x, 3, 1)),
    "heavy tails": (lambda u: -(u.square() + 1).log(), stats.cauchy.cdf),
    "NaN outside of the support": (lambda u: u.log() - u, stats.gamma(2).cdf),
    "narrow": (lambda u: -0.5 * ((u - 1) / 1e-3).square(), stats.norm(1, 1e-3).cdf),
    "wide": (lambda u: -0.5 * ((u - 1) / 20).square(), stats.norm(1, 20).cdf),
}


@pytest.mark.parametrize("name", ONE_DIMENSION)
def test_one_dimension_by_kolmogorov_and_smirnov(name):
    log_density, cdf = ONE_DIMENSION[name]
    # A wide density is crossed, and between modes is jumped, in more steps than the rest needs.
    states = [last_states(lambda u, _: log_density(u[:, 0]), torch.ones(500, 1), 40, seed) for seed in SEEDS]
    assert stats.kstest(torch.cat(states)[:, 0].numpy(), cdf).pvalue > 1e-3


def test_moments_of_correlated_coordinates():
    covariance = torch.tensor([[1.0, 0.8], [0.8, 2.0]], dtype=torch.float64)
    precision = covariance.inverse()

    def log_density(u, _):
        return -0.5 * torch.einsum("ki,ij,kj->k", u - 5, precision, u - 5)

    states = torch.stack([last_states(log_density, torch.zeros(500, 2), 30, seed) for seed in SEEDS])
    found = states.flatten(0, 1)
    error = (covariance.diagonal() / len(found)).sqrt()
    assert ((found.mean(0) - 5).abs() < 4 * error).all()
    torch.testing.assert_close(found.T.cov(), covariance, atol=0.2, rtol=0)


def test_every_chain_has_its_own_density():
    at = torch.arange(1000.0, dtype=torch.float64) % 3

    def log_density(u, chains):
        return -0.5 * (u[:, 0] - 10 * at[chains]).square()

    states = last_states(log_density, 10 * at.unsqueeze(1), 10, 0)[:, 0]
    for place in range(3):
        assert stats.kstest(states[at == place].numpy(), stats.norm(10 * place, 1).cdf).pvalue > 1e-3


def test_a_state_that_starts_from_the_density_stays_in_it_after_one_step():
    """Invariance, which no length of a warm-up is needed for."""
    start = torch.randn(4000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    states = last_states(lambda u, _: -0.5 * u[:, 0].square(), start, 1, 2)
    assert stats.kstest(states[:, 0].numpy(), stats.norm.cdf).pvalue > 1e-3
    assert (states != start).all()


def test_a_density_without_an_end_comes_to_one():
    states = last_states(lambda u, _: torch.zeros(len(u), dtype=torch.float64), torch.zeros(50, 1), 3, 0)
    assert states.isfinite().all() and states.abs().max() < 3 * 64


def test_the_generator_alone_decides():
    def run(seed):
        return last_states(lambda u, _: -0.5 * u.square().sum(-1), torch.zeros(5, 2), 3, seed)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(run(0), run(0)) and not torch.equal(run(0), run(1))
    assert torch.equal(torch.get_rng_state(), before)
