import math

import pytest
import torch
from scipy.stats import rankdata

from optimizers import SearchGradient
from optimizers.estimators.search_gradient import shape_values
from tests.optimizers.estimates import assert_mean
from tests.optimizers.estimators.functions import A, X, estimates, linear


def centred(x):
    return (x - X) @ A


def test_centred_ranks():
    values = torch.tensor([3.0, -1.0, 3.0, 7.0, 0.0], dtype=torch.float64)
    expected = torch.tensor([2.5, 0.0, 2.5, 4.0, 1.0], dtype=torch.float64) / 4 - 0.5
    assert torch.equal(shape_values(values, "centred_ranks"), expected)
    assert torch.equal(shape_values(values.exp() * 5, "centred_ranks"), expected)
    assert torch.equal(shape_values(values, "none"), values)
    assert shape_values(torch.ones(3), "centred_ranks").tolist() == [0.0] * 3


@pytest.mark.slip(
    "optimizers/estimators/search_gradient.py",
    "* c / (int(kept.sum()) * radius)",
    "* c / radius",
    "the search gradient without 1/n (ZoRD, Sec. 5)",
    of="optimizers/es",
)
@pytest.mark.parametrize("antithetic", [False, True])
def test_raw_values_are_unbiased_with_their_closed_form_variance(antithetic):
    samples = estimates(SearchGradient(4, 0.3, shaping="none", antithetic=antithetic), centred, 2000)
    assert_mean(samples, A)
    # At f(x) = 0, Var g_j = (‖a‖² + a_j²)/m with m independent directions.
    assert_mean((samples - A).square(), (A @ A + A.square()) / (2 if antithetic else 4))


@pytest.mark.parametrize(
    "distribution", ["orthonormal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sphere", "rademacher"))]
)
def test_raw_values_are_unbiased_along_other_directions(distribution):
    assert_mean(estimates(SearchGradient(4, 0.3, shaping="none", distribution=distribution), centred), A)


@pytest.mark.parametrize("antithetic", [False, True])
def test_the_mean_of_ranks_is_the_gradients_direction(antithetic):
    """A rank counts each other value below z with probability Φ(z); E zΦ(z) = 1/(2√π), E max(z, 0) = 1/√(2π).

    So E s z is 1/(2√π), and for pairs ((n − 2)/(2√π) + 1/√(2π))/(n − 1).
    """
    n, radius = 6, 0.3
    samples = estimates(SearchGradient(n, radius, antithetic=antithetic), linear)
    length = 1 / (2 * math.sqrt(math.pi))
    if antithetic:
        length = ((n - 2) * length + 1 / math.sqrt(2 * math.pi)) / (n - 1)
    assert_mean(samples, length / radius * A / A.norm())


def test_antithetic_pairs_cancel_a_constant():
    estimator = SearchGradient(4, 0.1, shaping="none", antithetic=True)
    shifted = estimator(lambda x: linear(x) + 1e3, X).gradient
    torch.testing.assert_close(estimator(linear, X).gradient, shifted, rtol=0, atol=1e-8)
    moves = estimator.points(X) - X
    torch.testing.assert_close(moves[0::2], -moves[1::2], rtol=0, atol=1e-15)


@pytest.mark.parametrize("center", [False, True])
def test_failed_queries_leave_with_their_pair(center):
    estimator = SearchGradient(6, 0.1, antithetic=True, query_center=center)
    batch = estimator.batch(X)
    points, own = batch.points(), int(center)
    values = linear(points)
    values[own + 3] = math.nan
    values[:own] = math.nan
    kept = [own + i for i in (0, 1, 4, 5)]
    s = torch.as_tensor(rankdata(values[kept]) - 1) / 3 - 0.5
    expected = s @ (points[kept] - X) / 0.1 / (4 * 0.1)
    torch.testing.assert_close(estimator.from_values(batch, values).gradient, expected, rtol=1e-11, atol=1e-11)
