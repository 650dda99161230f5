"""Partial derivatives that a factor of the kernel does not have are NaN with a warning; the others are right."""

import warnings

import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from linear_operator.utils.warnings import NumericalWarning

from surrogates import DerivedGP, gaussian_likelihood
from tests.surrogates.gp_models import configured, generator, points
from tests.surrogates.reference import Reference, assert_close, kernel_function, mean_function, mp, to_tensor

KINKED = {
    "category": lambda: CategoricalKernel(active_dims=[3], ard_num_dims=1),
    "matern 1/2": lambda: MaternKernel(nu=0.5, active_dims=[3]),
}


def model_and_reference(name):
    X = points(10, 4)
    X[:, 3] = (X[:, 3] > 0).double()
    Y = X[:, :1].sin() + X[:, 1:2] * X[:, 2:3] + X[:, 3:]
    smooth, kinked = RBFKernel(active_dims=[0, 1, 2], ard_num_dims=3), KINKED[name]()
    kernel = configured(ScaleKernel(smooth * kinked).double())
    gp = DerivedGP(X, Y, covar_module=kernel, likelihood=gaussian_likelihood(1e-2), outcome_transform=None)
    rest, scale = kernel_function(smooth), mp.mpf(kernel.outputscale.item())
    inverse = 1 / mp.mpf(kinked.lengthscale.item())

    def k(x, y):
        apart = (x[3] != y[3]) if name == "category" else abs(x[3] - y[3])
        return scale * rest([x[i] for i in range(3)], [y[i] for i in range(3)]) * mp.exp(-apart * inverse)

    exact = Reference(k, mean_function(gp.mean_module), X, Y[:, 0], [1e-2] * 10)
    at = points(2, 4, seed=5)
    at[:, 3] = torch.tensor([0.0, 1.0])
    return gp, exact, at


@pytest.mark.parametrize("name", KINKED)
def test_partial_derivatives_of_the_other_inputs_are_right(name):
    gp, exact, at = model_and_reference(name)
    u, unseen = torch.tensor([0.6, -0.8, 0.3, 0.0], dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    covariances = [exact.gradient_covariance(x)[:3, :3] for x in at]
    posterior = gp.gradient_posterior(at)
    with pytest.warns(NumericalWarning, match=r"no derivative in the inputs \[3\]"):
        variance = posterior.variance
    assert_close(posterior.mean[:, :3], torch.stack([exact.gradient_mean(x)[:3] for x in at]), 1e-9)
    assert_close(variance[:, :3], torch.stack([c.diagonal() for c in covariances]), 1e-9)
    assert_close(posterior.covariance_matrix[:, :3, :3], torch.stack(covariances), 1e-9)
    along = torch.stack([u[:3] @ c @ u[:3] for c in covariances])
    assert_close(posterior.directional_variance(u), along, 1e-9)
    assert_close(gp.joint_posterior(at).variance[:, 1:4], variance[:, :3], 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for nothing in (
            posterior.mean[:, 3],
            variance[:, 3],
            posterior.covariance_matrix[:, 3],
            posterior.trace,
            posterior.spectral_norm,
            posterior.directional_variance(unseen),
            posterior.rsample(torch.Size([2]), generator=generator(0))[..., 3],
            gp.joint_posterior(at).rsample(torch.Size([2]))[..., 4],
        ):
            assert nothing.isnan().all()
        for samples in (
            posterior.rsample(torch.Size([4096]), generator=generator(0))[..., :3],
            gp.joint_posterior(at).rsample(torch.Size([4096]))[..., 1:4],
        ):
            assert_close(samples.var(0), variance[:, :3], 0.15)


def test_second_derivatives_along_the_other_inputs_are_right():
    gp, exact, at = model_and_reference("category")
    hessian, h = gp.hessian_posterior(at), mp.mpf(10) ** -10
    for j, x in enumerate(at.tolist()):
        left, middle, right = (exact.value_mean([mp.mpf(x[0]) + s * h, *map(mp.mpf, x[1:])]) for s in (-1, 0, 1))
        second = to_tensor([(left - 2 * middle + right) / h**2])
        assert_close(hessian.mean[j, 0, :1], second, 1e-7)
    assert hessian.mean[:, 3].isnan().all() and hessian.mean[:, :, 3].isnan().all()
    with pytest.raises(ValueError, match="CategoricalKernel has no gradient between two of the points"):
        _ = hessian.variance
