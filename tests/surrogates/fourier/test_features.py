"""Fourier features against closed-form kernels, autograd and theorem bounds."""

import math
import pickle

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RBFKernelGrad, RQKernel, ScaleKernel
from scipy import stats

from surrogates import FingerprintError, FourierFeatures
from surrogates.fourier.features import KINDS
from tests.surrogates.uncompiled import PATHS, uncompiled

F64 = torch.float64


def make_kernel(nu=None, lengthscale=0.7, outputscale=1.0, **options):
    base = (RBFKernel(**options) if nu is None else MaternKernel(nu=nu, **options)).double()
    base.lengthscale = torch.as_tensor(lengthscale, dtype=F64)
    kernel = ScaleKernel(base).double()
    kernel.outputscale = torch.tensor(outputscale, dtype=F64)
    return kernel


def points(*shape, seed=0, dtype=F64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def weights(M, seed=1):
    return torch.randn(M, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.slip(
    "surrogates/fourier/features.py",
    "sqrt(2 * self.density.outputscale / self.num_features)",
    "sqrt(self.density.outputscale / self.num_features)",
    "the features' scale without its 2 (FZooS eq. 3)",
    of="federated/fzoos",
)
@pytest.mark.slip(
    "surrogates/fourier/features.py",
    "torch.from_numpy(2 * pi * uniforms",
    "torch.from_numpy(uniforms",
    "phases in [0, 1), not [0, 2π)",
    of="federated/fzoos",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nu", [None, 1.5, 2.5])
def test_kernel_estimate_is_unbiased(kind, nu):
    kernel = make_kernel(nu, [0.4, 0.9, 2.0], 1.7, ard_num_dims=3)
    X, X2 = points(4, 3), points(3, 3, seed=2)
    exact = kernel(X, X2).to_dense().detach()
    draws = torch.stack([FourierFeatures(kernel, 3, 64, seed, kind).kernel(X, X2) for seed in range(300)])
    error = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - exact).abs() < 4.5 * error).all())


@pytest.mark.parametrize("M", [40, 360])
@pytest.mark.parametrize("kind", ["cosine", "paired"])
def test_variance_of_the_estimate_is_the_closed_form(kind, M):
    # RBF, o = 1: one term's variance from k(2δ) = k(δ)⁴; it falls as 1/M.
    kernel, X = make_kernel(lengthscale=1.0), points(2, 3)
    k = kernel(X).to_dense()[0, 1].item()
    one = {"cosine": (1 + k**4) / 2 + 0.5 - k**2, "paired": 2 * ((1 + k**4) / 2 - k**2)}[kind]
    S = 500
    estimates = torch.stack([FourierFeatures(kernel, 3, M, seed, kind).kernel(X)[0, 1] for seed in range(S)])
    ratio = float((estimates - k).square().sum()) * M / one
    # Sums of squares of averages of M terms are near to χ²; a tenth more for what is left of their kurtosis.
    low, high = stats.chi2(S).ppf([1e-4, 1 - 1e-4])
    assert low / 1.1 < ratio < high * 1.1


@pytest.mark.parametrize("kind", KINDS)
def test_lemma_e3_bounds_the_error(kind):
    # FZooS Lemma E.3: |φ(x)ᵀφ(x') − k| ≤ √(8 ln(2/δ)/M) with probability 1 − δ.
    kernel, X = make_kernel(2.5), points(6, 4)
    exact = kernel(X).to_dense().detach()
    for M, delta in ((20, 0.1), (200, 0.5)):
        errors = torch.stack([(FourierFeatures(kernel, 4, M, s, kind).kernel(X) - exact).abs() for s in range(40)])
        exceeded = (errors > math.sqrt(8 * math.log(2 / delta) / M)).double().mean(0)
        assert float(exceeded.max()) <= delta


@pytest.mark.parametrize(("kind", "gain"), [("orthogonal", 0.6), ("sobol", 0.6)])
def test_better_kinds_are_better(kind, gain):
    kernel, X = make_kernel(2.5, 1.0), points(10, 5)
    exact = kernel(X).to_dense().detach()

    def error(kind):
        squares = [
            (FourierFeatures(kernel, 5, 1000, seed, kind).kernel(X) - exact).square().mean() for seed in range(12)
        ]
        return float(torch.stack(squares).mean().sqrt())

    assert error(kind) < gain * error("cosine")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_pairs_have_the_exact_diagonal(kind):
    diagonal = FourierFeatures(make_kernel(1.5, outputscale=2.3), 3, 10, 0, kind).kernel(points(5, 3)).diagonal()
    torch.testing.assert_close(diagonal, torch.full((5,), 2.3, dtype=F64), rtol=1e-12, atol=0)


def test_formula_of_cosine_features():
    f = FourierFeatures(make_kernel(outputscale=1.9), 2, 7, 3, "cosine")
    X = points(4, 2)
    expected = math.sqrt(2 * 1.9 / 7) * torch.cos(X @ f.frequencies.T + f.phases)
    torch.testing.assert_close(f.features(X), expected, rtol=1e-12, atol=1e-12)
    assert f.frequencies.shape == (7, 2) and bool((f.phases >= 0).all()) and bool((f.phases < 2 * math.pi).all())
    assert float(f.phases.max()) > math.pi


@pytest.mark.slip(
    "surrogates/fourier/features.py",
    "torch.stack((phase.sin().neg(), phase.cos())",
    "torch.stack((phase.sin(), phase.cos())",
    "the sign of the cosines' derivatives (FZooS eq. 4)",
    of="federated/fzoos",
)
@pytest.mark.slip(
    "surrogates/fourier/features_numba.py",
    "return scale * (w[h + i] * cos(phase) - w[i] * sin(phase))",
    "return scale * (w[h + i] * cos(phase) + w[i] * sin(phase))",
    "the sign of the cosines' derivatives, compiled (FZooS eq. 4)",
    of="federated/fzoos",
)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nu", [None, 2.5])
@pytest.mark.parametrize("shape", [(1, 3), (6, 3), (2, 5, 3)])
def test_gradient_is_autograds(monkeypatch, kind, nu, shape, path):
    if path == "torch":
        uncompiled(monkeypatch)
    f = FourierFeatures(make_kernel(nu, [0.3, 0.9, 2.0], 1.4, ard_num_dims=3), 3, 38, 5, kind)
    X, w = points(*shape).requires_grad_(), weights(38)
    (expected,) = torch.autograd.grad(f.value(X, w).sum(), X)
    torch.testing.assert_close(f.gradient(X.detach(), w), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(f.jacobian(X.detach()).mT @ w, expected, rtol=1e-10, atol=1e-10)
    rows = torch.stack((w, weights(38, seed=2)))
    first = X.detach().reshape(-1, 3)[:1]
    product = f.jacobian_product(first, rows)
    torch.testing.assert_close(product[0], expected.reshape(-1, 3)[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(product, rows @ f.jacobian(first)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["cosine", "orthogonal"])
@pytest.mark.parametrize(("d", "dtype", "tolerance"), [(2500, F64, 1e-11), (2500, torch.float32, 1e-3)])
def test_compiled_gradient_is_torchs_at_large_d(monkeypatch, kind, d, dtype, tolerance):
    f = FourierFeatures(make_kernel(lengthscale=30.0), d, 42, 5, kind)
    X, w = points(1, d, dtype=dtype), weights(42).to(dtype)
    ours = f.gradient(X, w)
    uncompiled(monkeypatch)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, f.gradient(X, w), rtol=tolerance, atol=tolerance)


def test_gradient_is_differentiable():
    f = FourierFeatures(make_kernel(), 2, 20, 0)
    w = weights(20).requires_grad_()
    X = points(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(f.gradient, (X, w))


@pytest.mark.parametrize("kind", KINDS)
def test_prior_gradient_moments(kind):
    f = FourierFeatures(make_kernel(2.5, [0.5, 1.5], ard_num_dims=2), 2, 24, 5, kind)
    X = points(3, 2)
    J = f.jacobian(X)
    torch.testing.assert_close(f.prior_gradient_covariance(X), J.mT @ J)
    torch.testing.assert_close(f.prior_gradient_variance(X), J.square().sum(-2))


def test_prior_gradient_variance_is_the_kernels():
    # −2 o h'(0)/ℓ²: 5/3 o/ℓ² for Matérn 5/2.
    f = FourierFeatures(make_kernel(2.5, [0.5, 1.5], 1.3, ard_num_dims=2), 2, 40_000, 5)
    expected = 5 / 3 * 1.3 / torch.tensor([0.25, 2.25], dtype=F64)
    torch.testing.assert_close(f.prior_gradient_variance(points(1, 2))[0], expected, rtol=0.03, atol=0)


def test_active_dims_and_nested_scales():
    inner = make_kernel(2.5, [0.4, 0.8], 1.5, ard_num_dims=2, active_dims=(2, 0))
    kernel = ScaleKernel(inner).double()
    kernel.outputscale = torch.tensor(2.0, dtype=F64)
    X = points(5, 4)
    f = FourierFeatures(kernel, 4, 20_000, 1)
    assert f.density.outputscale == pytest.approx(3.0)
    assert bool((f.frequencies[:, [1, 3]] == 0).all())
    exact = kernel(X).to_dense().detach()
    torch.testing.assert_close(f.kernel(X), exact, rtol=0, atol=0.02)
    assert bool((f.gradient(X, weights(20_000))[:, [1, 3]] == 0).all())


@pytest.mark.parametrize("kind", ["cosine", "sobol"])
def test_dtype_follows_the_points(kind):
    f = FourierFeatures(make_kernel(), 3, 20, 0, kind)
    X, w = points(4, 3), weights(20)
    for method in (
        f.features,
        f.kernel,
        lambda X: f.value(X, w.to(X.dtype)),
        lambda X: f.gradient(X, w.to(X.dtype)),
    ):
        single, double = method(X.float()), method(X)
        assert single.dtype == torch.float32 and double.dtype == F64
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


def test_the_kernel_is_read_once_and_seeds_matter():
    kernel = make_kernel()
    f = FourierFeatures(kernel, 3, 20, 0)
    before = f.kernel(points(2, 3))
    kernel.base_kernel.lengthscale = torch.tensor(3.0, dtype=F64)
    torch.testing.assert_close(f.kernel(points(2, 3)), before, rtol=0, atol=0)
    same, other = FourierFeatures(make_kernel(), 3, 20, 0), FourierFeatures(make_kernel(), 3, 20, 1)
    assert torch.equal(f.frequencies, same.frequencies) and not torch.equal(f.frequencies, other.frequencies)
    torch.rand(3)
    assert torch.equal(f.frequencies, FourierFeatures(make_kernel(), 3, 20, 0).frequencies)


def test_pickle_keeps_every_bit():
    f = FourierFeatures(make_kernel(), 3, 20, 0, "cosine")
    f.features(points(2, 3, dtype=torch.float32))
    copy = pickle.loads(pickle.dumps(f))
    assert copy.fingerprint == f.fingerprint
    assert torch.equal(copy.features(points(2, 3)), f.features(points(2, 3)))


ALTERNATIVES = {
    "kernel": {"kernel": make_kernel(2.5)},
    "lengthscale": {"kernel": make_kernel(lengthscale=0.7000001)},
    "outputscale": {"kernel": make_kernel(outputscale=1.5)},
    "active_dims": {"kernel": make_kernel(active_dims=(0, 1))},
    "d": {"d": 4},
    "num_features": {"num_features": 22},
    "seed": {"seed": 8},
    "kind": {"kind": "paired"},
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_fingerprint_knows_every_argument(name):
    arguments = {"kernel": make_kernel(), "d": 3, "num_features": 20, "seed": 7, "kind": "orthogonal"}
    ours = FourierFeatures(**arguments)
    theirs = FourierFeatures(**(arguments | ALTERNATIVES[name]))
    assert ours.fingerprint != theirs.fingerprint
    for given in (theirs, theirs.fingerprint):
        with pytest.raises(FingerprintError, match=f"{theirs.fingerprint[:16]}.*{ours.fingerprint[:16]}.*{name}="):
            ours.check_fingerprint(given)


def test_equal_fingerprints_pass():
    ours = FourierFeatures(make_kernel(lengthscale=0.3), 3, 20, 7)
    ard = FourierFeatures(make_kernel(lengthscale=[0.3] * 3, ard_num_dims=3), 3, 20, 7)
    for given in (ours, ard, ard.fingerprint):
        ours.check_fingerprint(given)
    assert len(ours.fingerprint) == 64
    assert ours.arguments["lengthscale"] == [0.3]
    assert repr(ours).startswith("FourierFeatures(rbf, d=3, num_features=20, seed=7")
    with pytest.raises(TypeError, match="fingerprint, got dict"):
        ours.check_fingerprint(ours.arguments)


class MyRBF(RBFKernel):
    pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernel": RBFKernelGrad()}, TypeError, "RBFKernelGrad.*RBFKernel and MaternKernel"),
        ({"kernel": MyRBF()}, TypeError, "none of their subclasses"),
        ({"kernel": ScaleKernel(RQKernel())}, TypeError, "RQKernel has no Fourier features"),
        ({"kernel": RBFKernel() + RBFKernel()}, TypeError, "AdditiveKernel"),
        ({"kernel": MaternKernel(nu=0.5)}, TypeError, "nu = 0.5.*no mean"),
        ({"kernel": "rbf"}, TypeError, "gpytorch kernel"),
        ({"kernel": RBFKernel(batch_shape=torch.Size([2]))}, ValueError, "without batch"),
        ({"kernel": RBFKernel(ard_num_dims=4)}, ValueError, "4 lengthscales for 3"),
        ({"kernel": RBFKernel(active_dims=(0, 3))}, ValueError, "do not fit in d = 3"),
        ({"num_features": 21}, ValueError, "must be even"),
        ({"num_features": 21, "kind": "paired"}, ValueError, "must be even"),
        ({"num_features": 21, "kind": "sobol"}, ValueError, "must be even"),
        ({"num_features": 0}, ValueError, "at least 1"),
        ({"num_features": -4}, ValueError, "at least 1"),
        ({"num_features": 20.0}, TypeError, "integer"),
        ({"d": 0}, ValueError, "at least 1"),
        ({"seed": -1}, ValueError, "at least 0"),
        ({"seed": 2**64}, ValueError, "under 18446744073709551616"),
        ({"seed": True}, TypeError, "integer"),
        ({"kind": "rff"}, ValueError, "cosine, paired, orthogonal, sobol"),
        ({"d": 21_202, "kind": "sobol"}, ValueError, "21201"),
    ],
)
def test_bad_arguments(options, error, message):
    arguments = {"kernel": RBFKernel(), "d": 3, "num_features": 20, "seed": 7} | options
    with pytest.raises(error, match=message):
        FourierFeatures(**arguments)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_bad_hyperparameters(value):
    kernel = RBFKernel()
    kernel.raw_lengthscale.data.fill_(-math.inf if value == 0 else value)
    with pytest.raises(ValueError, match="lengthscale must be finite and positive"):
        FourierFeatures(kernel, 3, 20, 7)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (torch.zeros(3, dtype=F64), ValueError, "batch x q x 3"),
        (torch.zeros(2, 4, dtype=F64), ValueError, "batch x q x 3"),
        (torch.tensor([[0.0, math.nan, 0.0]], dtype=F64), ValueError, "NaN or inf"),
        (torch.zeros(2, 3, dtype=torch.int64), TypeError, "floating point"),
        (torch.zeros(2, 3, dtype=torch.float16), TypeError, "float32 or float64"),
        ([[0.0, 0.0, 0.0]], TypeError, "Tensor"),
    ],
)
def test_bad_points(X, error, message):
    f = FourierFeatures(RBFKernel(), 3, 20, 7)
    w = weights(20)
    calls = (f.features, f.kernel, f.jacobian, lambda X: f.value(X, w), lambda X: f.gradient(X, w))
    for call in calls:
        with pytest.raises(error, match=message):
            call(X)


def test_bad_weights():
    f = FourierFeatures(RBFKernel(), 3, 20, 7)
    X = points(2, 3)
    with pytest.raises(ValueError, match=r"shape \(20,\), got \(19,\)"):
        f.gradient(X, weights(19))
    with pytest.raises(ValueError, match="same dtype and device"):
        f.gradient(X, weights(20).float())
    with pytest.raises(TypeError, match="Tensor"):
        f.value(X, [0.0] * 20)
    with pytest.raises(ValueError, match="same dtype and device"):
        f.kernel(X, X.float())
