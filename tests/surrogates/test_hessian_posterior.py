"""Hessian posteriors against differences in 60 digits, GPyTorch's RBFKernelGradGrad, autograd and dense algebra."""

import pytest
import torch
from botorch.models.transforms import Log, Normalize
from botorch.models.transforms.input import ChainedInputTransform, Log10, Warp
from botorch.settings import propagate_grads
from gpytorch.kernels import Kernel, MaternKernel, PiecewisePolynomialKernel, RBFKernel, RBFKernelGradGrad, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import LinearMean, Mean
from torch.autograd import gradcheck

from surrogates import (
    DerivedGP,
    HessianPosterior,
    RadialFunctions,
    gaussian_likelihood,
    matern_kernel,
    rbf_kernel,
    register_kernel,
)
from tests.surrogates.gp_models import KERNELS, D, configured, derived_gp, kernel_named, outcomes, points
from tests.surrogates.kernels.further import CLOSED, closed, unknown
from tests.surrogates.reference import assert_close, mp, reference, relative_error, to_mp, to_tensor

EPSILON = mp.mpf(10) ** -11
NO_VARIANCE = {
    "matern 3/2",
    "matern 3/2 ard",
    "nested scales",
    "sum",
    "product over inputs",
    "piecewise polynomial 1",
    "piecewise polynomial 2",
    "sum of products of closed forms",
}
"""Kernels of which a part has a term |r|³: GPyTorch's piecewise polynomial of q = 2 too."""

WIDE = 7
"""More inputs than data."""


class Lorentz(Kernel):
    """1/(1 + r²)², registered by h, h' and h''."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        r2 = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag)
        return (1 + r2) ** -2


class Kinked(Lorentz):
    """A kernel whose h'' is infinite at 0, and given as 0 there."""


register_kernel(
    Lorentz,
    lambda kernel, copied: RadialFunctions(
        lambda r2: (1 + r2) ** -2,
        lambda r2: -2 * (1 + r2) ** -3,
        lambda r2: 6 * (1 + r2) ** -4,
        copied(kernel.lengthscale),
        "Lorentz",
    ),
)
register_kernel(
    Kinked,
    lambda kernel, copied: RadialFunctions(
        lambda r2: torch.exp(-r2),
        lambda r2: -torch.exp(-r2),
        lambda r2: torch.where(r2 > 0, torch.exp(-r2), 0.0),
        copied(kernel.lengthscale),
        "Kinked",
    ),
)


class Bowl(Mean):
    """Σᵢ aᵢ xᵢ² + x₁ x₂."""

    def __init__(self, a):
        super().__init__()
        self.register_parameter("a", torch.nn.Parameter(a))

    def forward(self, x):
        return (self.a * x.square()).sum(-1) + x[..., 0] * x[..., 1]


def named(name):
    return kernel_named(name) if name in KERNELS else closed(name.removesuffix(" of closed forms"))


def functionals(x):
    """∂ᵢ∂ⱼf (i ≤ j, row by row) as weighted sums of values of f at moved points."""
    x, columns = to_mp(x), to_mp(torch.eye(len(x), dtype=torch.float64))
    m = len(columns)

    def at(*steps):
        return [a + EPSILON * sum(s * column[k] for s, column in steps) for k, a in enumerate(x)]

    pairs = [(columns[i], columns[j]) for i in range(m) for j in range(i, m)]
    return [[(s * t / (4 * EPSILON**2), at((s, u), (t, w))) for s in (1, -1) for t in (1, -1)] for u, w in pairs]


def mean_by_differences(ref, x):
    return to_tensor([mp.fsum(c * ref.value_mean(p) for c, p in terms) for terms in functionals(x)])


def covariance_by_differences(ref, x):
    known = functionals(x)

    def covariance(a, b):
        return mp.fsum(c * e * (ref.kernel(p, r) - mp.fdot(ref.white(p), ref.white(r))) for c, p in a for e, r in b)

    return to_tensor([[covariance(a, b) for b in known] for a in known])


def by_gradients(gp, X, h=1e-5):
    """∇²μ by central differences of the gradient's mean."""
    steps = h * torch.eye(X.shape[-1], dtype=X.dtype)

    def mean(z):
        return gp.gradient_posterior(z).mean.detach()

    return torch.stack([(mean(X + e) - mean(X - e)) / (2 * h) for e in steps], dim=-1)


ALL = [*KERNELS, *(f"{name} of closed forms" if name in KERNELS else name for name in CLOSED if name != "cosine")]


@pytest.mark.parametrize("name", ALL)
def test_all_kernels_against_differences_in_60_digits(name):
    gp = derived_gp(named(name), noise=1e-2, input_transform=Normalize(D))
    X = points(6)
    ref = reference(gp, X, outcomes(X))
    # A datum, where the periodic and the compact kernels are not so small that digits are lost, and another point.
    x = torch.cat([X[:1], points(1, seed=5)])
    posterior = gp.hessian_posterior(x)
    i, k = torch.triu_indices(D, D)
    for j, point in enumerate(x):
        expected = mean_by_differences(ref, point)
        assert float((posterior.mean[j][i, k] - expected).abs().max()) <= 1e-8 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(posterior.mean[j], posterior.mean[j].mT, rtol=1e-10, atol=1e-10)
        if name not in NO_VARIANCE and name != "piecewise polynomial 3":
            covariance = covariance_by_differences(ref, point)
            alone, tolerance = gp.hessian_posterior(point[None]), 1e-8 * max(1.0, float(covariance.abs().max()))
            assert float((alone.joint_covariance() - covariance).abs().max()) <= tolerance
            assert float((posterior.variance[j][i, k] - covariance.diagonal()).abs().max()) <= tolerance
    if name in NO_VARIANCE:
        with pytest.raises(ValueError, match="has no covariance of second derivatives"):
            _ = posterior.variance


@pytest.mark.parametrize("ard", [False, True])
def test_rbf_is_gpytorchs_kernel_of_second_derivatives_conditioned_on_values(ard):
    kernel = configured(ScaleKernel(RBFKernel(ard_num_dims=D if ard else None)).double())
    theirs = ScaleKernel(RBFKernelGradGrad(ard_num_dims=D if ard else None)).double()
    theirs.load_state_dict(kernel.state_dict())
    gp, X, noise = derived_gp(kernel, outcome_transform=None, noise=1e-2), points(6), 1e-2
    x = points(1, seed=5)
    with torch.no_grad():
        K = theirs(torch.cat([X, x]), torch.cat([X, x])).to_dense()
        values, jet = (
            torch.arange(0, 6 * (2 * D + 1), 2 * D + 1),
            torch.arange(6 * (2 * D + 1) + 1 + D, 7 * (2 * D + 1)),
        )
        A = K[values][:, values] + noise * torch.eye(6, dtype=torch.float64)
        residual = outcomes(X).squeeze(-1) - gp.mean_module(X)
        mean = K[jet][:, values] @ torch.linalg.solve(A, residual)
        covariance = K[jet][:, jet] - K[jet][:, values] @ torch.linalg.solve(A, K[values][:, jet])
    posterior, (i, j) = gp.hessian_posterior(x), torch.triu_indices(D, D)
    kept = (i == j).nonzero().squeeze(-1)
    assert_close(posterior.joint_covariance()[kept][:, kept], covariance, 1e-10)
    assert_close(posterior.mean[0].diagonal(), mean, 1e-10)
    assert_close(posterior.variance[0].diagonal(), covariance.diagonal(), 1e-10)


@pytest.mark.parametrize("name", ["rbf", "matern 5/2", "rq ard", "product"])
def test_covariances_are_positive_semidefinite_among_close_and_exact_data(name):
    X = 0.1 * points(12, seed=2)
    gp = DerivedGP(X, outcomes(X), covar_module=kernel_named(name), likelihood=gaussian_likelihood(1e-7))
    covariance = gp.hessian_posterior(torch.cat([X[:2], points(2, seed=5)])).joint_covariance()
    eigenvalues = torch.linalg.eigvalsh(covariance)
    assert (eigenvalues[..., 0] >= -1e-8 * eigenvalues[..., -1]).all()


@pytest.mark.parametrize("name", ["matern 3/2", "matern 3/2 ard", "product over inputs"])
def test_the_mean_of_matern_32_is_continuous_at_a_datum(name):
    gp = derived_gp(kernel_named(name))
    datum = points(6)[:1]
    at = gp.hessian_posterior(datum).mean
    for i in range(D):
        step = 1e-9 * torch.eye(D, dtype=torch.float64)[i]
        assert_close(gp.hessian_posterior(datum + step).mean, at, 1e-6)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (MaternKernel(nu=0.5), r"MaternKernel\(nu=0.5\) has no Hessian posterior: .* no first derivatives"),
        (RBFKernel() + ScaleKernel(MaternKernel(nu=0.5)), r"MaternKernel\(nu=0.5\) has no Hessian posterior"),
    ],
)
def test_matern_12_is_refused(kernel, message):
    gp = derived_gp(kernel.double())
    with pytest.raises(ValueError, match=message):
        gp.hessian_posterior(points(1))


@pytest.mark.parametrize(
    ("kernel", "title"),
    [
        (MaternKernel(nu=1.5), r"MaternKernel\(nu=1.5\)"),
        (RBFKernel() * MaternKernel(nu=1.5, active_dims=[1]), r"MaternKernel\(nu=1.5\)"),
        (Kinked(), "Kinked"),
        (PiecewisePolynomialKernel(q=1), "A kernel of the model"),
        pytest.param(unknown("subclass of matern 3/2"), "A kernel of the model", marks=pytest.mark.slow),
        # r is lost to automatic differentiation at 0: a wrong number is told from a right one.
        (unknown("subclass"), "A kernel of the model"),
    ],
)
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_variances_that_do_not_exist_or_are_not_known_are_refused(kernel, title):
    gp = derived_gp(kernel.double(), noise=1e-2)
    posterior = gp.hessian_posterior(points(1, seed=5))
    assert_close(posterior.mean, by_gradients(gp, points(1, seed=5)), 1e-5)
    with pytest.raises(ValueError, match=f"{title}.*has no covariance of second derivatives.*The mean exists"):
        posterior.joint_covariance()


@pytest.mark.parametrize("name", ["warped", pytest.param("network", marks=pytest.mark.slow), "sum with a known one"])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_kernels_that_are_differentiated_automatically(name):
    gp = derived_gp(unknown(name), noise=1e-2, outcome_transform=None)
    x = torch.cat([points(6)[:1], points(1, seed=5)])
    posterior = gp.hessian_posterior(x)
    assert_close(posterior.mean, by_gradients(gp, x), 1e-6)
    # (f(x + hu) − 2f(x) + f(x − hu))/h² has the variance of ∂²f/∂u² for its limit.
    for j, point in enumerate(x):
        for k in range(D):
            assert_close(posterior.variance[j, k, k], second_difference(gp, point, k, 1e-2), 1e-3)


def second_difference(gp, point, k, h):
    step = h * torch.eye(D, dtype=torch.float64)[k]
    line = torch.stack([point - step, point, point + step])
    weights = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64) / h**2
    return weights @ gp.conditioning.value_covariance(line, line) @ weights


def test_an_automatic_kernel_and_a_closed_form_agree():
    class Same(RBFKernel):
        pass

    kernel = configured(RBFKernel(ard_num_dims=D).double())
    other = Same(ard_num_dims=D).double()
    other.load_state_dict(kernel.state_dict())
    x = torch.cat([points(6)[:1], points(1, seed=5)])
    found, expected = (derived_gp(k).hessian_posterior(x) for k in (other, kernel))
    assert_close(found.mean, expected.mean, 1e-10)
    assert_close(found.joint_covariance(), expected.joint_covariance(), 1e-10)


def test_a_registered_function_of_r2_needs_no_more_than_its_second_derivative():
    gp, x = derived_gp(ScaleKernel(Lorentz()).double(), outcome_transform=None), points(1, seed=5)
    for k in range(D):
        assert_close(gp.hessian_posterior(x).variance[0, k, k], second_difference(gp, x[0], k, 1e-3), 1e-4)
    assert_close(gp.hessian_posterior(x).mean, by_gradients(gp, x), 1e-7)


def with_mean(mean, d=D, n=6, **options):
    X = points(n, d, seed=3)
    kernel = matern_kernel(torch.linspace(0.8, 2.0, d).double())
    return DerivedGP(
        X, outcomes(X), covar_module=kernel, likelihood=gaussian_likelihood(1e-2), mean_module=mean, **options
    )


@pytest.mark.parametrize("mean", ["linear", "curved"])
def test_prior_means_that_are_not_constant(mean):
    built = LinearMean(D).double() if mean == "linear" else Bowl(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    gp, X = with_mean(built, input_transform=Normalize(D)), points(3, seed=5)
    posterior = gp.hessian_posterior(X)
    assert_close(posterior.mean, by_gradients(gp, X), 1e-7)
    assert not posterior.mean.requires_grad


@pytest.mark.parametrize("ard", [pytest.param(False, marks=pytest.mark.slow), True])
def test_batches_of_models_and_of_points(ard):
    X, batch = points(6, batch=(2,)), torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=batch, ard_num_dims=D if ard else None), batch_shape=batch).double()
    product = configured(kernel) * configured(ScaleKernel(RBFKernel(batch_shape=batch), batch_shape=batch).double(), 3)
    x, (i, k) = points(3, seed=5, batch=(2,)), torch.triu_indices(D, D)
    for one in (kernel, product):
        likelihood = gaussian_likelihood(1e-2)
        gp = DerivedGP(X, outcomes(X), covar_module=one, likelihood=likelihood, input_transform=Normalize(D))
        posterior = gp.hessian_posterior(x)
        assert posterior.mean.shape == (2, 3, D, D) and posterior.joint_covariance().shape == (2, 18, 18)
        for b in range(2):
            ref = reference(gp, X, outcomes(X), index=(b,))
            for j in range(3):
                assert_close(posterior.mean[b, j][i, k], mean_by_differences(ref, x[b, j]), 1e-8)
                covariance, at = covariance_by_differences(ref, x[b, j]), slice(6 * j, 6 * j + 6)
                assert_close(posterior.joint_covariance()[b, at, at], covariance, 1e-8)
                assert_close(posterior.variance[b, j][i, k], covariance.diagonal(), 1e-8)
    # Points of a batch on one model, and one set of points on a batch of models.
    plain = derived_gp()
    shared = plain.hessian_posterior(x)
    assert_close(shared.mean[1, 2:], plain.hessian_posterior(x[1, 2:]).mean, 1e-12)
    assert_close(gp.hessian_posterior(x[0]).mean[0], gp.hessian_posterior(x).mean[0], 1e-12)


@pytest.mark.parametrize("name", ["rbf", "product"])
def test_several_outcomes_are_a_model_each(name):
    X, x = points(6), points(2, seed=5)
    Y = torch.cat([outcomes(X), X.sin().prod(-1, keepdim=True), X[:, :1]], dim=-1)
    options = {"input_transform": Normalize(D), "outcome_transform": None}
    likelihood = GaussianLikelihood(batch_shape=torch.Size([3])).double()
    likelihood.noise = torch.tensor(1e-2, dtype=torch.float64)
    gp = DerivedGP(X, Y, covar_module=kernel_named(name), likelihood=likelihood, **options)
    posterior = gp.hessian_posterior(x)
    assert "2 x 3 x 3 x 3" in repr(posterior)
    for m in range(3):
        likelihood = gaussian_likelihood(1e-2)
        one = DerivedGP(X, Y[:, [m]], covar_module=kernel_named(name), likelihood=likelihood, **options)
        alone = one.hessian_posterior(x)
        for part, value in ((posterior.mean, alone.mean), (posterior.variance, alone.variance)):
            assert_close(part[:, m], value, 1e-10)
        assert_close(posterior.joint_covariance()[m], alone.joint_covariance(), 1e-10)


@pytest.mark.parametrize("name", ["rbf", "product"])
def test_no_points(name):
    posterior = derived_gp(kernel_named(name)).hessian_posterior(points(0))
    assert posterior.mean.shape == posterior.variance.shape == (0, D, D)
    assert posterior.joint_covariance().shape == (0, 0)


@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("mean", ["constant", "curved"])
@pytest.mark.parametrize("outcomes_of", [outcomes, lambda X: torch.cat([outcomes(X), X[:, :1]], dim=-1)])
def test_input_transforms_that_are_not_affine_add_their_own_curvature(n, mean, outcomes_of):
    X = 1.1 + points(n, WIDE)
    Y, x = outcomes_of(X), 1.1 + points(2, WIDE, seed=5)
    transform = ChainedInputTransform(
        first=Log10(indices=[0, 2, 3]),
        second=Normalize(WIDE),
        third=Warp(WIDE, indices=[1, 2, 4], concentration0_prior=None),
    )
    transform["third"].concentration0.data.fill_(1.7)
    options = {} if mean == "constant" else {"mean_module": Bowl(torch.linspace(0.5, 2.0, WIDE).double())}
    gp = DerivedGP(
        X,
        Y,
        covar_module=rbf_kernel(1.3),
        likelihood=gaussian_likelihood(1e-2),
        input_transform=transform.double(),
        outcome_transform=None,
        **options,
    )
    posterior = gp.hessian_posterior(x)
    assert_close(posterior.mean, by_gradients(gp, x), 1e-6)
    assert not posterior.mean.requires_grad and not posterior.variance.requires_grad
    if Y.shape[-1] > 1:
        return
    # Central differences of values over a square of nine points, in the user's inputs: ∂₀², ∂₀∂₁ and ∂₁².
    h, (a, b) = 3e-3, torch.eye(WIDE, dtype=torch.float64)[:2]
    steps = [(s, t) for s in (-1, 0, 1) for t in (-1, 0, 1)]
    columns = [((3 * s * s - 2) * (t == 0), s * t / 4, (3 * t * t - 2) * (s == 0)) for s, t in steps]
    weights, kept = torch.tensor(columns, dtype=torch.float64).mT / h**2, [0, 1, WIDE]
    for j, point in enumerate(x):
        with torch.no_grad():
            square = gp.input_transform(torch.stack([point + h * (s * a + t * b) for s, t in steps]))
            covariance = weights @ gp.conditioning.value_covariance(square, square) @ weights.mT
        found = gp.hessian_posterior(point[None]).joint_covariance()
        assert_close(found[kept][:, kept], covariance, 1e-3)
        assert_close(posterior.variance[j, :2, :2], covariance.diagonal()[[0, 1, 1, 2]].reshape(2, 2), 1e-3)


def test_outcome_transforms_that_are_not_linear_are_refused():
    X = points(6)
    gp = DerivedGP(X, 1 + outcomes(X).square(), covar_module=kernel_named("rbf"), outcome_transform=Log())
    with pytest.raises(ValueError, match="outcome_transform Log is not linear"):
        gp.hessian_posterior(X)


def test_float32_is_close_to_float64():
    X, x = points(6), points(2, seed=5)
    found = []
    for dtype in (torch.float32, torch.float64):
        kernel = kernel_named("matern 5/2 ard", dtype)
        gp = DerivedGP(
            X.to(dtype), outcomes(X).to(dtype), covar_module=kernel, likelihood=gaussian_likelihood(1e-2).to(dtype)
        )
        found.append(everything(gp, x.to(dtype)))
        assert all(part.dtype == dtype for part in found[-1])
    for single, double in zip(*found, strict=True):
        assert_close(single, double, 1e-4)


def everything(gp, x):
    posterior = gp.hessian_posterior(x)
    return posterior.mean, posterior.variance, posterior.joint_covariance()


@pytest.mark.parametrize("name", ["matern 5/2 ard", "rq", "product", "polynomial 3 on some inputs"])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_all_is_differentiable_in_points(name):
    gp = derived_gp(named(name), n=4, noise=1e-2, input_transform=Normalize(D))
    x = torch.cat([points(4)[:1], points(1, seed=5)]).requires_grad_(True)
    if name == "matern 5/2 ard":
        # On a datum its third derivative is a limit that differences of 1e-6 approach too slowly.
        x = x.detach()[1:].requires_grad_(True)
    assert gradcheck(lambda z: everything(gp, z), (x,), atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", ["matern 5/2 ard", "product", "periodic"])
def test_derivatives_are_whole_after_a_call_without_autograd(name):
    gp, x = derived_gp(named(name), n=4, noise=1e-2), points(2, seed=5)

    def derivatives(warmed_up):
        z = x.clone().requires_grad_(True)
        posterior = gp.hessian_posterior(z)
        if warmed_up:
            with torch.no_grad():
                _ = posterior.mean, posterior.variance, posterior.joint_covariance()
        parts = (posterior.mean, posterior.variance, posterior.joint_covariance())
        return [torch.autograd.grad(part.square().sum(), z, retain_graph=True)[0] for part in parts]

    for warm, fresh in zip(derivatives(True), derivatives(False), strict=True):
        assert_close(warm, fresh, 1e-12)


@pytest.mark.parametrize("name", ["matern 5/2 ard", "product", "periodic"])
def test_all_is_there_without_autograd(name):
    gp, x = derived_gp(named(name), n=4, noise=1e-2), points(2, seed=5)
    with torch.no_grad():
        found = everything(gp, x)
    for without, expected in zip(found, everything(gp, x), strict=True):
        assert torch.equal(without, expected) and not without.requires_grad and not expected.requires_grad


@pytest.mark.parametrize("name", ["rbf ard", "product", "polynomial 2"])
def test_all_is_differentiable_in_data_noise_and_hyper_parameters_where_that_is_asked_for(name):
    kernel, X, x = named(name), points(4), points(2, seed=5)
    Y = outcomes(X)
    parameters = {key: value.detach().clone() for key, value in kernel.named_parameters()}

    def compute(Y, noise, *values):
        gp = DerivedGP(X, Y, noise.expand_as(Y), covar_module=named(name), outcome_transform=None)
        for (key, _), value in zip(parameters.items(), values, strict=True):
            *path, last = key.split(".")
            module = gp.covar_module.get_submodule(".".join(path))
            del module._parameters[last]
            setattr(module, last, value)
        with propagate_grads(True):
            return everything(gp, x)

    inputs = [t.requires_grad_(True) for t in (Y, torch.tensor(1e-2).double(), *parameters.values())]
    assert gradcheck(compute, inputs, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", ["matern 5/2 ard", "product", "periodic"])
def test_a_posterior_is_a_value(name):
    X, x = points(6), points(2, seed=5)
    gp, other = (derived_gp(named(name), noise=1e-2) for _ in range(2))
    mine = x.clone()
    posterior, expected = gp.hessian_posterior(mine), other.hessian_posterior(x)
    with torch.no_grad():
        for parameter in gp.covar_module.parameters():
            parameter.add_(0.5)
        mine.add_(1.0)
    gp.set_train_data(X + 1, strict=False)
    assert torch.equal(posterior.mean, expected.mean)
    assert torch.equal(posterior.joint_covariance(), expected.joint_covariance())
    assert relative_error(gp.hessian_posterior(x).mean, expected.mean) > 1e-3


def test_what_a_repr_says():
    posterior = derived_gp(n=6).hessian_posterior(points(4, batch=(2,)))
    assert isinstance(posterior, HessianPosterior)
    assert repr(posterior) == (
        "HessianPosterior(2 x 4 x 3 x 3, torch.float64, cpu; outcome per squared unit of input; given n = 6 values)"
    )


@pytest.mark.parametrize(
    "bad", [torch.ones(1, D + 1).double(), torch.ones(1, D), torch.full((1, D), torch.nan).double()]
)
def test_bad_points(bad):
    with pytest.raises(ValueError):
        derived_gp().hessian_posterior(bad)
