"""What is seen of a trajectory and of surrogates where they are printed: shapes, units and n."""

import pytest
import torch

from surrogates import FourierFeatures, FourierSurrogate, matern_kernel
from surrogates.window.trajectory import Trajectory
from surrogates.window.window_surrogate import Hyperparameters, WindowSurrogate

X = torch.arange(15, dtype=torch.float64).reshape(5, 3).sin()
Y = torch.tensor([1.0, 2.0, float("nan"), 4.0, 8.0], dtype=torch.float64)


def test_a_trajectory():
    trajectory = Trajectory(3)
    assert repr(trajectory) == (
        "Trajectory(n = 0 queries (0 more failed), d = 3, torch.float64, cpu; values in f's units)"
    )
    trajectory.append(X, Y)
    assert repr(trajectory).startswith("Trajectory(n = 4 queries (1 more failed), d = 3")
    assert "torch.float32" in repr(Trajectory(3, dtype=torch.float32))


def test_a_window_surrogate():
    surrogate = WindowSurrogate(X[0], 3, Hyperparameters(0.8))
    assert repr(surrogate) == (
        "WindowSurrogate(given 0 (at most 3) of n = 0 queries, d = 3, torch.float64, cpu;\n"
        "  matern52, lengthscale 0.8 in search units; gradients in standardised units, times 1 in f's)"
    )
    surrogate.append(X, Y)
    surrogate.begin(X[0])
    deviation = float(surrogate.window.y.std())
    assert repr(surrogate) == (
        "WindowSurrogate(given 3 (at most 3) of n = 4 queries, d = 3, torch.float64, cpu;\n"
        f"  matern52, lengthscale 0.8 in search units; gradients in standardised units, times {deviation:.6g} in f's)"
    )


@pytest.mark.parametrize("mean", [0.5, "estimated"])
def test_a_fourier_surrogate(mean):
    features = FourierFeatures(matern_kernel(0.5), 3, 60, seed=0)
    surrogate = FourierSurrogate(features, noise=1e-3, mean=mean)
    kind = " (estimated)" if mean == "estimated" else ""
    assert repr(surrogate) == (
        "FourierSurrogate(M = 60 features, d = 3; given n = 0 values of noise variance 0.001; "
        f"mean {surrogate.mean:.6g}{kind}, in y's units)"
    )
    surrogate.fit(X, X.sum(-1))
    assert repr(surrogate) == (
        "FourierSurrogate(M = 60 features, d = 3, torch.float64, cpu; given n = 5 values of noise variance 0.001; "
        f"mean {surrogate.mean:.6g}{kind}, in y's units)"
    )
    assert repr(surrogate.gradient_posterior(X[:2])) == (
        "FourierGradientPosterior(2 x 3, torch.float64, cpu; outcome per unit of input; given n = 5 values by "
        "M = 60 features)"
    )


def test_a_fourier_surrogate_of_weights():
    features = FourierFeatures(matern_kernel(0.5), 3, 60, seed=0)
    surrogate = FourierSurrogate.from_weights(features, torch.ones(60, dtype=torch.float64), mean=2.0)
    assert repr(surrogate) == (
        "FourierSurrogate(M = 60 features, d = 3, torch.float64, cpu; given weights, no data; mean 2, in y's units)"
    )
