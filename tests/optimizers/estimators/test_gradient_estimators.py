import math

import numpy as np
import pytest
import torch

from optimizers import (
    AllQueriesFailedError,
    CoordinateDifferences,
    FiniteDifferences,
    LeastSquaresDifferences,
)
from optimizers.directions.directions import DISTRIBUTIONS

D = 6
GENERATOR = np.random.default_rng(3)
A = torch.from_numpy(GENERATOR.standard_normal(D))
H = torch.from_numpy(GENERATOR.standard_normal((D, D)))
H = H + H.T
X = torch.from_numpy(GENERATOR.standard_normal(D))
GRADIENT = A + H @ X
RUNS = 4000


def linear(x):
    return x @ A + 3.0


def quadratic(x):
    return x @ A + 0.5 * (x @ H * x).sum(-1)


def estimates(estimator, fun, runs=RUNS):
    return torch.stack([estimator(fun, X, step, batched=True).gradient for step in range(runs)])


def assert_mean(samples, expected, deviations=4.5):
    error = samples.std(0) / math.sqrt(len(samples))
    assert ((samples.mean(0) - expected).abs() <= deviations * error + 1e-7).all()


@pytest.mark.parametrize("scheme", ["forward", "central"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_mean_is_the_gradient_of_a_quadratic(distribution, scheme):
    estimator = FiniteDifferences(4, 0.3, distribution, scheme)
    expected = GRADIENT
    if distribution == "coordinate" and scheme == "forward":
        expected = GRADIENT + 0.15 * H.diagonal()
    assert_mean(estimates(estimator, quadratic), expected)


@pytest.mark.parametrize(
    ("distribution", "factor"),
    [
        ("normal", (D + 1) / 4),
        ("rademacher", (D - 1) / 4),
        ("sphere", (D - 1) / 4),
        ("coordinate", (D - 1) / 4),
        ("orthonormal", D / 4 - 1),
    ],
)
def test_mean_squared_error_on_a_linear_function(distribution, factor):
    samples = estimates(FiniteDifferences(4, 0.3, distribution), linear)
    assert_mean((samples - A).square().sum(-1), factor * A.square().sum())


def test_mean_squared_error_of_gaussian_smoothing_on_a_quadratic():
    radius, n = 0.5, 3
    samples = estimates(FiniteDifferences(n, radius, "normal"), quadratic)
    fourth = 2 * (H @ H).trace() + H.trace() ** 2
    curvature = radius**2 / 4 * (D + 4) * fourth / n
    assert_mean((samples - GRADIENT).square().sum(-1), (D + 1) / n * GRADIENT.square().sum() + curvature)


def test_mean_squared_error_of_sphere_smoothing_on_a_quadratic():
    radius, n = 0.5, 3
    samples = estimates(FiniteDifferences(n, radius, "sphere"), quadratic)
    fourth = (2 * (H @ H).trace() + H.trace() ** 2) / (D * (D + 2))
    curvature = radius**2 / 4 * D**2 * fourth / n
    assert_mean((samples - GRADIENT).square().sum(-1), (D - 1) / n * GRADIENT.square().sum() + curvature)


def test_central_differences_have_no_curvature_error():
    samples = estimates(FiniteDifferences(3, 0.5, "normal", "central"), quadratic)
    assert_mean((samples - GRADIENT).square().sum(-1), (D + 1) / 3 * GRADIENT.square().sum())


def test_a_full_orthonormal_block_is_exact():
    forward = FiniteDifferences(D, 0.1)(linear, X)
    torch.testing.assert_close(forward.gradient, A, rtol=1e-12, atol=1e-12)
    central = FiniteDifferences(D, 0.1, scheme="central")(quadratic, X)
    torch.testing.assert_close(central.gradient, GRADIENT, rtol=1e-12, atol=1e-12)


def test_coordinate_differences():
    torch.testing.assert_close(CoordinateDifferences(0.1)(linear, X).gradient, A)
    forward = CoordinateDifferences(0.1)(quadratic, X).gradient
    torch.testing.assert_close(forward, GRADIENT + 0.05 * H.diagonal())
    central = CoordinateDifferences(0.1, "central")(quadratic, X).gradient
    torch.testing.assert_close(central, GRADIENT)


@pytest.mark.parametrize("center", ["nearest", "mean"])
@pytest.mark.parametrize("n", [D, 2 * D + 1])
def test_least_squares_is_exact_on_linear_functions(n, center):
    estimate = LeastSquaresDifferences(n, 0.1, "normal", center=center)(linear, X)
    torch.testing.assert_close(estimate.gradient, A, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_least_squares_below_d_points_is_the_projection(distribution):
    estimator = LeastSquaresDifferences(4, 0.1, distribution, seed=2)
    span = (estimator.points(X)[1:] - X).numpy()
    projection = np.linalg.pinv(span) @ span @ A.numpy()
    estimate = estimator(linear, X)
    np.testing.assert_allclose(estimate.gradient, projection, rtol=1e-10, atol=1e-10)
    assert 0 < np.linalg.norm(projection) < np.linalg.norm(A)


def test_least_squares_of_a_trajectory_without_x():
    points = X + 0.1 * torch.from_numpy(np.random.default_rng(0).standard_normal((30, D)))
    values = quadratic(points)
    estimate = LeastSquaresDifferences(1).estimate(X, points, values)
    start = (points - X).norm(dim=-1).argmin()
    expected = np.linalg.lstsq(points - points[start], values - values[start], rcond=None)[0]
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-9)
    assert (estimate.queries, estimate.differences) == (30, 29)
    centered = LeastSquaresDifferences(1, center="mean").estimate(X, points, values)
    with_intercept = np.column_stack((points, np.ones(30)))
    expected = np.linalg.lstsq(with_intercept, values, rcond=None)[0][:D]
    np.testing.assert_allclose(centered.gradient, expected, rtol=1e-9)


@pytest.mark.parametrize("n", [4, 20])
def test_ridge_solves_its_normal_equations(n):
    ridge = 0.1
    estimator = LeastSquaresDifferences(n, 0.1, "normal", ridge=ridge)
    points = estimator.points(X)
    values = quadratic(points)
    g = estimator.estimate(X, points, values).gradient
    z, y = points[1:] - X, values[1:] - values[0]
    weight = ridge * torch.linalg.matrix_norm(z, 2) ** 2
    torch.testing.assert_close(z.T @ (z @ g - y) + weight * g, torch.zeros(D).double(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("estimator", "queries"),
    [
        (FiniteDifferences(4), 5),
        (FiniteDifferences(4, scheme="central"), 8),
        (CoordinateDifferences(), D + 1),
        (CoordinateDifferences(scheme="central"), 2 * D),
        (LeastSquaresDifferences(4), 5),
    ],
)
def test_queries_are_counted(estimator, queries):
    calls = []
    estimate = estimator(lambda x: calls.append(x) or linear(x), X)
    assert len(calls) == queries == estimator.queries_needed(D) == estimate.queries
    assert estimator.points(X).shape == (queries, D)
    if queries % 2:
        assert torch.equal(calls[0], X)


def test_another_step_is_another_draw_and_the_same_step_the_same():
    estimator = FiniteDifferences(4, seed=5)
    assert torch.equal(estimator.points(X, 1), estimator.points(X, 1))
    assert not torch.equal(estimator.points(X, 1), estimator.points(X, 2))
    assert not torch.equal(estimator.points(X, 1), FiniteDifferences(4, seed=6).points(X, 1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scheme", ["forward", "central"])
def test_failed_values_are_left_out_and_the_factor_follows(scheme, bad):
    estimator = FiniteDifferences(4, 0.3, "sphere", scheme)
    points = estimator.points(X)
    values = linear(points)
    values[2] = bad
    estimate = estimator.estimate(X, points, values)
    u = (points[1:5] - X if scheme == "forward" else points[:4] - X) / 0.3
    lost = 1 if scheme == "forward" else 2
    u = u[[i for i in range(4) if i != lost]]
    torch.testing.assert_close(estimate.gradient, D / 3 * u.T @ (u @ A))
    assert (estimate.queries, estimate.differences) == (len(points), 3)


def test_failed_values_of_the_other_estimators():
    points = CoordinateDifferences(0.1).points(X)
    values = linear(points)
    values[2] = math.nan
    estimate = CoordinateDifferences(0.1).estimate(X, points, values)
    expected = A.clone()
    expected[1] = 0.0
    torch.testing.assert_close(estimate.gradient, expected)
    assert estimate.differences == D - 1

    estimator = LeastSquaresDifferences(D + 3, 0.1, "normal")
    points = estimator.points(X)
    values = linear(points)
    values[[0, 4]] = math.nan
    torch.testing.assert_close(estimator.estimate(X, points, values).gradient, A)


@pytest.mark.parametrize("estimator", [FiniteDifferences(4), CoordinateDifferences(), LeastSquaresDifferences(4)])
def test_all_failed_is_an_error(estimator):
    with pytest.raises(AllQueriesFailedError, match="finite"):
        estimator(lambda x: math.nan, X)


def test_value_at_x_lost_is_an_error_of_forward_differences():
    points = FiniteDifferences(4).points(X)
    values = linear(points)
    values[0] = math.nan
    with pytest.raises(AllQueriesFailedError):
        FiniteDifferences(4).estimate(X, points, values)


def test_dtype_follows_x_and_float32_displacements_are_read_back():
    x = 100.0 * X.float()
    for estimator in (
        FiniteDifferences(D, 0.01),
        CoordinateDifferences(0.01),
        LeastSquaresDifferences(D, 0.01),
    ):
        gradient = estimator(lambda z: (z.double() @ A).item(), x).gradient
        assert gradient.dtype == torch.float32
        assert (gradient - A).norm() < 0.02 * A.norm()
    exact = CoordinateDifferences(0.01)(lambda z: (z.double() @ A).item(), x).gradient
    torch.testing.assert_close(exact, A.float(), rtol=1e-5, atol=1e-5)


def test_bad_input():
    estimator = FiniteDifferences(4)
    points = estimator.points(X)
    values = linear(points)
    with pytest.raises(TypeError, match="integer"):
        FiniteDifferences(2.5)
    with pytest.raises(ValueError, match="at least 1"):
        FiniteDifferences(0)
    with pytest.raises(ValueError, match="smoothing_radius"):
        FiniteDifferences(4, 0.0)
    with pytest.raises(ValueError, match="sphere"):
        FiniteDifferences(4, distribution="gaussian")
    with pytest.raises(ValueError, match="central"):
        CoordinateDifferences(scheme="backward")
    with pytest.raises(ValueError, match="ridge"):
        LeastSquaresDifferences(4, ridge=-1.0)
    with pytest.raises(TypeError, match="floating"):
        estimator.points(torch.arange(3))
    with pytest.raises(ValueError, match=r"x has shape \(1, .*; accepted: d"):
        estimator.points(X.unsqueeze(0))
    with pytest.raises(ValueError, match="entries of x are NaN or inf"):
        estimator.points(X * math.nan)
    with pytest.raises(ValueError, match="points"):
        estimator.estimate(X, points[:3], values[:3])
    with pytest.raises(ValueError, match="values"):
        estimator.estimate(X, points, values[:3])
    with pytest.raises(TypeError):
        estimator.estimate(X, points, values + 1j)
    with pytest.raises(ValueError, match="larger smoothing radius"):
        FiniteDifferences(4, 1e-30)(linear, X)
    with pytest.raises(ValueError, match="coincide"):
        LeastSquaresDifferences(4).estimate(X, X.repeat(5, 1), values)
