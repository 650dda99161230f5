import math

import pytest
import torch

from optimizers import CoordinateDifferences
from optimizers.core.bounds import Domain
from tests.optimizers.estimators.functions import GRADIENT, A, H, linear, quadratic
from tests.optimizers.estimators.functions import X as POINT

X = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=torch.float64)
SLOPES = torch.tensor([1.0, -2.0, 3.0, 4.0], dtype=torch.float64)


def domain(lower, upper, confine=True):
    low, high = (torch.as_tensor(side, dtype=torch.float64).expand(4).clone() for side in (lower, upper))
    return Domain.of(low, high, rescale=False, confine=confine)


@pytest.mark.slip(
    "optimizers/estimators/coordinate_differences.py",
    "(above - below) / displacement)",
    "(below - above) / displacement)",
    "the sign of D_i (Katyusha eq. 3)",
    of="optimizers/zo_l_katyusha optimizers/zo_svrg optimizers/projected_zo",
)
def test_forward_is_exact_on_linear_and_central_on_quadratic_functions():
    torch.testing.assert_close(CoordinateDifferences(0.1)(linear, POINT).gradient, A)
    forward = CoordinateDifferences(0.1)(quadratic, POINT).gradient
    torch.testing.assert_close(forward, GRADIENT + 0.05 * H.diagonal())
    central = CoordinateDifferences(0.1, scheme="central")(quadratic, POINT).gradient
    torch.testing.assert_close(central, GRADIENT)


@pytest.mark.parametrize("scheme", ["forward", "central"])
def test_some_axes(scheme):
    estimator = CoordinateDifferences(1e-3, scheme=scheme, axes=[2, 0])
    batch = estimator.batch(X, number=3)
    moves = [[0, 0, 0.0], [2, 0, 1e-3], [0, 0, 1e-3]] if scheme == "forward" else None
    moves = moves or [[2, 0, 1e-3], [0, 0, 1e-3], [2, 0, -1e-3], [0, 0, -1e-3]]
    expected = X.repeat(len(moves), 1)
    for i, (j, _, move) in enumerate(moves):
        expected[i, j] += move
    assert torch.equal(batch.points(), expected) and batch.id == 3
    values = expected @ SLOPES
    torch.testing.assert_close(estimator.derivatives(batch, values), SLOPES[[2, 0]], rtol=1e-11, atol=0)
    gradient = estimator.from_values(batch, values).gradient
    torch.testing.assert_close(gradient, torch.tensor([1.0, 0.0, 3.0, 0.0]).double(), rtol=1e-11, atol=0)


def test_a_failed_query_has_no_derivative():
    estimator = CoordinateDifferences(1e-3)
    batch = estimator.batch(X)
    values = batch.points() @ SLOPES
    values[2] = math.nan
    found = estimator.derivatives(batch, values)
    assert found.isnan().tolist() == [False, True, False, False]
    estimate = estimator.from_values(batch, values)
    expected = torch.tensor([1.0, 0.0, 3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(estimate.gradient, expected, rtol=1e-10, atol=0)
    assert estimate.differences == 3


def test_differences_stay_inside_the_bounds():
    box = domain([-1.0, -1.0, -2.0, 0.7], [0.3005, 3.0, 2.0, 0.7])
    for scheme in ("forward", "central"):
        estimator = CoordinateDifferences(1e-3, scheme=scheme)
        batch = estimator.batch(X, domain=box)
        assert bool(((batch.points() >= box.lower) & (batch.points() <= box.upper)).all())
        found = estimator.derivatives(batch, batch.points() @ SLOPES)
        torch.testing.assert_close(found, torch.tensor([1.0, -2.0, 3.0, 0.0]).double(), rtol=1e-10, atol=0)
        if scheme == "forward":
            assert batch.scales.tolist() == [0.0, -1e-3, 1e-3, -1e-3, 1e-3]
            lost = torch.full((5,), math.nan, dtype=torch.float64)
            assert estimator.from_values(batch, lost) is None
    free = CoordinateDifferences(1e-3).batch(X, domain=domain(-1.0, 2.0, confine=False))
    assert bool((free.scales[1:] > 0).all())


def test_rounded_displacements_count():
    """In float32 3 + 1e-6 is 3 + 9.5e-7: what was done divides the difference."""
    estimator = CoordinateDifferences(1e-6)
    batch = estimator.batch(torch.full((2,), 3.0))
    assert estimator.derivatives(batch, batch.points().double().sum(-1)).tolist() == [1.0, 1.0]
