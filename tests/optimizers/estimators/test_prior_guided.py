import pytest
import torch

from optimizers import PriorGuidedDifferences
from tests.optimizers.estimates import assert_mean
from tests.optimizers.estimators.functions import PRIOR, A, D, X, assert_squared_error, estimates, linear

ALONG = (A @ PRIOR) * PRIOR
ACROSS = (A - ALONG).square().sum()


@pytest.mark.parametrize("count", [1, 3, D, D + 2])
def test_the_frame_is_orthonormal_and_starts_with_the_prior(count):
    frame = PriorGuidedDifferences(PRIOR, count, seed=3).frame(5)
    assert len(frame) == min(count, D)
    torch.testing.assert_close(frame @ frame.T, torch.eye(len(frame)).double(), rtol=0, atol=1e-13)
    assert torch.equal(frame[0], PRIOR)


def test_the_estimate_is_the_projection_onto_the_span():
    estimator = PriorGuidedDifferences(PRIOR, 4, 0.5)
    frame = estimator.frame(7)
    gradient = estimator(linear, X, 7).gradient
    torch.testing.assert_close(gradient, frame.T @ (frame @ A), rtol=1e-11, atol=1e-11)


def test_projections_shrink_what_is_across_the_prior():
    samples = estimates(PriorGuidedDifferences(PRIOR, 3, 0.3), linear)
    assert_mean(samples, ALONG + 2 / (D - 1) * (A - ALONG))
    assert_squared_error(samples, A, (1 - 2 / (D - 1)) * ACROSS)


@pytest.mark.slip(
    "optimizers/estimators/prior_guided.py",
    "terms[1:] *= (batch.dimension - 1) / others",
    "terms[1:] *= batch.dimension / others",
    "d, not d - 1, dimensions beside the prior",
    of="optimizers/prgf",
)
def test_unbiased_scaling():
    samples = estimates(PriorGuidedDifferences(PRIOR, 3, 0.3, scaling="unbiased"), linear)
    assert_mean(samples, A)
    assert_squared_error(samples, A, ((D - 1) / 2 - 1) * ACROSS)


@pytest.mark.parametrize("scaling", ["projection", "unbiased"])
def test_a_whole_frame_gives_the_exact_gradient(scaling):
    gradient = PriorGuidedDifferences(PRIOR, D + 4, 0.5, scaling=scaling)(linear, X).gradient
    torch.testing.assert_close(gradient, A, rtol=1e-11, atol=1e-11)


def test_a_failed_prior_direction_leaves_the_sum():
    estimator = PriorGuidedDifferences(PRIOR, 4, 0.5, scaling="unbiased")
    batch = estimator.batch(X)
    values = linear(batch.points())
    values[[1, 3]] = torch.nan
    others = batch.info["frame"][[1, 3]]
    expected = (D - 1) / 2 * others.T @ (others @ A)
    torch.testing.assert_close(estimator.from_values(batch, values).gradient, expected, rtol=1e-11, atol=1e-11)
    values[[2, 4]], values[1] = torch.nan, linear(batch.points())[1]
    torch.testing.assert_close(estimator.from_values(batch, values).gradient, ALONG, rtol=1e-11, atol=1e-11)
