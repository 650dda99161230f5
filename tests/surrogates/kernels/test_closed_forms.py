"""Closed forms against differences in 60 digits, automatic derivatives of GPyTorch's formulas, and brute force."""

import pytest
import torch
from botorch.models.transforms import Normalize
from gpytorch.kernels import (
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)

from surrogates import kernel_blocks, prior_gradient_covariance, prior_gradient_variance
from surrogates.kernels.automatic import differentiated
from surrogates.kernels.blocks import kernel_values
from tests.surrogates.gp_models import D, configured, derived_gp, outcomes, points
from tests.surrogates.kernels.further import CLOSED, closed
from tests.surrogates.kernels.test_blocks import blocks_by_differences, pairs
from tests.surrogates.reference import assert_close, kernel_function, reference, to_mp, to_tensor

FIELDS = ("value", "first", "second", "mixed")


def close(a, b, tolerance):
    """Close in units of the larger of 1 and the largest entry: some blocks are 0."""
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", CLOSED)
def test_blocks_equal_differences_in_high_precision(name):
    kernel, (x1, x2) = closed(name), pairs()
    blocks = kernel_blocks(kernel, x1, x2, mixed=True)
    for i, a in enumerate(x1):
        for j, b in enumerate(x2):
            for field, expected in zip(FIELDS, blocks_by_differences(kernel, a, b), strict=True):
                # At a distance of 1e-9 the difference of the points has 8 digits.
                close(getattr(blocks, field)[i, j], expected, 1e-8 if i == 1 and j == 2 else 1e-12)


@pytest.mark.parametrize("name", CLOSED)
def test_blocks_equal_automatic_derivatives_of_gpytorchs_own_formula(name):
    kernel, (x1, x2) = closed(name), pairs()
    x1[1] = points(1, seed=3)[0]  # the chain rule through r loses the digits of 1/r
    blocks, expected = kernel_blocks(kernel, x1, x2, mixed=True), differentiated(kernel, True).blocks(x1, x2, True)
    for field in FIELDS:
        close(getattr(blocks, field), getattr(expected, field), 1e-10)


@pytest.mark.parametrize("name", CLOSED)
def test_values_are_gpytorchs(name):
    kernel, (x1, x2) = closed(name), pairs()
    close(kernel_values(kernel, x1, x2), kernel(x1, x2).to_dense().detach(), 1e-7)
    exact = to_tensor([[kernel_function(kernel)(to_mp(a), to_mp(b)) for b in x1] for a in x1])
    close(kernel_values(kernel, x1, x1), exact, 1e-12)


@pytest.mark.parametrize("name", CLOSED)
def test_prior_covariance_is_the_mixed_block_at_coincident_points(name):
    kernel, x = closed(name), points(3)
    found = prior_gradient_covariance(kernel, x)
    for i, a in enumerate(x):
        close(found[i], blocks_by_differences(kernel, a, a)[3], 1e-12)


def batched(build):
    return configured(build(torch.Size([2])).double())


BATCHED = {
    "linear": lambda b: ScaleKernel(LinearKernel(ard_num_dims=D, batch_shape=b), batch_shape=b),
    "polynomial": lambda b: PolynomialKernel(power=3, batch_shape=b),
    "periodic": lambda b: ScaleKernel(PeriodicKernel(ard_num_dims=D, batch_shape=b), batch_shape=b),
    "cosine": lambda b: CosineKernel(batch_shape=b),
    "piecewise polynomial": lambda b: PiecewisePolynomialKernel(q=2, ard_num_dims=D, batch_shape=b),
    "spectral mixture": lambda b: SpectralMixtureKernel(num_mixtures=2, ard_num_dims=D, batch_shape=b),
    "product": lambda b: LinearKernel(batch_shape=b) * ScaleKernel(RBFKernel(batch_shape=b), batch_shape=b),
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("batched_points", [False, True])
def test_batches(name, batched_points):
    kernel = batched(BATCHED[name])
    x1, x2 = points(3, seed=1, batch=(2,)), points(2, seed=2, batch=(2,))
    if not batched_points:
        x1, x2 = x1[0], x2[0]
    blocks = kernel_blocks(kernel, x1, x2, mixed=True)
    values, prior = kernel_values(kernel, x1, x2), prior_gradient_covariance(kernel, x1)
    for b in range(2):
        p, q = (x[b] if batched_points else x for x in (x1, x2))
        expected = blocks_by_differences(kernel, p[2], q[1], (b,))
        close(values[b, 2, 1], expected[0], 1e-13)
        for field, block in zip(FIELDS, expected, strict=True):
            close(getattr(blocks, field)[b, 2, 1], block, 1e-12)
        close(prior[b, 1], blocks_by_differences(kernel, p[1], p[1], (b,))[3], 1e-12)


POSITIVE = [name for name in CLOSED if name != "cosine"]  # which is no covariance in d > 1


@pytest.mark.parametrize("name", POSITIVE)
def test_posterior_is_that_of_brute_force(name):
    gp, x = derived_gp(closed(name), noise=1e-2), points(2, seed=5)
    X = points(6)
    mean, covariance = reference(gp, X, outcomes(X)).joint(x)
    found, q, d = gp.gradient_posterior(x), len(x), D
    gradients = covariance.reshape(q, d + 1, q, d + 1)[:, 1:, :, 1:]
    own = torch.stack([gradients[i, :, i] for i in range(q)])
    scale = float(gradients.abs().max())
    assert_close(found.mean, mean[:, 1:], 1e-9)
    assert_close(found.covariance_matrix / scale, own / scale, 1e-9)
    assert_close(found.variance, own.diagonal(dim1=-2, dim2=-1), 1e-9)
    assert_close(found.trace, own.diagonal(dim1=-2, dim2=-1).sum(-1), 1e-9)
    assert_close(found.spectral_norm, torch.linalg.eigvalsh(own)[:, -1], 1e-9)
    assert_close(found.joint_covariance(), gradients.reshape(q * d, q * d), 1e-9)
    u = points(2, seed=9)
    assert_close(found.directional_variance(u), torch.einsum("qi,qij,qj->q", u, own, u), 1e-9)
    joint = gp.joint_posterior(x)
    assert_close(joint.mean, mean, 1e-9)
    assert_close(joint.distribution.covariance_matrix, covariance, 1e-9)
    across = gp.value_gradient_covariance(x, x)
    assert_close(across, covariance.reshape(q, d + 1, q, d + 1)[:, 0, :, 1:], 1e-9)


@pytest.mark.parametrize("name", ["linear ard", "product with matern", "spectral mixture", "piecewise polynomial 2"])
def test_input_transforms_and_prior_trace(name):
    kernel = closed(name)
    x = points(2, seed=5)
    gp = derived_gp(kernel, input_transform=Normalize(D, bounds=torch.tensor([[-3.0] * D, [1.0, 2.0, 3.0]]).double()))
    found = gp.gradient_posterior(x)
    posterior = reference(gp, points(6), outcomes(points(6)))
    expected = torch.stack([posterior.gradient_covariance(a) for a in x])
    assert_close(found.mean, torch.stack([posterior.gradient_mean(a) for a in x]), 1e-8)
    assert_close(found.covariance_matrix, expected, 1e-8)
    slope = 1 / torch.tensor([4.0, 5.0, 6.0]).double()
    prior = prior_gradient_covariance(kernel, gp.transform_inputs(x)) * slope[:, None] * slope
    scale = gp.outcome_scale.square()
    assert_close(found.prior_trace, scale * prior.diagonal(dim1=-2, dim2=-1).sum(-1), 1e-12)


@pytest.mark.parametrize("n", [2, 6])
@pytest.mark.parametrize("name", ["polynomial 2", "product with matern", "periodic ard"])
def test_samples_have_the_covariance_where_the_prior_is_not_one_diagonal(name, n):
    gp, x = derived_gp(closed(name), n=n, noise=1e-2), points(1, seed=5)
    posterior = gp.gradient_posterior(x)
    width = posterior.base_sample_shape.numel()
    base = torch.eye(width, dtype=torch.float64).reshape(width, *posterior.base_sample_shape)
    # Samples are linear in their base samples: the images of the unit vectors are the columns of a root.
    columns = (posterior.rsample_from_base_samples(torch.Size([width]), base) - posterior.mean).squeeze(-2)
    assert_close(columns.mT @ columns, posterior.covariance_matrix.squeeze(-3), 1e-5)
    both = gp.gradient_posterior(points(2, seed=5))
    width = both.base_sample_shape.numel()
    base = torch.eye(width, dtype=torch.float64).reshape(width, *both.base_sample_shape)
    columns = (both.rsample_from_base_samples(torch.Size([width]), base) - both.mean).flatten(1)
    assert_close(columns.mT @ columns, both.joint_covariance(), 1e-5)


def test_piecewise_polynomial_0_has_a_mean_away_from_the_data_only():
    kernel = configured(ScaleKernel(PiecewisePolynomialKernel(q=0)).double())
    gp, x = derived_gp(kernel), points(1, seed=5) * 0.3
    assert_close(gp.gradient_posterior(x).mean[0], reference(gp, points(6), outcomes(points(6))).gradient_mean(x[0]))
    for ask in ("trace", "variance", "covariance_matrix", "prior_trace", "spectral_norm"):
        with pytest.raises(ValueError, match=r"PiecewisePolynomialKernel\(q=0\) has no gradient between"):
            getattr(gp.gradient_posterior(x), ask)
    with pytest.raises(ValueError, match=r"PiecewisePolynomialKernel\(q=0\) has no gradient between"):
        _ = gp.gradient_posterior(points(6)[:1]).mean


@pytest.mark.parametrize("combine", [lambda a, b: a + b, lambda a, b: a * b], ids=["sum", "product"])
def test_a_kink_hides_in_no_sum_or_product(combine):
    gp, x = derived_gp(configured(combine(LinearKernel(), MaternKernel(nu=0.5)).double())), points(1, seed=5)
    assert gp.gradient_posterior(x).mean.isfinite().all()
    with pytest.raises(ValueError, match="no gradient covariance"):
        _ = gp.gradient_posterior(x).trace
    with pytest.raises(ValueError, match="no gradient covariance"):
        gp.value_gradient_covariance(x, points(1, seed=6))


def test_there_is_no_single_prior_variance_where_it_depends_on_the_point():
    with pytest.raises(ValueError, match="prior_gradient_covariance"):
        prior_gradient_variance(closed("linear"), D)
    assert derived_gp(closed("linear")).conditioning.prior_variance is None


@pytest.mark.parametrize("name", POSITIVE)
def test_derivatives_in_points_are_finite_and_those_of_differences(name):
    gp, x = derived_gp(closed(name), noise=1e-2), points(2, seed=5)
    x.requires_grad_()
    posterior = gp.gradient_posterior(x)
    (slope,) = torch.autograd.grad(posterior.mean[0].sum() + posterior.trace[0] + 0 * x.sum(), x)
    h = 1e-6
    for i in range(D):
        ends = []
        for step in (h, -h):
            moved = x.detach().clone()
            moved[0, i] += step
            at = gp.gradient_posterior(moved)
            ends.append(float(at.mean[0].sum() + at.trace[0]))
        assert float(slope[0, i]) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (PeriodicKernel(ard_num_dims=2), "ard_num_dims=2 for 3 inputs"),
        (SpectralMixtureKernel(num_mixtures=2), "ard_num_dims=1 for 3 inputs"),
        (LinearKernel(active_dims=[0, 3]), r"active_dims must be in \[0, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_model_is_made(kernel, message):
    with pytest.raises(ValueError, match=message):
        derived_gp(kernel.double())


@pytest.mark.parametrize("parameter", ["lengthscale", "period_length"])
def test_hyperparameters_that_are_not_positive_are_named(parameter):
    kernel = PeriodicKernel()
    constraint = getattr(kernel, f"raw_{parameter}_constraint")
    constraint.transform = lambda value: value
    getattr(kernel, f"raw_{parameter}").data.fill_(-1.0)
    with pytest.raises(ValueError, match=rf"{parameter} must be finite and positive, got \[-1"):
        derived_gp(kernel.double())
