"""A linear and a quadratic function with known gradients, and means of estimates over draws."""

import numpy as np
import torch

from tests.optimizers.estimates import assert_mean

D = 6
_GENERATOR = np.random.default_rng(3)
A = torch.from_numpy(_GENERATOR.standard_normal(D))
H = torch.from_numpy(_GENERATOR.standard_normal((D, D)))
H = H + H.T
X = torch.from_numpy(_GENERATOR.standard_normal(D))
GRADIENT = A + H @ X
PRIOR = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64) / 2


def linear(x):
    return x @ A + 3.0


def quadratic(x):
    return x @ A + 0.5 * (x @ H * x).sum(-1)


def estimates(estimator, fun, draws=1000):
    return torch.stack([estimator(fun, X, step, batched=True).gradient for step in range(draws)])


def assert_squared_error(samples, gradient, expected):
    """E ‖g − ∇f‖² is what is expected."""
    assert_mean((samples - gradient).square().sum(-1, keepdim=True), expected)
