"""The hook, and what a model of registered, closed and unknown kernels keeps: values, no stale numbers, derivatives."""

import pytest
import torch
from botorch import settings as botorch_settings
from gpytorch.kernels import Kernel, LinearKernel, RBFKernel, ScaleKernel

from surrogates import (
    Blocks,
    KernelFunctions,
    RadialFunctions,
    kernel_blocks,
    prior_gradient_variance,
    register_kernel,
)
from surrogates.kernels import registry
from surrogates.kernels.automatic import differentiated
from surrogates.kernels.blocks import GeneralKernel, kernel_values, snapshot
from surrogates.kernels.stationary import StationaryKernel
from surrogates.stationary_conditioning import StationaryConditioning
from tests.surrogates.gp_models import D, configured, derived_gp, outcomes, points
from tests.surrogates.kernels.further import closed, unknown
from tests.surrogates.kernels.test_closed_forms import close
from tests.surrogates.reference import assert_close

FIELDS = ("value", "first", "second", "mixed")


class Lorentz(Kernel):
    """The stationary kernel 1/(1 + r²)^p, p a hyper-parameter."""

    has_lengthscale = True

    def __init__(self, **options):
        super().__init__(**options)
        self.register_parameter("power", torch.nn.Parameter(torch.full((*self.batch_shape, 1, 1), 2.0)))

    def forward(self, x1, x2, diag=False, **params):
        r2 = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag)
        return (1 + r2) ** -(self.power.squeeze(-1) if diag else self.power)


class Exponential(Kernel):
    """exp(x·x'), a kernel that is not stationary."""

    def forward(self, x1, x2, diag=False, **params):
        matrix = (x1 @ x2.mT).exp()
        return matrix.diagonal(dim1=-2, dim2=-1) if diag else matrix


def lorentz(kernel, copied):
    p = copied(kernel.power)
    return RadialFunctions(
        h=lambda r2: (1 + r2) ** -p,
        h1=lambda r2: -p * (1 + r2) ** (-p - 1),
        h2=lambda r2: p * (p + 1) * (1 + r2) ** (-p - 2),
        lengthscale=copied(kernel.lengthscale),
    )


def exponential(kernel, copied):
    def blocks(x1, x2, mixed):
        value = (x1 @ x2.mT).exp()
        row, column = x2.unsqueeze(-3), x1.unsqueeze(-2)
        block = torch.eye(x1.shape[-1], dtype=x1.dtype) + row.unsqueeze(-1) * column.unsqueeze(-2)
        value_1 = value.unsqueeze(-1)
        return Blocks(value, value_1 * row, value_1 * column, value_1.unsqueeze(-1) * block if mixed else None)

    return KernelFunctions(lambda x1, x2: (x1 @ x2.mT).exp(), blocks)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_READERS", dict(registry._READERS))
    register_kernel(Lorentz, lorentz)
    register_kernel(Exponential, exponential)


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: Lorentz(ard_num_dims=D), StationaryKernel),
        (lambda: ScaleKernel(Lorentz(active_dims=[2, 0])), StationaryKernel),
        (lambda: ScaleKernel(Lorentz(batch_shape=torch.Size([2])), batch_shape=torch.Size([2])), StationaryKernel),
        (lambda: ScaleKernel(Exponential()), GeneralKernel),
        (lambda: Exponential(active_dims=[1]), GeneralKernel),
    ],
)
def test_a_registered_kernel_is_what_automatic_differentiation_makes_of_it(registered, build, kind):
    kernel, x1, x2 = configured(build().double()), points(3, seed=1), points(2, seed=2)
    x1[0] = x2[0]
    assert type(snapshot(kernel)) is kind
    found, expected = kernel_blocks(kernel, x1, x2, mixed=True), differentiated(kernel, True).blocks(x1, x2, True)
    for field in FIELDS:
        close(getattr(found, field), getattr(expected, field), 1e-13)
    close(kernel_values(kernel, x1, x2), expected.value, 1e-13)
    if kind is StationaryKernel:
        diagonal = kernel_blocks(kernel, x1[:1], x1[:1], mixed=True).mixed[..., 0, 0, :, :].diagonal(dim1=-2, dim2=-1)
        close(prior_gradient_variance(kernel, D), diagonal, 1e-13)


@pytest.mark.parametrize("build", [lambda: Lorentz(ard_num_dims=D), lambda: ScaleKernel(Lorentz()), Exponential])
@pytest.mark.parametrize("q", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_model_of_a_registered_kernel_is_that_of_the_automatic_one(registered, monkeypatch, build, q):
    x = points(q, seed=5)
    gp = derived_gp(configured(build().double()), noise=1e-2)
    found = gp.gradient_posterior(x)
    assert isinstance(gp.conditioning, StationaryConditioning) == (build is not Exponential)
    monkeypatch.setattr(registry, "_READERS", {})
    other = derived_gp(configured(build().double()), noise=1e-2)
    expected = other.gradient_posterior(x)
    assert type(other.conditioning.kernel) is GeneralKernel
    for name in ("mean", "trace", "variance", "covariance_matrix", "prior_trace", "spectral_norm"):
        assert_close(getattr(found, name), getattr(expected, name), 1e-9)
    assert_close(found.joint_covariance(), expected.joint_covariance(), 1e-9)


def test_a_radial_kernel_with_a_kink_has_a_mean_only(registered):
    def kinked(kernel, copied):
        return RadialFunctions(
            h=lambda r2: (-r2.sqrt()).exp(),
            h1=lambda r2: -(-r2.sqrt()).exp() / (2 * r2.sqrt()),
            h2=torch.zeros_like,
            lengthscale=copied(kernel.lengthscale),
            title="Lorentz with a kink",
        )

    register_kernel(Lorentz, kinked)
    gp = derived_gp(configured(Lorentz().double()))
    assert gp.gradient_posterior(points(1, seed=5)).mean.isfinite().all()
    with pytest.raises(ValueError, match="Lorentz with a kink has no gradient covariance"):
        _ = gp.gradient_posterior(points(1, seed=5)).trace


def test_subclasses_are_not_taken_for_their_parent(registered):
    class Other(Lorentz):
        pass

    assert type(snapshot(Other().double())) is GeneralKernel


def test_only_kernels_are_registered():
    with pytest.raises(TypeError, match="kind must be a subclass of gpytorch"):
        register_kernel(torch.nn.Linear, lorentz)


NAMES = ["periodic ard", "product with matern", "spectral mixture", "piecewise polynomial 2", "cosine on one input"]
MODELS = {name: lambda name=name: closed(name) for name in NAMES} | {
    name: lambda name=name: unknown(name) for name in ("warped", "network", "subclass")
}

FEW_AUTOMATIC = [
    pytest.param(name, marks=pytest.mark.slow if name in ("network", "subclass") else ()) for name in MODELS
]
"""All, of those that are differentiated automatically one; the others are slow."""


def functions(posterior):
    return {
        "mean": posterior.mean.square().sum(),
        "trace": posterior.trace.sum(),
        "covariance": posterior.covariance_matrix.square().sum(),
    }


@pytest.mark.parametrize("name", FEW_AUTOMATIC)
def test_changes_of_hyperparameters_are_seen_and_do_not_reach_what_was_made(name):
    gp, x = derived_gp(MODELS[name](), noise=1e-2), points(1, seed=5)
    kept, read = gp.gradient_posterior(x), gp.gradient_posterior(x)
    expected = {key: float(value) for key, value in functions(read).items()}
    before = expected["covariance"]
    for parameter in gp.covar_module.parameters():
        parameter.data += 0.3
        after = functions(gp.gradient_posterior(x))
        assert float(after["covariance"]) != before
        before = float(after["covariance"])
        anew = derived_gp(MODELS[name](), noise=1e-2)
        anew.load_state_dict(gp.state_dict())
        for key, value in functions(anew.gradient_posterior(x)).items():
            assert float(after[key]) == pytest.approx(float(value), rel=1e-10)
    for key, value in functions(kept).items():
        assert float(value) == pytest.approx(expected[key], rel=1e-12)


@pytest.mark.parametrize("name", FEW_AUTOMATIC)
def test_derivatives_in_data_and_hyperparameters_are_those_of_differences(name):
    gp, x = derived_gp(MODELS[name](), noise=1e-2, outcome_transform=None), points(1, seed=5)
    inputs = points(6).requires_grad_()
    gp.set_train_data(inputs, strict=False)
    variables = {n: p for n, p in gp.covar_module.named_parameters() if p.requires_grad} | {"inputs": inputs}
    with botorch_settings.propagate_grads(True):
        found = functions(gp.gradient_posterior(x))
    slopes = {
        key: torch.autograd.grad(value, list(variables.values()), retain_graph=True) for key, value in found.items()
    }
    for i, (variable, tensor) in enumerate(variables.items()):
        at, ends = tuple(0 for _ in tensor.shape), []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                tensor[at] += step
            gp.set_train_data(inputs, strict=False)
            ends.append(functions(gp.gradient_posterior(x)))
        with torch.no_grad():
            tensor[at] += 1e-5
        for key, value in found.items():
            expected = float((ends[0][key] - ends[1][key]).detach()) / 2e-5
            margin = 2e-5 * max(1.0, abs(float(value.detach())))
            assert float(slopes[key][i][at]) == pytest.approx(expected, rel=2e-5, abs=margin), f"d {key} / d {variable}"


@pytest.mark.parametrize("name", MODELS)
def test_observations_that_are_added_and_values(name):
    gp, x, more = derived_gp(MODELS[name](), noise=1e-2, outcome_transform=None), points(2, seed=5), points(2, seed=6)
    gp.gradient_posterior(x).mean
    gp.add_observations(more, outcomes(more))
    X = torch.cat([points(6), more])
    anew = derived_gp(MODELS[name](), noise=1e-2, outcome_transform=None)
    anew.set_train_data(X, outcomes(X).squeeze(-1), strict=False)
    assert_close(gp.gradient_posterior(x).mean, anew.gradient_posterior(x).mean, 1e-9)
    assert_close(gp.gradient_posterior(x).covariance_matrix, anew.gradient_posterior(x).covariance_matrix, 1e-9)
    kernel = gp.covar_module
    A = kernel(X).to_dense().detach() + gp.likelihood.noise.detach() * torch.eye(8, dtype=torch.float64)
    residual = outcomes(X).squeeze(-1) - gp.mean_module.constant.detach()
    expected = gp.mean_module.constant.detach() + kernel(x, X).to_dense().detach() @ torch.linalg.solve(A, residual)
    assert_close(gp.posterior(x).mean.squeeze(-1), expected, 1e-7)


def test_scaled_sums_with_registered_kernels(registered):
    kernel = configured(ScaleKernel(Lorentz() * RBFKernel(active_dims=[0]) + LinearKernel()).double())
    x1, x2 = points(3, seed=1), points(2, seed=2)
    found, expected = kernel_blocks(kernel, x1, x2, mixed=True), differentiated(kernel, True).blocks(x1, x2, True)
    for field in FIELDS:
        close(getattr(found, field), getattr(expected, field), 1e-12)
