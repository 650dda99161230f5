"""Samples of hyper-parameters against quadrature and GPyTorch's likelihood; mixtures against their parts."""

import copy
import math

import numpy as np
import pytest
import torch
from botorch.acquisition import ExpectedImprovement, LogExpectedImprovement, qExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import MCMC_DIM
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import Log10, Warp
from botorch.sampling import IIDNormalSampler
from botorch.utils.transforms import is_ensemble, is_fully_bayesian
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior
from scipy import stats

from surrogates import DerivedGP, FullyBayesianDerivedGP, gaussian_likelihood, matern_kernel, sample_hyperparameters
from surrogates.models.hyperparameter_samples import HyperparameterDensity
from tests.surrogates.gp_models import D, generator, outcomes, points

S = 5


def with_priors(n=8, **options):
    X = points(n)
    options = {"input_transform": Normalize(D)} | options
    return DerivedGP(X, outcomes(X), **options)


def sampled(model=None, num_samples=S, seed=0, warmup_steps=2):
    return sample_hyperparameters(
        with_priors() if model is None else model, num_samples, generator(seed), warmup_steps=warmup_steps
    )


def scaled_kernel(batch_shape=()):
    """Priors of two kinds, a value bounded on both sides, and one from above."""
    batch_shape = torch.Size(batch_shape)
    base = MaternKernel(
        nu=2.5,
        ard_num_dims=D,
        batch_shape=batch_shape,
        lengthscale_prior=GammaPrior(3.0, 6.0),
        lengthscale_constraint=Interval(0.05, 4.0),
    )
    kernel = ScaleKernel(
        base,
        batch_shape=batch_shape,
        outputscale_prior=UniformPrior(0.1, 3.0),
        outputscale_constraint=LessThan(5.0),
    )
    kernel.outputscale = 1.0
    return kernel


def with_frozen_lengthscale():
    model = with_priors()
    model.covar_module.raw_lengthscale.requires_grad_(False)
    return model


MODELS = {
    "SingleTaskGP's default": with_priors,
    "intervals and other priors": lambda: with_priors(covar_module=scaled_kernel()),
    "fixed noise": lambda: with_priors(train_Yvar=0.1 + points(8, 1, seed=4).square()),
    "a mean with a prior": lambda: with_priors(mean_module=ConstantMean(constant_prior=NormalPrior(1.0, 2.0))),
    "a frozen lengthscale": with_frozen_lengthscale,
}


def log_density_by_gpytorch(model):
    """ExactMarginalLogLikelihood times n."""
    model = copy.deepcopy(model).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    X = model.train_inputs[0]
    return mll(model(X), model.train_targets) * X.shape[-2]


def constrained_values(model):
    """Every sampled hyper-parameter, flat."""
    found = []
    for _, parameter, constraint in model.named_parameters_and_constraints():
        if parameter.requires_grad:
            found.append((parameter if constraint is None else constraint.transform(parameter)).reshape(-1))
    return torch.cat(found)


@pytest.mark.parametrize("name", MODELS)
def test_the_density_is_gpytorchs_times_the_slope_of_the_coordinates(name):
    model = MODELS[name]()
    density = HyperparameterDensity(model)
    p = density.start.shape[1]
    u = density.start + 0.1 * torch.randn(4, p, generator=generator(3), dtype=torch.float64)
    chosen = torch.zeros(4, dtype=torch.long)
    found = density(u, chosen)
    samples = HyperparameterDensity(model).model_at(u, 4)
    for i in range(4):
        # The values of sample i, put into a copy of the model by GPyTorch's own setters of raw parameters.
        one = copy.deepcopy(model)
        for (_, to), (_, source) in zip(one.named_parameters(), samples.named_parameters(), strict=True):
            to.data = source[i].detach().reshape(to.shape)
        expected = log_density_by_gpytorch(one)
        slope = torch.func.jacrev(lambda v: values_at(model, v))(u[i]).diagonal().abs().log().sum()
        torch.testing.assert_close(found[i], (expected + slope).detach(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(constrained_values(one).detach(), values_at(model, u[i]), rtol=1e-10, atol=1e-10)


def values_at(model, u):
    """θ(u) by the documented formulas, entry by entry."""
    values, at = [], 0
    for _, parameter, constraint in model.named_parameters_and_constraints():
        if not parameter.requires_grad:
            continue
        for _ in range(parameter.numel()):
            v = u[at]
            if constraint is not None:
                low, high = float(constraint.lower_bound), float(constraint.upper_bound)
                if math.isfinite(low) and math.isfinite(high):
                    v = low + (high - low) / (1 + torch.exp(-v))
                elif math.isfinite(low):
                    v = low + torch.exp(v)
                else:
                    v = high - torch.exp(v)
            values.append(v)
            at += 1
    return torch.stack(values)


def test_coordinates_begin_at_the_models_values():
    for made in MODELS.values():
        model = made()
        torch.testing.assert_close(
            values_at(model, HyperparameterDensity(model).start[0]), constrained_values(model).detach()
        )


def test_one_lengthscale_by_quadrature():
    """p(ℓ | y) ∝ N(y; 0, K_ℓ + s²I) LogNormal(ℓ; 0.3, 0.5), in NumPy on a grid."""
    X, s2 = points(7, 1), 0.05
    Y = (3 * X).sin()
    kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.3, 0.5))
    model = DerivedGP(
        X, Y, covar_module=kernel, likelihood=gaussian_likelihood(s2), mean_module=ZeroMean(), outcome_transform=None
    )
    model.likelihood.requires_grad_(False)
    model.covar_module.lengthscale = 3.0  # far from the bulk
    grid = np.exp(np.linspace(-4, 5, 4001))
    x, y = X.numpy(), Y.numpy()[:, 0]
    logs = []
    for lengthscale in grid:
        A = np.exp(-((x - x.T) ** 2) / (2 * lengthscale**2)) + s2 * np.eye(7)
        logs.append(-0.5 * (y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1]))
    log_likelihood, prior = np.array(logs), stats.lognorm(0.5, scale=math.exp(0.3))
    log_density = log_likelihood + prior.logpdf(grid)
    masses = np.exp(log_density - log_density.max()) * grid  # on a grid of even steps of log ℓ
    cdf = np.cumsum(masses) / masses.sum()
    assert max(masses[0], masses[-1]) < 1e-9 * masses.max()
    found = [
        sample_hyperparameters(model, 400, generator(seed), warmup_steps=10).covar_module.lengthscale.reshape(-1)
        for seed in range(3)
    ]
    values = torch.cat(found).numpy()
    assert stats.kstest(values, lambda v: np.interp(v, grid, cdf)).pvalue > 1e-3
    # The prior alone, or the likelihood alone, would have been found out.
    for wrong in (np.exp(log_likelihood - log_likelihood.max()) * grid, prior.pdf(grid) * grid):
        other = np.cumsum(wrong) / wrong.sum()
        assert stats.kstest(values, lambda v, other=other: np.interp(v, grid, other)).pvalue < 1e-6


def test_a_constant_mean_with_a_flat_prior_has_its_normal_posterior():
    X = points(6)
    model = DerivedGP(X, outcomes(X), covar_module=matern_kernel(1.0), likelihood=gaussian_likelihood(0.1))
    for module in (model.covar_module, model.likelihood):
        module.requires_grad_(False)
    found = sample_hyperparameters(model, 1000, generator(0), warmup_steps=5).mean_module.constant
    A = model.covar_module(X).to_dense() + 0.1 * torch.eye(6, dtype=torch.float64)
    precision = A.inverse().sum()
    mean = (A.inverse() @ model.train_targets).sum() / precision
    assert stats.kstest(found.numpy(), stats.norm(float(mean), float(precision.rsqrt())).cdf).pvalue > 1e-3


def separate_models(model, samples):
    """One plain model for each sample, with its hyper-parameters and the data in the user's units."""
    models = []
    for i in range(samples.num_mcmc_samples):
        one = copy.deepcopy(model)
        for (_, to), (_, source) in zip(one.named_parameters(), samples.named_parameters(), strict=True):
            to.data = source[i].clone().reshape(to.shape)
        models.append(one.eval())
    return models


@pytest.mark.parametrize("name", MODELS)
def test_it_is_so_many_separate_models(name):
    model = MODELS[name]()
    samples = sampled(model)
    assert samples.num_mcmc_samples == S and samples.batch_shape == torch.Size([S])
    x = points(4, seed=9)
    gradient, value, joint = samples.gradient_posterior(x), samples.posterior(x), samples.joint_posterior(x)
    noisy, across = samples.posterior(x, observation_noise=True), samples.value_gradient_covariance(x, x)
    hessian = samples.hessian_posterior(x)
    for i, one in enumerate(separate_models(model, samples)):
        own = one.gradient_posterior(x)
        for what in ("mean", "variance", "trace", "spectral_norm", "covariance_matrix", "prior_trace"):
            torch.testing.assert_close(getattr(gradient, what)[i], getattr(own, what), rtol=1e-9, atol=1e-9)
        botorch = SingleTaskGP.posterior(one, x)
        torch.testing.assert_close(value.mean[i], botorch.mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(value.variance[i], botorch.variance, rtol=1e-7, atol=1e-7)
        with_noise = one.posterior(x, observation_noise=True).variance
        torch.testing.assert_close(noisy.variance[i], with_noise, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(joint.mean[i], one.joint_posterior(x).mean, rtol=1e-9, atol=1e-9)
        curvature = one.hessian_posterior(x)
        torch.testing.assert_close(hessian.mean[i], curvature.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(hessian.variance[i], curvature.variance, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(across[i], one.value_gradient_covariance(x, x), rtol=1e-9, atol=1e-9)


def test_transforms_that_are_not_linear_are_those_of_separate_models():
    X = 1.5 + 0.5 * points(8)
    log_inputs = DerivedGP(X, outcomes(X), input_transform=Log10(indices=[0, 2]))
    log_outcomes = DerivedGP(X, outcomes(X).exp(), outcome_transform=Log())
    x = 1.5 + 0.5 * points(3, seed=9)
    samples = sampled(log_inputs)
    gradient, joint = samples.gradient_posterior(x), samples.joint_posterior(x)
    for i, one in enumerate(separate_models(log_inputs, samples)):
        own = one.gradient_posterior(x)
        torch.testing.assert_close(gradient.mean[i], own.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient.covariance_matrix[i], own.covariance_matrix, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(joint.mean[i], one.joint_posterior(x).mean, rtol=1e-9, atol=1e-9)
    samples = sampled(log_outcomes)
    with pytest.raises(ValueError, match="not Gaussian"):
        samples.gradient_posterior(x)
    transformed, value = samples.transformed_gradient_posterior(x), samples.posterior(x)
    for i, one in enumerate(separate_models(log_outcomes, samples)):
        own = one.transformed_gradient_posterior(x).delta_method_mean
        torch.testing.assert_close(transformed.delta_method_mean[i], own, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(value.mean[i], one.posterior(x).mean, rtol=1e-6, atol=1e-6)


def test_the_model_that_was_sampled_stays_as_it_was():
    model = with_priors()
    before = copy.deepcopy(model.state_dict())
    x = points(2, seed=9)
    mean = model.gradient_posterior(x).mean.clone()
    samples = sampled(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model.gradient_posterior(x).mean, mean)
    with torch.no_grad():
        model.covar_module.raw_lengthscale.fill_(9.0)
    again = sampled(with_priors())
    assert torch.equal(samples.gradient_posterior(x).mean, again.gradient_posterior(x).mean)
    assert not torch.equal(samples.gradient_posterior(x).mean, sampled(seed=1).gradient_posterior(x).mean)


def test_points_that_are_written_to_later_do_not_reach_a_posterior():
    samples, x = sampled(with_priors(input_transform=None)), points(2, seed=9)
    for made in (samples.gradient_posterior, samples.hessian_posterior):
        expected, at = made(x).mean, x.clone()
        later = made(at)
        at.zero_()
        assert torch.equal(later.mean, expected)


def test_models_of_a_batch_are_sampled_each_by_itself():
    X = torch.stack([points(8, seed=seed) for seed in (0, 1)])
    Y = torch.stack([outcomes(X[0]), -3 * outcomes(X[1])])

    def made(X, Y, batch):
        return DerivedGP(
            X,
            Y,
            covar_module=scaled_kernel(batch),
            outcome_transform=Standardize(1, batch_shape=torch.Size(batch)),
            input_transform=Normalize(D, batch_shape=torch.Size(batch)),
        )

    both = made(X, Y, (2,))
    density = HyperparameterDensity(both)
    u = density.start + 0.1 * torch.randn(density.start.shape, generator=generator(3), dtype=torch.float64)
    single = [HyperparameterDensity(made(X[i], Y[i], ())) for i in range(2)]
    found = density(u, torch.arange(2))
    for i in range(2):
        torch.testing.assert_close(found[i : i + 1], single[i](u[i : i + 1], torch.zeros(1, dtype=torch.long)))
    samples = density.model_at(u.repeat_interleave(S, 0), S)
    assert samples.batch_shape == torch.Size([2, S]) and samples.num_mcmc_samples == S
    x = torch.stack([points(3, seed=5), points(3, seed=6)])
    gradient, value = samples.gradient_posterior(x), samples.posterior(x)
    assert gradient.mean.shape == (2, S, 3, D) and gradient.mixture_mean.shape == (2, 3, D)
    for i in range(2):
        own = single[i].model_at(u[i : i + 1].expand(S, -1), S)
        one = own.gradient_posterior(x[i])
        torch.testing.assert_close(gradient.mean[i], one.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient.mixture_variance[i], one.mixture_variance, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(value.mixture_mean[i], own.posterior(x[i]).mixture_mean, rtol=1e-7, atol=1e-7)


def test_moments_of_the_mixture_are_those_of_its_draws():
    samples = sampled(num_samples=3)
    posterior = samples.gradient_posterior(points(2, seed=9))
    draws = posterior.rsample(torch.Size([40_000]), generator=generator(1))
    assert draws.shape == (40_000, 3, 2, D)
    draws = draws.flatten(0, 1)
    mean, covariance = posterior.mixture_mean, posterior.mixture_covariance_matrix
    error = (posterior.mixture_variance / len(draws)).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * error).all()
    for point in range(2):
        scale = posterior.mixture_variance[point].sqrt()
        close = (draws[:, point].T.cov() - covariance[point]).abs() / (scale[:, None] * scale)
        assert close.max() < 0.04
    total = (draws - mean).square().sum(-1).mean(0)
    torch.testing.assert_close(posterior.mixture_trace, total, rtol=0.04, atol=0)
    torch.testing.assert_close(posterior.mixture_trace, posterior.mixture_variance.sum(-1))
    torch.testing.assert_close(posterior.mixture_variance, covariance.diagonal(dim1=-2, dim2=-1))


def test_it_says_what_it_holds():
    x = points(6, seed=9).reshape(2, 3, D)
    assert repr(sampled().gradient_posterior(x)) == (
        "GradientMixturePosterior(5 samples of 2 x 3 x 3, torch.float64, cpu; outcome per unit of input; "
        "given n = 8 values)"
    )


def test_moments_of_two_parts_in_closed_form():
    """Half N(a, s²), half N(b, t²): mean (a+b)/2, variance (s²+t²)/2 + (a−b)²/4."""
    posterior = sampled(num_samples=2).gradient_posterior(points(3, seed=9))
    (a, b), (s2, t2) = posterior.mean, posterior.variance
    torch.testing.assert_close(posterior.mixture_mean, (a + b) / 2)
    torch.testing.assert_close(posterior.mixture_variance, (s2 + t2) / 2 + (a - b).square() / 4)


def test_quantiles_of_the_mixture_have_their_shares_below_them():
    posterior = sampled().gradient_posterior(points(3, seed=9))
    levels = torch.tensor([0.025, 0.3, 0.5, 0.975], dtype=torch.float64)
    quantiles = posterior.quantile(levels)
    assert quantiles.shape == (4, 3, D)
    mean, sd = posterior.mean.numpy(), posterior.variance.sqrt().numpy()
    shares = stats.norm.cdf(quantiles.numpy()[:, None], mean, sd).mean(1)
    np.testing.assert_allclose(shares, levels.numpy()[:, None, None] * np.ones_like(shares), atol=2e-6)
    with pytest.raises(ValueError, match=r"in \(0, 1\), got \[1.0\]"):
        posterior.quantile(torch.tensor(1.0))


def test_values_are_botorchs_mixture():
    samples = sampled()
    posterior = samples.posterior(points(4, seed=9))
    (means, variances) = posterior.mean, posterior.variance
    assert means.shape[MCMC_DIM] == S
    torch.testing.assert_close(posterior.mixture_mean, means.mean(0))
    torch.testing.assert_close(posterior.mixture_variance, variances.mean(0) + means.var(0, unbiased=False))


@pytest.mark.parametrize("q", [1, 3])
def test_acquisition_functions_average_over_the_samples(q):
    model = with_priors()
    samples = sampled(model)
    assert is_fully_bayesian(samples) and is_ensemble(samples)
    x = points(4 * q, seed=9).reshape(4, q, D)
    apart = separate_models(model, samples)
    if q == 1:
        expected = torch.stack([ExpectedImprovement(one, 4.0)(x) for one in apart]).mean(0)
        torch.testing.assert_close(ExpectedImprovement(samples, 4.0)(x), expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(LogExpectedImprovement(samples, 4.0)(x).exp(), expected, rtol=1e-6, atol=1e-9)
    value = qExpectedImprovement(samples, 4.0)(x)
    expected = torch.stack([qExpectedImprovement(one, 4.0)(x) for one in apart]).mean(0)
    torch.testing.assert_close(value, expected, rtol=0.15, atol=0.02)


def test_new_observations_are_those_of_every_sample():
    model = with_priors()
    samples = sampled(model)
    X, x = points(2, seed=21), points(3, seed=9)
    conditioned = samples.condition_on_observations(X, outcomes(X))
    assert isinstance(conditioned, FullyBayesianDerivedGP) and conditioned.num_mcmc_samples == S
    added = copy.deepcopy(samples)
    added.add_observations(*(t.expand(S, *t.shape) for t in (X, outcomes(X))))
    for i, one in enumerate(separate_models(model, samples)):
        one.add_observations(X, outcomes(X))
        expected = one.gradient_posterior(x)
        for made in (conditioned, added):
            found = made.gradient_posterior(x)
            torch.testing.assert_close(found.mean[i], expected.mean, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(found.trace[i], expected.trace, rtol=1e-8, atol=1e-8)


def test_fantasies_are_those_of_separate_models():
    model = with_priors()
    samples = sampled(model)
    X, x = points(2, seed=21).unsqueeze(-2), points(3, seed=9)
    fantasies = samples.fantasize(X, IIDNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.train_targets.shape == (4, 2, S, 9)
    assert fantasies.posterior(x).mixture_mean.shape == (4, 2, 3, 1)
    Y = outcomes(X).unsqueeze(-3) + torch.randn(4, 2, S, 1, 1, generator=generator(2), dtype=torch.float64)
    found = samples.condition_on_observations(X, Y).gradient_posterior(x)
    assert found.mixture_variance.shape == (4, 2, 3, D)
    for i, one in enumerate(separate_models(model, samples)):
        own = one.condition_on_observations(X, Y[:, :, i]).gradient_posterior(x)
        torch.testing.assert_close(found.mean[:, :, i], own.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.variance[:, :, i], own.variance.expand(4, 2, 3, D), rtol=1e-8, atol=1e-8)


def test_float32_models_are_sampled_in_float64():
    X = points(8, dtype=torch.float32)
    samples = sampled(DerivedGP(X, outcomes(X)))
    posterior = samples.gradient_posterior(X[:2])
    assert {p.dtype for p in samples.parameters()} == {torch.float32} and posterior.mixture_mean.dtype == torch.float32


def test_gradients_flow_to_the_points():
    samples = sampled()
    x = points(2, seed=9).requires_grad_(True)
    samples.gradient_posterior(x).mixture_variance.sum().backward()
    step = torch.zeros_like(x.detach())
    step[1, 2] = 1e-6
    above, below = (samples.gradient_posterior(x.detach() + sign * step).mixture_variance.sum() for sign in (1, -1))
    torch.testing.assert_close(x.grad[1, 2], (above - below) / 2e-6, rtol=1e-5, atol=1e-5)


REFUSED = {
    "no prior": (
        lambda: with_priors(covar_module=matern_kernel(1.0)),
        r"covar_module.raw_outputscale has no prior.*register_prior",
    ),
    "no prior of the noise": (lambda: with_priors(likelihood=GaussianLikelihood()), "raw_noise has no prior"),
    "nothing to sample": (lambda: with_priors().requires_grad_(False), "nothing to sample"),
    "samples already": (sampled, "got a model with hyper-parameter samples"),
    "shared by a batch": (
        lambda: DerivedGP(points(8, batch=(2,)), outcomes(points(8, batch=(2,))), covar_module=scaled_kernel()),
        "is shared by the models of the batch",
    ),
    "parameters of the inputs' transform": (
        lambda: with_priors(input_transform=Warp(D, indices=[0], bounds=torch.tensor([[-1.0] * D, [1.0] * D]))),
        "not a parameter of mean, kernel or likelihood",
    ),
    "several outcomes": (lambda: DerivedGP(points(8), points(8)[:, :2]), "a model with 2 outcomes"),
    "outside of the prior's support": (
        lambda: with_priors(
            covar_module=RBFKernel(
                lengthscale_prior=UniformPrior(1.0, 2.0),
                lengthscale_constraint=GreaterThan(0.01, initial_value=5.0),
            )
        ),
        "have density 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sampled_is_refused(name):
    made, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        sampled(made())


def test_bad_arguments_are_refused():
    model = with_priors()
    X = points(8)
    with pytest.raises(TypeError, match="DerivedGP, got SingleTaskGP"):
        sample_hyperparameters(SingleTaskGP(X, outcomes(X)), 4, generator(0))
    with pytest.raises(TypeError, match="seed must be an integer"):
        sample_hyperparameters(model, 4, 0.5)
    with pytest.raises(ValueError, match="num_samples"):
        sample_hyperparameters(model, 0, generator(0))
    with pytest.raises(ValueError, match="warmup_steps"):
        sample_hyperparameters(model, 4, generator(0), warmup_steps=0)
    with pytest.raises(ValueError, match="X must"):
        sampled().gradient_posterior(points(3, D + 1))
