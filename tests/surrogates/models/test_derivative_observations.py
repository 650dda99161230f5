"""Observed derivatives under any kernel, transform, batch and number of outcomes."""

import copy
import io

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.models.transforms.input import AffineInputTransform, Log10, Normalize
from botorch.sampling.get_sampler import get_sampler
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.means import LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP, GradientObservationGP, gaussian_likelihood, matern_kernel
from tests.surrogates.gp_models import generator, points
from tests.surrogates.jets import NAN, conditioned, entries, rational, rbf
from tests.surrogates.reference import assert_close

D, E = 2, 6
I, J = torch.triu_indices(D, D)


def function(x):
    return (2 * x[0]).sin() + x[0] * x[1].exp()


def data(n=5, shift=2.0):
    """Inputs, all entries of the jets there, and points."""
    X = points(n, D) + shift
    jets = torch.stack([entries(function, D, 2)(x).squeeze(0) for x in X])
    return X, jets, points(3, D, seed=8) + shift


def square(upper):
    at = torch.zeros(D, D, dtype=torch.long)
    at[I, J] = at[J, I] = torch.arange(len(I))
    return upper[..., at]


def hidden(jets):
    """A row with no value, one with nothing but a value, one with half a gradient and half a Hessian."""
    jets = jets.clone()
    jets[1, 0] = jets[2, 1:] = jets[3, 2] = jets[3, 4] = NAN
    return jets


class Rational(Kernel):
    """The rational quadratic kernel as a formula, which is differentiated automatically."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        r2 = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag)
        return (1 + r2 / 3.4) ** -1.7


def number(value):
    """A hyper-parameter in float64, as GPyTorch's setters take numbers through float32."""
    return torch.tensor(value, dtype=torch.float64)


def with_lengthscale(kernel, value):
    kernel.double().lengthscale = number(value)
    return kernel


def rbf_kernel():
    return with_lengthscale(RBFKernel(), 0.8)


def rq_kernel():
    kernel = with_lengthscale(RQKernel(), 0.9)
    kernel.alpha = number(1.7)
    return kernel


def composite():
    first = with_lengthscale(RBFKernel(active_dims=[1]), 0.8)
    scaled, linear = ScaleKernel(first * with_lengthscale(RBFKernel(), 0.8)), LinearKernel(active_dims=[0]).double()
    scaled.double().outputscale, linear.variance = number(1.3), number(0.7)
    return scaled + linear


KERNELS = {
    "rbf": (rbf_kernel, rbf),
    "rq": (rq_kernel, rational),
    "automatic": (lambda: with_lengthscale(Rational(), 0.9), rational),
    "sum, product, active dims": (composite, lambda a, b: 1.3 * rbf(a[1:], b[1:]) * rbf(a, b) + 0.7 * a[0] * b[0]),
}


def identity(x):
    return x


SCALES = torch.tensor([2.0, 0.5], dtype=torch.float64)
TRANSFORMS = {
    "none": (lambda: None, identity),
    "affine": (lambda: AffineInputTransform(D, coefficient=SCALES, offset=0 * SCALES), lambda x: x / SCALES),
    "nonlinear": (lambda: Log10([0, 1]), torch.log10),
}


def made(jets, X, kernel, order, **options):
    G = jets[:, 1 : D + 1]
    options |= {"train_H": square(jets[:, D + 1 :])} if order == 2 else {}
    likelihood = gaussian_likelihood(1e-2)
    return GradientObservationGP(X, jets[:, :1], G, covar_module=kernel, likelihood=likelihood, **options)


@pytest.mark.parametrize(
    ("kernel", "transform", "order"),
    [
        *(("rbf", transform, order) for transform in ("none", "nonlinear") for order in (1, 2)),
        *(("sum, product, active dims", "none", order) for order in (1, 2)),
        ("automatic", "none", 2),
        pytest.param("automatic", "none", 1, marks=pytest.mark.slow),
        *(pytest.param("rq", "none", order, marks=pytest.mark.slow) for order in (1, 2)),
        *(pytest.param("rbf", "affine", order, marks=pytest.mark.slow) for order in (1, 2)),
    ],
)
def test_posteriors_and_likelihood_equal_a_dense_computation(kernel, transform, order):
    make, formula = KERNELS[kernel]
    make_transform, z = TRANSFORMS[transform]
    X, jets, at = data(4)
    at, jets = at[:2], hidden(jets)[:, : 1 + D if order == 1 else E]
    values = jets[:, 0][~jets[:, 0].isnan()]
    shift, scale = values.mean(), values.std()
    targets = torch.cat([jets[:, :1] - shift, jets[:, 1:]], -1).flatten() / scale
    noise = torch.full_like(targets, 1e-2)
    mean, covariance, density = conditioned(lambda a, b: formula(z(a), z(b)), X, targets, noise, at, order)
    mean, covariance = (mean * scale).reshape(2, E), (covariance * scale**2).reshape(2, E, 2, E)
    gp = made(jets, X, make(), order, input_transform=make_transform())
    gp.train()
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    assert_close(mll(gp(*gp.train_inputs), gp.train_targets) * gp.train_targets.shape[-1], density, 1e-9)
    value, gradient, joint, hessian = (
        gp.posterior(at),
        gp.gradient_posterior(at),
        gp.joint_posterior(at),
        gp.hessian_posterior(at),
    )
    assert_close(value.mean[:, 0], mean[:, 0] + shift, 1e-9)
    assert_close(value.covariance_matrix, covariance[:, 0, :, 0], 1e-9)
    assert_close(gradient.mean, mean[:, 1:3], 1e-9)
    assert_close(gradient.joint_covariance(), covariance[:, 1:3, :, 1:3].reshape(4, 4), 1e-9)
    assert_close(gradient.trace, torch.stack([covariance[i, 1:3, i, 1:3].trace() for i in range(2)]), 1e-9)
    assert_close(joint.covariance_matrix, covariance[:, :3, :, :3].reshape(6, 6), 1e-9)
    assert_close(gp.value_gradient_covariance(at, at), covariance[:, 0, :, 1:3], 1e-9)
    assert_close(hessian.mean, square(mean[:, 3:]), 1e-9)
    assert_close(hessian.joint_covariance(), covariance[:, 3:, :, 3:].reshape(6, 6), 1e-9)


def test_a_prior_mean_that_is_not_constant_has_derivatives():
    X, jets, at = data()
    linear = LinearMean(D).double()
    linear.weights.data = torch.tensor([[0.3], [-0.2]], dtype=torch.float64)
    linear.bias.data.fill_(0.1)
    gp = made(hidden(jets), X, rbf_kernel(), 2, mean_module=linear, outcome_transform=None)
    prior = torch.stack(
        [entries(lambda x: 0.1 + 0.3 * x[0] - 0.2 * x[1], D, 2)(x).squeeze(0) for x in torch.cat([X, at])]
    )
    targets = (hidden(jets) - prior[:5]).flatten()
    mean, _, _ = conditioned(rbf, X, targets, torch.full_like(targets, 1e-2), at, 2)
    mean = mean.reshape(3, E) + prior[5:]
    assert_close(gp.joint_posterior(at).mean, mean[:, :3], 1e-9)
    assert_close(gp.hessian_posterior(at).mean, square(mean[:, 3:]), 1e-9)


def several(fixed):
    """Two outcomes that were observed at different entries, and each by itself."""
    X, jets, at = data()
    both = torch.stack([hidden(jets), 2.5 * hidden(jets.flip(0)) + torch.eye(E)[0]], 1)
    noise = 0.01 + 0.1 * torch.rand(both.shape, generator=generator(1), dtype=torch.float64)

    def model(of, variances, X=X):
        one = of.shape[-2] == 1
        parts = [of[..., 0], of[..., 1:3], square(of[..., 3:])]
        spread = [variances[..., 0], variances[..., 1:3], square(variances[..., 3:])]
        (Y, G, H), (Yvar, Gvar, Hvar) = (
            [t if i == 0 or not one else t.squeeze(len(X.shape) - 1) for i, t in enumerate(p)] for p in (parts, spread)
        )
        options = {"train_Yvar": Yvar, "train_Gvar": Gvar, "train_Hvar": Hvar} if fixed else {}
        return GradientObservationGP(
            X,
            Y,
            G,
            train_H=H,
            input_transform=Normalize(D, bounds=torch.tensor([[1.0] * D, [3.0] * D], dtype=torch.float64)),
            **options,
        )

    return model, X, both, noise, at


def numbers(gp, at):
    gradient, hessian = gp.gradient_posterior(at), gp.hessian_posterior(at)
    value = gp.posterior(at)
    noisy = gp.posterior(at, observation_noise=True)
    return value.mean, value.variance, noisy.variance, gradient.mean, gradient.variance, hessian.mean, hessian.variance


@pytest.mark.parametrize("fixed", [False, True])
def test_outcomes_are_conditioned_each_on_its_own_entries(fixed):
    model, _, both, noise, at = several(fixed)
    gp = model(both, noise)
    for outcome in (0, 1):
        alone = model(both[:, outcome : outcome + 1], noise[:, outcome : outcome + 1])
        for found, expected in zip(numbers(gp, at), numbers(alone, at), strict=True):
            own = found[..., outcome : outcome + 1] if found.dim() == 2 else found[:, outcome]
            assert_close(own, expected.detach(), 1e-9)
        likelihoods = [
            ExactMarginalLogLikelihood(m.likelihood, m.train())(m(*m.train_inputs), m.train_targets)
            * m.train_targets.shape[-1]
            for m in (gp, alone)
        ]
        assert_close(likelihoods[0][outcome], likelihoods[1].detach(), 1e-9)
        gp.eval()


def test_batches_are_conditioned_each_by_itself():
    model, X, both, noise, at = several(False)
    batch = torch.stack([both, both.flip(1)])
    gp = model(batch, noise.expand(batch.shape), torch.stack([X, X]))
    for element, of in enumerate((both, both.flip(1))):
        alone = model(of, noise)
        for found, expected in zip(numbers(gp, at), numbers(alone, at), strict=True):
            assert_close(found[element], expected.detach(), 1e-9)
    assert gp.gradient_posterior(at).rsample(torch.Size([4])).shape == (4, 2, 3, 2, D)


@pytest.mark.parametrize("fixed", [False, True])
def test_added_and_conditioned_observations_are_as_those_given_at_once(fixed):
    model, X, both, noise, at = several(fixed)
    scaled = model(both[:3], noise[:3], X[:3])
    transforms = copy.deepcopy(scaled.outcome_transform)
    new, spread = both[3:], noise[3:]
    options = {"Yvar": spread[..., 0], "Gvar": spread[..., 1:3], "Hvar": square(spread[..., 3:])} if fixed else {}
    scaled.gradient_posterior(at).mean
    scaled.add_observations(X[3:], new[..., 0], G=new[..., 1:3], H=square(new[..., 3:]), **options)
    at_once = model(both, noise)
    # With the statistics of the first three rows.
    at_once.load_state_dict(scaled.state_dict())
    assert torch.equal(at_once.outcome_transform.means, transforms.means)
    for found, expected in zip(numbers(scaled, at), numbers(at_once, at), strict=True):
        assert_close(found, expected.detach(), 1e-9)
    # Values alone, by BoTorch's copy and in place, NaN where an outcome was not observed.
    values = torch.tensor([[1.0, NAN], [2.0, 0.5]], dtype=torch.float64)
    variances = torch.full((2, 2), 0.3, dtype=torch.float64)
    units = {"noise": variances / transforms.stdvs**2} if fixed else {}
    conditioned_on = scaled.condition_on_observations(at[:2], values, **units)
    scaled.add_observations(at[:2], values, *([variances] if fixed else []))
    for found, expected in zip(numbers(conditioned_on, at), numbers(scaled, at), strict=True):
        assert_close(found, expected.detach(), 1e-9)


def test_second_derivatives_that_are_observed_are_learned():
    X, jets, _ = data(4)
    gp = made(jets, X, matern_kernel(1.0), 2)
    gp.likelihood = gaussian_likelihood(1e-8)
    assert_close(gp.hessian_posterior(X).mean, square(jets[:, 3:]), 1e-3)
    assert (
        gp.hessian_posterior(X).variance.max()
        < 1e-3 * made(hidden(jets)[:1], X[:1], matern_kernel(1.0), 2).hessian_posterior(X[2:]).variance.max()
    )


def test_a_fit_with_hessians_raises_the_likelihood_and_saves():
    X, jets, at = data(6)
    gp = made(hidden(jets), X, None, 2, input_transform=Normalize(D))
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    gp.train()
    before = mll(gp(*gp.train_inputs), gp.train_targets).item()
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 20}})
    gp.train()
    assert mll(gp(*gp.train_inputs), gp.train_targets).item() > before + 0.1
    file = io.BytesIO()
    torch.save(gp, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for found, expected in zip(numbers(loaded, at), numbers(gp, at), strict=True):
        assert torch.equal(found, expected)


def test_the_values_alone_give_the_derived_gp():
    X, jets, at = data()
    values = torch.where(torch.arange(E) == 0, jets, NAN)
    gp = made(values, X, MaternKernel(nu=2.5).double(), 2)
    plain = DerivedGP(X, jets[:, :1], covar_module=MaternKernel(nu=2.5).double(), likelihood=gaussian_likelihood(1e-2))
    for found, expected in zip(numbers(gp, at), numbers(plain, at), strict=True):
        assert_close(found, expected.detach(), 1e-9)


def test_float32():
    X, jets, at = data()
    double, single = (made(hidden(jets).to(t), X.to(t), None, 2) for t in (torch.float64, torch.float32))
    for found, expected in zip(numbers(single, at.float()), numbers(double, at), strict=True):
        assert found.dtype == torch.float32
        assert_close(found, expected.detach(), 1e-3)


# Samples and joints of Hessians, given values only.


@pytest.mark.parametrize("m", [1, 2])
def test_hessian_samples_have_the_joint_moments(m):
    X, jets, at = data()
    Y = torch.cat([jets[:, :1], jets[:, :1].flip(0)], -1)[:, :m]
    posterior = DerivedGP(X, Y, input_transform=Normalize(D)).hessian_posterior(at)
    count = 20000
    samples = posterior.rsample(torch.Size([count]), generator=generator(0)).detach()
    assert_close(samples, samples.mT, 1e-12)
    deviation = posterior.variance.sqrt()
    assert ((samples.mean(0) - posterior.mean).abs() < 5 * deviation / count**0.5).all()
    upper = samples[..., I, J]
    upper = (upper - upper.mean(0)).movedim(-2, 1) if m == 2 else upper - upper.mean(0)
    flat = upper.flatten(-2)
    found, joint = torch.einsum("s...i,s...j->...ij", flat, flat) / count, posterior.joint_covariance()
    size = joint.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((found - joint).abs() < 6 * size.unsqueeze(-1) * size.unsqueeze(-2) / count**0.5).all()


def test_the_joint_of_matern_hessians_is_the_limit_of_differences_of_gradients():
    X, jets, at = data()
    gp = DerivedGP(X, jets[:, :1], covar_module=matern_kernel(1.0))
    joint = gp.hessian_posterior(at[:2]).joint_covariance()
    u, h = torch.tensor([1.0, 0.5], dtype=torch.float64), 1e-4
    uu = torch.tensor([1.0, 2 * 0.5, 0.5**2], dtype=torch.float64)
    line = torch.cat([at[:1] - h * u, at[:1] + h * u, at[1:2] - h * u, at[1:2] + h * u])
    along = torch.kron(torch.eye(4, dtype=torch.float64), u)
    gradients = along @ gp.gradient_posterior(line).joint_covariance() @ along.T
    differences = torch.tensor([[-1.0, 1, 0, 0], [0, 0, -1, 1]], dtype=torch.float64) / (2 * h)
    assert_close(uu @ joint[:3, 3:] @ uu, (differences @ gradients @ differences.T)[0, 1].detach(), 1e-5)


def test_botorchs_sampler_draws_hessians():
    X, jets, at = data()
    posterior = DerivedGP(X, jets[:, :1]).hessian_posterior(at)
    sampler = get_sampler(posterior, torch.Size([8]), seed=0)
    assert sampler(posterior).shape == (8, 3, D, D)
    with pytest.raises(ValueError, match=r"base_samples must be of shape \(8, 3, 3\), got \(8, 3, 2\)"):
        posterior.rsample_from_base_samples(torch.Size([8]), torch.zeros(8, 3, 2))
    with pytest.raises(ValueError, match="no covariance of second derivatives"):
        DerivedGP(X, jets[:, :1], covar_module=matern_kernel(1.0, nu=1.5)).hessian_posterior(at).rsample()
