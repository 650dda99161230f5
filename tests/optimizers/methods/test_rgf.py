import math

import pytest
import torch

from optimizers import RGF
from optimizers.first_order import adam
from tests.optimizers.estimates import assert_mean, estimate, step

A = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1.5], dtype=torch.float64)
X0 = torch.full((6,), 0.3, dtype=torch.float64)


def linear(x):
    return A @ x + 2.0


@pytest.mark.parametrize("directions", [1, 9])
def test_the_estimate_is_unbiased_with_factor_d_over_n(directions):
    samples = torch.stack([estimate(RGF, X0, linear, directions=directions, seed=s) for s in range(600)])
    assert_mean(samples, A)


@pytest.mark.slip(
    "optimizers/methods/rgf.py",
    'distribution="orthonormal", seed',
    'distribution="sphere", seed',
    "directions that are not orthogonal (ZoRD, Appx. C.1)",
    of="optimizers/rgf",
)
def test_forward_differences_of_a_quadratic():
    # For f = ‖x‖²/2 a whole basis gives x + (λ/2) Σ uᵢ, hence an error of exactly λ√d/2.
    g = estimate(RGF, X0, lambda x: x @ x / 2, directions=6, smoothing_radius=0.1)
    assert float((g - X0).norm()) == pytest.approx(0.05 * math.sqrt(6.0), rel=1e-9)


def test_queried_points_are_at_the_radius_and_orthogonal():
    batch = RGF(X0, max_queries=100, directions=8, smoothing_radius=0.25).ask()
    offsets = (batch.points() - X0)[1:] / 0.25
    assert torch.equal(batch.points()[0], X0)
    for block in (offsets[:6], offsets[6:]):
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)).double(), rtol=0, atol=1e-12)


def test_directions_are_drawn_anew_after_a_failure():
    opt = RGF(X0, max_queries=100)
    step(opt, lambda x: math.nan)
    moved = opt.ask().points()[1] - opt.x
    assert not torch.equal(moved, RGF(X0, max_queries=100).ask().points()[1] - X0)


def test_the_last_batch_fits_the_budget():
    opt = RGF(X0, max_queries=16, directions=10)
    step(opt, linear)
    assert len(opt.ask()) == 5
    opt = RGF(X0, max_queries=12, directions=10)
    step(opt, linear)
    assert opt.stop_reason == "budget" and opt.remaining == 1


@pytest.mark.parametrize(
    "option", [{"directions": 0}, {"smoothing_radius": 0.0}, {"smoothing_radius": math.nan}, {"smoothing_radius": -1}]
)
def test_options_out_of_range(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        RGF(X0, max_queries=100, **option)


@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_bounds_reach_the_constrained_minimum(start):
    target = torch.tensor([-1.0, 0.2, 0.5, 2.0], dtype=torch.float64)
    opt = RGF(
        torch.full((4,), start).double(), bounds=[(0.0, 1.0)] * 4, max_queries=1500, directions=4, update_rule=adam
    )
    while not opt.stopped:
        step(opt, lambda x: (x - target).square().sum())
    torch.testing.assert_close(opt.best_x, target.clamp(0.0, 1.0), rtol=0, atol=5e-3)


def test_the_estimate_at_a_corner_is_unbiased():
    """From a corner the step of a linear function is its gradient; a confined query travels half of the distance."""
    x0, a = torch.zeros(6, dtype=torch.float64), -10.0 - A
    options = {"directions": 36, "bounds": [(0.0, 1e3)] * 6, "rescale": False}
    assert_mean(torch.stack([estimate(RGF, x0, lambda x: a @ x, seed=s, **options) for s in range(100)]), a)
