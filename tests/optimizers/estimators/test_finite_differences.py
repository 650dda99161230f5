import itertools

import pytest
import torch

from optimizers import FiniteDifferences
from optimizers.directions.directions import DISTRIBUTIONS
from tests.optimizers.estimates import assert_mean
from tests.optimizers.estimators.functions import (
    GRADIENT,
    A,
    D,
    H,
    X,
    assert_squared_error,
    estimates,
    linear,
    quadratic,
)

MEANS = (("normal", "forward"), ("coordinate", "forward"), ("orthonormal", "forward"), ("sphere", "central"))
"""Each scheme and each kind of direction has a case here; all other cases are slow."""


@pytest.mark.parametrize(
    ("distribution", "scheme"),
    [
        pytest.param(*pair, marks=() if pair in MEANS else pytest.mark.slow)
        for pair in itertools.product(DISTRIBUTIONS, ("forward", "central"))
    ],
)
def test_mean_is_the_gradient_of_a_quadratic(distribution, scheme):
    expected = GRADIENT
    if distribution == "coordinate" and scheme == "forward":
        expected = GRADIENT + 0.15 * H.diagonal()
    assert_mean(estimates(FiniteDifferences(4, 0.3, distribution=distribution, scheme=scheme), quadratic), expected)


ERRORS = {
    "normal": (D + 1) / 4,
    "rademacher": (D - 1) / 4,
    "sphere": (D - 1) / 4,
    "coordinate": (D - 1) / 4,
    "orthonormal": D / 4 - 1,
}
"""E ‖g − a‖²/‖a‖² of n = 4 directions for linear f."""


@pytest.mark.parametrize(
    "distribution",
    [pytest.param(name, marks=pytest.mark.slow if name in ("rademacher", "sphere") else ()) for name in ERRORS],
)
def test_mean_squared_error_on_a_linear_function(distribution):
    samples = estimates(FiniteDifferences(4, 0.3, distribution=distribution), linear, 2000)
    assert_squared_error(samples, A, ERRORS[distribution] * A.square().sum())


@pytest.mark.parametrize("distribution", [pytest.param("normal", marks=pytest.mark.slow), "sphere"])
def test_mean_squared_error_of_smoothing_on_a_quadratic(distribution):
    radius, n = 0.5, 3
    samples = estimates(FiniteDifferences(n, radius, distribution=distribution), quadratic, 2000)
    fourth = 2 * (H @ H).trace() + H.trace() ** 2
    if distribution == "normal":
        variance, curvature = (D + 1) / n, radius**2 / 4 * (D + 4) * fourth / n
    else:
        variance, curvature = (D - 1) / n, radius**2 / 4 * D**2 * fourth / (D * (D + 2)) / n
    assert_squared_error(samples, GRADIENT, variance * GRADIENT.square().sum() + curvature)


def test_central_differences_have_no_curvature_error():
    samples = estimates(FiniteDifferences(3, 0.5, distribution="normal", scheme="central"), quadratic, 2000)
    assert_squared_error(samples, GRADIENT, (D + 1) / 3 * GRADIENT.square().sum())


def test_katyushas_two_point_estimate_has_second_moment_d():
    """Katyusha eq. 2: E g = a and E‖g‖² = d‖a‖² of a linear function."""
    samples = estimates(FiniteDifferences(1, 0.1, distribution="sphere", scheme="central"), linear, 2000)
    assert_mean(samples, A)
    assert_squared_error(samples, torch.zeros(D), D * (A @ A))


@pytest.mark.parametrize("n", [D, 2 * D])
def test_whole_orthonormal_bases_are_exact(n):
    forward = FiniteDifferences(n, 0.1)(linear, X)
    torch.testing.assert_close(forward.gradient, A, rtol=1e-12, atol=1e-12)
    central = FiniteDifferences(n, 0.1, scheme="central")(quadratic, X)
    torch.testing.assert_close(central.gradient, GRADIENT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [49, 93, 300])
def test_the_factor_is_d_over_n_to_the_last_bit(d):
    """1/(1/49) is not 49: f rises by 1 along one direction, of which g is then d/n times λ⁻¹."""
    estimator = FiniteDifferences(3, 1.0)
    batch = estimator.batch(torch.zeros(d, dtype=torch.float64))
    found = estimator.from_values(batch, torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert torch.equal(found.gradient, (d / 3) * batch.direction_rows([1])[0])


@pytest.mark.parametrize("scheme", ["forward", "central"])
def test_failed_differences_leave_the_sum_and_n(scheme):
    estimator = FiniteDifferences(4, 0.3, distribution="sphere", scheme=scheme)
    points = estimator.points(X)
    values = linear(points)
    values[2] = torch.nan
    estimate = estimator.estimate(X, points, values)
    u = (points[1:5] - X if scheme == "forward" else points[:4] - X) / 0.3
    lost = 1 if scheme == "forward" else 2
    u = u[[i for i in range(4) if i != lost]]
    torch.testing.assert_close(estimate.gradient, D / 3 * u.T @ (u @ A))


def test_another_step_or_seed_is_another_draw():
    estimator = FiniteDifferences(4, seed=5)
    assert torch.equal(estimator.points(X, 1), estimator.points(X, 1))
    assert not torch.equal(estimator.points(X, 1), estimator.points(X, 2))
    assert not torch.equal(estimator.points(X, 1), FiniteDifferences(4, seed=6).points(X, 1))
