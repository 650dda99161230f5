import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from surrogates.pinned.engine import Conditioned, PinnedData, ShapeSearch
from surrogates.pinned.prior import Hyperparameters, PinnedPrior

SHAPES = [Hyperparameters(1.0), Hyperparameters(30.0), Hyperparameters(900.0), Hyperparameters(200.0, 5.0)]


def points(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))


def smooth(X):
    return (X.sin() + 0.3 * X.square()).sum(-1) + X[..., 0] * X[..., -1]


def kernel(u, v, shape, linear=100.0):
    """The kernel from its definition, with m the scaled process less its value at the pin."""

    def m(r):
        s = math.sqrt(5.0) * r / 4.0
        return (1.0 + s + s**2 / 3.0) * math.exp(-s)

    inner = float(u @ v)
    bent = m(np.linalg.norm(u - v)) - m(np.linalg.norm(u)) - m(np.linalg.norm(v)) + m(0.0)
    shared = 0.25 * linear * float(u @ u) * float(v @ v)
    return linear * inner + 0.5 * inner**2 + shared + shape.amplitude * bent


def gram(U, V, shape):
    return np.array([[kernel(u, v, shape) for v in V.numpy()] for u in U.numpy()])


def covariance(U, shape):
    """The covariance of values minus the value at the pin: each has its own noise, and all share the pin's."""
    return gram(U, U, shape) + shape.noise * (np.eye(len(U)) + np.ones((len(U), len(U))))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_is_that_of_the_kernel_written_out_and_interpolates(shape):
    U, v = points(12, 3), points(5, 3, 1)
    y = smooth(U) - smooth(torch.zeros(3, dtype=torch.float64))
    model = PinnedData.of(U, y).model(shape)
    K = covariance(U, shape)
    assert np.linalg.eigvalsh(K)[0] > 0
    expected = gram(v, U, shape) @ np.linalg.solve(K, y.numpy())
    np.testing.assert_allclose([model.mean(x) for x in v], expected, rtol=1e-7)
    np.testing.assert_allclose([model.mean(x) for x in U], model.means(), rtol=1e-7, atol=1e-8)
    if not shape.noise:
        np.testing.assert_allclose(model.means(), y, rtol=1e-7, atol=1e-8)
    assert model.mean(torch.zeros(3, dtype=torch.float64)) == pytest.approx(0.0, abs=1e-12)


def test_likelihoods_differ_as_the_densities_of_the_values_at_their_best_scales():
    U = points(9, 2)
    y = smooth(U) - smooth(torch.zeros(2, dtype=torch.float64))
    data = PinnedData.of(U, y)
    densities = []
    for shape in SHAPES:
        K = covariance(U, shape)
        scale = y.numpy() @ np.linalg.solve(K, y.numpy()) / len(y)
        densities.append(multivariate_normal(cov=scale * K).logpdf(y.numpy()))
    losses = [data.loss(shape) for shape in SHAPES]
    np.testing.assert_allclose(np.diff(losses), -2.0 * np.diff(densities), rtol=1e-7)


def test_the_search_finds_a_shape_as_likely_as_a_grids_best():
    U = points(25, 2)
    data = PinnedData.of(U, smooth(2.0 * U) - smooth(torch.zeros(2, dtype=torch.float64)))
    grid = [Hyperparameters(a) for a in np.logspace(-6, 4, 101)]
    best = min(map(data.loss, grid))
    found = ShapeSearch().fitted(data, None)
    assert data.loss(found) <= best + 4.0
    assert data.loss(ShapeSearch().fitted(data, found)) <= data.loss(found)


@pytest.mark.parametrize("seed", range(3))
def test_the_model_of_a_design_says_what_is_between_its_points(seed):
    """Waves in ten variables, given along the axes only: lengthscales of a third are more likely, and blind between."""
    rng, axes = np.random.default_rng(seed), torch.eye(10, dtype=torch.float64)
    center = torch.from_numpy(rng.standard_normal(10))

    def f(u):
        return torch.sin(2.0 * (u + center)).sum(-1)

    U = torch.cat([axes, -axes])
    data = PinnedData.of(U, f(U) - f(torch.zeros(10, dtype=torch.float64)))
    model, v = data.model(ShapeSearch().fitted(data, None)), torch.from_numpy(rng.standard_normal((200, 10)))
    v /= v.norm(dim=1, keepdim=True)
    predicted, true = torch.tensor([model.mean(x) for x in v]), f(v) - f(torch.zeros(10, dtype=torch.float64))
    assert float((predicted - true).var() / true.var()) < 0.4


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_and_hessian_of_the_mean_are_its_differences(shape):
    U, v = points(15, 4), 0.7 * points(3, 4, 1)
    model = PinnedData.of(U, smooth(U)).model(shape)
    h, eye = 1e-5, torch.eye(4, dtype=torch.float64)
    for at in [*v, torch.zeros(4, dtype=torch.float64)]:
        g, H = model.derivatives(at)
        slopes = [(model.mean(at + h * e) - model.mean(at - h * e)) / (2 * h) for e in eye]
        np.testing.assert_allclose(g, slopes, rtol=1e-6, atol=1e-6)
        bends = [(model.derivatives(at + h * e)[0] - model.derivatives(at - h * e)[0]) / (2 * h) for e in eye]
        np.testing.assert_allclose(H, torch.stack(bends), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradients_covariance_is_the_limit_of_that_of_differences(shape):
    U, h = points(6, 3), 1e-3
    y = smooth(U)
    steps = h * torch.cat([torch.eye(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)])
    K, cross, prior = covariance(U, shape), gram(steps, U, shape), gram(steps, steps, shape)
    scale = y.numpy() @ np.linalg.solve(K, y.numpy()) / len(y)
    posterior = scale * (prior - cross @ np.linalg.solve(K, cross.T))
    differences = np.hstack([np.eye(3), -np.eye(3)]) / (2 * h)
    expected = differences @ posterior @ differences.T
    model = PinnedData.of(U, y).model(shape)
    np.testing.assert_allclose(model.gradient_covariance(), expected, rtol=5e-3, atol=5e-3 * expected.max())


def test_noise_is_found_where_it_is_and_only_there():
    """The variance of 60 values' noise, and the given one; a smooth function has none."""
    U, rng = points(60, 2), np.random.default_rng(5)
    y = smooth(U) - smooth(torch.zeros(2, dtype=torch.float64))
    search = ShapeSearch()
    assert search.fitted(PinnedData.of(U, y), None, None).noise == 0.0
    noise = torch.from_numpy(0.3 * rng.standard_normal(61))
    data = PinnedData.of(U, y + noise[1:] - noise[0])
    shape = search.fitted(data, None, None)
    assert 0.3**2 / 2 < data.model(shape).noise < 0.3**2 * 2
    known = PinnedData.of(U, y + noise[1:] - noise[0], 0.5)
    assert known.model(search.fitted(known, None, True)).noise == pytest.approx(0.5)
    again = torch.cat([U, torch.zeros(1, 2, dtype=torch.float64)])
    repeated = PinnedData.of(again, torch.cat([data.unit * data.y, -noise[:1]]))
    assert (
        repeated.loss(Hyperparameters()) > data.loss(Hyperparameters())
        and search.fitted(repeated, None, True).noise > 0.0
    )


def test_likelihoods_with_a_known_noise_differ_as_the_densities_with_it():
    U = points(9, 2)
    y = smooth(U) - smooth(torch.zeros(2, dtype=torch.float64))
    data = PinnedData.of(U, y, 0.3)
    shapes = [Hyperparameters(1.0, 0.5), Hyperparameters(300.0, 20.0), Hyperparameters(0.1, 3.0)]
    scaled = [0.3 / shape.noise * covariance(U, shape) for shape in shapes]
    densities = [multivariate_normal(cov=K).logpdf(y.numpy()) for K in scaled]
    np.testing.assert_allclose(np.diff([data.loss(shape) for shape in shapes]), -2.0 * np.diff(densities), rtol=1e-7)


@pytest.mark.parametrize("ripples", [0.0, 0.3])
def test_the_excess_without_noise_is_that_of_a_grids_best(ripples):
    """NumPy's determinants and squares at the best scale: a grid of a without noise, less the shape with it."""
    U, axes = points(40, 2), torch.tensor([[57.0, 83.0], [91.0, -64.0]], dtype=torch.float64)
    U = U / U.square().sum(1).mean().sqrt()
    y = smooth(U) + ripples * torch.sin(U @ axes).sum(-1) - smooth(torch.zeros(2, dtype=torch.float64))
    data, shape = PinnedData.of(U, y), Hyperparameters(1.0, 0.1)

    def least(shape):
        K = covariance(U, shape)
        size = np.sqrt(K.diagonal())
        K, z = K / np.outer(size, size) + 1e-12 * np.eye(len(K)), data.y.numpy() / size
        return np.linalg.slogdet(K)[1] + 2.0 * np.log(size).sum() + len(K) * np.log(z @ np.linalg.solve(K, z))

    excess = min(least(Hyperparameters(a)) for a in 10.0 ** np.arange(-6, 5)) - least(shape)
    assert ShapeSearch().excess(data, shape) < excess + 1.0
    assert (ShapeSearch().excess(data, shape) > 0.2 * 40) is bool(excess > 0.2 * 40) is (ripples > 0.0)


def test_gains_are_what_a_query_takes_off_the_trace_of_the_slopes_covariance():
    for shape in SHAPES:
        P, z, map, prior = points(6, 3), points(1, 3, 1)[0], points(3, 3, 2), PinnedPrior()
        P, candidates = torch.cat([P, z[None]]), points(4, 3, 3)

        def trace(places, z=z, map=map, prior=prior, shape=shape):
            return float((map.mT @ Conditioned.on(prior, places, shape).slope_covariance(z) @ map).trace())

        expected = [trace(P) - trace(torch.cat([P, c[None]])) for c in candidates]
        np.testing.assert_allclose(Conditioned.on(prior, P, shape).gains(candidates, z, map), expected, rtol=1e-5)


def test_a_search_leaves_a_singular_start_and_evaluates_no_trial_twice():
    asked = []

    class Parabola:
        prior, variance = PinnedPrior(), 0.0

        def loss(self, params):
            asked.append(round(math.log10(params.amplitude), 3))
            return math.inf if params.amplitude > 5.0 else (asked[-1] + 2.0) ** 2

    found = ShapeSearch().fitted(Parabola(), Hyperparameters(amplitude=10.0))
    assert math.log10(found.amplitude) == pytest.approx(-1.0)
    assert asked == [1.0, 1.5, 0.5, 0.0, -0.5, -1.0]
