"""The weight of corrections: exact minima, invariances, and what is unknown drops out."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from federated.methods.fzoos.client_surrogates import ClientSurrogates
from federated.methods.fzoos.gamma import CLIENT_BLOCK, Adaptive, clipped, squared_corrections
from surrogates import FourierFeatures, rbf_kernel
from surrogates.window.local_options import LocalSurrogateOptions
from tests.federated.methods.fzoos.checks import corrections, disparity, vertex

F64 = torch.float64
N, D, M = 5, 6, 120


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def gp_clients(seed, spread=0.5):
    """Each client's mᵢ·cᵢ as the rule measures it, mᵢ and ∇μ̂ᵢ at a point, and ∇F there; equal weights.

    The clients have 25 queries each of their own functions.
    """
    features = FourierFeatures(rbf_kernel(1.0), D, M, seed)
    generator = torch.Generator().manual_seed(seed)
    x, a = torch.rand(D, generator=generator, dtype=F64), 1 + spread * random(N, D, seed=seed)
    models = []
    for i in range(N):
        model = ClientSurrogates(x, features, LocalSurrogateOptions(20, 1.0, kernel="rbf"), feature_nugget=1e-4)
        X = x + 0.2 * random(25, D, seed=100 * seed + i)
        model.local.append(X, (a[i] * X.square()).sum(-1) + X.sum(-1).sin())
        models.append(model)
    weights = torch.stack([model.fitted_weights(x) for model in models])
    measured = [Adaptive().measure(m, [x], w, weights.mean(0)) for m, w in zip(models, weights, strict=True)]
    means = torch.stack([model.gradient(x) for model in models])
    gradients = torch.stack([features.gradient(x[None], w)[0] for w in weights])
    return torch.tensor(measured, dtype=F64), means, gradients, 2 * a.mean(0) * x + x.sum().cos()


def estimate(scalars, gradients, shares):
    return Adaptive().estimate(scalars[:, None] if scalars.ndim == 1 else scalars, gradients, shares)


def products(means, gradients, shares):
    return (means * corrections(gradients, shares)).sum(-1)


SHARES = {"equal": torch.full((N,), 0.2, dtype=F64), "weighted": torch.arange(1.0, N + 1, dtype=F64)}


@pytest.mark.parametrize("seed", range(3))
def test_a_client_measures_the_product_of_its_gradient_and_its_correction(seed):
    measured, means, gradients, _ = gp_clients(seed)
    torch.testing.assert_close(measured[:, 0], products(means, gradients, SHARES["equal"]), atol=1e-9, rtol=1e-9)
    assert float(measured.abs().min()) > 1e-3


@pytest.mark.slip(
    "federated/methods/fzoos/gamma.py",
    "return clipped(-float((p * scalars",
    "return clipped(float((p * scalars",
    "the sign of the best γ (FZooS, Prop. B.1)",
    of="federated/fzoos",
)
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_best_gamma_at_the_point(seed, shares):
    _, means, gradients, truth = gp_clients(seed)
    gamma = estimate(products(means, gradients, shares), gradients, shares)
    assert 0.1 < gamma < 1.0
    best = vertex(partial(disparity, means, gradients, shares, truth))
    assert gamma == pytest.approx(best, abs=1e-12)
    # The truth is not asked: another one has the same best gamma.
    other = vertex(partial(disparity, means, gradients, shares, random(D, seed=9)))
    assert gamma == pytest.approx(other, abs=1e-11)


def test_over_several_points_it_is_the_best_for_their_sum():
    parts = [gp_clients(seed)[1:] for seed in (1, 2)]
    p = SHARES["weighted"]
    total = sum(products(m, g, p) for m, g, _ in parts)
    gamma = estimate(total, torch.stack([g for _, g, _ in parts]), p)
    best = vertex(lambda c: sum(disparity(m, g, p, t, c) for m, g, t in parts))
    assert gamma == pytest.approx(best, abs=1e-12)


def test_it_is_clipped():
    gradients, shares = random(N, D), SHARES["equal"]
    c = corrections(gradients, shares)
    assert estimate(c.square().sum(-1), gradients, shares) == 0.0
    assert estimate(-3 * c.square().sum(-1), gradients, shares) == 1.0
    assert estimate(-0.3 * c.square().sum(-1), gradients, shares) == pytest.approx(0.3, abs=1e-14)


@pytest.mark.parametrize("scale", [1e-60, 1e-5, 1e7, 1e60])
def test_it_does_not_depend_on_the_units_of_y(scale):
    _, means, gradients, _ = gp_clients(0)
    shares = SHARES["weighted"]
    expected = estimate(products(means, gradients, shares), gradients, shares)
    means, gradients = scale * means, scale * gradients
    assert estimate(products(means, gradients, shares), gradients, shares) == pytest.approx(expected, abs=1e-12)


def test_identical_clients_have_nothing_to_correct():
    shares = SHARES["weighted"]
    gradients = random(1, D).expand(N, D) * (1 + 1e-15 * random(N, D, seed=3))
    assert estimate(-1e-20 * torch.ones(N, dtype=F64), gradients, shares) == 0.0
    assert estimate(-torch.ones(N, dtype=F64), torch.zeros(N, D, dtype=F64), shares) == 0.0
    one = torch.ones(1, dtype=F64)
    assert estimate(-one, random(1, D), one) == 0.0


def test_what_is_not_finite_is_said():
    shares = SHARES["equal"]
    assert math.isnan(estimate(torch.full((N,), math.inf, dtype=F64), random(N, D), shares))
    assert math.isnan(estimate(torch.ones(N, dtype=F64), math.nan * random(N, D), shares))
    assert math.isnan(clipped(math.inf)) and clipped(-0.5) == 0.0 and clipped(7.0) == 1.0


def test_corrections_sum_to_zero_and_change_with_their_mean():
    gradients, shares = random(N, D), SHARES["weighted"]
    c = corrections(gradients, shares)
    torch.testing.assert_close((shares[:, None] * c).sum(0), torch.zeros(D, dtype=F64), atol=1e-14, rtol=0)
    torch.testing.assert_close(c[0], (shares / shares.sum()) @ gradients - gradients[0])


@pytest.mark.parametrize("count", [3, CLIENT_BLOCK, 2 * CLIENT_BLOCK + 7])
def test_squared_corrections_are_those_of_all_clients_at_once(count):
    """NumPy's, from the definition: the blocks in which clients are worked on do not show."""
    gradients = random(2, count, 4, seed=count)
    shares = torch.linspace(0.5, 2.0, count, dtype=F64)
    p = shares.numpy() / shares.numpy().sum()
    g = gradients.numpy()
    means = np.einsum("i,kid->kd", p, g)
    expected = np.einsum("i,kid->", p, (means[:, None] - g) ** 2)
    assert squared_corrections(gradients, shares) == pytest.approx(expected, rel=1e-12)
    single = squared_corrections(gradients.float(), shares)
    assert single == pytest.approx(expected, rel=1e-5)


def test_corrections_that_are_rounding_errors_are_none():
    gradients = random(4, seed=1).expand(CLIENT_BLOCK + 5, 4) + 1e-9 * random(CLIENT_BLOCK + 5, 4, seed=2)
    assert squared_corrections(gradients, torch.ones(len(gradients), dtype=F64)) == 0.0
