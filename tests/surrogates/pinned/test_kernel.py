import gpytorch
import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP, gaussian_likelihood, kernel_blocks
from surrogates.pinned.engine import PinnedData
from surrogates.pinned.kernel import PinnedKernel
from surrogates.pinned.prior import Hyperparameters, PinnedPrior

UNIT = 1e6
"""A factor on the values that makes the least noise of a likelihood negligible."""


def points(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))


def smooth(X):
    return UNIT * ((X.sin() + 0.3 * X.square()).sum(-1) + X[..., 0] * X[..., -1])


def both(shape, metric, pin, seed=0, d=3, n=12):
    """The engine's model of points of condition below 1e6, and the DerivedGP of the same."""
    U = points(n, d, seed)
    U = U / U.square().sum(1).mean().sqrt()
    y = smooth(U) - smooth(U[0] * 0.0)
    model = PinnedData.of(U, y).model(shape)
    scale = model.scale * model.data.unit**2
    X = pin + torch.linalg.solve(metric, U.mT).mT
    kernel = ScaleKernel(PinnedKernel(pin, metric, amplitude=shape.amplitude, pin_noise=shape.noise)).double()
    kernel.outputscale = torch.tensor(scale, dtype=torch.float64)
    noise = gaussian_likelihood(max(scale * shape.noise, 1.01e-8))
    gp = DerivedGP(X, y[:, None], covar_module=kernel, mean_module=ZeroMean(), likelihood=noise, outcome_transform=None)
    correlation = kernel(X).to_dense() + scale * shape.noise * torch.eye(n)
    size = correlation.diagonal().sqrt()
    assert torch.linalg.cond(correlation / size / size[:, None]) < 1e6
    return model, gp, (scale * (100.0 + shape.amplitude * PinnedPrior().curvature)) ** 0.5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "shape", [Hyperparameters(100.0, 0.5), Hyperparameters(3000.0, 1e-4), Hyperparameters(1e4, 0.0)], ids=str
)
def test_the_engine_is_the_derived_gp_of_the_kernel(shape, seed):
    """Gradients and Hessians, and values and covariances as differences to the pin, in the prior's deviation."""
    pin, metric = points(1, 3, 7)[0], torch.linalg.qr(points(3, 3, 8)).Q
    model, gp, deviation = both(shape, metric, pin, seed)
    x = torch.cat([pin + points(3, 3, seed + 20), pin[None]])
    slopes, hessians, values = gp.gradient_posterior(x), gp.hessian_posterior(x).mean, gp.posterior(x).mean[:, 0]
    for i, at in enumerate((x - pin) @ metric.mT):
        g, H = model.derivatives(at)
        np.testing.assert_allclose(slopes.mean[i] / deviation, metric.mT @ g / deviation, atol=1e-9)
        np.testing.assert_allclose(hessians[i] / deviation, metric.mT @ H @ metric / deviation, atol=1e-9)
        assert float(values[i] - values[-1]) / deviation == pytest.approx(model.mean(at) / deviation, abs=1e-9)
    covariance = slopes.covariance_matrix[-1] / deviation**2
    np.testing.assert_allclose(covariance, metric.mT @ model.gradient_covariance() @ metric / deviation**2, atol=1e-9)


def test_derivatives_are_those_of_automatic_differentiation_also_at_the_pin():
    pin = points(1, 2, 3)[0]
    kernel = ScaleKernel(PinnedKernel(pin, points(3, 2, 4), amplitude=5.0, pin_noise=0.3)).double()
    x1, x2 = torch.cat([points(3, 2, 1), pin[None]]), torch.cat([points(2, 2, 2), points(3, 2, 1)[:1]])
    found = kernel_blocks(kernel, x1, x2, mixed=True)
    np.testing.assert_allclose(found.value, kernel(x1, x2).to_dense().detach(), rtol=1e-10)

    def value(u, v):
        return kernel(u[None], v[None]).to_dense()[0, 0]

    h, eye = 1e-5, torch.eye(2, dtype=torch.float64)
    for i, u in enumerate(x1):
        for j, v in enumerate(x2):
            first = [(value(u + h * e, v) - value(u - h * e, v)) / (2 * h) for e in eye]
            second = [(value(u, v + h * e) - value(u, v - h * e)) / (2 * h) for e in eye]
            np.testing.assert_allclose(found.first[i, j], torch.stack(first).detach(), rtol=1e-6, atol=1e-5)
            np.testing.assert_allclose(found.second[i, j], torch.stack(second).detach(), rtol=1e-6, atol=1e-5)
            ends = [kernel_blocks(kernel, u[None], (v + s * h * e)[None]).first[0, 0] for e in eye for s in (1, -1)]
            mixed = torch.stack([(ends[2 * k] - ends[2 * k + 1]) / (2 * h) for k in range(2)], dim=-1)
            np.testing.assert_allclose(found.mixed[i, j], mixed, rtol=1e-6, atol=1e-4)


def test_the_function_is_0_at_the_pin_and_a_fit_moves_the_amplitude():
    pin, X = torch.zeros(2, dtype=torch.float64), points(15, 2)
    kernel = ScaleKernel(PinnedKernel(pin)).double()
    y = smooth(X)[:, None] / UNIT
    noise = gaussian_likelihood(1e-4)
    gp = DerivedGP(X, y, covar_module=kernel, mean_module=ZeroMean(), likelihood=noise, outcome_transform=None)
    assert float(gp.posterior(pin[None]).mean.abs()) < 1e-12
    before = float(kernel.base_kernel.amplitude)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp), optimizer_kwargs={"options": {"maxiter": 5}})
    assert float(kernel.base_kernel.amplitude) != before
    assert float(gp.posterior(pin[None]).mean.abs()) < 1e-12


def test_a_batch_of_amplitudes_is_each_kernel_and_the_diagonal_is_the_matrixs():
    pin, X = points(1, 2, 3)[0], points(4, 2)
    batch = PinnedKernel(pin, batch_shape=torch.Size([2]))
    batch.amplitude = torch.tensor([[2.0], [30.0]])
    for i, amplitude in enumerate((2.0, 30.0)):
        alone = PinnedKernel(pin, amplitude=amplitude)
        np.testing.assert_allclose(batch(X).to_dense()[i].detach(), alone(X).to_dense().detach(), rtol=1e-12)
    with gpytorch.settings.lazily_evaluate_kernels(False):
        diagonal = batch(X, diag=True).detach()
    np.testing.assert_allclose(diagonal, batch(X).to_dense().diagonal(dim1=-2, dim2=-1).detach(), rtol=1e-12)


@pytest.mark.parametrize(
    ("pin", "options", "match"),
    [
        (torch.zeros(2, 1), {}, "one point"),
        (torch.zeros(2), {"metric": torch.eye(3)}, "d' x 2"),
        (torch.tensor([0.0, torch.nan]), {}, "pin"),
        (torch.zeros(2), {"pin_noise": -1.0}, "pin_noise"),
    ],
)
def test_what_is_no_pin_metric_or_noise_is_refused(pin, options, match):
    with pytest.raises(ValueError, match=match):
        PinnedKernel(pin, **options)
