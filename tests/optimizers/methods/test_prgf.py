import math

import pytest
import torch

from optimizers import PRGF, RGF, Directions
from optimizers.methods.prgf import frame_of_prior
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


@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_frame_is_orthonormal_and_starts_with_the_prior(count):
    frame = frame_of_prior(PRIOR, Directions(3, 6), 5, count)
    torch.testing.assert_close(frame @ frame.T, torch.eye(count).double(), rtol=0, atol=1e-13)
    assert torch.equal(frame[0], PRIOR)


def test_the_estimate_is_the_projection_onto_the_span():
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
    projected = torch.stack([step(with_prior(directions=3, seed=s), linear) for s in range(800)])
    along = (A @ PRIOR) * PRIOR
    assert_mean(projected, along + 2 / 5 * (A - along))


@pytest.mark.parametrize("scaling", ["projection", "unbiased"])
def test_a_whole_frame_gives_the_exact_gradient(scaling):
    g = step(with_prior(directions=10, scaling=scaling), linear)
    torch.testing.assert_close(g, A, rtol=1e-11, atol=1e-11)


def test_the_first_step_is_rgfs():
    ours = estimate(PRGF, X0, linear, directions=4, seed=3)
    assert torch.equal(ours, estimate(RGF, X0, linear, directions=4, seed=3))


@pytest.mark.parametrize("values", [lambda x: 2.0, lambda x: math.nan])
def test_after_a_zero_or_failed_estimate_comes_rgfs(values):
    opt = with_prior(directions=4)
    step(opt, values)
    assert opt.state.prior is None and "frame" not in opt.ask().info


def test_a_failed_prior_direction_leaves_the_sum():
    opt = with_prior(directions=4, smoothing_radius=0.5, scaling="unbiased")
    batch = opt.ask()
    values = torch.stack([linear(p) for p in batch.points()])
    values[[1, 3]] = math.nan
    opt.tell(batch, values)
    others = batch.info["frame"][[1, 3]]
    torch.testing.assert_close(X0 - opt.x, 5 / 2 * others.T @ (others @ A), rtol=1e-11, atol=1e-11)


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


def test_options_out_of_range():
    with pytest.raises(ValueError, match="scaling"):
        PRGF(X0, max_queries=100, scaling="none")
