"""Draws have the prior's moments, and their gradients are gradients of their values."""

import pytest
import torch

from experiments.workloads.prior_draws import draw_values_and_gradients


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_gradients_are_the_differences_of_values(kernel):
    generator = torch.Generator().manual_seed(0)
    x = torch.tensor([[0.3, 0.1]], dtype=torch.float64)
    steps = 1e-3 * torch.eye(2, dtype=torch.float64)
    X = torch.cat([x, x + steps, x - steps])
    values, gradients = draw_values_and_gradients(kernel, 0.5, X, 50, generator)
    differences = (values[:, 1:3] - values[:, 3:5]) / 2e-3
    torch.testing.assert_close(gradients[:, 0], differences, atol=5e-3, rtol=0)


@pytest.mark.parametrize(("kernel", "curvature"), [("rbf", 1.0), ("matern52", 5 / 3)])
def test_moments_are_the_priors(kernel, curvature):
    generator = torch.Generator().manual_seed(1)
    X = torch.tensor([[0.0], [0.4]], dtype=torch.float64)
    values, gradients = draw_values_and_gradients(kernel, 0.5, X, 20_000, generator)
    assert values.mean().abs() < 0.03
    assert values.var() == pytest.approx(1.0, abs=0.05)
    assert gradients.var() == pytest.approx(curvature / 0.25, rel=0.05)


@pytest.mark.parametrize(("kernel", "curvature"), [("rbf", 1.0), ("matern52", 5 / 3)])
def test_every_input_may_have_a_lengthscale(kernel, curvature):
    generator = torch.Generator().manual_seed(2)
    X = torch.tensor([[0.0, 0.0], [0.4, 0.0], [0.0, 0.4]], dtype=torch.float64)
    values, gradients = draw_values_and_gradients(kernel, (0.5, 4.0), X, 20_000, generator)
    assert gradients[..., 0].var() == pytest.approx(curvature / 0.25, rel=0.05)
    assert gradients[..., 1].var() == pytest.approx(curvature / 16, rel=0.05)
    near, far = (torch.corrcoef(values[:, [0, i]].T)[0, 1] for i in (2, 1))
    assert near > 0.98 and far < 0.8
