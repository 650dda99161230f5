"""A conditioning, and a posterior made from it, keep what they were made from; the model never serves stale numbers.

The reference of every number is a model made anew with the same data and hyper-parameters.
"""

import copy

import gpytorch
import pytest
import torch
from botorch import settings as botorch_settings
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.means import LinearMean
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates import DerivedGP, gaussian_likelihood
from tests.surrogates.reference import assert_close

D, N = 3, 12
GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(N, D, generator=GENERATOR, dtype=torch.float64)
Y = (3.0 * X).sin().sum(-1, keepdim=True) + X.prod(-1, keepdim=True)
XQ = torch.rand(2, D, generator=GENERATOR, dtype=torch.float64)

KERNELS = {
    "stationary": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)),
    "sum": lambda: ScaleKernel(RBFKernel(ard_num_dims=D)) + MaternKernel(nu=1.5),
    "product": lambda: ScaleKernel(RBFKernel() * RQKernel(active_dims=[0, 2])),
}
MEANS = {"constant": lambda: None, "linear": lambda: LinearMean(D)}


def model_of(kernel, mean="constant", transform=False, inputs=X):
    gp = DerivedGP(
        inputs.clone(),
        Y.clone(),
        likelihood=gaussian_likelihood(1e-3),
        covar_module=KERNELS[kernel]().double(),
        mean_module=MEANS[mean](),
        input_transform=Normalize(D) if transform else None,
    ).double()
    gp.eval()
    return gp


def anew(gp):
    """A model of the same data and hyper-parameters that has computed nothing yet: copies of the parts in a new whole.

    Only GPyTorch's and BoTorch's own modules are copied, not the model, whose copies might keep what it keeps.
    """
    kernel, mean, likelihood, outcomes = (
        copy.deepcopy(part) for part in (gp.covar_module, gp.mean_module, gp.likelihood, gp.outcome_transform)
    )
    model = DerivedGP(X.clone(), Y.clone(), likelihood=likelihood, covar_module=kernel, mean_module=mean)
    model.set_train_data(gp.train_inputs[0].clone(), gp.train_targets.clone(), strict=False)
    model.outcome_transform = outcomes
    return model.eval()


def numbers(posterior):
    return posterior.mean.detach(), posterior.trace.detach(), posterior.covariance_matrix.detach()


def check(posterior, expected):
    for a, b in zip(numbers(posterior), expected, strict=True):
        assert_close(a, b, 1e-12)


def base(gp):
    """A kernel of the tree that has a lengthscale."""
    kernel = gp.covar_module
    while not kernel.has_lengthscale:
        kernel = kernel.base_kernel if hasattr(kernel, "base_kernel") else kernel.kernels[0]
    return kernel


def by_initialize(gp):
    # The raw one, as the lengthscale itself may leave the bounds of a constraint that came before.
    base(gp).initialize(raw_lengthscale=base(gp).raw_lengthscale.detach() + 1.3)


def in_place(gp):
    with torch.no_grad():
        base(gp).raw_lengthscale.add_(0.7)


def through_data(gp):
    base(gp).raw_lengthscale.data.add_(0.7)


def a_new_parameter(gp):
    base(gp).raw_lengthscale = torch.nn.Parameter(base(gp).raw_lengthscale.detach() + 0.7)


def a_constraint(gp):
    base(gp).register_constraint("raw_lengthscale", Interval(0.5, 3.0))


def bounds_of_a_constraint(gp):
    base(gp).register_constraint("raw_lengthscale", GreaterThan(0.1))
    gp.gradient_posterior(XQ).mean
    base(gp).raw_lengthscale_constraint.lower_bound.fill_(0.9)


def another_base_kernel(gp):
    whole = gp.covar_module
    if hasattr(whole, "base_kernel"):
        whole.base_kernel = RQKernel().double()
    else:
        whole.kernels[0] = RBFKernel().double()


def another_nu(gp):
    for kernel in gp.covar_module.modules():
        if isinstance(kernel, MaternKernel):
            kernel.nu = 1.5 if kernel.nu == 2.5 else 2.5


def another_noise(gp):
    gp.likelihood.noise = 0.3


def another_mean(gp):
    with torch.no_grad():
        for parameter in gp.mean_module.parameters():
            parameter.add_(0.9)


def inputs_in_place(gp):
    gp.train_inputs[0][0].add_(0.05)


def targets_in_place(gp):
    gp.train_targets[3] += 0.5


def other_data(gp):
    gp.set_train_data(gp.train_inputs[0] + 0.01, gp.train_targets.clone(), strict=False)


def an_observation(gp):
    gp.add_observations(XQ[:1] + 0.02, Y[:1])


def a_refit_of_the_outcomes_scale(gp):
    gp.outcome_transform.stdvs.mul_(1.5)


CHANGES = [
    by_initialize,
    in_place,
    through_data,
    a_new_parameter,
    a_constraint,
    bounds_of_a_constraint,
    another_base_kernel,
    another_nu,
    another_noise,
    another_mean,
    inputs_in_place,
    targets_in_place,
    other_data,
    an_observation,
    a_refit_of_the_outcomes_scale,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_posterior_keeps_what_it_was_made_from_and_the_model_what_it_is(kernel, mean, change):
    gp = model_of(kernel, mean)
    expected = numbers(anew(gp).gradient_posterior(XQ))
    unread, half_read, conditioning = gp.gradient_posterior(XQ), gp.gradient_posterior(XQ), gp.conditioning
    half_read.mean
    change(gp)
    check(unread, expected)
    check(half_read, expected)
    after = gp.gradient_posterior(XQ)
    check(after, numbers(anew(gp).gradient_posterior(XQ)))
    changed = not (kernel == "product" and change is another_nu)  # it has no Matérn kernel
    assert (gp.conditioning is not conditioning) == changed
    assert torch.allclose(after.mean, expected[0], rtol=1e-6) != changed


@pytest.mark.parametrize("kernel", KERNELS)
def test_under_propagate_grads_too_a_posterior_keeps_what_it_was_made_from(kernel):
    gp = model_of(kernel, "linear")
    expected = numbers(gp.gradient_posterior(XQ))
    with botorch_settings.propagate_grads(True):
        posterior = gp.gradient_posterior(XQ)
    another_mean(gp)
    in_place(gp)
    check(posterior, expected)


def test_a_posterior_keeps_its_points():
    gp, x = model_of("stationary"), XQ.clone()
    expected = numbers(gp.gradient_posterior(XQ))
    posterior = gp.gradient_posterior(x)
    x.add_(0.5)
    check(posterior, expected)


def test_nothing_is_factorised_twice():
    gp = model_of("sum", "linear", transform=True)
    conditioning = gp.conditioning
    gp.gradient_posterior(XQ).mean
    gp.posterior(XQ).variance
    base(gp).lengthscale = base(gp).lengthscale.detach().clone()
    assert gp.conditioning is conditioning, "the same numbers, set again"


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_changes_between_reads(data):
    """Whatever is changed in whatever order, with reads between, the numbers are those of a model made anew."""
    gp = model_of(data.draw(st.sampled_from(sorted(KERNELS))), data.draw(st.sampled_from(sorted(MEANS))), False)
    kept = []
    for change in data.draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=6)):
        if data.draw(st.booleans()):
            posterior = gp.gradient_posterior(XQ)
            kept.append((posterior, numbers(anew(gp).gradient_posterior(XQ))))
        change(gp)
        if data.draw(st.booleans()):
            assert_close(gp.posterior(XQ).mean.detach(), anew(gp).posterior(XQ).mean.detach(), 1e-9)
    check(gp.gradient_posterior(XQ), numbers(anew(gp).gradient_posterior(XQ)))
    for posterior, expected in kept:
        check(posterior, expected)


# Derivatives in data, noise and hyper-parameters.


def functions(posterior):
    base_samples = torch.randn(3, *posterior.base_sample_shape, generator=torch.Generator().manual_seed(1)).double()
    return {
        "mean": posterior.mean.square().sum(),
        "trace": posterior.trace.sum(),
        "variance": posterior.variance.sum(),
        "covariance": posterior.covariance_matrix.square().sum(),
        "samples": posterior.rsample_from_base_samples(torch.Size([3]), base_samples).square().sum(),
    }


@pytest.mark.parametrize("transform", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("q", [1, 2])
def test_derivatives_in_data_noise_and_hyperparameters_are_those_of_differences(q, kernel, mean, transform):
    inputs = X.clone().requires_grad_(not transform)
    gp = model_of(kernel, mean, transform)
    if not transform:
        gp.set_train_data(inputs, strict=False)
    parameters = {name: p for name, p in gp.named_parameters() if p.requires_grad}
    variables = {**parameters} | ({} if transform else {"inputs": inputs})
    with botorch_settings.propagate_grads(True):
        found = functions(gp.gradient_posterior(XQ[:q]))
    slopes = {
        name: torch.autograd.grad(value, list(variables.values()), retain_graph=True, allow_unused=True)
        for name, value in found.items()
    }
    for i, (variable, tensor) in enumerate(variables.items()):
        at, h, ends = tuple(0 for _ in tensor.shape), 1e-5, []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                tensor[at] += sign * h
            if not transform:
                gp.set_train_data(inputs, strict=False)
            ends.append(functions(gp.gradient_posterior(XQ[:q])))
            with torch.no_grad():
                tensor[at] -= sign * h
        for name, value in found.items():
            slope = 0.0 if slopes[name][i] is None else float(slopes[name][i][at])
            expected = float(ends[0][name] - ends[1][name]) / (2 * h)
            margin = 2e-5 * max(1.0, abs(float(value)))
            assert slope == pytest.approx(expected, rel=2e-5, abs=margin), f"d {name} / d {variable}"


def test_the_gradient_in_one_datum_that_was_wrong():
    """d mean/dX was that of the Jacobian alone, without that of A⁻¹ y."""
    inputs = X.clone().requires_grad_(True)
    gp = DerivedGP(inputs, Y, likelihood=gaussian_likelihood(1e-3), covar_module=MaternKernel(nu=2.5).double())
    gp.eval()
    with botorch_settings.propagate_grads(True):
        (slope,) = torch.autograd.grad(gp.gradient_posterior(XQ[:1]).mean[0, 0], inputs)
    ends = []
    for sign in (1.0, -1.0):
        moved = X.clone()
        moved[0, 0] += sign * 1e-6
        other = DerivedGP(moved, Y, likelihood=gaussian_likelihood(1e-3), covar_module=MaternKernel(nu=2.5).double())
        other.load_state_dict(gp.state_dict())
        ends.append(float(other.gradient_posterior(XQ[:1]).mean[0, 0]))
    assert float(slope[0, 0]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_values_under_propagate_grads_are_single_task_gps():
    gp = model_of("stationary")
    other = SingleTaskGP(X, Y, likelihood=gaussian_likelihood(1e-3), covar_module=KERNELS["stationary"]().double())
    other.load_state_dict(gp.state_dict())
    other.eval()
    slopes = []
    for model in (gp, other):
        with botorch_settings.propagate_grads(True), gpytorch.settings.fast_computations(False, False, False):
            value = model.posterior(XQ).mean.sum()
        slopes.append(torch.autograd.grad(value, list(model.covar_module.parameters())))
    for a, b in zip(*slopes, strict=True):
        assert_close(a, b, 1e-6)
