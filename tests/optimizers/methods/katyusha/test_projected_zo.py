import math

import pytest
import torch

from optimizers import Box
from optimizers.methods.katyusha.projected_zo import ProjectedZO, diminishing_step
from tests.optimizers.composite import PROXES, quadratic
from tests.optimizers.estimates import assert_mean

A = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def solve(problem, max_queries, **options):
    opt = ProjectedZO(
        torch.zeros(problem.d, dtype=torch.float64), prox=problem.prox, max_queries=max_queries, **options
    )
    while not opt.stopped:
        batch = opt.ask()
        opt.tell(batch, problem.f(batch.points()))
    return opt


@pytest.mark.slip(
    "optimizers/methods/katyusha/projected_zo.py",
    'd = 1 if self.estimator == "coordinates" else self.dimension',
    'd = 1 if self.estimator == "two_point" else self.dimension',
    "steps along eq. 2 without 1/d (Katyusha)",
    of="optimizers/projected_zo",
)
def test_the_two_point_estimate_is_unbiased_with_second_moment_d():
    """Of a linear function: E g = a and E‖g‖² = d‖a‖²."""
    samples = []
    for seed in range(600):
        opt = ProjectedZO(torch.zeros(4, dtype=torch.float64), max_queries=2, smoothness=1.0, seed=seed)
        batch = opt.ask()
        opt.tell(batch, batch.points() @ A)
        samples.append(-4.0 * opt.x)
    samples = torch.stack(samples)
    assert_mean(samples, A)
    assert_mean(samples.square().sum(-1, keepdim=True), 4.0 * (A @ A))


def test_coordinates_with_constant_steps_are_proximal_gradient_descent():
    problem = quadratic(Box(-0.5, 0.5))
    opt = solve(problem, 9 * 30, estimator="coordinates", step_schedule="constant", smoothness=20.0)
    x = torch.zeros(8, dtype=torch.float64)
    for _ in range(30):
        x = (x - problem.gradient(x) / 20.0).clamp(-0.5, 0.5)
    torch.testing.assert_close(opt.x, x, rtol=0, atol=1e-5)


def test_diminishing_steps():
    assert diminishing_step(0.1, 0.5, 0, 7.0) == pytest.approx(0.1)
    assert diminishing_step(0.1, 0.5, 10**6, 7.0) == pytest.approx(2 / (0.5 * 10**6), rel=1e-3)
    assert diminishing_step(0.1, 0.0, 21, 7.0) == pytest.approx(0.05)
    for mu in (0.0, 0.5):
        steps = [diminishing_step(0.1, mu, k, 7.0) for k in range(50)]
        assert steps == sorted(steps, reverse=True)
    opt = ProjectedZO(torch.zeros(4), max_queries=50, smoothness=2.0, strong_convexity=0.5, step_factor=3.0)
    assert opt.step_size == pytest.approx(3.0 / 8.0)
    opt.tell(opt.ask(), [0.0, 0.0])
    assert opt.step_size == pytest.approx(1 / (8.0 / 3.0 + 0.25))


@pytest.mark.slow
def test_constant_steps_stall_on_a_box_where_diminishing_ones_descend():
    """The estimate's variance at a constrained minimum is d‖∇f‖² − ‖∇f‖²: Katyusha's point of departure."""
    problem = quadratic(Box(-0.5, 0.5), d=4)
    common = {"smoothness": 20.0, "strong_convexity": 1.0}
    constant = [solve(problem, 1000, step_schedule="constant", seed=s, **common) for s in range(2)]
    diminishing = [solve(problem, 1000, seed=s, **common) for s in range(2)]
    stalled, descended = ([float(problem.gap(opt.x)) for opt in opts] for opts in (constant, diminishing))
    assert sum(descended) < 0.3 * sum(stalled) and min(descended) > 1e-9


def test_constant_steps_converge_without_a_constraint():
    problem = quadratic(PROXES["none"], d=4)
    opts = [solve(problem, 1000, step_schedule="constant", smoothness=20.0, seed=s) for s in range(2)]
    assert max(abs(float(problem.gap(opt.x))) for opt in opts) < 1e-4


def test_a_failed_query_leaves_the_iterate():
    opt = ProjectedZO(torch.ones(4), max_queries=50, smoothness=2.0)
    opt.tell(opt.ask(), [math.nan, 0.0])
    assert torch.equal(opt.x, torch.ones(4))


def test_bad_options():
    with pytest.raises(ValueError, match="estimator must be"):
        ProjectedZO(torch.zeros(3), max_queries=50, estimator="three_point")
    with pytest.raises(ValueError, match="step_schedule must be"):
        ProjectedZO(torch.zeros(3), max_queries=50, step_schedule="increasing")
