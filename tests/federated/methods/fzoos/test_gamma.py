"""The weight of corrections: exact minima, invariances, and what is unknown drops out."""

import math

import pytest
import torch

from federated.methods.fzoos.client_surrogates import ClientSurrogates
from federated.methods.fzoos.gamma import clipped, corrections, disparity, empirical_bayes_gamma, shared_gamma
from surrogates import FourierFeatures, rbf_kernel

F64 = torch.float64
N, D, M = 5, 6, 120


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def gp_clients(seed, spread=0.5):
    """mᵢ and ∇μ̂ᵢ at a point, of clients with 25 queries each of their own functions, and ∇F there."""
    features = FourierFeatures(rbf_kernel(1.0), D, M, seed)
    generator = torch.Generator().manual_seed(seed)
    x, a = torch.rand(D, generator=generator, dtype=F64), 1 + spread * random(N, D, seed=seed)
    means, gradients = [], []
    for i in range(N):
        model = ClientSurrogates(
            x, features, window=20, lengthscale=1.0, nugget=1e-6, feature_nugget=1e-4, kernel=rbf_kernel
        )
        X = x + 0.2 * random(25, D, seed=100 * seed + i)
        model.append(X, (a[i] * X.square()).sum(-1) + X.sum(-1).sin())
        means.append(model.gradient(x))
        gradients.append(features.gradient(x[None], model.fitted_weights(x))[0])
    truth = 2 * a.mean(0) * x + x.sum().cos()
    return torch.stack(means), torch.stack(gradients), truth


def products(means, gradients, shares):
    return (means * corrections(gradients, shares)).sum(-1)


def vertex(f):
    """Where the parabola through f(0), f(1/2), f(1) is smallest."""
    f0, f1, f2 = f(0.0), f(0.5), f(1.0)
    return (3 * f0 - 4 * f1 + f2) / (4 * (f0 - 2 * f1 + f2)) if f0 - 2 * f1 + f2 else math.nan


SHARES = {"equal": torch.full((N,), 0.2, dtype=F64), "weighted": torch.arange(1.0, N + 1, dtype=F64)}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_best_gamma_at_the_point(seed, shares):
    means, gradients, truth = gp_clients(seed)
    gamma = shared_gamma(products(means, gradients, shares), gradients, shares)
    assert 0.1 < gamma < 1.0
    best = vertex(lambda g: disparity(means, gradients, shares, g, truth))
    assert gamma == pytest.approx(best, abs=1e-12)
    # The truth is not asked: another one has the same best gamma.
    other = vertex(lambda g: disparity(means, gradients, shares, g, random(D, seed=9)))
    assert gamma == pytest.approx(other, abs=1e-11)


def test_over_several_points_it_is_the_best_for_their_sum():
    parts = [gp_clients(seed) for seed in (1, 2)]
    p = SHARES["weighted"]
    total = sum(products(m, g, p) for m, g, _ in parts)
    gamma = shared_gamma(total, torch.stack([g for _, g, _ in parts]), p)
    best = vertex(lambda c: sum(disparity(m, g, p, c, t) for m, g, t in parts))
    assert gamma == pytest.approx(best, abs=1e-12)


def test_it_is_clipped():
    gradients, shares = random(N, D), SHARES["equal"]
    c = corrections(gradients, shares)
    assert shared_gamma(c.square().sum(-1), gradients, shares) == 0.0
    assert shared_gamma(-3 * c.square().sum(-1), gradients, shares) == 1.0
    assert shared_gamma(-0.3 * c.square().sum(-1), gradients, shares) == pytest.approx(0.3, abs=1e-14)


@pytest.mark.parametrize("scale", [1e-60, 1e-5, 1e7, 1e60])
def test_it_does_not_depend_on_the_units_of_y(scale):
    means, gradients, _ = gp_clients(0)
    shares = SHARES["weighted"]
    expected = shared_gamma(products(means, gradients, shares), gradients, shares)
    means, gradients = scale * means, scale * gradients
    assert shared_gamma(products(means, gradients, shares), gradients, shares) == pytest.approx(expected, abs=1e-12)


def test_identical_clients_have_nothing_to_correct():
    shares = SHARES["weighted"]
    gradients = random(1, D).expand(N, D) * (1 + 1e-15 * random(N, D, seed=3))
    assert shared_gamma(-1e-20 * torch.ones(N, dtype=F64), gradients, shares) == 0.0
    assert shared_gamma(-torch.ones(N, dtype=F64), torch.zeros(N, D, dtype=F64), shares) == 0.0
    one = torch.ones(1, dtype=F64)
    assert shared_gamma(-one, random(1, D), one) == 0.0
    assert empirical_bayes_gamma(torch.zeros(N, dtype=F64), gradients, shares) == 0.0


def test_what_is_not_finite_is_said():
    shares = SHARES["equal"]
    assert math.isnan(shared_gamma(torch.full((N,), math.inf, dtype=F64), random(N, D), shares))
    assert math.isnan(shared_gamma(torch.ones(N, dtype=F64), math.nan * random(N, D), shares))
    assert math.isnan(clipped(math.inf)) and clipped(-0.5) == 0.0 and clipped(7.0) == 1.0


def test_corrections_sum_to_zero_and_change_with_their_mean():
    gradients, shares = random(N, D), SHARES["weighted"]
    c = corrections(gradients, shares)
    torch.testing.assert_close((shares[:, None] * c).sum(0), torch.zeros(D, dtype=F64), atol=1e-14, rtol=0)
    torch.testing.assert_close(c[0], (shares / shares.sum()) @ gradients - gradients[0])


def test_the_one_way_rule():
    """γ = 1 − v/((1/N)Σ‖cᵢ‖²), v = (1 − 1/N)(1/N)Σ‖∇μ̂ᵢ − mᵢ‖², with (1/N²)Σ tⱼ added for the margin."""
    means, gradients, _ = gp_clients(2, spread=2.0)
    errors, t = (gradients - means).square().sum(-1), 0.1 + 0.01 * random(N).abs()
    squares = (gradients.mean(0) - gradients).square().sum(-1).mean()
    v = (1 - 1 / N) * errors.mean()
    shares = SHARES["equal"]
    assert empirical_bayes_gamma(errors, gradients, shares) == pytest.approx(float(1 - v / squares), abs=1e-13)
    margin = empirical_bayes_gamma(errors, gradients, shares, t)
    assert margin == pytest.approx(float(1 - (v + t.sum() / N**2) / squares), abs=1e-13)
    assert 0 < margin < empirical_bayes_gamma(errors, gradients, shares) < 1


def test_the_one_way_rule_is_right_for_independent_errors():
    """E Σ pᵢ‖cᵢ‖² = Σ pᵢ‖∇F − ∇fᵢ‖² + v, weighted: what it takes for noise is the noise."""
    shares = SHARES["weighted"] / SHARES["weighted"].sum()
    truth, deviations = random(N, 50), torch.linspace(0.5, 1.5, N, dtype=F64)
    noisy = truth + deviations[:, None] * random(20_000, N, 50, seed=5)
    total = (corrections(noisy, shares).square().sum(-1) @ shares).mean()
    signal = corrections(truth, shares).square().sum(-1) @ shares
    v = (shares * (1 - shares) * 50 * deviations.square()).sum()
    assert float(total) == pytest.approx(float(signal + v), rel=2e-3)
