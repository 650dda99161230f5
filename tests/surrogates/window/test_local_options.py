"""The local surrogate's options: one place that checks them, and what they make."""

import pytest
import torch
from gpytorch.kernels import MaternKernel

from surrogates.window.local_options import KERNELS, LocalSurrogateOptions, check_nugget
from tests.surrogates.uncompiled import PATHS, uncompiled

X = torch.linspace(0.0, 1.0, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"window": 1}, ValueError, "window must be at least 2"),
        ({"window": 2.5}, TypeError, "window must be an integer"),
        ({"lengthscale": 0.0}, ValueError, "lengthscale must be positive"),
        ({"lengthscale": 1e-300}, ValueError, "lengthscale must be from 1e-100 to 1e\\+100, got 1e-300"),
        ({"lengthscale": 1e160}, ValueError, "lengthscale must be from 1e-100 to 1e\\+100, got 1e\\+160"),
        ({"nugget": 1e-9}, ValueError, "nugget must be at least 1e-08"),
        ({"nugget": "small"}, TypeError, "nugget must be a number"),
        ({"noise": -1.0}, ValueError, "noise must be positive"),
        ({"kernel": "matern"}, ValueError, "matern52, rbf"),
        ({"lenghtscale": 1.0}, TypeError, "lenghtscale"),
    ],
)
def test_options_out_of_range_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        LocalSurrogateOptions(**options)


def test_they_make_the_surrogate_that_they_describe():
    options = LocalSurrogateOptions(window=7, lengthscale=2, nugget=1e-8, noise=1, kernel="rbf")
    surrogate = options.surrogate(X.float(), 5.0)
    assert vars(surrogate.hyperparameters) == {"lengthscale": 2.0, "outputscale": 1.0, "noise_ratio": 1e-8}
    assert (surrogate.size, surrogate.noise, surrogate.kernel) == (7, 1.0, KERNELS["rbf"])
    assert surrogate.trajectory.dtype == torch.float32 and surrogate.trajectory.d == 4 and len(surrogate) == 0


def test_without_a_lengthscale_whoever_fits_it_says_where_to_begin():
    assert LocalSurrogateOptions().surrogate(X, 5.0).hyperparameters.lengthscale == 5.0


def test_a_nugget_is_named_in_its_refusal():
    assert check_nugget("feature_nugget", 1e-8) == 1e-8
    with pytest.raises(ValueError, match="feature_nugget"):
        check_nugget("feature_nugget", 0.0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kept_window_tells_what_it_told_when_it_has_moved(dtype, path, monkeypatch):
    if path == "torch":
        uncompiled(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 4, generator=generator, dtype=dtype)
    surrogate = LocalSurrogateOptions(window=8, lengthscale=2.0).surrogate(points[0])
    surrogate.append(points, points.square().sum(1))
    surrogate.begin(points[0])
    kept, held = surrogate.keep(), surrogate.window.X.double().clone()
    near, moved = points[0] + 0.1, 0
    for x in (points[0], near, *points[(points - points[0]).norm(dim=1).argsort()[::7]]):
        known = surrogate.pass_at(x)
        h = surrogate.hyperparameters
        left = torch.from_numpy(kept.rows != surrogate.window.rows)
        moved += int(left.any()) * int((~left).any())  # some queries are in both, and some are not
        expected = dense_information(held, x.double(), h.lengthscale, h.noise_ratio)
        assert kept.information(surrogate.window, x, known) == pytest.approx(
            expected, rel=1e-9 if dtype.itemsize == 8 else 1e-3
        )
    assert moved >= 3


@pytest.mark.slip(
    "surrogates/window/window_surrogate.py",
    "alpha = solved[:, 0] - mean * solved[:, 1]",
    "alpha = solved[:, 0] + mean * solved[:, 1]",
    "the generalised least squares mean, added to the values",
    of="optimizers/zord federated/fzoos",
)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("unit, n", [(1.0, n) for n in range(2, 9)] + [(unit, 8) for unit in (1e-300, 1e300, 0.0)])
def test_the_weights_of_a_window_solve_its_system(unit, n, path, monkeypatch):
    if path == "torch":
        uncompiled(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    surrogate = LocalSurrogateOptions(window=n, lengthscale=2.0).surrogate(points[0])
    surrogate.append(points, unit * (points.square().sum(1) - 3.0))
    surrogate.begin(points[0])
    window, h = surrogate.window, surrogate.hyperparameters
    A = h.outputscale * (matern52(window.X, h.lengthscale) + h.noise_ratio * torch.eye(n, dtype=torch.float64))
    s, one = surrogate.trajectory.y[window.indices] / surrogate.scale, torch.ones(n, dtype=torch.float64)
    m = (one @ torch.linalg.solve(A, s)) / (one @ torch.linalg.solve(A, one))
    expected = torch.linalg.solve(A, s - m) * h.outputscale**0.5
    torch.testing.assert_close(surrogate.conditioning.alpha, expected, rtol=1e-8, atol=1e-8)


def matern52(X, lengthscale):
    """As GPyTorch has it."""
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    return kernel(X, X).to_dense().detach()


def dense_information(X, x, lengthscale, noise):
    """trace JᵀA⁻¹J by autograd through Matérn 5/2 as GPyTorch has it."""
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    point = x.clone().requires_grad_(True)
    J = torch.stack([torch.autograd.grad(kernel(point[None], row[None]).to_dense().sum(), point)[0] for row in X])
    A = matern52(X, lengthscale) + noise * torch.eye(len(X), dtype=X.dtype)
    return float((J * torch.linalg.solve(A, J)).sum())
