import math

import pytest
import torch

from optimizers import PRGF, RGF
from tests.optimizers.estimates import assert_mean, estimate, sgd, step

A = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1.5], dtype=torch.float64)
X0 = torch.full((6,), 0.3, dtype=torch.float64)
PRIOR = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64) / 2


def linear(x):
    return A @ x + 2.0


def with_prior(**options):
    opt = PRGF(X0, max_queries=1000, update_rule=sgd, **options)
    opt.state.prior = PRIOR.clone()
    return opt


@pytest.mark.slip(
    "optimizers/methods/prgf.py",
    "self.state.prior = gradient / norm",
    "self.state.prior = gradient",
    "a prior with the length of the last estimate",
    of="optimizers/prgf",
)
def test_the_step_is_the_projection_and_its_direction_the_next_prior():
    opt = with_prior(directions=4, smoothing_radius=0.5)
    frame = opt.ask().info["frame"]
    assert len(frame) == 4 and torch.equal(opt.ask().points()[0], X0)
    torch.testing.assert_close(opt.ask().points()[1] - X0, 0.5 * PRIOR, rtol=0, atol=1e-14)
    g = step(opt, linear)
    torch.testing.assert_close(g, frame.T @ (frame @ A), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(opt.state.prior, g / g.norm(), rtol=1e-11, atol=1e-11)


def test_unbiased_scaling():
    samples = torch.stack([step(with_prior(directions=3, scaling="unbiased", seed=s), linear) for s in range(800)])
    assert_mean(samples, A)


def test_the_first_step_is_rgfs():
    ours = estimate(PRGF, X0, linear, directions=4, seed=3)
    assert torch.equal(ours, estimate(RGF, X0, linear, directions=4, seed=3))


@pytest.mark.parametrize("values", [lambda x: 2.0, lambda x: math.nan])
def test_after_a_zero_or_failed_estimate_comes_rgfs(values):
    opt = with_prior(directions=4)
    step(opt, values)
    assert opt.state.prior is None and "frame" not in opt.ask().info


def test_the_last_batch_fits_the_budget():
    opt = with_prior(directions=4)
    step(opt, linear)
    opt.max_queries = opt.queries + 3
    assert len(opt.ask()) == 3 and len(opt.ask().info["frame"]) == 2
    assert float(step(opt, linear).norm()) > 0.0


def test_the_prior_helps_where_the_gradient_turns_slowly():
    # d = 60, n = 3: the prior accumulates the gradient, which fresh directions forget.
    a = torch.linspace(-1.0, 1.0, 60, dtype=torch.float64)
    cosines = []
    for method in (PRGF, RGF):
        opt = method(torch.zeros_like(a), max_queries=1000, directions=3, update_rule=sgd)
        for _ in range(40):
            g = step(opt, lambda x: a @ x)
        cosines.append(float(torch.cosine_similarity(g, a, dim=0)))
    assert cosines[0] > 0.8 and cosines[1] < 0.5


@pytest.mark.parametrize("option", [{"scaling": "none"}, {"directions": 0}, {"smoothing_radius": 0.0}])
def test_options_out_of_range(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        PRGF(X0, max_queries=100, **option)
