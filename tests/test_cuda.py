"""Every method, every algorithm of a federation and the surrogates on a CUDA device give what they give on the CPU."""

import pytest
import torch
from torch.nn.functional import mse_loss

from federated import simulate
from federated.registry import ALGORITHMS
from optimizers import (
    Directions,
    ElasticNet,
    ModuleObjective,
    ReturnedConstraints,
    Space,
    compare,
    least_squares,
    minimize,
)
from optimizers.methods.hiso.update import update
from optimizers.registry import METHODS
from surrogates import FourierFeatures, FourierSurrogate, matern_kernel
from surrogates.fourier.features import KINDS
from tests.surrogates.reference import assert_close

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(120),
]
DEVICES = ("cpu", "cuda")
BOX = [(-3.0, 6.0)] * 4


def quadratic(x):
    """A quadratic whose minimum is at 1, 2, ..., on the device of x."""
    c = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    return ((x - c) ** 2 * c).sum(-1)


OPTIONS = {
    "turbo": {"bounds": BOX},
    "cobbo": {"bounds": BOX},
    "gradient_descent": {"jac": torch.func.grad(quadratic)},
    "accelerated_zo": {"strong_convexity": 1.0},
}
"""The options that a method needs."""


def start(device, dtype=torch.float64, d=4):
    return torch.linspace(-0.5, 0.5, d, dtype=dtype, device=device)


def on_devices(call):
    """Calls with each device; the x of the second result must be on CUDA, in the dtype of the first."""
    here, there = (call(device) for device in DEVICES)
    assert there.x.is_cuda and there.x.dtype == here.x.dtype
    return here, there


def same_run(here, there, tolerance=1e-6):
    """Both runs have the same number of queries, and the relative error between their x is at most ``tolerance``."""
    assert here.nfev == there.nfev
    assert_close(there.x.cpu().double(), here.x.double(), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_method(method, dtype):
    here, there = on_devices(
        lambda device: minimize(
            quadratic, start(device, dtype), method=method, max_queries=24, seed=1, **OPTIONS.get(method, {})
        )
    )
    same_run(here, there, 1e-6 if dtype == torch.float64 else 0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"bounds": [(-3.0, 2.5)] * 4},
        {"bounds": Space(BOX, integrality=[0, 1, 0, 1])},
        {"noise": 1e-4},
        {"method": "zord", "prox": ElasticNet(0.1, 0.1)},
        {"method": "zord", "active": "gated"},
    ],
    ids=str,
)
def test_options(options):
    same_run(*on_devices(lambda device: minimize(quadratic, start(device), max_queries=40, seed=1, **options)))


def test_constraints():
    def both(x):
        return quadratic(x), (x.sum() - 2.0)[None]

    constraints = ReturnedConstraints(lb=[-float("inf")], ub=[0.0])
    here, there = on_devices(
        lambda device: minimize(both, start(device), constraints=constraints, max_queries=60, seed=1)
    )
    same_run(here, there, 1e-4)
    assert there.maxcv <= 1e-6


def test_history():
    def run(device):
        X = torch.rand(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(device)
        return minimize(quadratic, start(device), history=(X, quadratic(X)), max_queries=30, seed=1)

    same_run(*on_devices(run))


def test_least_squares():
    def residuals(x):
        return torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0], x[2] * x[3]])

    same_run(*on_devices(lambda device: least_squares(residuals, start(device), max_queries=40, seed=1)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm(algorithm):
    gradient = algorithm in ("fedavg", "fedadam", "fedyogi", "fedadagrad")
    options = {} if gradient or algorithm in ("fzoos", "hiso", "decomfl") else {"smoothing_radius": 1e-3}

    def run(device):
        clients = [lambda x, k=k: quadratic(x - 0.1 * k) for k in range(3)]
        return simulate(algorithm, clients, start(device), rounds=3, local_steps=3, seed=1, progress=False, **options)

    here, there = on_devices(run)
    assert_close(there.x.cpu(), here.x, 1e-6)


def test_compare():
    found = []
    for device in DEVICES:
        starts = [start(device)] * 2
        found.append(
            compare(quadratic, bounds=BOX, starts=starts, methods=["es", "random"], seeds=2, max_queries=16).rows
        )
    assert [row["value"] for row in found[0]] == pytest.approx([row["value"] for row in found[1]], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_module(dtype):
    X = torch.linspace(-1, 1, 12, dtype=dtype)[:, None]

    def run(device):
        torch.manual_seed(0)
        module = torch.nn.Linear(1, 1).to(device, dtype)
        with torch.no_grad():
            for p in module.parameters():
                p.fill_(0.3)
        objective = ModuleObjective(module, lambda m: mse_loss(m(X.to(device)), 2 * X.to(device) + 1))
        return minimize(objective, objective.x0(), method="hiso", max_queries=30, seed=1)

    same_run(*on_devices(run), 1e-6 if dtype == torch.float64 else 0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_fourier_surrogate(kind):
    X = torch.rand(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for device in DEVICES:
        features = FourierFeatures(matern_kernel(0.8), 3, 60, 4, kind)
        surrogate = FourierSurrogate(features, 1e-3).fit(X.to(device), quadratic(X.to(device)))
        posterior = surrogate.gradient_posterior(X[:5].to(device))
        assert posterior.mean.is_cuda == (device == "cuda")
        found.append([t.cpu() for t in (posterior.mean, posterior.variance, surrogate.weights)])
    for ours, expected in zip(*found, strict=True):
        assert_close(ours, expected, 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_an_update_of_hiso_has_the_same_bits(distribution, dtype):
    d, terms = 5_000_003, [(3, 0, 0.7), (3, 1, -0.2), (4, 0, 0.1)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = []
    for device in DEVICES:
        x = torch.linspace(-1, 1, d, dtype=torch.float64).to(device, dtype)
        hessian, momentum = (
            torch.linspace(0.5, 2, d, dtype=torch.float64).to(device, wide),
            torch.zeros_like(x, dtype=wide),
        )
        eq12 = (0.05, 1e-8, 1e-4, 1e4)
        directions = Directions(5, d, distribution)
        update(x, directions, terms, 1e-3, hessian=hessian, learning=eq12, momentum=momentum, decay=0.9)
        found.append([t.cpu() for t in (x, hessian, momentum)])
    assert all(map(torch.equal, *found))
