"""GPyTorch's and BoTorch's own test cases on our classes."""

import unittest

import pytest
import torch
from botorch.models.model import FantasizeMixin
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from botorch.posteriors import Posterior
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model
from botorch.utils.testing import BotorchTestCase, get_random_data
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.models import ExactGP
from gpytorch.test.model_test_case import BaseModelTestCase

from surrogates import DerivedGP, GradientPosterior
from tests.surrogates.gp_models import outcomes, points


class TestDerivedGPByGPyTorch(BaseModelTestCase, unittest.TestCase):
    def create_model(self, train_x, train_y, likelihood):
        return DerivedGP(train_x, train_y.unsqueeze(-1), likelihood=likelihood)

    def create_test_data(self):
        return points(9)

    def create_likelihood_and_labels(self):
        return GaussianLikelihood().double(), outcomes(points(9)).squeeze(-1)

    def create_batch_test_data(self, batch_shape=torch.Size([3])):  # noqa: B008
        return points(9, batch=batch_shape)

    def create_batch_likelihood_and_labels(self, batch_shape=torch.Size([3])):  # noqa: B008
        likelihood = get_gaussian_likelihood_with_lognormal_prior(batch_shape=batch_shape)
        return likelihood.double(), outcomes(points(9, batch=batch_shape)).squeeze(-1)


class TestDerivedGPByBoTorch(BotorchTestCase):
    def test_shapes_of_posteriors(self):
        for batch in (torch.Size([]), torch.Size([2]), torch.Size([2, 3])):
            for dtype in (torch.float32, torch.float64):
                X, Y = get_random_data(batch_shape=batch, m=1, d=3, n=7, dtype=dtype)
                model = DerivedGP(X, Y)
                assert isinstance(model, (ExactGP, FantasizeMixin))
                assert model.batch_shape == batch
                assert model.num_outputs == 1
                for t_batch in (torch.Size([]), torch.Size([5]), torch.Size([4, 5])):
                    Xq = torch.rand(*t_batch, *(1,) * len(batch if t_batch else ()), 2, 3, dtype=dtype)
                    full = t_batch + batch
                    assert model.posterior(Xq).mean.shape == (*full, 2, 1)
                    gradient = model.gradient_posterior(Xq)
                    assert isinstance(gradient, Posterior)
                    assert gradient.mean.shape == gradient.variance.shape == (*full, 2, 3)
                    assert gradient.trace.shape == gradient.spectral_norm.shape == (*full, 2)
                    assert gradient.descent_probability().shape == gradient.prior_trace.shape == (*full, 2)
                    assert gradient.covariance_matrix.shape == (*full, 2, 3, 3)
                    assert gradient.joint_covariance().shape == (*full, 6, 6)
                    assert gradient.rsample(torch.Size([2])).shape == (2, *full, 2, 3)
                    assert model.joint_posterior(Xq).mean.shape == (*full, 2, 4)
                    assert model.value_gradient_covariance(Xq, Xq).shape == (*full, 2, 2, 3)
                    assert (gradient.dtype, gradient.device) == (dtype, X.device)

    def test_conditioning_shapes(self):
        X, Y = get_random_data(batch_shape=torch.Size([]), m=1, d=3, n=7, dtype=torch.float64)
        model = DerivedGP(X, Y)
        new = torch.rand(4, 2, 3, dtype=torch.float64)
        conditioned = model.condition_on_observations(new, outcomes(new))
        assert conditioned.batch_shape == (4,)
        assert conditioned.gradient_posterior(X).mean.shape == (4, 7, 3)
        fantasies = model.condition_on_observations(new, outcomes(new).expand(5, 4, 2, 1))
        assert fantasies.gradient_posterior(X).mean.shape == (5, 4, 7, 3)

    def test_the_sampler_is_registered(self):
        assert GetSampler.dispatch(GradientPosterior) is not None

    def test_pathwise_models(self):
        X, Y = get_random_data(batch_shape=torch.Size([]), m=1, d=3, n=7, dtype=torch.float64)
        assert get_matheron_path_model(DerivedGP(X, Y)).posterior(X).mean.shape == (7, 1)


@pytest.mark.parametrize("shape", [torch.Size([2]), torch.Size([2, 3])])
def test_values_of_posteriors_do_not_depend_on_the_batch(shape):
    X, Xq = points(7, batch=shape), points(2, seed=5)
    model = DerivedGP(X, outcomes(X))
    index = (1,) * len(shape)
    alone = DerivedGP(X[index], outcomes(X[index]))
    gradient, expected = model.gradient_posterior(Xq), alone.gradient_posterior(Xq)
    torch.testing.assert_close(gradient.mean[index], expected.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient.trace[index], expected.trace, rtol=1e-10, atol=1e-12)


del BaseModelTestCase, BotorchTestCase
