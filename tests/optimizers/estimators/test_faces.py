"""Estimates beside the faces of a box that confines their queries, against ∇f of linear functions."""

from dataclasses import replace

import pytest
import torch

from optimizers import FiniteDifferences, LeastSquaresDifferences, PriorGuidedDifferences, SearchGradient
from optimizers.core.bounds import Domain
from optimizers.directions.directions import DISTRIBUTIONS
from tests.optimizers.estimates import assert_mean

RADIUS = 0.3
GRADIENT = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.5], dtype=torch.float64)


def box(d, unit=None, confine=True):
    """A box and a point at its corner but for the third coordinate, 0.4 λ below a face, and the fifth, far inside."""
    lower, upper = torch.full((d,), -1.0).double(), torch.full((d,), 2.0).double()
    upper[3:4] = torch.inf
    x = torch.tensor([-1.0, 2.0, 2.0 - 0.4 * RADIUS, -1.0, 0.5], dtype=torch.float64)[:d]
    return x, Domain(lower, upper, unit, confine)


def linear(points):
    return points @ GRADIENT[: points.shape[-1]] + 1.0


def of(estimator, x, domain, step, fun=linear):
    batch = estimator.batch(x, step, domain=domain)
    return estimator.from_values(batch, fun(batch.points())).gradient


def assert_unbiased(estimator, x, domain, expected, draws=100):
    assert_mean(torch.stack([of(estimator, x, domain, step) for step in range(draws)]), expected)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("d", "scheme"),
    [
        *((d, "forward") for d in (1, 2, 5)),
        (5, "central"),
        *(pytest.param(d, "central", marks=pytest.mark.slow) for d in (1, 2)),
    ],
)
def test_the_mean_at_a_corner_is_the_gradient(d, distribution, scheme):
    x, domain = box(d)
    assert_unbiased(FiniteDifferences(40, RADIUS, distribution=distribution, scheme=scheme), x, domain, GRADIENT[:d])


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_mean_of_the_raw_search_gradient_at_a_corner_is_the_gradient(d, antithetic):
    x, domain = box(d)
    assert_unbiased(SearchGradient(40, RADIUS, shaping="none", antithetic=antithetic), x, domain, GRADIENT[:d])


@pytest.mark.parametrize(
    "distribution",
    [pytest.param(name, marks=pytest.mark.slow if name == "sphere" else ()) for name in DISTRIBUTIONS],
)
def test_the_mean_in_a_box_narrower_than_the_radius_is_the_gradient(distribution):
    lower, upper = torch.zeros(3).double(), torch.tensor([0.2, 0.5, 0.0]).double()
    x = torch.tensor([0.05, 0.5, 0.0]).double()
    expected = GRADIENT[:3] * torch.tensor([1.0, 1.0, 0.0])
    assert_unbiased(FiniteDifferences(60, RADIUS, distribution=distribution), x, Domain(lower, upper), expected)


def test_faces_are_met_in_search_coordinates():
    lower, upper = torch.tensor([0.0, -5.0]).double(), torch.tensor([1.0, 5.0]).double()
    domain = Domain.of(lower, upper, rescale=True)
    x = domain.to_search(torch.tensor([0.0, 5.0]).double())
    assert_unbiased(FiniteDifferences(40, RADIUS), x, domain, GRADIENT[:2] * domain.unit)


@pytest.mark.parametrize("scheme", ["forward", "central"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_inside_and_unconfined_nothing_changes(distribution, scheme):
    estimator = FiniteDifferences(3, RADIUS, distribution=distribution, scheme=scheme)
    (corner, free), inside = box(5, confine=False), torch.full((5,), 0.0).double()
    far = Domain(inside - 3.0, inside + 3.0)
    for x, domain in ((corner, free), (inside, far)):
        assert torch.equal(of(estimator, x, domain, 1), of(estimator, x, None, 1))


def test_a_coordinate_away_from_the_faces_keeps_its_bits_and_one_at_a_face_doubles():
    estimator, (x, domain) = FiniteDifferences(3, RADIUS), box(5)
    batch = estimator.batch(x, domain=domain)
    values = linear(batch.points())
    values[2] = torch.nan
    plain = estimator.from_values(replace(batch, domain=None), values).gradient
    ours = estimator.from_values(batch, values).gradient
    assert torch.equal(ours[4], plain[4])
    torch.testing.assert_close(ours[[0, 1, 3]], 2.0 * plain[[0, 1, 3]])
    explicit = replace(batch, explicit=replace(batch, domain=None).points(), directions=None, addresses=())
    torch.testing.assert_close(estimator.from_values(explicit, values).gradient, ours)


def test_least_squares_takes_points_as_they_were_queried():
    x, domain = box(5)
    found = of(LeastSquaresDifferences(30, RADIUS), x, domain, 0)
    torch.testing.assert_close(found, GRADIENT, rtol=1e-10, atol=1e-10)


def test_least_squares_without_room_is_zero():
    x = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(of(LeastSquaresDifferences(3, RADIUS), x, Domain(x, x), 0), x)


PRIORS = {
    "inward": [1.0, -1.0, -1.0, 1.0, 0.5],
    "outward": [-1.0, 1.0, 1.0, -1.0, 0.0],
    "mixed": [1.0, 1.0, 0.5, -1.0, 1.0],
    "axis": [0.0, -1.0, 0.0, 0.0, 0.0],
}


def prior(name):
    p = torch.tensor(PRIORS[name], dtype=torch.float64)
    return p / p.norm()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.endswith("ward") else ()) for name in PRIORS]
)
def test_unbiased_prior_guided_estimates_at_a_corner(name):
    x, domain = box(5)
    assert_unbiased(PriorGuidedDifferences(prior(name), 3, RADIUS, scaling="unbiased"), x, domain, GRADIENT, 1000)


@pytest.mark.parametrize("name", PRIORS)
def test_prior_guided_estimates_at_a_corner_are_projections(name):
    x, domain = box(5)
    for step in range(20):
        estimator = PriorGuidedDifferences(prior(name), 3, RADIUS)
        points = estimator.batch(x, step, domain=domain).points()
        span = torch.linalg.pinv(points[1:] - x) @ (points[1:] - x)
        torch.testing.assert_close(of(estimator, x, domain, step), span @ GRADIENT, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scaling", ["projection", "unbiased"])
def test_prior_guided_estimates_without_room_are_zero(scaling):
    x = torch.zeros(3, dtype=torch.float64)
    p = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    assert torch.equal(of(PriorGuidedDifferences(p, 2, RADIUS, scaling=scaling), x, Domain(x, x), 0), x)
