import numpy as np
import pytest
import torch

from optimizers import LeastSquaresDifferences
from optimizers.directions.directions import DISTRIBUTIONS
from tests.optimizers.estimators.functions import A, D, X, linear, quadratic


@pytest.mark.parametrize("n", [D, 2 * D + 1])
def test_exact_on_linear_functions(n):
    estimator = LeastSquaresDifferences(n, 0.1, distribution="normal")
    torch.testing.assert_close(estimator(linear, X).gradient, A, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_below_d_points_it_is_the_projection(distribution):
    estimator = LeastSquaresDifferences(4, 0.1, distribution=distribution, seed=2)
    span = (estimator.points(X)[1:] - X).numpy()
    projection = np.linalg.pinv(span) @ span @ A.numpy()
    np.testing.assert_allclose(estimator(linear, X).gradient, projection, rtol=1e-10, atol=1e-10)
    assert 0 < np.linalg.norm(projection) < np.linalg.norm(A)


def test_a_trajectory_without_x():
    points = X + 0.1 * torch.from_numpy(np.random.default_rng(0).standard_normal((30, D)))
    values = quadratic(points)
    estimate = LeastSquaresDifferences(1).estimate(X, points, values)
    start = (points - X).norm(dim=-1).argmin()
    expected = np.linalg.lstsq(points - points[start], values - values[start], rcond=None)[0]
    np.testing.assert_allclose(estimate.gradient, expected, rtol=1e-9)
    assert (estimate.queries, estimate.differences) == (30, 29)


@pytest.mark.parametrize("n", [4, 20])
def test_ridge_solves_its_normal_equations(n):
    ridge = 0.1
    estimator = LeastSquaresDifferences(n, 0.1, distribution="normal", ridge=ridge)
    points = estimator.points(X)
    values = quadratic(points)
    g = estimator.estimate(X, points, values).gradient
    z, y = points[1:] - X, values[1:] - values[0]
    weight = ridge * torch.linalg.matrix_norm(z, 2) ** 2
    torch.testing.assert_close(z.T @ (z @ g - y) + weight * g, torch.zeros(D).double(), atol=1e-12, rtol=0)


def test_the_nearest_point_that_did_not_fail_takes_the_place_of_x():
    estimator = LeastSquaresDifferences(D + 3, 0.1, distribution="normal")
    points = estimator.points(X)
    values = linear(points)
    values[[0, 4]] = torch.nan
    torch.testing.assert_close(estimator.estimate(X, points, values).gradient, A)


def test_points_that_coincide():
    with pytest.raises(ValueError, match="coincide"):
        LeastSquaresDifferences(4).estimate(X, X.repeat(5, 1), torch.ones(5).double())
