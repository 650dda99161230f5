"""Fourier surrogates against dense linear algebra, exact Gaussian processes and draws of their own prior."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    NotFittedError,
    NotPositiveDefiniteError,
    gaussian_likelihood,
    matern_kernel,
    rbf_kernel,
)
from surrogates.fourier.features import KINDS

F64 = torch.float64
NOISE, MEAN = 1e-3, 0.7


def points(n, d=3, seed=0):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=F64)


def values(X):
    return torch.sin(3 * X.sum(-1)) + X[:, 0].square() + MEAN


def make_features(M=60, d=3, kind="orthogonal", seed=4, lengthscale=0.8):
    return FourierFeatures(matern_kernel(lengthscale, 1.4), d, M, seed, kind)


def dense(features, X, y, noise=NOISE, mean=MEAN):
    """w̄ and cov w from the M x M normal equations, in numpy."""
    Phi = features.features(X).numpy()
    variance = np.broadcast_to(np.asarray(noise), (len(X),))
    covariance = np.linalg.inv(np.eye(Phi.shape[1]) + (Phi.T / variance) @ Phi)
    return covariance @ (Phi.T / variance) @ (y.numpy() - mean), covariance


def assert_equal(ours, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=F64)
    scale = float(expected.abs().max())
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=tolerance * scale)


def check_all(surrogate, features, X, y, noise=NOISE, tolerance=1e-9):
    mean, covariance = dense(features, X, y, noise)
    at = points(4, seed=9)
    J, phi = features.jacobian(at).numpy(), features.features(at).numpy()
    expected = np.einsum("qmi,mk,qkj->qij", J, covariance, J)
    assert surrogate.num_observations == len(X)
    assert_equal(surrogate.weights, mean, tolerance)
    assert_equal(surrogate.value(at), MEAN + phi @ mean, tolerance)
    assert_equal(surrogate.gradient(at), np.einsum("qmi,m->qi", J, mean), tolerance)
    posterior = surrogate.gradient_posterior(at)
    assert_equal(posterior.mean, surrogate.gradient(at), tolerance)
    assert_equal(posterior.covariance_matrix, expected, tolerance)
    assert_equal(posterior.variance, np.einsum("qii->qi", expected), tolerance)
    assert_equal(posterior.trace, np.trace(expected, axis1=1, axis2=2), tolerance)
    assert_equal(posterior.spectral_norm, np.linalg.norm(expected, 2, axis=(1, 2)), tolerance)
    assert_equal(posterior.prior_trace, np.einsum("qmi,qmi->q", J, J), tolerance)
    joint = surrogate.posterior(at)
    assert_equal(joint.mean.squeeze(-1), surrogate.value(at), tolerance)
    assert_equal(joint.distribution.covariance_matrix, phi @ covariance @ phi.T, tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 20, 60, 61, 700])
def test_both_routes_are_the_normal_equations(kind, n):
    features, X = make_features(kind=kind), points(n)
    check_all(FourierSurrogate(features, NOISE, MEAN).fit(X, values(X)), features, X, values(X))


@pytest.mark.slip(
    "surrogates/fourier/surrogate.py",
    "return y.squeeze(-1).double(), variance.sqrt()",
    "return y.squeeze(-1).double(), variance",
    "the noise's variance, not its standard deviation (FZooS eq. 3)",
    of="federated/fzoos",
)
def test_function_space_formula():
    features, X = make_features(), points(25)
    Phi = features.features(X).T
    A = Phi.T @ Phi + NOISE * torch.eye(25, dtype=F64)
    expected = Phi @ torch.linalg.solve(A, values(X) - MEAN)
    assert_equal(FourierSurrogate(features, NOISE, MEAN).fit(X, values(X)).weights, expected, 1e-10)


@pytest.mark.parametrize("n", [30, 90])
@pytest.mark.parametrize("column", [False, True])
def test_noise_of_every_observation(n, column):
    features, X = make_features(), points(n)
    noise = 1e-3 + points(n, 1, seed=3).squeeze(-1)
    given = noise.unsqueeze(-1) if column else noise
    surrogate = FourierSurrogate(features, 7.0, MEAN).fit(X, values(X).unsqueeze(-1), given)
    check_all(surrogate, features, X, values(X), noise.numpy())
    more = points(5, seed=5)
    surrogate.append(more, values(more), noise=0.5)
    joined = torch.cat((X, more))
    check_all(surrogate, features, joined, values(joined), np.append(noise.numpy(), [0.5] * 5))


# M = 60: within n x n, to its end, over it at once, over it in steps, on and on in M x M, by single rows.
@pytest.mark.parametrize(
    "parts",
    [[20, 1, 1], [30, 30], [50, 20], [50, 10, 1, 1], [10, 300, 40, 40, 40], [58] + [1] * 12, [100, 5]],
)
def test_appending_equals_refitting(parts):
    features, X = make_features(), points(sum(parts))
    y = values(X)
    surrogate = FourierSurrogate(features, NOISE, MEAN)
    start = 0
    for count in parts:
        surrogate.append(X[start : start + count], y[start : start + count])
        start += count
        assert_equal(surrogate.weights, dense(features, X[:start], y[:start])[0])
    refitted = FourierSurrogate(features, NOISE, MEAN).fit(X, y)
    assert_equal(surrogate.weights, refitted.weights, 1e-10)
    assert_equal(surrogate.gradient_posterior(X[:3]).trace, refitted.gradient_posterior(X[:3]).trace, 1e-10)
    check_all(surrogate, features, X, y)


def test_more_rows_than_a_block():
    features, X = make_features(M=1400), points(1300)
    surrogate = FourierSurrogate(features, NOISE, MEAN).fit(X[:600], values(X)[:600])
    surrogate.append(X[600:1210], values(X)[600:1210]).append(X[1210:], values(X)[1210:])
    assert_equal(surrogate.weights, dense(features, X, values(X))[0], 1e-8)
    refitted = FourierSurrogate(features, NOISE, MEAN).fit(X, values(X))
    assert_equal(surrogate.weights, refitted.weights, 1e-10)


# In n x n, absorbed into M x M, and beyond.
@pytest.mark.parametrize("parts", [[1, 1, 20, 3], [50, 20, 30], [10, 300, 40]])
@pytest.mark.parametrize("far", [0.0, 1e6])
def test_an_estimated_mean_is_that_of_generalised_least_squares(parts, far):
    features, X = make_features(), points(sum(parts))
    y = values(X) + far
    noise = torch.linspace(0.5 * NOISE, 2 * NOISE, len(X), dtype=F64)
    surrogate = FourierSurrogate(features, NOISE, "estimated")
    for start, count in zip(np.cumsum([0, *parts[:-1]]), parts, strict=True):
        part = slice(start, start + count)
        surrogate.append(X[part], y[part], noise[part])
    A = features.kernel(X).numpy() + np.diag(noise.numpy())
    solved = np.linalg.solve(A, np.stack([np.ones(len(X)), y.numpy() - far], axis=1))
    expected = solved[:, 1].sum() / solved[:, 0].sum()
    assert surrogate.mean - far == pytest.approx(expected, rel=1e-7, abs=1e-7)
    assert_equal(surrogate.weights, dense(features, X, y - far, noise.numpy(), expected)[0], 1e-6)
    at = points(3, seed=9)
    assert_equal(surrogate.value(at) - far, expected + features.value(at, surrogate.weights), 1e-9)


def test_storage_ends_with_the_number_of_features():
    surrogate = FourierSurrogate(make_features(), NOISE)
    for seed in range(40):
        surrogate.append(points(7, seed=seed), values(points(7, seed=seed)))
        assert len(surrogate._linear._rows) <= 60
    assert surrogate.num_observations == 280


def test_fit_forgets():
    features, X = make_features(), points(30)
    surrogate = FourierSurrogate(features, NOISE, MEAN).fit(points(80, seed=2), values(points(80, seed=2)))
    check_all(surrogate.fit(X, values(X)), features, X, values(X))


def test_gradient_is_autograds():
    features, X = make_features(), points(30)
    surrogate = FourierSurrogate(features, NOISE, MEAN).fit(X, values(X))
    at = points(2, seed=8).expand(5, 2, 3).clone().requires_grad_()
    (expected,) = torch.autograd.grad(surrogate.value(at).sum(), at)
    torch.testing.assert_close(surrogate.gradient(at.detach()), expected, rtol=1e-10, atol=1e-10)
    assert surrogate.gradient_posterior(at).covariance_matrix.shape == (5, 2, 3, 3)
    assert surrogate.gradient_posterior(at).trace.shape == (5, 2)
    assert surrogate.posterior(at).mean.shape == (5, 2, 1)
    trace = surrogate.gradient_posterior(at).trace
    torch.testing.assert_close(trace[0], trace[4], rtol=1e-12, atol=0.0)


def test_weights_average():
    features, at = make_features(), points(4, seed=9)
    clients = []
    for seed, n in enumerate((20, 45, 100)):
        X = points(n, seed=seed)
        clients.append(FourierSurrogate(features, NOISE, MEAN).fit(X, values(X) * (seed + 1)))
    server = FourierSurrogate.from_weights(features, torch.stack([c.weights for c in clients]).mean(0), MEAN)
    assert_equal(server.gradient(at), torch.stack([c.gradient(at) for c in clients]).mean(0), 1e-12)
    assert_equal(server.value(at), torch.stack([c.value(at) for c in clients]).mean(0), 1e-12)
    assert server.num_observations == 0
    for call in (server.gradient_posterior, server.posterior, lambda X: server.append(X, X[:, 0])):
        with pytest.raises(NotFittedError, match="made from weights"):
            call(at)


def test_weights_are_in_the_units_of_y():
    features, X = make_features(), points(40)
    one = FourierSurrogate(features, NOISE, MEAN).fit(X, values(X))
    thousand = FourierSurrogate(features, NOISE, 1000 * MEAN).fit(X, 1000 * values(X))
    assert_equal(thousand.weights, 1000 * one.weights, 1e-12)


def test_many_features_are_the_gaussian_process_of_scikit_learn():
    X, at, noise = points(12, 2), points(5, 2, seed=9), 1e-2
    y = torch.sin(4 * X.sum(-1))
    kernel = ConstantKernel(1.3, "fixed") * RBF(0.7, "fixed")
    exact = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X.numpy(), y.numpy())
    mean, covariance = exact.predict(at.numpy(), return_cov=True)
    errors = []
    for M in (400, 6400):
        runs = []
        for seed in range(6):
            features = FourierFeatures(rbf_kernel(0.7, 1.3), 2, M, seed, "cosine")
            posterior = FourierSurrogate(features, noise).fit(X, y).posterior(at)
            error = posterior.mean.squeeze(-1) - torch.from_numpy(mean)
            spread = posterior.distribution.covariance_matrix - torch.from_numpy(covariance)
            runs.append((float(error.norm()), float(spread.norm())))
        errors.append(np.mean(runs, axis=0))
    # Sixteen times the features: a quarter of the error, within what six seeds tell.
    assert np.all(errors[1] < 0.45 * errors[0]) and np.all(errors[1] > 0.1 * errors[0])
    assert errors[1][0] < 0.05 * np.linalg.norm(mean)


@pytest.mark.parametrize("nu", [1.5, 2.5])
def test_many_features_are_the_derived_gp(nu):
    X, at, noise = points(15), points(4, seed=9), 0.3
    y, kernel = torch.sin(4 * X.sum(-1)), matern_kernel(0.9, 1.3, nu=nu)
    likelihood = gaussian_likelihood(noise)
    model = DerivedGP(X, y.unsqueeze(-1), likelihood=likelihood, covar_module=kernel, outcome_transform=None)
    exact = model.eval().gradient_posterior(at)
    centre = model.mean_module.constant.item()
    errors = []
    for M in (1000, 16_000):
        runs = []
        for seed in range(6):
            surrogate = FourierSurrogate(FourierFeatures(kernel, 3, M, seed), noise, centre).fit(X, y)
            ours = surrogate.gradient_posterior(at)
            pairs = ((ours.mean, exact.mean), (ours.covariance_matrix, exact.covariance_matrix))
            runs.append([((a - b).norm() / b.norm()).item() for a, b in pairs])
        errors.append(np.mean(runs, axis=0))
    # Sixteen times the features: a quarter of the error, slower for the covariance of Matérn 3/2, whose
    # frequencies have no fourth moment.
    assert np.all(errors[1] < [0.45, 0.6] * errors[0])
    assert np.all(errors[1] < ([0.15, 0.15] if nu == 1.5 else [0.06, 0.04]))


@pytest.mark.parametrize("n", [20, 90])
def test_uncertainty_is_the_error_of_draws_from_the_prior(n):
    features, X, at = make_features(M=40), points(n), points(1, seed=9)
    Phi, J = features.features(X), features.jacobian(at)[0]
    generator = torch.Generator().manual_seed(0)
    S = 400
    errors = []
    for _ in range(S):
        w = torch.randn(40, generator=generator, dtype=F64)
        y = Phi @ w + math.sqrt(0.1) * torch.randn(n, generator=generator, dtype=F64)
        surrogate = FourierSurrogate(features, 0.1).fit(X, y)
        errors.append(J.mT @ w - surrogate.gradient(at)[0])
    posterior = surrogate.gradient_posterior(at)
    whitened = torch.linalg.solve(torch.linalg.cholesky(posterior.covariance_matrix[0]), torch.stack(errors).mT)
    low, high = stats.chi2(3 * S).ppf([1e-4, 1 - 1e-4])
    assert low < float(whitened.square().sum()) < high


@pytest.mark.parametrize("n", [30, 90])
def test_float32_data_have_float64_algebra(n):
    features, X = make_features(M=60, lengthscale=1.5), points(n)
    X, y = X.float(), values(X).float()
    single = FourierSurrogate(features, NOISE, MEAN).fit(X[: n - 5], y[: n - 5]).append(X[n - 5 :], y[n - 5 :])
    double = FourierSurrogate(features, NOISE, MEAN).fit(X.double(), y.double())
    at = points(4, seed=9).float()
    assert single.weights.dtype == torch.float32
    for call in (lambda s, x: s.value(x), lambda s, x: s.gradient(x), lambda s, x: s.gradient_posterior(x).trace):
        ours = call(single, at)
        assert ours.dtype == torch.float32
        assert_equal(ours, call(double, at.double()), 1e-4)
    assert single.posterior(at).mean.dtype == torch.float32
    assert_equal(
        single.gradient_posterior(at).covariance_matrix,
        double.gradient_posterior(at.double()).covariance_matrix,
        1e-4,
    )


def test_a_posterior_does_not_outlive_its_data():
    X = points(20)
    surrogate = FourierSurrogate(make_features(), NOISE).fit(X, values(X))
    before = surrogate.gradient(X)
    posterior = surrogate.gradient_posterior(X)
    surrogate.append(X + 1, values(X))
    assert torch.equal(posterior.mean, before)
    with pytest.raises(ValueError, match="has changed"):
        posterior.trace
    posterior = surrogate.gradient_posterior(X)
    posterior.trace
    surrogate.fit(X, values(X))
    assert torch.equal(posterior.trace, posterior.variance.sum(-1))


X, Y = points(6), values(points(6))
BAD_DATA = [
    ((X[:, :2], Y), ValueError, r"n x 3, got \(6, 2\)"),
    ((X[None], Y), ValueError, "n x 3"),
    ((X, Y[:5]), ValueError, r"shape \(6,\)"),
    ((X, torch.stack((Y, Y), -1)), ValueError, r"shape \(6,\)"),
    ((X[:0], Y[:0]), ValueError, "no observations"),
    ((X, Y.clone().index_fill(0, torch.tensor([2]), math.nan)), ValueError, "NaN or inf"),
    ((X / 0, Y), ValueError, "NaN or inf"),
    ((X, Y.float()), ValueError, "same dtype and device"),
    ((X.float(), Y.float()), ValueError, "same dtype and device"),
    ((X.numpy(), Y), TypeError, "X must be a torch.Tensor"),
    ((X, Y.long()), TypeError, "y must be floating point"),
    ((X, Y, 0.0), ValueError, "noise must be positive"),
    ((X, Y, math.inf), ValueError, "noise must be positive and finite"),
    ((X, Y, Y * 0), ValueError, "noise must be finite and positive"),
    ((X, Y, Y[:4]), ValueError, "noise must be one number"),
    ((X, Y, "low"), TypeError, "noise must be a number"),
    ((X * 0, Y, 1e-18), NotPositiveDefiniteError, "duplicate"),
]


@pytest.mark.parametrize("n", [20, 90])
@pytest.mark.parametrize(("data", "error", "message"), BAD_DATA)
def test_bad_data_change_nothing(n, data, error, message):
    features, good = make_features(), points(n, seed=2)
    surrogate = FourierSurrogate(features, NOISE, MEAN).fit(good, values(good))
    with pytest.raises(error, match=message):
        surrogate.append(*data)
    check_all(surrogate, features, good, values(good))
    if not (isinstance(data[0], torch.Tensor) and data[0].dtype == torch.float32):
        with pytest.raises(error, match=message):
            surrogate.fit(*data)
    check_all(surrogate, features, good, values(good))
    more = points(3, seed=6)
    both = torch.cat((good, more))
    check_all(surrogate.append(more, values(more)), features, both, values(both))


def test_a_failed_first_append_after_absorbing_changes_nothing():
    features, good = make_features(M=600), points(700, seed=2)
    surrogate = FourierSurrogate(features, NOISE, MEAN).fit(good, values(good))
    before = surrogate.weights.clone()
    same = points(1).expand(560, 3)
    with pytest.raises(NotPositiveDefiniteError):
        surrogate.append(
            same, values(same), torch.cat((torch.ones(550, dtype=F64), torch.full((10,), 1e-19, dtype=F64)))
        )
    assert surrogate.num_observations == 700 and torch.equal(surrogate.weights, before)
    surrogate.append(same[:1], values(same[:1]))
    joined = torch.cat((good, same[:1]))
    assert_equal(surrogate.weights, FourierSurrogate(features, NOISE, MEAN).fit(joined, values(joined)).weights)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("features", 1.0), TypeError, "FourierFeatures"),
        ((make_features(), 0.0), ValueError, "noise must be positive"),
        ((make_features(), -1.0), ValueError, "noise must be positive"),
        ((make_features(), math.nan), ValueError, "noise must be positive and finite"),
        ((make_features(), "1"), TypeError, "noise must be a number"),
        ((make_features(), 1.0, math.inf), ValueError, "mean must be finite"),
        ((make_features(), 1.0, None), TypeError, "mean must be a number"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        FourierSurrogate(*arguments)


def test_bad_weights():
    features = make_features()
    with pytest.raises(ValueError, match=r"shape \(60,\)"):
        FourierSurrogate.from_weights(features, torch.zeros(59))
    with pytest.raises(ValueError, match="NaN or inf"):
        FourierSurrogate.from_weights(features, torch.full((60,), math.nan))
    with pytest.raises(TypeError, match="Tensor"):
        FourierSurrogate.from_weights(features, [0.0] * 60)


def test_bad_points():
    surrogate = FourierSurrogate(make_features(), NOISE)
    for call in (surrogate.value, surrogate.gradient, surrogate.gradient_posterior, surrogate.posterior):
        with pytest.raises(NotFittedError, match="fit it first"):
            call(X)
    with pytest.raises(NotFittedError, match="fit it first"):
        surrogate.weights
    surrogate.fit(X, Y)
    for call in (surrogate.value, surrogate.gradient, surrogate.gradient_posterior, surrogate.posterior):
        for bad, message in ((X[0], "batch x q x 3"), (X.float(), "same dtype and device"), (X / 0, "NaN or inf")):
            with pytest.raises(ValueError, match=message):
                call(bad)


def test_a_mean_that_rounding_leaves_nothing_of_is_not_estimated():
    """More rows than weights and the least noise: 1ᵀ(K + s²I)⁻¹1 is 0 among these, or of the wrong sign."""
    features, slope, left = FourierFeatures(rbf_kernel(1.0), 2, 24, 0, "orthogonal"), torch.tensor([1.0, -2.0]), []
    for seed in range(8):
        draws = np.random.default_rng(seed)
        X = torch.from_numpy(0.5 + 1e-3 * draws.uniform(-1.0, 1.0, (60, 2)))
        surrogate = FourierSurrogate(features, 3e-14, "estimated").fit(X, 3.0 + X @ slope.double())
        left.append(float(surrogate._linear.quadratic[1, 1]))
        torch.testing.assert_close(surrogate.gradient(X[:1])[0], slope.double(), atol=1e-3, rtol=0.0)
    assert min(left) <= 0.0
