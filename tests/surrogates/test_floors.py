"""Small numbers come back as they are: no variance, noise, deviation or sample has a floor in the user's units."""

import pytest
import torch
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad

from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    GradientObservationGP,
    gaussian_likelihood,
    rbf_kernel,
    sample_hyperparameters,
)
from surrogates.conditioning import Conditioning
from tests.surrogates.gp_models import D, configured, derived_gp, generator, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close, reference

SAMPLES = torch.Size([4096])


def wide_gp():
    """Twelve points in [0, 1e6]², and outcomes around 1."""
    X = 1e6 * torch.rand(12, 2, generator=generator(0), dtype=torch.float64)
    Y = 1 + (X / 3e5).sin().sum(-1, keepdim=True)
    likelihood, kernel = gaussian_likelihood(1e-4), rbf_kernel(5e5)
    return DerivedGP(X, Y, likelihood=likelihood, covar_module=kernel, outcome_transform=None), X, Y


def test_partial_derivatives_by_a_large_unit_have_their_variances():
    gp, X, Y = wide_gp()
    at = 1e6 * torch.rand(2, 2, generator=generator(1), dtype=torch.float64)
    exact = reference(gp, X, Y)
    expected = torch.stack([exact.gradient_covariance(x).diagonal() for x in at])
    joint = gp.joint_posterior(at)
    assert_close(joint.variance[..., 1:], expected, 1e-9)
    assert_close(joint.rsample(SAMPLES)[..., 1:].var(0), expected, 0.15)
    noise = torch.full_like(Y, 1e-4), torch.full_like(X, torch.inf).nan_to_num(posinf=1e12)
    G = torch.full_like(X, torch.nan)
    kernel = ScaleKernel(RBFKernelGrad()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = gp.covar_module.base_kernel.lengthscale, 1.0 / Y.var()
    given = GradientObservationGP(X, Y, G, *noise, covar_module=kernel)
    for posterior in (given.gradient_posterior(at), given.joint_posterior(at)):
        assert_close(posterior.variance[..., -2:], expected, 1e-6)
        assert_close(posterior.rsample(SAMPLES)[..., -2:].var(0), expected, 0.15)


def test_values_in_a_small_unit_have_their_variances_in_float32():
    X = points(12, dtype=torch.float32)
    Y = 1e-6 * outcomes(X)
    kernel, likelihood = rbf_kernel(1.0, dtype=torch.float32), gaussian_likelihood(1e-4, dtype=torch.float32)
    gp = DerivedGP(X, Y, likelihood=likelihood, covar_module=kernel)
    exact = reference(gp, X, Y)
    at = points(3, seed=5, dtype=torch.float32)
    assert_close(gp.posterior(at).variance[:, 0], torch.stack([exact.value_covariance(x, x) for x in at]), 1e-2)


@pytest.mark.parametrize("unit", [1.0, 1e-5])
def test_samples_of_a_covariance_that_is_singular_to_rounding(unit):
    line = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    X, likelihood = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None], gaussian_likelihood(1e-8 * unit**2)
    Y = unit * (3 * X).sin()
    gp = DerivedGP(X, Y, likelihood=likelihood, covar_module=rbf_kernel(0.7, unit**2), outcome_transform=None)
    exact, at = reference(gp, X, Y), line[::12] + 0.01
    expected = torch.stack([exact.value_covariance(x, x) for x in at])
    everywhere = torch.cat([at, line])
    for posterior in (gp.posterior(everywhere), gp.joint_posterior(everywhere)):
        torch.manual_seed(0)
        assert_close(posterior.rsample(SAMPLES)[:, : len(at), 0].var(0), expected, 0.15)
    gradients = torch.stack([exact.gradient_covariance(x)[0] for x in at])
    for samples in (
        gp.gradient_posterior(everywhere).rsample(SAMPLES, generator=generator(0)),
        gp.joint_posterior(everywhere).rsample(SAMPLES)[..., 1:],
    ):
        assert_close(samples[:, : len(at)].var(0), gradients, 0.15)


def test_given_noise_of_observed_gradients_is_what_is_given():
    X = points(6)
    Y, G, variance = 1e3 * outcomes(X), 1e3 * points(6, seed=3), 1e-4
    kernel = configured(ScaleKernel(RBFKernelGrad()).double())
    gp = GradientObservationGP(X, Y, G, torch.full_like(Y, variance), torch.full_like(X, variance), covar_module=kernel)
    at, scale = points(2, seed=5), Y.std()
    targets = torch.cat([Y - Y.mean(), G], -1).flatten()
    A = scale**2 * kernel(X).to_dense() + variance * torch.eye(6 * (D + 1), dtype=torch.float64)
    mean = scale**2 * kernel(at, X).to_dense() @ torch.linalg.solve(A, targets)
    assert_close(gp.joint_posterior(at).mean, mean.reshape(2, D + 1) + torch.tensor([Y.mean(), 0, 0, 0]), 1e-6)


@pytest.mark.parametrize("unit", [1e-12, 1.0])
def test_every_deviation_is_standardised_but_none(unit):
    X = points(6)
    constant = torch.full((6, 1), 0.1 * unit, dtype=torch.float64)
    gp = DerivedGP(X, torch.cat([unit * outcomes(X), constant], -1), covar_module=kernel_named("rbf"))
    assert_close(gp.outcome_transform.stdvs[0], torch.stack([unit * outcomes(X).std(), torch.tensor(1.0)]), 1e-9)
    assert torch.equal(gp.outcome_transform.means[0, 1], constant[0, 0])
    assert torch.equal(gp.train_targets[1], torch.zeros(6, dtype=torch.float64))
    given = DerivedGP(X, unit * outcomes(X), outcome_transform=Standardize(1))
    assert (given.outcome_transform.stdvs == 1.0).all() == (unit < 1e-8)
    assert GradientObservationGP(X, constant, torch.zeros_like(X)).outcome_scale == 1.0


def test_differences_that_rounding_makes_negative_are_rounding_of_the_prior():
    X = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None].expand(-1, 2).contiguous()
    for unit in (1.0, 1e-6, 1e6):
        gp = DerivedGP(
            unit * X,
            X[:, :1],
            likelihood=gaussian_likelihood(1e-12),
            covar_module=rbf_kernel(3.0 * unit) * rbf_kernel(5.0 * unit),
            outcome_transform=None,
        )
        gradient = gp.gradient_posterior(unit * X[::3])
        second = gp.hessian_posterior(unit * X[::3]).variance
        least = torch.finfo(torch.float64).eps * gradient.prior_trace
        assert (gradient.trace >= least * 0.99).all()
        assert (gradient.variance >= least[:, None] / 2 * 0.99).all()
        assert (gradient.covariance_matrix.diagonal(dim1=-2, dim2=-1) > 0).all()
        assert (second > 0).all()
    features = FourierFeatures(rbf_kernel(3.0), 2, 8, seed=0)
    fourier = FourierSurrogate(features, 1e-12).fit(X[:6], X[:6, 0]).gradient_posterior(X[:6])
    assert (fourier.variance > 0).all() and (fourier.spectral_norm > 0).all()


def test_a_kernel_that_lies_is_refused_in_any_unit():
    class Clamped(RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            r2 = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag)
            return torch.exp(-0.5 * r2.clamp_min(1e-10))

    for x_unit, y_unit in ((1.0, 1.0), (1e6, 1e-6), (1e-6, 1e3)):
        kernel = ScaleKernel(Clamped()).double()
        kernel.base_kernel.lengthscale = torch.tensor(0.7 * x_unit, dtype=torch.float64)
        kernel.outputscale = torch.tensor(y_unit**2, dtype=torch.float64)
        X = x_unit * points(6)
        gp = DerivedGP(
            X,
            y_unit * outcomes(X / x_unit),
            covar_module=kernel,
            likelihood=gaussian_likelihood(1e-4 * y_unit**2),
            outcome_transform=None,
        )
        assert type(gp.conditioning) is Conditioning
        with pytest.raises(ValueError, match="explain more variance of the gradient"):
            _ = gp.gradient_posterior(x_unit * points(1, seed=5)).variance


def test_a_kink_is_found_where_inputs_are_large_numbers():
    class Kinked(RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            difference = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs().sum(-1)
            return torch.exp(-difference / self.lengthscale[..., 0, 0])

    kernel = ScaleKernel(Kinked()).double()
    kernel.base_kernel.lengthscale = torch.tensor(1e9, dtype=torch.float64)
    gp = derived_gp(kernel)
    gp.set_train_data(1e9 * points(6))
    with pytest.raises(ValueError, match="no gradient between two of the points"):
        _ = gp.gradient_posterior(torch.zeros(1, D, dtype=torch.float64)).variance


def test_hyperparameters_of_outcomes_in_a_large_unit_are_found():
    """A chain that begins far from the mean of the outcomes comes to it, whatever their unit."""
    X = points(8)
    for unit in (1.0, 1e9):
        likelihood = gaussian_likelihood(1e-2 * unit**2).requires_grad_(False)
        kernel = rbf_kernel(0.3, unit**2).requires_grad_(False)
        gp = DerivedGP(X, unit * outcomes(X), likelihood=likelihood, covar_module=kernel, outcome_transform=None)
        gp.mean_module.constant.data.fill_(20 * unit)
        found = sample_hyperparameters(gp, 16, generator(0), warmup_steps=6).mean_module.constant / unit
        assert abs(found.mean() - 4.0) < 2.0
