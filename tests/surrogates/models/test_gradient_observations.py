import copy
import pickle
from itertools import product
from math import inf

import botorch
import gpytorch
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import Round
from botorch.models.transforms.outcome import Log
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import Matern52KernelGrad, MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP, GradientObservationGP
from tests.surrogates.gp_models import D, configured, outcomes, points
from tests.surrogates.reference import assert_close

PLAIN = {RBFKernelGrad: RBFKernel, Matern52KernelGrad: lambda **options: MaternKernel(nu=2.5, **options)}


def gradients(X):
    X = X.detach().requires_grad_(True)
    return torch.autograd.grad(outcomes(X).sum(), X)[0]


def kernels(kind, ard):
    """Two gradient kernels with the same hyper-parameters, one for the model and one for the dense computation."""
    return (configured(ScaleKernel(kind(ard_num_dims=D if ard else None)).double()) for _ in range(2))


def joint_covariance(kernel, x1, x2):
    """cov of (f, ∇f) at x1 with (f, ∇f) at x2, point by point, by GPyTorch."""
    return kernel(x1, x2).to_dense().detach()


def observations(kernel, X, Y, G, noise, constant=0.0, units=None):
    """Which entries were observed, these less their prior mean, and their covariance, standardised by the units."""
    mean, scale = units or (Y.mean(), Y.std())
    y = torch.cat([(Y - mean) / scale - constant, G / scale], dim=-1).flatten()
    seen = ~y.isnan()
    return seen, y[seen], joint_covariance(kernel, X, X)[seen][:, seen] + torch.diag(noise.flatten()[seen])


def dense(kernel, X, Y, G, noise, Xq, constant=0.0, units=None):
    """Mean, q x (d+1), and covariance of (f, ∇f) by one dense solve in the user's units."""
    mean, scale = units or (Y.mean(), Y.std())
    seen, y, A = observations(kernel, X, Y, G, noise, constant, units)
    across = joint_covariance(kernel, Xq, X)[:, seen]
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
    joint, reference = kernels(kind, ard)
    X, Xq = points(5), points(3, seed=8)
    Y, G = outcomes(X), gradients(X)
    noise = torch.full((5, D + 1), 1e-4, dtype=torch.float64)
    options = {}
    if fixed:
        noise = 1e-3 + points(5, D + 1, seed=3).abs() / 10
        options = {"train_Yvar": noise[:, :1], "train_Gvar": noise[:, 1:]}
        noise = noise / Y.std() ** 2
    gp = GradientObservationGP(X, Y, G, covar_module=joint, **options)
    gp.mean_module.constant.data.fill_(0.2)
    mean, covariance = dense(reference, X, Y, G, noise, Xq, 0.2)
    found = gp.joint_posterior(Xq)
    assert_close(found.mean, mean, 1e-9)
    assert_close(found.distribution.covariance_matrix, covariance, 1e-9)
    value, gradient = gp.posterior(Xq), gp.gradient_posterior(Xq)
    blocks = covariance.reshape(3, D + 1, 3, D + 1)
    assert_close(value.mean.squeeze(-1), mean[:, 0], 1e-9)
    assert_close(value.distribution.covariance_matrix, blocks[:, 0, :, 0], 1e-9)
    assert_close(gradient.mean, mean[:, 1:], 1e-9)
    assert_close(gradient.joint_covariance(), blocks[:, 1:, :, 1:].reshape(3 * D, 3 * D), 1e-9)
    # t-batches are their points one by one.
    batches = gp.gradient_posterior(Xq[:, None])
    assert_close(batches.mean.squeeze(1), mean[:, 1:], 1e-9)
    assert_close(gp.posterior(Xq[:, None]).variance.flatten(), blocks[:, 0, :, 0].diagonal(), 1e-9)


def test_hyperparameters_changed_in_evaluation_mode_are_heeded():
    joint, reference = kernels(RBFKernelGrad, True)
    X, Xq = points(5), points(3, seed=8)
    gp = GradientObservationGP(X, outcomes(X), gradients(X), covar_module=joint)
    gp.posterior(Xq).mean
    configured(joint, seed=31), configured(reference, seed=31)
    noise = torch.full((5, D + 1), 1e-4, dtype=torch.float64)
    mean, _ = dense(reference, X, outcomes(X), gradients(X), noise, Xq, 0.0)
    assert_close(gp.joint_posterior(Xq).mean, mean, 1e-9)


def test_no_conjugate_gradients():
    joint, reference = kernels(Matern52KernelGrad, False)
    X, Xq = points(5), points(3, seed=8)
    gp = GradientObservationGP(X, outcomes(X), gradients(X), covar_module=joint)
    with gpytorch.settings.max_cholesky_size(2), gpytorch.settings.cg_tolerance(1e3):
        found = gp.joint_posterior(Xq)
    noise = torch.full((5, D + 1), 1e-4, dtype=torch.float64)
    mean, covariance = dense(reference, X, outcomes(X), gradients(X), noise, Xq, 0.0)
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


# Partial observation.

NAN = float("nan")


def partial_gradients(X):
    """Nothing of the second point's gradient, and not all of the first and the fourth one's."""
    G = gradients(X)
    G[0, 1] = G[1] = G[3, 0] = G[3, 2] = NAN
    return G


def model(kind=Matern52KernelGrad, fixed=False, n=5, seed=7, G=None, noise=1e-2):
    """A model with partial gradients, a kernel as it has, and its noise in standardised units."""
    joint, reference = (configured(kernel, seed) for kernel in kernels(kind, True))
    X = points(n)
    G = partial_gradients(X) if G is None else G
    if fixed:
        variances = 0.01 + points(n, D + 1, seed=3).abs() / 10
        hidden = torch.where(G.isnan(), NAN, variances[:, 1:])
        gp = GradientObservationGP(X, outcomes(X), G, variances[:, :1], hidden, joint)
        return gp, reference, variances / outcomes(X).var()
    gp = GradientObservationGP(X, outcomes(X), G, covar_module=joint)
    gp.likelihood.noise = torch.tensor([noise], dtype=torch.float64)
    return gp, reference, torch.full((n, D + 1), noise, dtype=torch.float64)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("fixed", [False, True])
def test_what_was_not_observed_has_no_row(kind, fixed):
    gp, reference, noise = model(kind, fixed)
    X, Xq = points(5), torch.cat([points(5)[:2], points(2, seed=8)])
    gp.mean_module.constant.data.fill_(0.2)
    mean, covariance = dense(reference, X, outcomes(X), partial_gradients(X), noise, Xq, 0.2)
    for made in (gp, copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        found = made.joint_posterior(Xq)
        assert_close(found.mean, mean, 1e-9)
        assert_close(found.distribution.covariance_matrix, covariance, 1e-9)
    # GPyTorch's own call, which is of the values, in standardised units.
    called = gp(Xq)
    assert_close(called.mean, (mean[:, 0] - outcomes(X).mean()) / outcomes(X).std(), 1e-9)
    assert_close(called.covariance_matrix, covariance[:: D + 1, :: D + 1] / outcomes(X).var(), 1e-9)


@pytest.mark.parametrize("kind", PLAIN)
def test_without_any_gradient_it_is_the_gp_of_the_values(kind):
    X, Xq = points(5), points(3, seed=8)
    gp, _, _ = model(kind, G=torch.full_like(X, NAN))
    plain = configured(ScaleKernel(PLAIN[kind](ard_num_dims=D)).double())
    values = SingleTaskGP(X, outcomes(X), covar_module=plain, likelihood=copy.deepcopy(gp.likelihood))
    found, expected = gp.posterior(Xq), values.posterior(Xq)
    assert_close(found.mean, expected.mean.detach(), 1e-9)
    assert_close(found.distribution.covariance_matrix, expected.distribution.covariance_matrix.detach(), 1e-9)
    noisy = values.posterior(Xq, observation_noise=True)
    assert_close(gp.posterior(Xq, observation_noise=True).variance, noisy.variance.detach(), 1e-9)
    likelihoods = [ExactMarginalLogLikelihood(m.likelihood, m.train()) for m in (gp, values)]
    found, expected = (mll(mll.model(X), mll.model.train_targets) for mll in likelihoods)
    assert_close(found, expected.detach(), 1e-10)
    derived = DerivedGP(X, outcomes(X), covar_module=plain, likelihood=gp.likelihood)
    assert_close(gp.gradient_posterior(Xq).mean, derived.gradient_posterior(Xq).mean.detach(), 1e-9)


def log_density(gp, reference, noise, X, Y, G):
    """Of the observed entries, for each of them, by PyTorch's own multivariate normal, not GPyTorch's."""
    reference.load_state_dict(gp.covar_module.state_dict())
    _, y, A = observations(reference, X, Y, G, noise, gp.mean_module.constant.item())
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), A).log_prob(y).item() / len(y)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_fit_maximises_the_likelihood_of_what_was_observed(fixed):
    gp, reference, noise = model(fixed=fixed, n=8)
    X = points(8)
    data = X, outcomes(X), partial_gradients(X)
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)

    def density():
        return log_density(gp, reference, noise if fixed else torch.full_like(noise, gp.likelihood.noise.item()), *data)

    gp.train()
    assert mll(gp(*gp.train_inputs), gp.train_targets).item() == pytest.approx(density(), abs=1e-10)
    fit_gpytorch_mll(mll)
    gp.train()
    best = density()
    assert mll(gp(*gp.train_inputs), gp.train_targets).item() == pytest.approx(best, abs=1e-9)
    for parameter in [*gp.covar_module.parameters(), gp.mean_module.constant]:
        for i in range(parameter.numel()):
            for step in (-0.1, 0.1):
                parameter.data.view(-1)[i] += step
                assert density() < best + 1e-6
                parameter.data.view(-1)[i] -= step


@pytest.mark.parametrize("kind", [Matern52KernelGrad, pytest.param(RBFKernelGrad, marks=pytest.mark.slow)])
def test_derivatives_in_data_noise_and_hyperparameters(kind):
    X, Xq, Xn, hidden = points(2), points(1, seed=8), points(1, seed=9), partial_gradients(points(4))[:2].isnan()
    weights = points(1, D + 1, seed=4).squeeze(0)
    joint, _ = kernels(kind, True)

    def read(X, Y, G, Yvar, Gvar, Xn, Yn, raw_lengthscale, constant):
        kernel = copy.deepcopy(joint)
        kernel.base_kernel._parameters["raw_lengthscale"] = raw_lengthscale
        G, Gvar = (torch.where(hidden, NAN, t) for t in (G, Gvar))
        gp = GradientObservationGP(X, Y, G, Yvar, Gvar, kernel, outcome_transform=None)
        gp.mean_module._parameters["raw_constant"] = constant
        with botorch.settings.propagate_grads(True):
            found = gp.condition_on_observations(Xn, Yn, noise=torch.full_like(Yn, 0.1)) if len(Xn) else gp
            found = found.joint_posterior(Xq)
        return found.mean.squeeze() @ weights, weights @ found.distribution.covariance_matrix @ weights

    constant = torch.tensor([0.3], dtype=torch.float64)
    variances, raw = 0.1 + points(2, D + 1, seed=3).abs(), joint.base_kernel.raw_lengthscale.detach()
    for more in (Xn[:0], Xn):
        inputs = X, outcomes(X), gradients(X), variances[:, :1], variances[:, 1:], more, outcomes(more), raw, constant
        inputs = [t.clone().requires_grad_(True) for t in inputs]
        if len(more):
            # A copy's hyper-parameters are its own.
            inputs[-2:] = [t.detach() for t in inputs[-2:]]
        assert torch.autograd.gradcheck(read, inputs, atol=1e-6)


def test_a_loaded_standardisation_leaves_the_data_what_they_are():
    X, Xq = points(5), points(3, seed=8)
    for fixed in (False, True):
        gp, reference, noise = model(fixed=fixed)
        more, _, _ = model(fixed=fixed, n=6, seed=3)
        more.load_state_dict(gp.state_dict())
        X, units = points(6), (outcomes(points(5)).mean(), outcomes(points(5)).std())
        noise = torch.full((6, D + 1), 1e-2, dtype=torch.float64)
        if fixed:
            noise = (0.01 + points(6, D + 1, seed=3).abs() / 10) / units[1] ** 2
        mean, covariance = dense(reference, X, outcomes(X), partial_gradients(X), noise, Xq, units=units)
        assert_close(more.joint_posterior(Xq).mean, mean, 1e-9)
        assert_close(more.joint_posterior(Xq).distribution.covariance_matrix, covariance, 1e-9)


def test_a_state_without_transforms_has_standardised_targets():
    gp, _, _ = model()
    X = points(5)
    other = GradientObservationGP(X, 3 * outcomes(X) + 1, 3 * partial_gradients(X))
    other.load_state_dict(gp.state_dict(), keep_transforms=False)
    assert_close(other.posterior(X).mean, gp.posterior(X).mean.detach(), 1e-9)


def test_new_training_data_may_have_another_pattern():
    gp, reference, _ = model()
    gp.posterior(points(1))
    X, Xq = points(4, seed=5), points(3, seed=8)
    Y, G, units = outcomes(X), partial_gradients(X), (outcomes(points(5)).mean(), outcomes(points(5)).std())
    targets = torch.cat([(Y - units[0]) / units[1], G / units[1]], dim=-1).flatten()
    gp.set_train_data(X, targets, strict=False)
    noise = torch.full((4, D + 1), 1e-2, dtype=torch.float64)
    mean, _ = dense(reference, X, Y, G, noise, Xq, units=units)
    assert_close(gp.joint_posterior(Xq).mean, mean, 1e-9)
    gp.set_train_data(targets=2 * gp.train_targets)
    mean, _ = dense(reference, X, 2 * (Y - units[0]) + units[0], 2 * G, noise, Xq, units=units)
    assert_close(gp.joint_posterior(Xq).mean, mean, 1e-9)


def test_float32_is_conditioned_in_float64():
    gp, _, _ = model()
    X = points(5, dtype=torch.float32)
    single = GradientObservationGP(X, outcomes(X), partial_gradients(points(5)).float())
    single.load_state_dict(gp.state_dict())
    found = single.joint_posterior(points(3, seed=8, dtype=torch.float32))
    assert found.mean.dtype == found.variance.dtype == torch.float32
    assert_close(found.mean, gp.joint_posterior(points(3, seed=8)).mean.detach(), 1e-4)
    assert gp.float().posterior(points(3, dtype=torch.float32)).mean.dtype == torch.float32


def test_no_points_have_empty_posteriors():
    gp, _, _ = model()
    fantasies = gp.fantasize(points(1, seed=8), sampler(2))
    for one, batch in ((gp, ()), (fantasies, (2,))):
        for none in (points(5)[:0], points(0, batch=(3, 1))):
            shape = torch.broadcast_shapes(batch, none.shape[:-2])
            for ask, width in ((one.posterior, 1), (one.gradient_posterior, D), (one.joint_posterior, D + 1)):
                found = ask(none)
                assert found.mean.shape == found.variance.shape == (*shape, 0, width)
                assert found.rsample(torch.Size([4])).shape == (4, *shape, 0, width)
    for none in (points(5)[:0], points(0, batch=(3,))):
        nothing = gp.fantasize(none, sampler(2))
        assert nothing.batch_shape == (2, *none.shape[:-2])
        found = nothing.joint_posterior(X5).mean
        assert_close(found, gp.joint_posterior(X5).mean.detach().expand(found.shape), 1e-12)


# Fantasies.


def sampler(count, seed=1):
    return SobolQMCNormalSampler(torch.Size([count]), seed=seed)


def conditioned_anew(reference, noise, Xn, Yn, variance, Xq, units=None):
    """``dense`` of the five partial observations and m values more; the units are those of the five."""
    X = points(5)
    known = torch.full((len(Xn), 1), variance, dtype=torch.float64)
    return dense(
        reference,
        torch.cat([X, Xn]),
        torch.cat([outcomes(X), Yn]),
        torch.cat([partial_gradients(X), torch.full_like(Xn, NAN)]),
        torch.cat([noise, known.expand(-1, D + 1)]),
        Xq,
        units=units or (outcomes(X).mean(), outcomes(X).std()),
    )


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("noise_is", ["inferred", "inferred, given", "fixed", "fixed, given"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_fantasies_are_conditioned_on_as_anew(kind, noise_is, batch):
    fixed = noise_is.startswith("fixed")
    gp, reference, noise = model(kind, fixed)
    units = outcomes(points(5)).var()
    variance, options = 1e-2, {}
    if fixed:
        variance = noise[:, 0].mean()
    if noise_is.endswith("given"):
        variance = 0.03
        options = {"observation_noise": torch.full((1, 1), variance, dtype=torch.float64)}
    Xn, Xq, draws = points(2, seed=9, batch=batch), points(3, seed=8), sampler(3)
    fantasies = gp.fantasize(Xn, draws, **options)
    assert fantasies.batch_shape == (3, *batch)
    latent = gp.posterior(Xn).distribution
    noisy = torch.distributions.MultivariateNormal(
        latent.mean, latent.covariance_matrix + variance * units * torch.eye(2, dtype=torch.float64)
    )
    base = draws.base_samples.reshape(3, *[1] * len(batch), 2)
    Yn = noisy.mean + (noisy.scale_tril @ base.unsqueeze(-1)).squeeze(-1)
    value, gradient, joint = fantasies.posterior(Xq), fantasies.gradient_posterior(Xq), fantasies.joint_posterior(Xq)
    for index in product(range(3), *map(range, batch)):
        X1 = Xn[index[1:]]
        mean, covariance = conditioned_anew(reference, noise, X1, Yn[index].unsqueeze(-1).detach(), variance, Xq)
        blocks = covariance.reshape(3, D + 1, 3, D + 1)
        assert_close(joint.mean[index], mean, 1e-8)
        assert_close(joint.distribution.covariance_matrix[index], covariance, 1e-8)
        assert_close(value.mean[index], mean[:, :1], 1e-8)
        assert_close(value.distribution.covariance_matrix[index], blocks[:, 0, :, 0], 1e-8)
        assert_close(gradient.mean[index], mean[:, 1:], 1e-8)
        assert_close(gradient.joint_covariance()[index], blocks[:, 1:, :, 1:].reshape(9, 9), 1e-8)
    # Each element of the batch at a point of its own.
    own = points(1, seed=6, batch=(3, *batch))
    last = tuple(size - 1 for size in (3, *batch))
    X1, Y1 = Xn[last[1:]], Yn[last].unsqueeze(-1).detach()
    mean, _ = conditioned_anew(reference, noise, X1, Y1, variance, own[last])
    assert_close(fantasies.joint_posterior(own).mean[last], mean, 1e-8)
    # Each has the likelihood of its data.
    given = {"noise": torch.full((2, 1), float(variance), dtype=torch.float64)} if fixed or options else {}
    found, expected = (
        ExactMarginalLogLikelihood(m.likelihood, m.train())(m(*m.train_inputs), m.train_targets)
        for m in (fantasies, gp.condition_on_observations(X1, Y1, **given))
    )
    assert found.shape == (3, *batch)
    assert_close(found[last], expected.detach(), 1e-9)


@pytest.mark.parametrize("fixed", [False, True])
def test_values_are_conditioned_on_one_after_the_other(fixed):
    gp, reference, noise = model(fixed=fixed)
    Xn, Xq = points(4, seed=9), points(3, seed=8)
    Yn, variance = outcomes(Xn), 0.02 if fixed else 1e-2
    options = {"noise": torch.full((1, 1), variance, dtype=torch.float64)} if fixed else {}
    for i in range(4):
        gp = gp.condition_on_observations(Xn[i : i + 1], Yn[i : i + 1], **options)
    assert gp.batch_shape == ()
    mean, covariance = conditioned_anew(reference, noise, Xn, Yn, variance, Xq)
    assert_close(gp.joint_posterior(Xq).mean, mean, 1e-8)
    assert_close(gp.joint_posterior(Xq).distribution.covariance_matrix, covariance, 1e-8)
    # Its likelihood is of the values alone, too.
    gp.train()
    _, y, A = observations(
        reference,
        torch.cat([points(5), Xn]),
        torch.cat([outcomes(points(5)), Yn]),
        torch.cat([partial_gradients(points(5)), torch.full_like(Xn, NAN)]),
        torch.cat([noise, torch.full((4, D + 1), variance, dtype=torch.float64)]),
        units=(outcomes(points(5)).mean(), outcomes(points(5)).std()),
    )
    found = ExactMarginalLogLikelihood(gp.likelihood, gp)(gp(*gp.train_inputs), gp.train_targets)
    expected = torch.distributions.MultivariateNormal(torch.zeros_like(y), A).log_prob(y) / len(y)
    assert_close(found, expected, 1e-9)


def test_fantasies_of_fantasies():
    gp, reference, noise = model()
    X1, X2, Xq = points(1, seed=9, batch=(4,)), points(2, seed=10), points(3, seed=8)
    first = gp.fantasize(X1, sampler(3))
    second = first.fantasize(X2, sampler(2, seed=5))
    assert second.batch_shape == (2, 3, 4)
    Y1 = first.train_targets[..., -1:].expand(2, 3, 4, 1)
    Yn = torch.cat([Y1, second.train_targets[..., -2:]], dim=-1)[1, 2, 3].unsqueeze(-1).detach()
    Yn = Yn * outcomes(points(5)).std() + outcomes(points(5)).mean()
    mean, covariance = conditioned_anew(reference, noise, torch.cat([X1[3], X2]), Yn, 1e-2, Xq)
    found = second.joint_posterior(Xq)
    assert_close(found.mean[1, 2, 3], mean, 1e-8)
    assert_close(found.distribution.covariance_matrix[1, 2, 3], covariance, 1e-8)


def test_without_derivatives_asked_for_there_is_no_graph():
    gp, _, _ = model()
    fantasies = gp.fantasize(points(1, seed=9), sampler(2))
    for one in (gp, fantasies, copy.deepcopy(gp)):
        found = one.joint_posterior(points(3, seed=8))
        assert not found.mean.requires_grad
        assert not found.distribution.covariance_matrix.requires_grad


def test_a_fantasy_is_of_its_own():
    gp, reference, noise = model()
    Xn, Xq = points(1, seed=9), points(3, seed=8)
    fantasies = gp.condition_on_observations(Xn, outcomes(Xn).expand(2, 1, 1))
    before = fantasies.posterior(Xq).mean.detach().clone()
    configured(gp.covar_module, seed=31)
    gp.load_state_dict({**gp.state_dict(), "outcome_transform.means": torch.tensor([[17.0]])})
    assert_close(fantasies.posterior(Xq).mean, before, 1e-14)
    configured(fantasies.covar_module, seed=31), configured(reference, seed=31)
    mean, _ = conditioned_anew(reference, noise, Xn, outcomes(Xn), 1e-2, Xq)
    assert_close(fantasies.joint_posterior(Xq).mean[1], mean, 1e-9)


def test_observation_noise_is_that_of_a_value():
    gp, _, noise = model(fixed=True)
    Xq, units = points(3, seed=8), outcomes(points(5)).var()
    latent = gp.posterior(Xq).distribution.covariance_matrix.detach()
    noisy = gp.posterior(Xq, observation_noise=True).distribution.covariance_matrix
    assert_close(noisy - latent, noise[:, 0].mean() * units * torch.eye(3, dtype=torch.float64), 1e-9)
    given = torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64)
    noisy = gp.posterior(Xq, observation_noise=given / units).distribution.covariance_matrix
    assert_close(noisy - latent, given.squeeze(-1).diag(), 1e-9)


# Acquisitions.


def knowledge_gradient(reference, noise, base_samples, x, X_best):
    """The one-shot value of a point x in units of outcome, by a dense solve for every fantasy, with its history."""
    X, variance = points(5), 1e-2
    units = outcomes(X).mean(), outcomes(X).std()
    mean, covariance = dense(reference, X, outcomes(X), partial_gradients(X), noise, x, units=units)
    deviation = (covariance[0, 0] + variance * units[1] ** 2).sqrt()
    total = 0
    for z, best in zip(base_samples.flatten(), X_best, strict=True):
        y = (mean[0, 0] + deviation * z).reshape(1, 1)
        total = total + conditioned_anew(reference, noise, x, y, variance, best[None])[0][0, 0]
    return total / len(X_best)


@pytest.mark.parametrize("kind", PLAIN)
def test_knowledge_gradient_is_its_definition(kind):
    gp, reference, noise = model(kind)
    acquisition = qKnowledgeGradient(gp, num_fantasies=4, sampler=sampler(4))
    X = points(5, seed=9, batch=(2,)).requires_grad_(True)
    found = acquisition(X)
    expected = torch.stack(
        [knowledge_gradient(reference, noise, acquisition.sampler.base_samples, x[:1], x[1:]) for x in X.detach()]
    )
    assert_close(found, expected.detach(), 1e-9)
    (slope,) = torch.autograd.grad(found.sum(), X)
    steps = 1e-5 * torch.eye(5 * D, dtype=torch.float64).reshape(-1, 5, D)
    differences = (acquisition(X[0].detach() + steps) - acquisition(X[0].detach() - steps)) / 2e-5
    assert_close(slope[0].flatten(), differences.detach(), 1e-6)


def test_knowledge_gradient_of_two_alternatives_has_a_closed_form():
    gp, _, _ = model()
    count, alternatives = 1024, points(2, seed=22)
    x = alternatives[:1] + 0.1
    joint = gp.posterior(torch.cat([x, alternatives])).distribution
    covariance = joint.covariance_matrix.detach()
    slopes = covariance[0, 1:] / (covariance[0, 0] + 1e-2 * outcomes(points(5)).var()).sqrt()
    # max(a₁ + b₁ Z, a₂ + b₂ Z) has the mean a₁ Φ(c) + a₂ Φ(−c) + s φ(c), c = (a₁ − a₂)/s, s = |b₁ − b₂|.
    (a1, a2), s = joint.mean.detach()[1:], (slopes[0] - slopes[1]).abs()
    normal, c = torch.distributions.Normal(0.0, 1.0), (a1 - a2) / s
    expected = a1 * normal.cdf(c) + a2 * normal.cdf(-c) + s * normal.log_prob(c).exp()
    draws = sampler(count)
    means = gp.fantasize(x, draws).posterior(alternatives).mean.squeeze(-1)
    best = alternatives[means.argmax(-1)]
    found = qKnowledgeGradient(gp, num_fantasies=count, sampler=draws)(torch.cat([x, best])[None])
    assert 0 < means.argmax(-1).sum() < count
    assert (found - expected).abs() < 2e-3 * s


def test_knowledge_gradient_is_optimised():
    gp, _, _ = model()
    bounds = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)
    acquisition = qKnowledgeGradient(gp, num_fantasies=4, sampler=sampler(4))
    options = {"seed": 0, "maxiter": 30}
    candidates, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=8, options=options)
    assert candidates.shape == (2, D)
    assert value > acquisition(points(6, seed=9, batch=(50,))).max()
    evaluated = acquisition.evaluate(candidates[None], bounds=bounds, num_restarts=2, raw_samples=16)
    assert evaluated > value - 1e-3 * value.abs()


def test_analytic_acquisitions_with_partial_gradients():
    gp, reference, noise = model()
    X, Xq = points(5), points(4, seed=8)
    mean, covariance = dense(reference, X, outcomes(X), partial_gradients(X), noise, Xq)
    mean, deviation = mean[:, 0], covariance.diagonal().reshape(4, D + 1)[:, 0].sqrt()
    assert_close(UpperConfidenceBound(gp, beta=4.0)(Xq[:, None]), mean + 2 * deviation, 1e-8)
    normal, best = torch.distributions.Normal(0.0, 1.0), outcomes(X).max()
    u = (mean - best) / deviation
    improvement = deviation * (u * normal.cdf(u) + normal.log_prob(u).exp())
    assert_close(LogExpectedImprovement(gp, best)(Xq[:, None]).exp(), improvement, 1e-8)


X5, Y5 = points(5), outcomes(points(5))
HIDDEN = torch.where(torch.arange(D) == 1, NAN, X5)
H5 = torch.ones(5, D, D, dtype=torch.float64)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X5, Y5, points(4)), {}, ValueError, r"train_G must be of shape \(5, 3\) for X of .*got \(4, 3\)"),
        (
            (X5, Y5, X5 / 0),
            {},
            ValueError,
            "train_G holds 15 infinite entries; use NaN for entries that were not observed",
        ),
        ((X5, Y5 * NAN, X5), {}, ValueError, r"train_Y is NaN in every row for the outcomes \[0\]"),
        ((X5 * NAN, Y5, X5), {}, ValueError, "train_X holds 15 entries that are NaN or inf"),
        (
            (X5, Y5, X5),
            {"train_Yvar": Y5.abs(), "train_Gvar": HIDDEN.abs()},
            ValueError,
            "train_Gvar holds 5 entries that are infinite, or NaN although train_G is not",
        ),
        (
            (X5, Y5, HIDDEN),
            {"train_Yvar": Y5.abs(), "train_Gvar": torch.where(HIDDEN.isnan(), inf, X5.abs())},
            ValueError,
            "train_Gvar holds 5 entries that are inf",
        ),
        ((X5, Y5, X5.float()), {}, ValueError, "train_G is torch.float32.*X is torch.float64"),
        ((X5, Y5, X5.numpy()), {}, TypeError, "train_G must be a torch.Tensor, got ndarray"),
        ((X5, Y5, X5), {"train_Yvar": Y5.abs()}, ValueError, "train_Yvar and train_Gvar must be given together"),
        (
            (X5, Y5, X5),
            {"train_Yvar": Y5.abs(), "train_Gvar": -X5.abs()},
            ValueError,
            "train_Gvar must be non-negative",
        ),
        ((X5, Y5, X5), {"covar_module": MaternKernel(nu=0.5)}, ValueError, "has no gradient covariance"),
        ((X5, Y5, X5), {"covar_module": MaternKernel(nu=1.5), "train_H": H5}, ValueError, "no covariance of second"),
        ((X5, Y5, X5), {"train_H": H5 + X5[:, None]}, ValueError, "train_H must be symmetric"),
        ((X5, Y5, X5), {"train_H": H5[0]}, ValueError, r"train_H must be of shape \(5, 3, 3\).*got \(3, 3\)"),
        ((X5, Y5, X5), {"outcome_transform": Log()}, ValueError, "Log is not linear"),
        ((X5, Y5, X5), {"input_transform": Round([0])}, ValueError, "no gradient through input_transform Round"),
        ((X5, Y5, X5), {"covar_module": RBFKernelGrad(ard_num_dims=2)}, ValueError, "2 lengthscales for 3 inputs"),
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


def test_what_conditioning_refuses():
    gp, fixed = model()[0], model(fixed=True)[0]
    with pytest.raises(ValueError, match=r"X must be of shape batch x q x 3.*got \(2, 2\)"):
        gp.fantasize(points(2, 2), sampler(2))
    for Y, error, message in (
        (Y5.numpy(), TypeError, "Y must be a torch.Tensor, got ndarray"),
        (Y5.float(), ValueError, "Y is torch.float32.*X is torch.float64"),
        (Y5[:4], ValueError, r"Y must be of shape batch x 5 x 1 for X of shape \(5, 3\), got \(4, 1\)"),
        (Y5 * NAN, ValueError, "Y holds only NaN"),
        (Y5 / 0, ValueError, "Y holds 5 infinite entries"),
    ):
        with pytest.raises(error, match=message):
            gp.condition_on_observations(X5, Y)
    with pytest.raises(ValueError, match="train_Yvar: new observations need noise="):
        fixed.condition_on_observations(X5, Y5)
    with pytest.raises(ValueError, match=r"must broadcast; the model has \(\), X has \(2,\) and Y has \(3,\)"):
        gp.condition_on_observations(X5.expand(2, 5, D), Y5.expand(3, 5, 1))


def test_what_new_training_data_are_refused():
    gp, fixed = model()[0], model(fixed=True)[0]
    for inputs, targets in ((X5[:4], None), (X5[:4], gp.train_targets), (None, gp.train_targets[1:])):
        with pytest.raises(ValueError, match=r"targets must hold all .* entries, NaN if"):
            gp.set_train_data(inputs, targets, strict=False)
    with pytest.raises(RuntimeError, match="Cannot modify shape of targets"):
        gp.set_train_data(targets=torch.zeros(20, dtype=torch.float64))
    with pytest.raises(ValueError, match="fixed noise belongs to other observations"):
        fixed.set_train_data(targets=torch.zeros(20, dtype=torch.float64), strict=False)
    assert gp.posterior(X5).mean.isfinite().all()
