import pytest
import torch

from surrogates import kernel_blocks
from surrogates.kernels import one_pass
from surrogates.kernels.one_pass import differences_along, squared_distances_to, weighted_differences
from surrogates.kernels.stationary import as_stationary
from tests.memory import printed, reads_peak
from tests.surrogates.gp_models import configured, kernel_named, points
from tests.surrogates.reference import assert_close
from tests.surrogates.uncompiled import PATHS, needs_numba, uncompiled

SINGLE = ["rbf", "rbf ard", "matern 3/2", "matern 3/2 ard", "matern 5/2", "matern 5/2 ard", "rq", "rq ard"]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "torch":
        uncompiled(monkeypatch)
    return request.param


def widened(kernel, d):
    """The kernel over d inputs."""
    base = kernel.base_kernel
    if base.ard_num_dims:
        base.ard_num_dims = d
        base.raw_lengthscale.data = base.raw_lengthscale.data[..., torch.arange(d) % 3] + (d > 100) * d**0.5
    elif d > 100:
        base.raw_lengthscale.data += d**0.5
    return kernel


def dense(kernel, X, x, alpha, slope=None):
    """J(x)ᵀ α from the dense blocks."""
    mean = (kernel_blocks(kernel, x, X).first.mT @ alpha[..., None, :, None]).squeeze(-1)
    return mean if slope is None else mean * slope


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 3), (4, 1), (9, 3), (13, 1025), (7, 2100)])
def test_mean_and_distances_of_one_point(name, n, d, path):
    kernel = widened(kernel_named(name), d)
    X, x, alpha = points(n, d, seed=1), points(1, d, seed=2), points(n, 1, seed=3).squeeze(-1)
    slope = 1 + points(1, d, seed=4).abs()
    stationary = as_stationary(kernel).with_slope(slope if name.endswith("ard") else slope[:, :1])
    found = one_pass.one_pass(stationary, X, x, alpha)
    assert_close(found.mean, dense(kernel, X, x, alpha, slope if name.endswith("ard") else slope[:, :1]), 1e-12)
    difference = x - X
    assert_close(found.r2[0], (difference**2 * stationary.precision).sum(-1), 1e-13)
    assert_close(found.q[0], (difference**2 * stationary.column_scales**2).sum(-1), 1e-13)
    assert_close(found.c, 2 * stationary.outputscale * stationary.profile.h1(found.r2), 1e-13)


@needs_numba
@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("strided", [False, True])
def test_compiled_and_torch_give_the_same_numbers(name, dtype, strided, monkeypatch):
    kernel = widened(kernel_named(name, dtype), 200)
    X = points(22, 200, seed=1, dtype=dtype)
    X = X[::2] if strided else X[:11]
    x, alpha = X[4:5].clone(), points(11, 1, seed=3).squeeze(-1)
    compiled = one_pass.one_pass(as_stationary(kernel), X, x, alpha)
    uncompiled(monkeypatch)
    for a, b in zip(compiled, one_pass.one_pass(as_stationary(kernel), X, x, alpha), strict=True):
        assert a.dtype == b.dtype
        assert_close(a, b.double(), 1e-13 if dtype == torch.float64 else 3e-6)


@pytest.mark.parametrize("name", SINGLE)
def test_many_points_and_blocks_of_rows(name, monkeypatch):
    kernel = kernel_named(name)
    X, x, alpha = points(9, seed=1), points(4, seed=2), points(9, 1, seed=3).squeeze(-1)
    x[2] = X[5]
    for rows in (1, 4, 100):
        monkeypatch.setattr(one_pass, "_BLOCK_BYTES", {"cpu": rows * 3 * 8, "cuda": 0})
        found = one_pass.one_pass(as_stationary(kernel), X, x, alpha)
        assert_close(found.mean, dense(kernel, X, x, alpha), 1e-12)
        assert found.r2[2, 5] == 0
    batches = one_pass.one_pass(as_stationary(kernel), X, x.reshape(2, 2, 3), alpha)
    for a, b in zip(batches, found, strict=True):
        assert_close(a.flatten(0, 1), b, 1e-14)


@pytest.mark.parametrize("name", SINGLE)
def test_batches_of_data_and_kernels(name):
    kernel = configured(kernel_named(name).expand_batch(torch.Size([2])))
    X, x, alpha = points(5, seed=1, batch=(2,)), points(3, seed=2, batch=(4, 1)), points(2, 5, seed=3)
    found = one_pass.one_pass(as_stationary(kernel), X, x, alpha)
    assert found.mean.shape == (4, 2, 3, 3)
    assert_close(found.mean, dense(kernel, X, x, alpha), 1e-12)


@pytest.mark.parametrize("name", SINGLE)
def test_an_offset_of_a_million_lengthscales_costs_no_digits(name, path):
    kernel, shift = kernel_named(name), 2.0**20
    X, x, alpha = points(9, seed=1), points(1, seed=2), points(9, 1, seed=3).squeeze(-1)
    # Rounded so that the shift is exact.
    X, x = ((z * 2**20).round() / 2**20 for z in (X, x))
    expected = one_pass.one_pass(as_stationary(kernel), X, x, alpha)
    for a, b in zip(one_pass.one_pass(as_stationary(kernel), X + shift, x + shift, alpha), expected, strict=True):
        assert_close(a, b, 1e-13)


def test_products_with_the_jacobian(monkeypatch):
    kernel = kernel_named("matern 5/2 ard")
    X, x, u, w = points(9, seed=1), points(1, seed=2), points(2, seed=3), points(2, 9, seed=4)
    monkeypatch.setattr(one_pass, "_BLOCK_BYTES", {"cpu": 4 * 3 * 8, "cuda": 0})
    stationary = as_stationary(kernel)
    differences = (x - X) * stationary.column_scales
    assert_close(differences_along(stationary, X, x, u), u @ differences.mT, 1e-13)
    assert_close(weighted_differences(stationary, X, x, w), w @ differences, 1e-13)
    assert_close(squared_distances_to(stationary, X, x), ((x - X) ** 2 * stationary.precision).sum(-1)[None], 1e-13)


@pytest.mark.parametrize("name", SINGLE)
def test_mean_and_distances_pass_gradcheck_on_a_datum_too(name):
    kernel = kernel_named(name)
    X, alpha = points(5, seed=1), points(5, 1, seed=3).squeeze(-1)
    stationary = as_stationary(kernel)
    x = points(2, seed=2).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: tuple(one_pass.one_pass(stationary, X, x, alpha)), x)
    if "3/2" not in name:  # whose mean has no second derivative there
        on_datum = X[1:2].clone().requires_grad_(True)
        assert torch.autograd.gradcheck(lambda x: one_pass.one_pass(stationary, X, x, alpha).mean, on_datum)


PEAK = """
import sys
import torch
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel
from surrogates.kernels import one_pass
if sys.argv[1] == "torch":
    one_pass.compiled = lambda name: None
def posterior(n, d):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    Y = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    ell = d**0.5 if sys.argv[2] == "isotropic" else torch.full((d,), d**0.5, dtype=torch.float64)
    x = torch.rand(1, d, generator=generator, dtype=torch.float64)
    start_meter()
    gp = DerivedGP(X, Y, covar_module=matern_kernel(ell), likelihood=gaussian_likelihood(1e-4))
    gradient = gp.gradient_posterior(x)
    assert gradient.mean.shape == (1, d) and gradient.trace.shape == (1,)
    return grown()
posterior(5, 10)
print(posterior(60, 100_000))
"""


@reads_peak
@pytest.mark.parametrize(
    ("route", "metric"), [("compiled", "isotropic"), pytest.param("torch", "ard", marks=pytest.mark.slow)]
)
def test_memory_at_a_hundred_thousand_inputs_is_two_copies_of_the_data_and_little_more(route, metric):
    """The model's, which the user's tensor does not reach, and the conditioning's, which the model's does not."""
    for _ in range(3):  # pages of libraries that come back in the meantime only ever add
        (peak,) = printed(PEAK, route, metric)
        if peak < 96e6 + 30e6:
            return
    pytest.fail(f"{peak / 1e6:.0f} MB above the 48 MB of data")
