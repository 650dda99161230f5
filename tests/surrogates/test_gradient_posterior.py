import warnings

import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean
from torch import Size
from torch.autograd import gradcheck

from surrogates import DerivedGP, gaussian_likelihood, matern_kernel
from surrogates.kernels import one_pass
from surrogates.models import sampling
from tests.surrogates.gp_models import D, configured, derived_gp, generator, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close
from tests.surrogates.uncompiled import needs_numba, uncompiled

SAMPLES = 20_000


def wide_gp(d=6, n=4, ard=False, **options):
    """More inputs than data."""
    scale = torch.linspace(0.8, 2.0, d).double() if ard else 1.3
    X = points(n, d, seed=3)
    return DerivedGP(X, outcomes(X), covar_module=matern_kernel(scale), likelihood=gaussian_likelihood(1e-3), **options)


def check_moments(samples, mean, covariance):
    """Mean and covariance of samples within five standard errors, entry by entry."""
    count = samples.shape[0]
    deviation = samples - mean
    spread = covariance.diagonal(dim1=-2, dim2=-1)
    assert (deviation.mean(0).abs() <= 5 * (spread / count).sqrt() + 1e-9).all()
    found = torch.einsum("s...i,s...j->...ij", deviation, deviation) / count
    error = ((covariance.square() + spread.unsqueeze(-1) * spread.unsqueeze(-2)) / count).sqrt()
    assert ((found - covariance).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("transform", [None, Normalize])
def test_samples_of_one_point_with_fewer_data_than_inputs(ard, transform):
    gp = wide_gp(ard=ard, input_transform=None if transform is None else transform(6))
    posterior = gp.gradient_posterior(points(1, 6, seed=8))
    assert posterior.base_sample_shape == (1, 10)
    samples = posterior.rsample(Size([SAMPLES]), generator=generator(0))
    check_moments(samples[:, 0], posterior.mean[0], posterior.covariance_matrix[0])


@pytest.mark.parametrize("name", ["matern 5/2 ard", "active dims", "sum over inputs"])
def test_joint_samples_of_several_points(name):
    gp = derived_gp(kernel_named(name), noise=1e-2, input_transform=Normalize(D))
    posterior = gp.gradient_posterior(points(2, seed=8))
    assert posterior.base_sample_shape == (2, D)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = posterior.rsample(Size([SAMPLES]), generator=generator(0))
    check_moments(samples.flatten(1), posterior.mean.flatten(), posterior.joint_covariance())
    if name == "active dims":
        assert (samples[..., 1] == posterior.mean[:, 1]).all()


def test_samples_of_batches_of_points_and_many_data():
    gp = derived_gp(n=12, noise=1e-2)
    posterior = gp.gradient_posterior(points(6, seed=8).reshape(2, 3, 1, D))
    samples = posterior.rsample(Size([SAMPLES]), generator=generator(0))
    assert samples.shape == (SAMPLES, 2, 3, 1, D)
    check_moments(samples[:, ..., 0, :], posterior.mean[..., 0, :], posterior.covariance_matrix[..., 0, :, :])


def test_samples_follow_their_generator_and_their_base_samples():
    posterior = wide_gp().gradient_posterior(points(1, 6, seed=8))
    a, b = (posterior.rsample(Size([3]), generator=generator(4)) for _ in range(2))
    assert torch.equal(a, b)
    zeros = torch.zeros(2, *posterior.base_sample_shape, dtype=torch.float64)
    assert_close(posterior.rsample_from_base_samples(Size([2]), zeros)[1], posterior.mean, 0.0)
    assert posterior.rsample().shape == (1, 1, 6)
    with pytest.raises(ValueError, match=r"base_samples must be of shape \(2, 1, 10\), got \(2, 1, 6\)"):
        posterior.rsample_from_base_samples(Size([2]), zeros[..., :6])


def test_samplers_of_botorch():
    for gp, q in ((wide_gp(), 1), (derived_gp(n=12), 2)):
        d = gp.train_inputs[0].shape[-1]
        X = points(3 * q, d, seed=8).reshape(3, q, d)
        posterior = gp.gradient_posterior(X)
        sampler = get_sampler(posterior, Size([1024]), seed=5)
        assert isinstance(sampler, SobolQMCNormalSampler)
        samples = sampler(posterior)
        assert samples.shape == posterior._extended_shape(Size([1024])) == (1024, 3, q, d)
        assert ((samples.mean(0) - posterior.mean).abs() < 0.01 * posterior.variance.sqrt().max()).all()
        for i in range(q):
            own = posterior.covariance_matrix[:, i]
            found = torch.stack([samples[:, b, i].T.cov() for b in range(3)])
            assert ((found - own).abs() < 0.05 * own.diagonal(dim1=-2, dim2=-1).max()).all()
        # The same base samples at every t-batch: a candidate's value does not depend on its place.
        swapped = sampler(gp.gradient_posterior(X.flip(0)))
        assert_close(swapped.flip(1), samples, 1e-10)


def test_samplers_beyond_sobol_s_dimensions(monkeypatch):
    monkeypatch.setattr(sampling.SobolEngine, "MAXDIM", 9)
    assert isinstance(get_sampler(wide_gp().gradient_posterior(points(1, 6)), Size([2])), IIDNormalSampler)


NARROW = Normalize(D, bounds=torch.tensor([[-2.0, -2, -2], [3, 2, 1]], dtype=torch.float64))


@pytest.mark.parametrize("case", ["isotropic", "ard", "many data", "sum", "unseen input", "t-batch"])
def test_spectral_norm_is_the_largest_eigenvalue(case):
    gp = {
        "isotropic": wide_gp,
        "ard": lambda: wide_gp(ard=True),
        "many data": lambda: derived_gp(n=12),
        "sum": lambda: derived_gp(kernel_named("sum over inputs")),
        "unseen input": lambda: derived_gp(kernel_named("active dims"), n=1, input_transform=NARROW),
        "t-batch": lambda: wide_gp(ard=True),
    }[case]()
    d = gp.train_inputs[0].shape[-1]
    X = points(4, d, seed=8)
    posterior = gp.gradient_posterior(X.reshape(2, 2, d) if case == "t-batch" else X)
    expected = torch.linalg.eigvalsh(posterior.covariance_matrix)[..., -1]
    assert_close(posterior.spectral_norm, expected, 1e-10)
    if case == "isotropic":
        prior = posterior.prior_trace / d
        assert_close(posterior.spectral_norm, prior, 1e-14)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_spectral_norm_of_many_inputs_by_lanczos(shape):
    d = 1030
    scale = 20 + 10 * torch.rand(d, generator=generator(1), dtype=torch.float64)
    X = points(12, d, seed=3)
    gp = DerivedGP(X, outcomes(X), covar_module=matern_kernel(scale), likelihood=gaussian_likelihood(1e-4))
    Xq = points(2, d, seed=8)
    Xq[1] = X[5] + 0.01
    posterior = gp.gradient_posterior(Xq.reshape(*shape, d))
    expected = torch.linalg.eigvalsh(gp.gradient_posterior(Xq).covariance_matrix)[:, -1].reshape(shape)
    assert_close(posterior.spectral_norm, expected, 1e-9)


@pytest.mark.parametrize("gp", [wide_gp, lambda: derived_gp(n=12, noise=0.1)], ids=["n < d", "n > d"])
def test_descent_probability_is_the_share_of_gradients_that_the_mean_agrees_with(gp):
    gp = gp()
    d = gp.train_inputs[0].shape[-1]
    for x in points(3, d, seed=9):
        posterior = gp.gradient_posterior(2 * x[None])
        samples = posterior.rsample(Size([SAMPLES]), generator=generator(0))[:, 0]
        share = ((samples @ posterior.mean[0]) > 0).double().mean()
        p = posterior.descent_probability()[0]
        assert (share - p).abs() <= 5 * (p * (1 - p) / SAMPLES).sqrt() + 1e-4
        assert p > 0.5
    batch = 2 * torch.stack([points(3, d, seed=9), points(3, d, seed=10)])
    one_by_one = torch.stack([gp.gradient_posterior(X).descent_probability() for X in batch])
    torch.testing.assert_close(gp.gradient_posterior(batch).descent_probability(), one_by_one)


def test_positive_probability_is_the_share_of_gradients():
    X = points(6)
    gp = DerivedGP(X, torch.cat([outcomes(X), outcomes(-X)], dim=-1), covar_module=kernel_named("matern 5/2"))
    posterior, u = gp.gradient_posterior(points(4, seed=9)), torch.tensor([0.5, 0.0, -2.0], dtype=torch.float64)
    samples = posterior.rsample(Size([SAMPLES]), generator=generator(0))
    for drawn, p in ((samples, posterior.positive_probability()), (samples @ u, posterior.positive_probability(u))):
        share = (drawn > 0).double().mean(0)
        assert bool(((share - p).abs() <= 5 * (p * (1 - p) / SAMPLES).sqrt() + 1e-4).all())
        assert 0.01 < p.min() < 0.5 < p.max() < 0.99
    assert torch.equal(posterior.positive_probability(0 * u), torch.full((4, 2), 0.5, dtype=torch.float64))
    with pytest.raises(ValueError, match="does not broadcast"):
        posterior.positive_probability(torch.ones(2))


def test_descent_probability_without_a_gradient_is_a_half_and_never_nan():
    X = points(1)
    gp = DerivedGP(X, outcomes(X), covar_module=kernel_named("rbf"), likelihood=gaussian_likelihood(1e-3))
    assert (gp.gradient_posterior(torch.cat([X, points(2, seed=5)])).descent_probability() == 0.5).all()
    unseen = derived_gp(kernel_named("active dims")).gradient_posterior(points(2, seed=5) + 1e3)
    assert unseen.descent_probability().isfinite().all()


FUNCTIONS = {
    "mean": lambda p: p.mean,
    "trace": lambda p: p.trace,
    "variance": lambda p: p.variance,
    "covariance": lambda p: p.covariance_matrix,
    "joint covariance": lambda p: p.joint_covariance(),
    "directional variance": lambda p: p.directional_variance(torch.ones(D, dtype=torch.float64)),
    "descent probability": lambda p: p.descent_probability(),
    "positive probability": lambda p: p.positive_probability(),
    "positive probability along": lambda p: p.positive_probability(torch.ones(D, dtype=torch.float64)),
    "spectral norm": lambda p: p.spectral_norm,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", ["rbf ard", "matern 5/2", "matern 3/2", "rq", "product over inputs"])
def test_derivatives_with_respect_to_points(function, name):
    mean = configured(LinearMean(D).double())
    gp = derived_gp(kernel_named(name), noise=1e-2, input_transform=Normalize(D), mean_module=mean)
    X = (points(2, seed=8) / 2).requires_grad_(True)
    assert gradcheck(lambda x: FUNCTIONS[function](gp.gradient_posterior(x)), X, rtol=1e-4, atol=1e-6)


def test_derivatives_on_a_datum_are_finite_and_right():
    gp = derived_gp(kernel_named("matern 5/2"), noise=1e-2)
    X = points(6)[2:3].clone().requires_grad_(True)
    for function in ("mean", "trace"):
        assert gradcheck(lambda x, f=function: FUNCTIONS[f](gp.gradient_posterior(x)), X, rtol=1e-3, atol=1e-5)


def test_the_mean_is_the_derivative_of_the_value_mean():
    for name in ("rbf ard", "matern 5/2", "matern 3/2", "rq", "sum", "scaled sum on some inputs"):
        gp = derived_gp(kernel_named(name), input_transform=Normalize(D))
        X = points(3, seed=8).requires_grad_(True)
        (gradient,) = torch.autograd.grad(gp.posterior(X).mean.sum(), X)
        assert_close(gp.gradient_posterior(X.detach()).mean, gradient, 1e-9)


@needs_numba
@pytest.mark.parametrize("name", ["rbf", "matern 5/2 ard", "active dims"])
@pytest.mark.parametrize("q", [1, 3])
def test_compiled_and_torch_paths_give_the_same_numbers(name, q, monkeypatch):
    gp = derived_gp(kernel_named(name), input_transform=Normalize(D))
    X = points(q, seed=8)
    first = gp.gradient_posterior(X)
    mean, trace = first.mean, first.trace
    uncompiled(monkeypatch)
    other = gp.gradient_posterior(X)
    assert_close(mean, other.mean, 1e-13)
    assert_close(trace, other.trace, 1e-13)


@pytest.mark.parametrize("name", ["rbf", "matern 3/2", "matern 5/2 ard", "rq", "product over inputs"])
def test_uncertainty_never_rises_as_observations_come(name):
    gp = derived_gp(kernel_named(name), n=2, outcome_transform=None)
    X, u = points(5, seed=8), points(5, seed=9)
    before = gp.gradient_posterior(X)
    assert (before.trace <= before.prior_trace).all()
    for seed in range(20, 50):
        new = points(1, seed=seed)
        gp.add_observations(new, outcomes(new))
        after = gp.gradient_posterior(X)
        slack = 1e-12 * before.prior_trace
        assert (after.trace <= before.trace + slack).all()
        assert (after.spectral_norm <= before.spectral_norm + slack).all()
        assert (after.variance <= before.variance + slack.unsqueeze(-1)).all()
        assert (after.directional_variance(u) <= before.directional_variance(u) + slack).all()
        before = after


def test_trace_is_bounded_below_while_data_are_fewer_than_inputs():
    posterior = wide_gp().gradient_posterior(points(50, 6, seed=8))
    assert (posterior.trace >= (1 - 4 / 6) * posterior.prior_trace).all()


def test_properties_are_lazy_and_computed_once(monkeypatch):
    gp = derived_gp()
    calls = []
    original = one_pass.one_pass
    monkeypatch.setattr(one_pass, "one_pass", lambda *args: calls.append(1) or original(*args))
    posterior = gp.gradient_posterior(points(2, seed=8))
    assert not calls
    assert posterior.mean is posterior.mean
    posterior.trace, posterior.prior_trace
    assert len(calls) == 1


def test_quantiles_are_the_normal_s():
    posterior = derived_gp().gradient_posterior(points(2, seed=8))
    values = torch.tensor([0.5, 0.975], dtype=torch.float64)
    quantiles = posterior.quantile(values)
    assert quantiles.shape == (2, 2, D)
    assert_close(quantiles[0], posterior.mean, 1e-14)
    assert_close(quantiles[1], posterior.mean + 1.959963984540054 * posterior.variance.sqrt(), 1e-12)


def test_a_direction_of_the_wrong_shape_is_refused():
    posterior = derived_gp().gradient_posterior(points(2, seed=8))
    with pytest.raises(ValueError, match=r"u of shape \(2, 4\) does not broadcast to \(2, 3\)"):
        posterior.directional_variance(torch.ones(2, 4))


def test_far_from_all_data_the_posterior_is_the_prior():
    for kernel in (ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel(nu=1.5)) * RBFKernel(active_dims=[0])):
        gp = derived_gp(configured(kernel.double()), input_transform=Normalize(D))
        posterior = gp.gradient_posterior(points(2, seed=8) + 1e4)
        assert (posterior.mean == 0).all()
        assert_close(posterior.trace, posterior.prior_trace, 1e-15)
