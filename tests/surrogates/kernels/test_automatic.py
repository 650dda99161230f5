"""Kernels without a closed form, against those that are the same and brute force by autograd of their formulas."""

import copy
import itertools

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.kernels import InfiniteWidthBNNKernel
from gpytorch.kernels import (
    AdditiveStructureKernel,
    GridInterpolationKernel,
    IndexKernel,
    InducingPointKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    ProductStructureKernel,
    RBFKernel,
    RFFKernel,
    ScaleKernel,
    SpectralDeltaKernel,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP, UnsupportedKernelError, gaussian_likelihood, kernel_blocks, prior_gradient_covariance
from surrogates.kernels.automatic import differentiated
from surrogates.kernels.blocks import GeneralKernel, kernel_values, snapshot
from tests.surrogates.gp_models import KERNELS, D, configured, derived_gp, kernel_named, outcomes, points
from tests.surrogates.kernels.further import UNKNOWN, Network, Subclass, Warped, unknown
from tests.surrogates.kernels.test_blocks import pairs
from tests.surrogates.kernels.test_closed_forms import close
from tests.surrogates.reference import assert_close

FIELDS = ("value", "first", "second", "mixed")


@pytest.mark.parametrize("name", KERNELS)
def test_automatic_derivatives_equal_closed_forms(name):
    kernel, (x1, x2) = kernel_named(name), pairs()
    x1[1] = points(1, seed=3)[0]  # the chain rule through r loses the digits of 1/r
    expected, found = kernel_blocks(kernel, x1, x2, mixed=True), differentiated(kernel, True).blocks(x1, x2, True)
    for field in FIELDS:
        close(getattr(found, field), getattr(expected, field), 1e-12)


def value_of(kernel):
    """k of one pair of points that differ, smooth for all kernels here, as GPyTorch computes it."""

    def value(a, b):
        return kernel(a.unsqueeze(-2), b.unsqueeze(-2)).to_dense().squeeze()

    return value


def by_differences(kernel, a, b, h=1e-4):
    """∂k/∂x and ∂²k/∂x∂x' of one pair by central differences of fourth order of GPyTorch's values."""
    weights = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))
    value, eye = value_of(kernel), h * torch.eye(D, dtype=torch.float64)
    with torch.no_grad():
        first = [sum(w * value(a + s * u, b) for s, w in weights) / h for u in eye]
        mixed = [
            [sum(v * w * value(a + s * u, b + t * e) for s, v in weights for t, w in weights) / h**2 for e in eye]
            for u in eye
        ]
    return torch.stack(first), torch.stack([torch.stack(row) for row in mixed])


@pytest.mark.parametrize("name", UNKNOWN)
def test_blocks_of_unknown_kernels_equal_differences_of_gpytorchs_values(name):
    kernel, x1, x2 = unknown(name), points(3, seed=1), points(2, seed=2)
    blocks = kernel_blocks(kernel, x1, x2, mixed=True)
    close(blocks.value, kernel(x1, x2).to_dense().detach(), 1e-13)
    close(kernel_values(kernel, x1, x2), kernel(x1, x2).to_dense().detach(), 1e-13)
    for i, a in enumerate(x1):
        for j, b in enumerate(x2):
            first, mixed = by_differences(kernel, a, b)
            close(blocks.first[i, j], first, 1e-10)
            close(blocks.mixed[i, j], mixed, 1e-6)
    other = kernel_blocks(kernel, x2, x1)
    close(blocks.second, other.first.transpose(0, 1), 1e-14)


@pytest.mark.parametrize("name", ["subclass", "subclass of matern 3/2", "warped", "arc"])
def test_prior_covariance_at_coincident_points_is_the_limit(name):
    kernel, x = unknown(name), points(2)
    found = prior_gradient_covariance(kernel, x)
    apart = torch.full((D,), 1e-6, dtype=torch.float64)
    for i in range(2):
        limit = kernel_blocks(kernel, x[i : i + 1], x[i : i + 1] + apart, mixed=True).mixed[0, 0]
        close(found[i], limit, 1e-4)


def test_prior_covariance_of_warped_inputs_is_by_the_chain_rule():
    base, x = configured(RBFKernel(ard_num_dims=D).double()), points(2)
    warped = configured(Warped(ard_num_dims=D).double())
    slope = 1 + 0.9 * x**2
    expected = slope.unsqueeze(-1) * prior_gradient_covariance(base, x) * slope.unsqueeze(-2)
    close(prior_gradient_covariance(warped, x), expected, 1e-13)


class Embedded(MaternKernel):
    """A Matérn kernel of inputs on a curved surface, where the two points of a pair may coincide though they differ."""

    def forward(self, x1, x2, **params):
        def surface(x):
            return torch.stack([x[..., 0] ** 2, x[..., 1] + x[..., 0] * x[..., 2]], dim=-1)

        return super().forward(surface(x1), surface(x2), **params)


@pytest.mark.parametrize("nu", [1.5, 2.5])
def test_points_that_coincide_only_where_the_kernel_looks(nu):
    kernel = configured(Embedded(nu=nu).double())
    a = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    b = torch.tensor([[-0.5, 0.5, 0.3]], dtype=torch.float64)

    def slopes(x):
        return torch.tensor([[2 * x[0], 0, 0], [x[2], 1, x[0]]], dtype=torch.float64)

    curvature = {1.5: 3.0, 2.5: 5 / 3}[nu] / float(kernel.lengthscale) ** 2
    blocks = kernel_blocks(kernel, a, b, mixed=True)
    close(blocks.mixed[0, 0], curvature * slopes(a[0]).mT @ slopes(b[0]), 1e-12)
    close(blocks.first[0, 0], torch.zeros(D, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("batched_points", [False, True])
def test_batches(batched_points):
    b = torch.Size([2])
    kernel = configured(ScaleKernel(Subclass(nu=2.5, ard_num_dims=D, batch_shape=b), batch_shape=b).double())
    plain = configured(ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D, batch_shape=b), batch_shape=b).double())
    x1, x2 = points(3, seed=1, batch=(2,)), points(2, seed=2, batch=(2,))
    if not batched_points:
        x1, x2 = x1[0], x2[0]
    found, expected = kernel_blocks(kernel, x1, x2, mixed=True), kernel_blocks(plain, x1, x2, mixed=True)
    for field in FIELDS:
        close(getattr(found, field), getattr(expected, field), 1e-12)
    close(prior_gradient_covariance(kernel, x1), prior_gradient_covariance(plain, x1), 1e-12)


LONG = ("arc", "network", "subclass of matern 3/2", "sum with a known one")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in UNKNOWN]
)
def test_posterior_is_that_of_brute_force(name):
    """Gradients of GPyTorch's posterior mean by autograd; covariances from its Jacobian and the prior."""
    X, x = points(4), points(2, seed=5)
    gp = DerivedGP(
        X, outcomes(X), covar_module=unknown(name), likelihood=gaussian_likelihood(1e-2), outcome_transform=None
    )
    kernel, noise = gp.covar_module, gp.likelihood.noise.detach()
    A = kernel(X).to_dense().detach() + noise * torch.eye(4, dtype=torch.float64)
    inverse, y = torch.linalg.inv(A), outcomes(X).squeeze(-1) - gp.mean_module.constant.detach()
    at = x.clone().requires_grad_()
    mean = kernel(at, X).to_dense() @ inverse @ y
    (gradient,) = torch.autograd.grad(mean.sum(), at)
    found = gp.gradient_posterior(x)
    assert_close(found.mean, gradient, 1e-9)
    J = [torch.autograd.functional.jacobian(lambda a: kernel(a[None], X).to_dense()[0], a) for a in x]
    prior = prior_gradient_covariance(kernel, x)
    own = torch.stack([p - j.mT @ inverse @ j for p, j in zip(prior, J, strict=True)])
    assert_close(found.covariance_matrix, own, 1e-8)
    assert_close(found.variance, own.diagonal(dim1=-2, dim2=-1), 1e-8)
    assert_close(found.trace, own.diagonal(dim1=-2, dim2=-1).sum(-1), 1e-8)
    assert_close(found.spectral_norm, torch.linalg.eigvalsh(own)[:, -1], 1e-8)
    between = kernel_blocks(kernel, x[:1], x[1:], mixed=True).mixed[0, 0] - J[0].mT @ inverse @ J[1]
    joint = found.joint_covariance()
    assert_close(joint[:D, :D], own[0], 1e-8)
    assert_close(joint[:D, D:], between, 1e-8)
    with torch.no_grad():
        value = gp.posterior(x).mean.squeeze(-1)
    both = gp.joint_posterior(x)
    assert_close(both.mean, torch.cat([value.unsqueeze(-1), gradient], dim=-1), 1e-8)
    covariance = both.distribution.covariance_matrix.reshape(2, D + 1, 2, D + 1)
    k = kernel(x).to_dense().detach() - kernel(x, X).to_dense().detach() @ inverse @ kernel(X, x).to_dense().detach()
    assert_close(covariance[:, 0, :, 0], k, 1e-8)
    assert_close(covariance[0, 1:, 1, 1:], between, 1e-8)


class Laplace(MaternKernel):
    """Matérn 1/2 by a name that nobody knows."""

    def __init__(self):
        super().__init__(nu=0.5)


def test_a_kink_is_refused_when_it_is_asked_for():
    gp = derived_gp(ScaleKernel(Laplace()).double())
    known = derived_gp(ScaleKernel(MaternKernel(nu=0.5)).double())
    x = points(2, seed=5)
    assert_close(gp.gradient_posterior(x).mean, known.gradient_posterior(x).mean, 1e-12)
    for ask in ("trace", "variance", "covariance_matrix", "prior_trace", "spectral_norm"):
        with pytest.raises(ValueError, match=r"Laplace has no gradient between two of the points.*one side to the oth"):
            getattr(gp.gradient_posterior(x), ask)
    with pytest.raises(ValueError, match="has no gradient between two of the points"):
        _ = gp.gradient_posterior(points(6)[:1]).mean


@pytest.mark.parametrize(
    ("outputscale", "lengthscale"),
    [
        (1.0, 1.0),
        *itertools.product((1e-12, 1e12), (1e-9, 1e9)),
        *(pytest.param(outputscale, 1.0, marks=pytest.mark.slow) for outputscale in (1e-12, 1e12)),
        *(pytest.param(1.0, lengthscale, marks=pytest.mark.slow) for lengthscale in (1e-9, 1e9)),
    ],
)
def test_kinks_are_told_from_rounding_at_every_scale(lengthscale, outputscale):
    x = points(2)
    for build, exists in ((Laplace, False), (lambda: Subclass(nu=1.5), True), (lambda: Subclass(nu=2.5), True)):
        kernel = ScaleKernel(build()).double()
        kernel.outputscale, kernel.base_kernel.lengthscale = outputscale, lengthscale
        if exists:
            curvature = {1.5: 3.0, 2.5: 5 / 3}[kernel.base_kernel.nu] * outputscale / lengthscale**2
            expected = curvature * torch.eye(D, dtype=torch.float64).expand(2, D, D)
            assert_close(prior_gradient_covariance(kernel, x), expected, 1e-6)
        else:
            with pytest.raises(ValueError, match="has no gradient between two of the points"):
                prior_gradient_covariance(kernel, x)


class AbsoluteValues(Kernel):
    """exp(−Σ|xᵢ − x'ᵢ|/ℓ), whose kink is its own, and for which PyTorch gives the derivative 0."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        difference = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return (-difference.abs().sum(-1) / self.lengthscale.squeeze()).exp()


class Cubed(PolynomialKernel):
    """(x³·x'³ + c)^p, whose derivative at 0 is 0 without a kink."""

    def forward(self, x1, x2, **params):
        return super().forward(x1**3, x2**3, **params)


@pytest.mark.parametrize("lengthscale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize(
    "wrap",
    [lambda k: k, lambda k: ScaleKernel(k) + RBFKernel(), lambda k: RBFKernel() * k],
    ids=["own", "sum", "product"],
)
def test_a_kink_of_the_formulas_own_is_refused_too(wrap, lengthscale):
    own = AbsoluteValues().double()
    own.lengthscale = lengthscale
    gp, x = derived_gp(wrap(own).double()), points(2, seed=5)
    assert gp.gradient_posterior(x).mean.isfinite().all()
    with pytest.raises(ValueError, match="AbsoluteValues has no gradient between two of the points"):
        _ = gp.gradient_posterior(points(6)[:1]).mean
    for posterior in (gp.gradient_posterior(x), gp.gradient_posterior(x[:1])):
        with pytest.raises(ValueError, match="AbsoluteValues has no gradient between two of the points"):
            _ = posterior.trace
        with pytest.raises(ValueError, match="AbsoluteValues has no gradient between two of the points"):
            posterior.joint_covariance()


@pytest.mark.parametrize("scale", [0.0, 1e-6, pytest.param(1.0, marks=pytest.mark.slow), 1e3])
def test_smooth_formulas_are_not_taken_for_kinked(scale):
    x = scale * points(2)
    for kernel in (Cubed(power=2), Network(), Warped(), Subclass(nu=1.5), AbsoluteSquares()):
        assert prior_gradient_covariance(kernel.double(), x).isfinite().all()
        assert kernel_blocks(kernel, x, x).first.isfinite().all()


class AbsoluteSquares(AbsoluteValues):
    """exp(−Σ|xᵢ − x'ᵢ|²/ℓ), in which |·| makes no kink."""

    def forward(self, x1, x2, diag=False, **params):
        difference = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return (-difference.abs().square().sum(-1) / self.lengthscale.squeeze()).exp()


class Measured(Kernel):
    """A formula that PyTorch has no forward-mode derivatives for."""

    def forward(self, x1, x2, diag=False, **params):
        matrix = (-torch.cdist(x1, x2, p=2.0).square()).exp()
        return matrix.diagonal(dim1=-2, dim2=-1) if diag else matrix


def test_a_formula_that_cannot_be_differentiated_says_so():
    x = points(2)
    assert kernel_values(Measured(), x, x).shape == (2, 2)
    with pytest.raises(ValueError, match=r"(?s)Measured cannot be differentiated automatically.*register_kernel"):
        kernel_blocks(Measured(), x, x)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (IndexKernel(num_tasks=3), "IndexKernel has no gradient: its inputs are indices"),
        (ScaleKernel(RBFKernel()) * IndexKernel(num_tasks=3, active_dims=[2]), "IndexKernel has no gradient"),
        (
            GridInterpolationKernel(RBFKernel(), grid_size=4, num_dims=3),
            "approximates its base kernel",
        ),
        (RFFKernel(num_samples=5), "RFFKernel has not drawn its features yet; pass num_dims"),
    ],
)
def test_what_is_no_function_of_two_points_is_refused_with_the_reason(kernel, message):
    gp = derived_gp(kernel.double())
    for ask in (gp.gradient_posterior, gp.joint_posterior, gp.hessian_posterior):
        with pytest.raises(UnsupportedKernelError, match=message):
            ask(points(2))
    with pytest.raises(UnsupportedKernelError, match=message):
        snapshot(kernel)


OPAQUE = {
    "inducing points": lambda: InducingPointKernel(ScaleKernel(RBFKernel()), points(4, seed=9), GaussianLikelihood()),
    "grid": lambda: GridInterpolationKernel(ScaleKernel(RBFKernel()), grid_size=8, num_dims=D),
    "indices": lambda: ScaleKernel(RBFKernel(active_dims=[0, 1])) * IndexKernel(num_tasks=3, rank=1, active_dims=[2]),
    "features not drawn yet": lambda: ScaleKernel(RFFKernel(num_samples=5)),
}


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.filterwarnings("ignore")
def test_values_under_kernels_that_gpytorch_alone_computes_are_those_of_single_task_gp(name):
    X, Xq = points(7), points(3, seed=5)
    if name == "indices":
        X, Xq = (torch.cat([x[:, :2], (torch.arange(len(x)) % 3).double().unsqueeze(-1)], dim=-1) for x in (X, Xq))
    kernel = configured(OPAQUE[name]().double())
    models, posteriors = [], []
    for cls in (SingleTaskGP, DerivedGP):
        models.append(cls(X, outcomes(X), covar_module=copy.deepcopy(kernel)).eval())
        with torch.random.fork_rng():
            torch.manual_seed(3)  # features are drawn when the kernel is first evaluated
            posteriors.append(models[-1].posterior(Xq))
    theirs, ours = posteriors
    assert_close(ours.mean, theirs.mean, 1e-6)
    assert_close(ours.variance, theirs.variance, 1e-6)
    losses = []
    for model in models:
        model.train()
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        losses.append(mll(model(*model.train_inputs), model.train_targets))
    assert_close(losses[1], losses[0], 1e-9)
    if name in ("features not drawn yet", "indices"):
        grown = models[1].condition_on_observations(Xq, outcomes(Xq)), models[1]
        models[1].add_observations(Xq, outcomes(Xq))
        for model in grown:
            both = torch.cat([X, Xq])
            whole = SingleTaskGP(both, outcomes(both), covar_module=models[0].covar_module, outcome_transform=None)
            whole.set_train_data(both, models[1].train_targets, strict=False)
            whole.mean_module, whole.likelihood = models[1].mean_module, models[1].likelihood
            expected = models[1].outcome_transform.untransform(whole.eval()(Xq).mean.unsqueeze(-1))[0]
            assert_close(model.posterior(Xq).mean, expected, 1e-6)


@pytest.mark.parametrize("structure", [AdditiveStructureKernel, ProductStructureKernel])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_additive_and_product_structure(structure):
    kernel = configured(structure(ScaleKernel(MaternKernel(nu=2.5)), num_dims=D).double())
    parts = [configured(ScaleKernel(MaternKernel(nu=2.5, active_dims=[i])).double()) for i in range(D)]
    plain = parts[0] + parts[1] + parts[2] if structure is AdditiveStructureKernel else parts[0] * parts[1] * parts[2]
    x1, x2 = points(3, seed=1), points(2, seed=2)
    found, expected = kernel_blocks(kernel, x1, x2, mixed=True), kernel_blocks(plain, x1, x2, mixed=True)
    for field in FIELDS:
        close(getattr(found, field), getattr(expected, field), 1e-12)


FEATURES = {
    "random features": lambda: RFFKernel(num_samples=8, num_dims=D),
    "spectral delta": lambda: SpectralDeltaKernel(num_dims=D, num_deltas=6),
}


@pytest.mark.parametrize("same", [False, True], ids=["", "the same points"])
@pytest.mark.parametrize("name", FEATURES)
def test_kernels_of_features(name, same):
    """GPyTorch's formulas differ where both sets of points are the same: one side of the product is left out."""
    kernel = configured(ScaleKernel(FEATURES[name]()).double())
    x1 = points(2, seed=1)
    x2 = x1 if same else points(2, seed=2)
    blocks = kernel_blocks(kernel, x1, x2, mixed=True)
    for i, j in ((0, 0), (0, 1)):
        first, mixed = by_differences(kernel, x1[i], x2[j])
        close(blocks.first[i, j], first, 1e-10)
        close(blocks.mixed[i, j], mixed, 1e-6)
    close(blocks.second, kernel_blocks(kernel, x2, x1).first.transpose(0, 1), 1e-14)


def test_a_formula_that_is_clamped_at_coincident_points_has_a_mean_only():
    """BoTorch's kernel of wide networks is constant where its cosine is within 1e-8 of 1: its slope there is a lie."""
    X = points(4)
    gp = DerivedGP(X, outcomes(X), covar_module=ScaleKernel(InfiniteWidthBNNKernel(2)).double())
    gradient = gp.gradient_posterior(points(2, seed=5))
    x = points(2, seed=5).requires_grad_(True)
    close(gradient.mean, torch.autograd.grad(gp.posterior(x).mean.sum(), x)[0], 1e-9)
    for ask in ("trace", "variance", "covariance_matrix", "spectral_norm"):
        with pytest.raises(ValueError, match=r"explain more variance of the gradient than its prior has"):
            getattr(gradient, ask)
    for ask in (gradient.joint_covariance, gradient.rsample, lambda: gp.joint_posterior(points(2, seed=5))):
        with pytest.raises(ValueError, match=r"register_kernel"):
            ask()
    with pytest.raises(ValueError, match=r"register_kernel"):
        gradient.directional_variance(torch.ones(D, dtype=torch.float64))


def test_a_snapshot_shares_nothing_with_the_kernel_and_leaves_it_as_it_was():
    kernel, x1, x2 = unknown("sum with a known one"), points(2, seed=1), points(2, seed=2)
    own = dict(vars(kernel.kernels[0].base_kernel))
    taken = snapshot(kernel)
    before = kernel_blocks(taken, x1, x2, mixed=True).mixed
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.5)
    assert torch.equal(kernel_blocks(taken, x1, x2, mixed=True).mixed, before)
    assert not torch.equal(kernel_blocks(kernel, x1, x2, mixed=True).mixed, before)
    assert vars(kernel.kernels[0].base_kernel).keys() == own.keys()
    assert isinstance(snapshot(Network()), GeneralKernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [LinearKernel, lambda: PolynomialKernel(power=2), Network, lambda: Subclass(nu=2.5)])
def test_blocks_have_the_dtype_of_the_points(kernel, dtype):
    kernel, x = kernel().to(dtype), points(2, dtype=dtype)
    blocks = kernel_blocks(kernel, x, x, mixed=True)
    assert {getattr(blocks, field).dtype for field in FIELDS} == {dtype}
    assert kernel_values(kernel, x, x).dtype == torch.float64
