"""Hessian posteriors against differences in 60 digits, GPyTorch's RBFKernelGradGrad, autograd and dense algebra."""

import copy

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
from surrogates.kernels import hessians
from tests.memory import printed, reads_peak
from tests.surrogates.gp_models import KERNELS, D, configured, derived_gp, kernel_named, outcomes, points
from tests.surrogates.kernels.further import CLOSED, closed, unknown
from tests.surrogates.reference import assert_close, mp, reference, relative_error, to_mp, to_tensor
from tests.surrogates.uncompiled import uncompiled

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


def functionals(x, U):
    """Uᵀ∇f and Uᵀ∇²fU (i ≤ j, row by row) as weighted sums of values of f at moved points."""
    x, columns = to_mp(x), to_mp(U.mT)
    m = len(columns)

    def at(*steps):
        return [a + EPSILON * sum(s * column[k] for s, column in steps) for k, a in enumerate(x)]

    found = [[(s / (2 * EPSILON), at((s, u))) for s in (1, -1)] for u in columns]
    pairs = [(columns[i], columns[j]) for i in range(m) for j in range(i, m)]
    return found + [
        [(s * t / (4 * EPSILON**2), at((s, u), (t, w))) for s in (1, -1) for t in (1, -1)] for u, w in pairs
    ]


def mean_by_differences(ref, x, U):
    return to_tensor([mp.fsum(c * ref.value_mean(p) for c, p in terms) for terms in functionals(x, U)])


def covariance_by_differences(ref, x, U):
    known = functionals(x, U)

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
    ref, U = reference(gp, X, outcomes(X)), points(D, 2, seed=4)
    # A datum, where the periodic and the compact kernels are not so small that digits are lost, and another point.
    x = torch.cat([X[:1], points(1, seed=5)])
    posterior = gp.hessian_posterior(x)
    along = posterior.along(U)
    for j, point in enumerate(x):
        expected = mean_by_differences(ref, point, U)
        full = mean_by_differences(ref, point, torch.eye(D, dtype=torch.float64))[D:]
        i, k = torch.triu_indices(D, D)
        scale = float(full.abs().max()) or 1.0
        assert float((along.mean[j] - expected).abs().max()) <= 1e-8 * max(1.0, float(expected.abs().max()))
        assert float((posterior.mean[j][i, k] - full).abs().max()) <= 1e-8 * max(1.0, scale)
        torch.testing.assert_close(posterior.mean[j], posterior.mean[j].mT, rtol=1e-10, atol=1e-10)
        if name not in NO_VARIANCE and name != "piecewise polynomial 3":
            covariance = covariance_by_differences(ref, point, U)
            error = float((along.covariance_matrix[j] - covariance).abs().max())
            assert error <= 1e-8 * max(1.0, float(covariance.abs().max()))
    v = points(2, seed=6)
    torch.testing.assert_close(posterior.mean_times(v), (posterior.mean @ v.unsqueeze(-1)).squeeze(-1))
    if name in NO_VARIANCE:
        with pytest.raises(ValueError, match="has no covariance of second derivatives"):
            posterior.directional_variance(v)


@pytest.mark.parametrize("ard", [False, True])
def test_rbf_is_gpytorchs_kernel_of_second_derivatives_conditioned_on_values(ard):
    kernel = configured(ScaleKernel(RBFKernel(ard_num_dims=D if ard else None)).double())
    theirs = ScaleKernel(RBFKernelGradGrad(ard_num_dims=D if ard else None)).double()
    theirs.load_state_dict(kernel.state_dict())
    gp, X, noise = derived_gp(kernel, outcome_transform=None, noise=1e-2), points(6), 1e-2
    x = points(1, seed=5)
    with torch.no_grad():
        K = theirs(torch.cat([X, x]), torch.cat([X, x])).to_dense()
        values, jet = torch.arange(0, 6 * (2 * D + 1), 2 * D + 1), torch.arange(6 * (2 * D + 1) + 1, 7 * (2 * D + 1))
        A = K[values][:, values] + noise * torch.eye(6, dtype=torch.float64)
        residual = outcomes(X).squeeze(-1) - gp.mean_module(X)
        mean = K[jet][:, values] @ torch.linalg.solve(A, residual)
        covariance = K[jet][:, jet] - K[jet][:, values] @ torch.linalg.solve(A, K[values][:, jet])
    posterior = gp.hessian_posterior(x)
    along = posterior.along(torch.eye(D, dtype=torch.float64))
    i, j = torch.triu_indices(D, D)
    kept = [*range(D), *(D + int(at) for at in (i == j).nonzero())]
    assert_close(along.mean[0][kept], mean, 1e-10)
    assert_close(along.covariance_matrix[0][kept][:, kept], covariance, 1e-10)
    assert_close(posterior.mean[0].diagonal(), mean[D:], 1e-10)
    for axis in range(D):
        unit = torch.eye(D, dtype=torch.float64)[axis]
        assert_close(posterior.directional_variance(unit), covariance[D + axis, D + axis].reshape(1), 1e-10)


def test_entries_of_the_subspace_are_products_with_the_dense_posterior():
    gp, X = derived_gp(kernel_named("matern 5/2 ard"), input_transform=Normalize(D)), points(3, seed=5)
    posterior, U = gp.hessian_posterior(X), points(D, 2, seed=4, batch=(3,))
    along, full = posterior.along(U), posterior.along(torch.eye(D, dtype=torch.float64))
    assert_close(full.hessian_mean, posterior.mean, 1e-12)
    assert_close(along.hessian_mean, U.mT @ posterior.mean @ U, 1e-12)
    gradient = gp.gradient_posterior(X)
    assert_close(along.gradient_mean, (U.mT @ gradient.mean.unsqueeze(-1)).squeeze(-1), 1e-12)
    assert_close(along.covariance_matrix[..., :2, :2], U.mT @ gradient.covariance_matrix @ U, 1e-10)
    # The rows of T give the entries along U from those along the axes.
    pairs = list(zip(*torch.triu_indices(D, D).tolist(), strict=True))
    T = torch.zeros(3, 5, D + len(pairs), dtype=torch.float64)
    T[:, :2, :D] = U.mT
    for row, (a, b) in enumerate([(0, 0), (0, 1), (1, 1)]):
        for column, (i, j) in enumerate(pairs):
            T[:, 2 + row, D + column] = U[:, i, a] * U[:, j, b] + (i != j) * U[:, j, a] * U[:, i, b]
    assert_close(along.covariance_matrix, T @ full.covariance_matrix @ T.mT, 1e-10)
    for a, entry in ((0, 2), (1, 4)):
        assert_close(posterior.directional_variance(U[..., a]), along.covariance_matrix[:, entry, entry], 1e-12)


@pytest.mark.parametrize("name", ["rbf", "matern 5/2", "rq ard", "product"])
def test_covariances_are_positive_semidefinite_among_close_and_exact_data(name):
    X = 0.1 * points(12, seed=2)
    gp = DerivedGP(X, outcomes(X), covar_module=kernel_named(name), likelihood=gaussian_likelihood(1e-7))
    covariance = gp.hessian_posterior(torch.cat([X[:2], points(2, seed=5)])).along(torch.eye(D).double())
    eigenvalues = torch.linalg.eigvalsh(covariance.covariance_matrix)
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
        (unknown("subclass of matern 3/2"), "A kernel of the model"),
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
        _ = posterior.along(points(D, 2, seed=4)).covariance_matrix


@pytest.mark.parametrize("name", ["warped", "network", "sum with a known one"])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_kernels_that_are_differentiated_automatically(name):
    gp, U = derived_gp(unknown(name), noise=1e-2, outcome_transform=None), points(D, 2, seed=4)
    x = torch.cat([points(6)[:1], points(1, seed=5)])
    along = gp.hessian_posterior(x).along(U)
    expected = by_gradients(gp, x)
    assert_close(gp.hessian_posterior(x).mean, expected, 1e-6)
    assert_close(along.hessian_mean, U.mT @ expected @ U, 1e-6)
    # (f(x + hu) − 2f(x) + f(x − hu))/h² has the variance of uᵀ∇²f(x)u for its limit.
    h, u = 1e-2, U[:, 0]
    for j, point in enumerate(x):
        line = torch.stack([point - h * u, point, point + h * u])
        weights = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64) / h**2
        variance = weights @ gp.conditioning.value_covariance(line, line) @ weights
        assert_close(along.covariance_matrix[j, 2, 2], variance, 1e-3)


def test_an_automatic_kernel_and_a_closed_form_agree():
    class Same(RBFKernel):
        pass

    kernel = configured(RBFKernel(ard_num_dims=D).double())
    other = Same(ard_num_dims=D).double()
    other.load_state_dict(kernel.state_dict())
    x, U = torch.cat([points(6)[:1], points(1, seed=5)]), points(D, 2, seed=4)
    found, expected = (derived_gp(k).hessian_posterior(x) for k in (other, kernel))
    assert_close(found.mean, expected.mean, 1e-10)
    assert_close(found.along(U).mean, expected.along(U).mean, 1e-10)
    assert_close(found.along(U).covariance_matrix, expected.along(U).covariance_matrix, 1e-10)


def test_a_registered_function_of_r2_needs_no_more_than_its_second_derivative():
    gp, h, u = derived_gp(ScaleKernel(Lorentz()).double(), outcome_transform=None), 1e-3, points(1, seed=4)
    x = points(1, seed=5)
    line = torch.cat([x - h * u, x, x + h * u])
    weights = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64) / h**2
    variance = weights @ gp.conditioning.value_covariance(line, line) @ weights
    assert_close(gp.hessian_posterior(x).directional_variance(u), variance.reshape(1), 1e-4)
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
    gp, X, U = with_mean(built, input_transform=Normalize(D)), points(3, seed=5), points(D, 2, seed=4)
    posterior, expected = gp.hessian_posterior(X), by_gradients(gp, X)
    assert_close(posterior.mean, expected, 1e-7)
    v = points(3, seed=6)
    assert_close(posterior.mean_times(v), (expected @ v.unsqueeze(-1)).squeeze(-1), 1e-7)
    assert_close(posterior.along(U).hessian_mean, U.mT @ expected @ U, 1e-7)
    assert_close(posterior.along(U).gradient_mean, gp.gradient_posterior(X).mean @ U, 1e-10)
    assert not posterior.along(U).mean.requires_grad and not posterior.mean.requires_grad


@pytest.mark.parametrize("ard", [False, True])
def test_batches_of_models_and_of_points(ard):
    X, batch = points(6, batch=(2,)), torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=batch, ard_num_dims=D if ard else None), batch_shape=batch).double()
    product = configured(kernel) * configured(ScaleKernel(RBFKernel(batch_shape=batch), batch_shape=batch).double(), 3)
    U, x = points(D, 2, seed=4), points(3, seed=5, batch=(2,))
    for one in (kernel, product):
        likelihood = gaussian_likelihood(1e-2)
        gp = DerivedGP(X, outcomes(X), covar_module=one, likelihood=likelihood, input_transform=Normalize(D))
        posterior = gp.hessian_posterior(x)
        assert posterior.mean.shape == (2, 3, D, D) and posterior.along(U).covariance_matrix.shape == (2, 3, 5, 5)
        for b in range(2):
            ref = reference(gp, X, outcomes(X), index=(b,))
            for j in range(3):
                assert_close(posterior.along(U).mean[b, j], mean_by_differences(ref, x[b, j], U), 1e-8)
                covariance = covariance_by_differences(ref, x[b, j], U)
                assert_close(posterior.along(U).covariance_matrix[b, j], covariance, 1e-8)
        assert_close(posterior.along(U).hessian_mean, U.mT @ posterior.mean @ U, 1e-10)
        g, h = gp.gradient_posterior(x).mean, posterior.mean
        newton = -torch.linalg.solve(h + 9 * torch.eye(D, dtype=torch.float64), g.unsqueeze(-1)).squeeze(-1)
        assert_close(posterior.newton_direction(9.0), newton, 1e-10)
    # Points of a batch on one model, and one set of points on a batch of models.
    plain = derived_gp()
    shared = plain.hessian_posterior(x)
    assert_close(shared.mean[1, 2:], plain.hessian_posterior(x[1, 2:]).mean, 1e-12)
    assert_close(gp.hessian_posterior(x[0]).mean[0], gp.hessian_posterior(x).mean[0], 1e-12)


@pytest.mark.parametrize("name", ["rbf", "product"])
def test_several_outcomes_are_a_model_each(name):
    X, x, U, v = points(6), points(2, seed=5), points(D, 2, seed=4), points(2, seed=6)
    Y = torch.cat([outcomes(X), X.sin().prod(-1, keepdim=True), X[:, :1]], dim=-1)
    options = {"input_transform": Normalize(D), "outcome_transform": None}
    likelihood = GaussianLikelihood(batch_shape=torch.Size([3])).double()
    likelihood.noise = torch.tensor(1e-2, dtype=torch.float64)
    gp = DerivedGP(X, Y, covar_module=kernel_named(name), likelihood=likelihood, **options)
    posterior = gp.hessian_posterior(x)
    along = posterior.along(U)
    found = (
        posterior.mean,
        posterior.mean_times(v.unsqueeze(-2)),
        posterior.mean_times(torch.stack([v, 2 * v]).unsqueeze(-2))[1] / 2,
        posterior.directional_variance(v.unsqueeze(-2)),
        along.hessian_mean,
        along.covariance_matrix,
        posterior.newton_direction(20.0),
    )
    assert "2 x 3 x 3 x 3" in repr(posterior) and "(2 x 3 points" in repr(along)
    for m in range(3):
        likelihood = gaussian_likelihood(1e-2)
        one = DerivedGP(X, Y[:, [m]], covar_module=kernel_named(name), likelihood=likelihood, **options)
        alone = one.hessian_posterior(x)
        expected = (
            alone.mean,
            alone.mean_times(v),
            alone.mean_times(v),
            alone.directional_variance(v),
            alone.along(U).hessian_mean,
            alone.along(U).covariance_matrix,
            alone.newton_direction(20.0),
        )
        for part, value in zip(found, expected, strict=True):
            assert_close(part[:, m], value, 1e-10)


@pytest.mark.parametrize("name", ["rbf", "product"])
def test_no_points(name):
    posterior = derived_gp(kernel_named(name)).hessian_posterior(points(0))
    assert posterior.mean.shape == (0, D, D) and posterior.mean_times(points(0)).shape == (0, D)
    assert posterior.directional_variance(points(1)).shape == (0,) and posterior.newton_direction(1.0).shape == (0, D)
    along = posterior.along(points(D, 2))
    assert along.hessian_mean.shape == (0, 2, 2) and along.covariance_matrix.shape == (0, 5, 5)


@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("mean", ["constant", "curved"])
@pytest.mark.parametrize("outcomes_of", [outcomes, lambda X: torch.cat([outcomes(X), X[:, :1]], dim=-1)])
def test_input_transforms_that_are_not_affine_add_their_own_curvature(n, mean, outcomes_of):
    X, U, v = 1.1 + points(n, WIDE), points(WIDE, 2, seed=4), points(2, WIDE, seed=6)
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
    posterior, expected = gp.hessian_posterior(x), by_gradients(gp, x)
    several = Y.shape[-1] > 1
    w = v.unsqueeze(-2) if several else v
    along = posterior.along(U)
    assert_close(posterior.mean, expected, 1e-6)
    assert_close(posterior.mean_times(w), (expected @ w.unsqueeze(-1)).squeeze(-1), 1e-6)
    assert_close(along.hessian_mean, U.mT @ expected @ U, 1e-6)
    assert_close(along.gradient_mean, gp.gradient_posterior(x).mean @ U, 1e-10)
    gradient = gp.gradient_posterior(x)
    hessian = posterior.mean + 50 * torch.eye(WIDE, dtype=torch.float64)
    newton = -torch.linalg.solve(hessian, gradient.mean.unsqueeze(-1)).squeeze(-1)
    assert_close(posterior.newton_direction(50.0), newton, 1e-9)
    assert not posterior.mean.requires_grad and not along.covariance_matrix.requires_grad
    if several:
        return
    # Central differences of values over a square of nine points, in the user's inputs.
    h, (a, b) = 3e-3, U.mT
    steps = [(s, t) for s in (-1, 0, 1) for t in (-1, 0, 1)]
    weights = torch.zeros(5, 9, dtype=torch.float64)
    for column, (s, t) in enumerate(steps):
        first, second = s / (2 * h), (3 * s * s - 2) / h**2
        weights[:, column] = torch.tensor(
            [
                first * (t == 0),
                t / (2 * h) * (s == 0),
                second * (t == 0),
                s * t / (4 * h**2),
                (3 * t * t - 2) / h**2 * (s == 0),
            ]
        )
    for j, point in enumerate(x):
        with torch.no_grad():
            square = gp.input_transform(torch.stack([point + h * (s * a + t * b) for s, t in steps]))
            covariance = weights @ gp.conditioning.value_covariance(square, square) @ weights.mT
        assert_close(along.covariance_matrix[j], covariance, 1e-3)


@pytest.mark.parametrize("name", ["rbf", "periodic", "linear"])
def test_directions_that_are_no_basis(name):
    posterior, u = derived_gp(named(name), noise=1e-2).hessian_posterior(points(2, seed=5)), points(1, seed=4)
    along = posterior.along(torch.cat([u, -u, 0 * u]).mT)
    once = posterior.directional_variance(u)
    i = {"uu": 3, "u-u": 4, "u0": 5, "-u-u": 6, "00": 8}
    for a, b, sign in (("uu", "uu", 1), ("uu", "u-u", -1), ("-u-u", "uu", 1), ("u0", "uu", 0), ("00", "00", 0)):
        expected = sign * once
        torch.testing.assert_close(along.covariance_matrix[:, i[a], i[b]], expected, rtol=1e-9, atol=1e-12)


def test_outcome_transforms_that_are_not_linear_are_refused():
    X = points(6)
    gp = DerivedGP(X, 1 + outcomes(X).square(), covar_module=kernel_named("rbf"), outcome_transform=Log())
    with pytest.raises(ValueError, match="outcome_transform Log is not linear"):
        gp.hessian_posterior(X)


def test_several_vectors_of_a_point_lead():
    gp, X, v = derived_gp(), points(3, seed=5), points(3, seed=6, batch=(4,))
    posterior = gp.hessian_posterior(X)
    found = posterior.mean_times(v)
    assert found.shape == (4, 3, D)
    for one, product in zip(v, found, strict=True):
        assert_close(product, posterior.mean_times(one), 1e-13)
    assert_close(posterior.mean_times(v[0, 0]), posterior.mean @ v[0, 0], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "d"), [(3, 5), (8, 5), (13, 1500), (6, 1024)])
def test_compiled_products_are_those_of_the_dense_mean(monkeypatch, n, d, dtype):
    X, x, v = (points(rows, d, seed=seed, dtype=dtype) for rows, seed in ((n, 1), (2, 2), (2, 3)))
    kernel = matern_kernel(d**0.5 * torch.linspace(0.8, 2.0, d).to(dtype))
    gp = DerivedGP(X, outcomes(X), covar_module=kernel, likelihood=gaussian_likelihood(1e-2).to(dtype))
    posterior = gp.hessian_posterior(x)
    expected = (posterior.mean @ v.unsqueeze(-1)).squeeze(-1)
    tolerance = 1e-12 if dtype is torch.float64 else 2e-5
    assert_close(posterior.mean_times(v), expected.double(), tolerance)
    uncompiled(monkeypatch)
    assert_close(posterior.mean_times(v), expected.double(), tolerance)
    # Rows block by block, as for more inputs.
    monkeypatch.setattr(hessians, "_BLOCK_ELEMENTS", 2 * d)
    assert_close(posterior.mean_times(v), expected.double(), tolerance)
    assert_close(posterior.newton_direction(50.0), dense_newton(posterior, gp, x, 50.0), 1e2 * tolerance)


def dense_newton(posterior, gp, x, shift):
    hessian = posterior.mean.double() + shift * torch.eye(x.shape[-1], dtype=torch.float64)
    return -torch.linalg.solve(hessian, gp.gradient_posterior(x).mean.double().unsqueeze(-1)).squeeze(-1)


def test_float32_is_close_to_float64():
    X, x, U = points(6), points(2, seed=5), points(D, 2, seed=4)
    found = []
    for dtype in (torch.float32, torch.float64):
        kernel = kernel_named("matern 5/2 ard", dtype)
        gp = DerivedGP(
            X.to(dtype), outcomes(X).to(dtype), covar_module=kernel, likelihood=gaussian_likelihood(1e-2).to(dtype)
        )
        posterior = gp.hessian_posterior(x.to(dtype))
        along = posterior.along(U.to(dtype))
        v = points(2, seed=6).to(dtype)
        parts = [posterior.mean, posterior.mean_times(v), posterior.directional_variance(v), along.mean]
        found.append([*parts, along.covariance_matrix, posterior.newton_direction(20.0)])
        assert all(part.dtype == dtype for part in found[-1])
    for single, double in zip(*found, strict=True):
        assert_close(single, double, 1e-4)


NEWTON = {
    "isotropic": (matern_kernel, 1.3, {}),
    "ard": (matern_kernel, torch.linspace(0.8, 2.0, WIDE).double(), {}),
    "rbf on some inputs": (lambda dims: ScaleKernel(RBFKernel(active_dims=dims)).double(), [5, 0, 3], {}),
    "slopes": (matern_kernel, 0.7, {"input_transform": Normalize(WIDE)}),
    "linear mean": (matern_kernel, 1.3, {"mean_module": LinearMean(WIDE).double()}),
    "curved mean": (matern_kernel, 1.3, {"mean_module": Bowl(torch.linspace(0.5, 2.0, WIDE).double())}),
    "product": (lambda nu: (RBFKernel() * MaternKernel(nu=nu)).double(), 2.5, {}),
}


@pytest.mark.parametrize("n", [4, 12])
@pytest.mark.parametrize("shift", [0.0, 0.7, 30.0])
@pytest.mark.parametrize("name", NEWTON)
def test_newton_directions_are_those_of_a_dense_solution(name, shift, n):
    (kernel, argument, options), X = copy.deepcopy(NEWTON[name]), points(n, WIDE, seed=3)
    gp = DerivedGP(X, outcomes(X), covar_module=kernel(argument), likelihood=gaussian_likelihood(1e-2), **options)
    x = torch.cat([points(2, WIDE, seed=5), X[:1]])
    posterior = gp.hessian_posterior(x)
    if name == "rbf on some inputs" and shift == 0.0:
        with pytest.raises(ValueError, match="is singular to working precision"):
            posterior.newton_direction()
        return
    hessian = by_gradients(gp, x, h=1e-4 if name == "curved mean" else 1e-5)
    dense = posterior.mean + shift * torch.eye(WIDE, dtype=torch.float64)
    assert_close(posterior.mean, hessian, 1e-6)
    expected = dense_newton(posterior, gp, x, shift)
    condition = float(torch.linalg.cond(dense).max())
    assert_close(posterior.newton_direction(shift), expected, 1e-13 * condition + 1e-12)
    assert "mean" not in vars(gp.hessian_posterior(x)) and condition < 1e5


@pytest.mark.parametrize("n", [4, 12])
def test_no_newton_direction_where_the_matrix_is_singular(n):
    X = points(n, WIDE, seed=3)
    gp = DerivedGP(X, outcomes(X), covar_module=matern_kernel(1.3), likelihood=gaussian_likelihood(1e-2))
    posterior = gp.hessian_posterior(points(1, WIDE, seed=5))
    negative = torch.linalg.eigvalsh(posterior.mean)[0]
    lowest = negative[negative < 0]
    assert len(lowest)
    for eigenvalue in lowest:
        # The multiple eigenvalue of what no datum spans, too, where the gradient has no part.
        with pytest.raises(ValueError, match="is singular to working precision at a point"):
            posterior.newton_direction(-float(eigenvalue))
    assert posterior.newton_direction(2 * float(-lowest[0])).isfinite().all()


@pytest.mark.parametrize("bad", [-1.0, float("nan"), "1"])
def test_bad_regularization(bad):
    with pytest.raises((TypeError, ValueError), match="regularization must be"):
        derived_gp().hessian_posterior(points(1)).newton_direction(bad)


def everything(gp, x, U):
    posterior = gp.hessian_posterior(x)
    along = posterior.along(U)
    return (
        posterior.mean,
        posterior.mean_times(U[..., 0]),
        posterior.directional_variance(U[..., 1]),
        along.mean,
        along.covariance_matrix,
        posterior.newton_direction(30.0),
    )


@pytest.mark.parametrize("name", ["matern 5/2 ard", "rq", "product", "polynomial 3 on some inputs"])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_all_is_differentiable_in_points_and_directions(name):
    gp = derived_gp(named(name), n=4, noise=1e-2, input_transform=Normalize(D))
    x = torch.cat([points(4)[:1], points(1, seed=5)]).requires_grad_(True)
    U = points(D, 2, seed=4).requires_grad_(True)
    if name == "matern 5/2 ard":
        # On a datum its third derivative is a limit that differences of 1e-6 approach too slowly.
        x = x.detach()[1:].requires_grad_(True)
    assert gradcheck(lambda z, W: everything(gp, z, W), (x, U), atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", ["matern 5/2 ard", "product", "periodic"])
def test_derivatives_are_whole_after_a_call_without_autograd(name):
    gp, x, U = derived_gp(named(name), n=4, noise=1e-2), points(2, seed=5), points(D, 2, seed=4)

    def derivatives(warmed_up):
        z = x.clone().requires_grad_(True)
        posterior = gp.hessian_posterior(z)
        along = posterior.along(U)
        if warmed_up:
            with torch.no_grad():
                _ = posterior.mean_times(x), posterior.newton_direction(30.0), along.gradient_mean
        parts = (posterior.mean_times(x), posterior.newton_direction(30.0), along.covariance_matrix)
        return [torch.autograd.grad(part.square().sum(), z, retain_graph=True)[0] for part in parts]

    for warm, fresh in zip(derivatives(True), derivatives(False), strict=True):
        assert_close(warm, fresh, 1e-12)


@pytest.mark.parametrize("name", ["matern 5/2 ard", "product", "periodic"])
def test_all_is_there_without_autograd(name):
    gp, x, U = derived_gp(named(name), n=4, noise=1e-2), points(2, seed=5), points(D, 2, seed=4)
    with torch.no_grad():
        found = everything(gp, x, U)
    for without, expected in zip(found, everything(gp, x, U), strict=True):
        assert torch.equal(without, expected) and not without.requires_grad and not expected.requires_grad


@pytest.mark.parametrize("name", ["rbf ard", "product", "polynomial 2"])
def test_all_is_differentiable_in_data_noise_and_hyper_parameters_where_that_is_asked_for(name):
    kernel, X, x, U = named(name), points(4), points(2, seed=5), points(D, 2, seed=4)
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
            return everything(gp, x, U)

    inputs = [t.requires_grad_(True) for t in (Y, torch.tensor(1e-2).double(), *parameters.values())]
    assert gradcheck(compute, inputs, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("name", ["matern 5/2 ard", "product", "periodic"])
def test_a_posterior_is_a_value(name):
    X, x, U = points(6), points(2, seed=5), points(D, 2, seed=4)
    gp, other = (derived_gp(named(name), noise=1e-2) for _ in range(2))
    mine = x.clone()
    posterior, expected = gp.hessian_posterior(mine), other.hessian_posterior(x)
    along = posterior.along(U)
    with torch.no_grad():
        for parameter in gp.covar_module.parameters():
            parameter.add_(0.5)
        mine.add_(1.0)
    gp.set_train_data(X + 1, strict=False)
    assert torch.equal(posterior.mean, expected.mean)
    assert torch.equal(along.covariance_matrix, expected.along(U).covariance_matrix)
    assert relative_error(gp.hessian_posterior(x).mean, expected.mean) > 1e-3


def test_what_a_repr_says():
    posterior = derived_gp(n=6).hessian_posterior(points(4, batch=(2,)))
    assert isinstance(posterior, HessianPosterior)
    assert repr(posterior) == (
        "HessianPosterior(2 x 4 x 3 x 3, torch.float64, cpu; outcome per squared unit of input; given n = 6 values)"
    )
    assert repr(posterior.along(points(D, 2))) == (
        "SubspaceDerivatives(2 x 4 points, 2 of 3 directions, 5 entries, torch.float64, cpu; outcome per unit of input "
        "and per its square; given n = 6 values)"
    )


@pytest.mark.parametrize("method", ["mean_times", "directional_variance", "along"])
def test_bad_vectors(method):
    call = getattr(derived_gp().hessian_posterior(points(2)), method)
    with pytest.raises(TypeError, match="must be floating point"):
        call(torch.ones(2, D, dtype=torch.long))
    with pytest.raises(ValueError, match="NaN or inf"):
        call(torch.full((D, 2) if method == "along" else (2, D), torch.nan))
    with pytest.raises(ValueError, match="does not broadcast"):
        call(torch.ones(D + 1, 2) if method == "along" else torch.ones(2, D + 1))


@pytest.mark.parametrize(
    "bad", [torch.ones(1, D + 1).double(), torch.ones(1, D), torch.full((1, D), torch.nan).double()]
)
def test_bad_points(bad):
    with pytest.raises(ValueError):
        derived_gp().hessian_posterior(bad)


LARGE = """
import torch
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel

d, n = 100_000, 150
X = torch.rand(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X[:, :3].sum(-1, keepdim=True)
gp = DerivedGP(X, Y, covar_module=matern_kernel(100.0), likelihood=gaussian_likelihood(1e-4))
x = torch.full((1, d), 0.5, dtype=torch.float64)
u = torch.ones(1, d, dtype=torch.float64)
gp.gradient_posterior(x).mean
gp.hessian_posterior(x[:1]).mean_times(u)
posterior = gp.hessian_posterior(x)
for call in (
    lambda: gp.gradient_posterior(x).mean,
    lambda: posterior.mean_times(u),
    lambda: posterior.directional_variance(u),
    lambda: posterior.along(torch.cat([u, 2 * u, x]).mT).covariance_matrix,
    lambda: posterior.newton_direction(1.0),
):
    start_meter()
    call()
    print(grown())
"""


@reads_peak
@pytest.mark.slow
def test_memory_in_a_hundred_thousand_inputs():
    """No d x d (80 GB), no copy of the data (120 MB): blocks of rows and some vectors of 0.8 MB."""
    gradient, *others = printed(LARGE)
    assert gradient < 4e7 and all(grown < 6e7 for grown in others), (gradient, others)
