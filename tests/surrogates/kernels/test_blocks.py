import pytest
import torch
from gpytorch.kernels import (
    IndexKernel,
    MaternKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)

from surrogates import UnsupportedKernelError, kernel_blocks, prior_gradient_variance
from surrogates.kernels.blocks import check_kernel, kernel_values
from surrogates.kernels.stationary import as_stationary
from tests.surrogates.gp_models import KERNELS, D, configured, kernel_named, points
from tests.surrogates.reference import STEP, assert_close, kernel_function, moved, to_mp, to_tensor


def blocks_by_differences(kernel, x1, x2, index=()):
    """k, ∂k/∂x, ∂k/∂x', ∂²k/∂x∂x' of one pair."""
    k, (x1, x2) = kernel_function(kernel, index), (to_mp(x1), to_mp(x2))
    first = [(k(up, x2) - k(down, x2)) / (2 * STEP) for up, down in (moved(x1, i) for i in range(len(x1)))]
    second = [(k(x1, up) - k(x1, down)) / (2 * STEP) for up, down in (moved(x2, i) for i in range(len(x2)))]
    mixed = []
    for i in range(len(x1)):
        (u1, d1), row = moved(x1, i), []
        for j in range(len(x2)):
            u2, d2 = moved(x2, j)
            row.append((k(u1, u2) - k(u1, d2) - k(d1, u2) + k(d1, d2)) / (4 * STEP**2))
        mixed.append(row)
    return tuple(to_tensor(block) for block in (k(x1, x2), first, second, mixed))


def pairs():
    """Points of which one coincides with, and one is very near to, a point of the other set."""
    x1, x2 = points(4, seed=1), points(3, seed=2)
    x1[0] = x2[1]
    x1[1] = x2[2] + 1e-9
    return x1, x2


@pytest.mark.slip(
    "surrogates/kernels/blocks.py",
    "(4 * outputscale * profile.h2",
    "(2 * outputscale * profile.h2",
    "half of the outer product in ∂²k/∂x∂x'",
)
@pytest.mark.slip(
    "surrogates/kernels/blocks.py",
    "profile.h(r2), first, -first, block)",
    "profile.h(r2), first, first, block)",
    "∂k/∂x' with the sign of ∂k/∂x",
)
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_equal_differences_in_high_precision(name):
    kernel = kernel_named(name)
    x1, x2 = pairs()
    blocks = kernel_blocks(kernel, x1, x2, mixed=True)
    assert_close(blocks.value, kernel(x1, x2).to_dense(), 1e-7)  # the reference reads the kernel as GPyTorch does
    for i, a in enumerate(x1):
        for j, b in enumerate(x2):
            value, first, second, mixed = blocks_by_differences(kernel, a, b)
            assert_close(blocks.value[i, j], value, 1e-13)
            assert_close(blocks.mixed[i, j], mixed, 1e-12)
            if i or j != 1:  # where they vanish there is nothing to be relative to
                assert_close(blocks.first[i, j], first, 1e-7 if i == 1 else 1e-12)
                assert_close(blocks.second[i, j], second, 1e-7 if i == 1 else 1e-12)
    assert (blocks.first[0, 1] == 0).all()


@pytest.mark.parametrize("name", KERNELS)
def test_values_are_exact_at_and_near_coincident_points_and_far_from_the_origin(name):
    kernel = kernel_named(name)
    x1, x2 = pairs()
    k = kernel_function(kernel)
    for shift in (0.0, 100.0):
        a, b = x1 + shift, x2 + shift
        expected = to_tensor([[k(to_mp(p), to_mp(q)) for q in b] for p in a])
        assert_close(kernel_values(kernel, a, b), expected, 1e-12)
        among = to_tensor([[k(to_mp(p), to_mp(q)) for q in a] for p in a])
        assert_close(kernel_values(kernel, a, a), among, 1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_prior_gradient_variance_is_the_diagonal_at_coincident_points(name):
    kernel, x = kernel_named(name), points(1)
    mixed = kernel_blocks(kernel, x, x, mixed=True).mixed[0, 0]
    assert_close(prior_gradient_variance(kernel, D), blocks_by_differences(kernel, x[0], x[0])[3].diagonal(), 1e-13)
    assert_close(prior_gradient_variance(kernel, D).diag(), mixed, 1e-13)


def batched(build):
    """The kernel with batch shape 2, each element with its own hyper-parameters."""
    return configured(build(torch.Size([2])).double())


BATCHED = {
    "scaled ard": lambda b: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D, batch_shape=b), batch_shape=b),
    "rq": lambda b: ScaleKernel(RQKernel(batch_shape=b), batch_shape=b),
    "sum": lambda b: ScaleKernel(
        RBFKernel(batch_shape=b) + MaternKernel(nu=1.5, ard_num_dims=D, batch_shape=b), batch_shape=b
    ),
    "product": lambda b: ScaleKernel(RBFKernel(batch_shape=b), batch_shape=b) * RQKernel(batch_shape=b, ard_num_dims=D),
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("batched_points", [False, True])
def test_batches_of_kernels(name, batched_points):
    kernel = batched(BATCHED[name])
    x1, x2 = points(3, seed=1, batch=(2,)), points(2, seed=2, batch=(2,))
    if not batched_points:
        x1, x2 = x1[0], x2[0]
    blocks = kernel_blocks(kernel, x1, x2, mixed=True)
    values, prior = kernel_values(kernel, x1, x2), prior_gradient_variance(kernel, D)
    for b in range(2):
        p, q = (x[b] if batched_points else x for x in (x1, x2))
        value, first, second, mixed = blocks_by_differences(kernel, p[2], q[1], (b,))
        assert_close(blocks.value[b, 2, 1], value, 1e-13)
        assert_close(values[b, 2, 1], value, 1e-13)
        assert_close(blocks.first[b, 2, 1], first, 1e-12)
        assert_close(blocks.second[b, 2, 1], second, 1e-12)
        assert_close(blocks.mixed[b, 2, 1], mixed, 1e-12)
        assert_close(prior[b], blocks_by_differences(kernel, p[0], p[0], (b,))[3].diagonal(), 1e-13)


def test_matern_half_has_first_derivatives_away_from_coincidence_only():
    kernel = configured(ScaleKernel(MaternKernel(nu=0.5)).double())
    x1, x2 = points(2, seed=1), points(2, seed=2)
    _, first, _, _ = blocks_by_differences(kernel, x1[0], x2[1])
    assert_close(kernel_blocks(kernel, x1, x2).first[0, 1], first, 1e-12)
    with pytest.raises(ValueError, match=r"coincides with a data point.*nu=0.5"):
        kernel_blocks(kernel, x1, x1)
    for x in (x1, x2):
        with pytest.raises(ValueError, match=r"no gradient covariance"):
            kernel_blocks(kernel, x1, x, mixed=True)
    with pytest.raises(ValueError, match=r"no gradient covariance"):
        prior_gradient_variance(kernel, D)


class Twice(ScaleKernel):
    def forward(self, x1, x2, **params):
        return 2 * super().forward(x1, x2, **params)


@pytest.mark.parametrize("wrap", [lambda k: k, lambda k: RBFKernel() + k, lambda k: ScaleKernel(k * RBFKernel())])
def test_a_subclass_is_not_taken_for_its_parent_wherever_it_hides(wrap):
    subclass, plain = (wrap(kind(RBFKernel(active_dims=[0]))).double() for kind in (Twice, ScaleKernel))
    (twice,) = (module for module in plain.modules() if type(module) is ScaleKernel and module.active_dims is not None)
    twice.outputscale = 2 * twice.outputscale.detach()
    x1, x2 = pairs()
    found, expected = kernel_blocks(subclass, x1, x2, mixed=True), kernel_blocks(plain, x1, x2, mixed=True)
    assert_close(found.value, expected.value, 1e-13)
    assert_close(found.mixed, expected.mixed, 1e-12)
    assert_close(kernel_values(subclass, x1, x2), expected.value, 1e-13)


@pytest.mark.parametrize("wrap", [lambda k: k, lambda k: RBFKernel() + k, lambda k: ScaleKernel(k * RBFKernel())])
def test_kernels_of_indices_are_refused_wherever_they_hide(wrap):
    x = points(2).float()
    for attempt in (
        lambda k: check_kernel(k, 3),
        lambda k: kernel_blocks(k, x, x),
        lambda k: kernel_values(k, x, x),
        lambda k: prior_gradient_variance(k, 3),
    ):
        with pytest.raises(UnsupportedKernelError, match="IndexKernel has no gradient: its inputs are indices"):
            attempt(wrap(IndexKernel(num_tasks=2)))


def test_gradient_kernels_give_their_value_part():
    grad, plain = (configured(ScaleKernel(k).double()) for k in (RBFKernelGrad(), RBFKernel()))
    x1, x2 = pairs()
    assert_close(kernel_blocks(grad, x1, x2, mixed=True).mixed, kernel_blocks(plain, x1, x2, mixed=True).mixed, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0])
@pytest.mark.parametrize("parameter", ["outputscale", "lengthscale", "alpha"])
@pytest.mark.parametrize("composite", [False, True])
def test_hyperparameters_that_are_not_positive_are_named(bad, parameter, composite):
    kernel = ScaleKernel(RQKernel())
    owner = kernel if parameter == "outputscale" else kernel.base_kernel
    constraint = getattr(owner, f"raw_{parameter}_constraint")
    constraint.transform = lambda value: value  # a user's constraint may allow anything
    getattr(owner, f"raw_{parameter}").data.fill_(bad)
    with pytest.raises(ValueError, match=rf"{parameter} must be finite and positive, got \[{bad}"):
        check_kernel(kernel * RBFKernel() if composite else kernel, 3)


def test_one_stationary_kernel_is_recognised_through_its_scales():
    kernel = kernel_named("nested scales")
    stationary = as_stationary(kernel)
    assert stationary.isotropic
    assert_close(stationary.outputscale.squeeze(), kernel.outputscale * kernel.base_kernel.outputscale, 1e-15)
    assert as_stationary(kernel_named("sum")) is None
