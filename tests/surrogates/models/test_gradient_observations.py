import copy

import gpytorch
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP
from botorch.optim import optimize_acqf
from gpytorch.kernels import Matern52KernelGrad, MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP, GradientObservationGP, kernel_blocks
from tests.surrogates.gp_models import D, configured, outcomes, points
from tests.surrogates.reference import assert_close

PLAIN = {RBFKernelGrad: RBFKernel, Matern52KernelGrad: lambda **options: MaternKernel(nu=2.5, **options)}


def gradients(X):
    X = X.detach().requires_grad_(True)
    return torch.autograd.grad(outcomes(X).sum(), X)[0]


def kernels(kind, ard):
    """The gradient kernel and the plain one, with the same hyper-parameters."""
    options = {"ard_num_dims": D if ard else None}
    return (configured(ScaleKernel(build(**options)).double()) for build in (kind, PLAIN[kind]))


def joint_covariance(kernel, x1, x2):
    """cov of (f, ∇f) at x1 with (f, ∇f) at x2, point by point, from our own blocks."""
    b = kernel_blocks(kernel, x1, x2, mixed=True)
    top = torch.cat([b.value[..., None, None], b.second.unsqueeze(-2)], dim=-1)
    rest = torch.cat([b.first.unsqueeze(-1), b.mixed], dim=-1)
    blocks = torch.cat([top, rest], dim=-2)
    return blocks.transpose(1, 2).reshape(len(x1) * (D + 1), len(x2) * (D + 1))


def dense(kernel, X, Y, G, noise, Xq, constant):
    """Mean, q x (d+1), and covariance of (f, ∇f) by one dense solve in the user's units."""
    mean, scale = Y.mean(), Y.std()
    y = torch.cat([(Y - mean) / scale - constant, G / scale], dim=-1).flatten()
    A = joint_covariance(kernel, X, X) + torch.diag(noise.flatten())
    across = joint_covariance(kernel, Xq, X)
    found = (across @ torch.linalg.solve(A, y)).reshape(-1, D + 1)
    found[:, 0] += constant
    covariance = joint_covariance(kernel, Xq, Xq) - across @ torch.linalg.solve(A, across.mT)
    found = found * scale
    found[:, 0] += mean
    return found, covariance * scale**2


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_posteriors_equal_a_dense_computation(kind, ard, fixed):
    joint, plain = kernels(kind, ard)
    X, Xq = points(5), points(3, seed=8)
    Y, G = outcomes(X), gradients(X)
    noise = torch.full((5, D + 1), 1e-4, dtype=torch.float64)
    options = {}
    if fixed:
        noise = 1e-3 + points(5, D + 1, seed=3).abs() / 10
        options = {"train_Yvar": noise[:, :1], "train_Gvar": noise[:, 1:]}
        noise = noise / Y.std() ** 2
    gp = DerivedGP.with_gradients(X, Y, G, covar_module=joint, **options)
    assert isinstance(gp, GradientObservationGP)
    gp.mean_module.constant.data.fill_(0.2)
    mean, covariance = dense(plain, X, Y, G, noise, Xq, 0.2)
    found = gp.joint_posterior(Xq)
    assert_close(found.mean, mean, 1e-9)
    assert_close(found.distribution.covariance_matrix, covariance, 1e-9)
    value, gradient = gp.posterior(Xq), gp.gradient_posterior(Xq)
    blocks = covariance.reshape(3, D + 1, 3, D + 1)
    assert_close(value.mean.squeeze(-1), mean[:, 0], 1e-9)
    assert_close(value.distribution.covariance_matrix, blocks[:, 0, :, 0], 1e-9)
    assert_close(gradient.mean, mean[:, 1:], 1e-9)
    assert_close(gradient.distribution.covariance_matrix, blocks[:, 1:, :, 1:].reshape(3 * D, 3 * D), 1e-9)
    # t-batches are their points one by one.
    batches = gp.gradient_posterior(Xq[:, None])
    assert_close(batches.mean.squeeze(1), mean[:, 1:], 1e-9)
    assert_close(gp.posterior(Xq[:, None]).variance.flatten(), blocks[:, 0, :, 0].diagonal(), 1e-9)


def test_hyperparameters_changed_in_evaluation_mode_are_heeded():
    joint, plain = kernels(RBFKernelGrad, True)
    X, Xq = points(5), points(3, seed=8)
    gp = GradientObservationGP(X, outcomes(X), gradients(X), covar_module=joint)
    gp.posterior(Xq).mean
    configured(joint, seed=31), configured(plain, seed=31)
    noise = torch.full((5, D + 1), 1e-4, dtype=torch.float64)
    mean, _ = dense(plain, X, outcomes(X), gradients(X), noise, Xq, 0.0)
    assert_close(gp.joint_posterior(Xq).mean, mean, 1e-9)


def test_no_conjugate_gradients():
    joint, plain = kernels(Matern52KernelGrad, False)
    X, Xq = points(5), points(3, seed=8)
    gp = GradientObservationGP(X, outcomes(X), gradients(X), covar_module=joint)
    with gpytorch.settings.max_cholesky_size(2), gpytorch.settings.cg_tolerance(1e3):
        found = gp.joint_posterior(Xq)
    noise = torch.full((5, D + 1), 1e-4, dtype=torch.float64)
    mean, covariance = dense(plain, X, outcomes(X), gradients(X), noise, Xq, 0.0)
    assert_close(found.mean, mean, 1e-9)
    assert_close(found.distribution.covariance_matrix, covariance, 1e-9)


def test_a_fit_raises_the_likelihood_and_gradients_help():
    X, Xq = points(8), points(40, seed=8) * 0.8
    gp = GradientObservationGP(X, outcomes(X), gradients(X))
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    gp.train()
    before = mll(gp(*gp.train_inputs), gp.train_targets).item()
    fit_gpytorch_mll(mll)
    gp.train()
    assert mll(gp(*gp.train_inputs), gp.train_targets).item() > before + 0.1
    values_only = DerivedGP(X, outcomes(X))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(values_only.likelihood, values_only))
    truth = gradients(Xq)
    with_gradients = (gp.gradient_posterior(Xq).mean - truth).norm()
    assert with_gradients < 0.5 * (values_only.gradient_posterior(Xq).mean - truth).norm()
    assert (gp.posterior(Xq).mean - outcomes(Xq)).norm() < (values_only.posterior(Xq).mean - outcomes(Xq)).norm()


def test_acquisitions_and_model_lists():
    X = points(6)
    gp = GradientObservationGP(X, outcomes(X), gradients(X))
    bounds = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)
    for acquisition in (LogExpectedImprovement(gp, outcomes(X).max()), qLogExpectedImprovement(gp, outcomes(X).max())):
        best, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=16, options={"seed": 0})
        assert best.shape == (1, D)
        assert value >= acquisition(points(50, seed=9)[:, None]).max()
    both = ModelListGP(gp, copy.deepcopy(gp)).posterior(points(2, seed=8))
    assert_close(both.mean[:, 1:], gp.posterior(points(2, seed=8)).mean, 1e-14)
    half = ScalarizedPosteriorTransform(torch.tensor([0.5], dtype=torch.float64))
    assert_close(gp.posterior(X, posterior_transform=half).mean, 0.5 * gp.posterior(X).mean, 1e-12)


def test_derivatives_with_respect_to_points():
    X = points(5)
    gp = GradientObservationGP(X, outcomes(X), gradients(X), covar_module=next(kernels(RBFKernelGrad, True)))
    Xq = points(2, seed=8).requires_grad_(True)
    (gradient,) = torch.autograd.grad(gp.posterior(Xq).mean.sum(), Xq)
    assert_close(gp.gradient_posterior(Xq.detach()).mean, gradient, 1e-9)


def test_state_dict_carries_the_standardisation():
    X = points(5)
    gp = GradientObservationGP(X, outcomes(X), gradients(X))
    other = GradientObservationGP(X, 3 * outcomes(X) + 1, 3 * gradients(X))
    configured(other.covar_module)
    other.load_state_dict(gp.state_dict())
    assert_close(other.posterior(X).mean, gp.posterior(X).mean.detach(), 1e-9)


X5, Y5 = points(5), outcomes(points(5))
NAN = torch.full((5, D), float("nan"), dtype=torch.float64)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X5, Y5, points(4)), {}, ValueError, r"train_G must be of shape \(5, 3\) as train_X is, got \(4, 3\)"),
        ((X5, Y5, NAN), {}, ValueError, "train_G holds 15 entries that are NaN or inf"),
        ((X5, Y5, X5.float()), {}, ValueError, "train_G is torch.float32.*train_X is torch.float64"),
        ((X5, Y5, X5.numpy()), {}, TypeError, "train_G must be a torch.Tensor, got ndarray"),
        ((X5[None], Y5[None], X5[None]), {}, ValueError, r"n x d \(no batches here\), got \(1, 5, 3\)"),
        ((X5, Y5, X5), {"train_Yvar": Y5.abs()}, ValueError, "train_Yvar and train_Gvar are given together"),
        (
            (X5, Y5, X5),
            {"train_Yvar": Y5.abs(), "train_Gvar": -X5.abs()},
            ValueError,
            "train_Gvar must be non-negative",
        ),
        ((X5, Y5, X5), {"covar_module": ScaleKernel(RBFKernel())}, TypeError, "RBFKernel does not form.*RBFKernelGrad"),
        ((X5, Y5, X5), {"covar_module": RBFKernelGrad(active_dims=[0])}, ValueError, r"sees all inputs.*\[0\]"),
    ],
)
def test_what_it_refuses(arguments, options, error, message):
    with pytest.raises(error, match=message):
        GradientObservationGP(*arguments, **options)


def test_what_its_posteriors_refuse():
    gp = GradientObservationGP(X5, Y5, gradients(X5))
    for ask in (gp.posterior, gp.gradient_posterior, gp.joint_posterior):
        with pytest.raises(ValueError, match=r"X must be of shape batch x q x 3.*got \(2, 2\)"):
            ask(points(2, 2))
    with pytest.raises(ValueError, match="observation_noise must be False"):
        gp.posterior(X5, observation_noise=True)
    with pytest.raises(ValueError, match=r"output_indices must be None or \[0\], got \[1\]"):
        gp.posterior(X5, output_indices=[1])
