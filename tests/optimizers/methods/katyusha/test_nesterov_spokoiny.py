import math

import pytest
import torch

from optimizers import Box
from optimizers.methods.katyusha.nesterov_spokoiny import NesterovSpokoiny, next_alpha
from optimizers.methods.katyusha.projected_zo import ProjectedZO
from tests.optimizers.composite import PROXES, quadratic


def solve(problem, max_queries, method=NesterovSpokoiny, **options):
    opt = method(torch.zeros(problem.d, dtype=torch.float64), prox=problem.prox, max_queries=max_queries, **options)
    while not opt.stopped:
        batch = opt.ask()
        opt.tell(batch, problem.f(batch.points()))
    return opt


def test_alpha_solves_its_equation():
    for gamma, mu, cost in (
        (3.0, 0.5, 80.0),
        (0.5, 0.5, 80.0),
        (3.0, 0.0, 80.0),
        (1e-9, 0.2, 5.0),
        (7.0, 0.0, 1.0),
    ):
        alpha = next_alpha(gamma, mu, cost)
        assert 0.0 < alpha <= 1.0
        assert cost * alpha**2 == pytest.approx((1 - alpha) * gamma + alpha * mu, rel=1e-9)
    assert next_alpha(0.5, 0.5, 80.0) == pytest.approx(math.sqrt(0.5 / 80.0))


@pytest.mark.slip(
    "optimizers/methods/katyusha/nesterov_spokoiny.py",
    "alpha = next_alpha(state.gamma, mu, d * d * L)",
    "alpha = next_alpha(state.gamma, mu, d * L)",
    "α of dL, not d²L",
    of="optimizers/nesterov_spokoiny",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/nesterov_spokoiny.py",
    "((1.0 - alpha) * state.gamma * state.v + alpha * (self.mu_f * y - g))",
    "(alpha * state.gamma * state.v + (1.0 - alpha) * (self.mu_f * y - g))",
    "the weights α and 1 - α, swapped",
    of="optimizers/nesterov_spokoiny",
)
@pytest.mark.parametrize("mu", [1.0, 0.0])
def test_expected_potential_falls_as_promised(mu):
    """E(f(x) − f* + γ/2 ‖v − x*‖²) ≤ Π(1 − α) of its first value, without ψ; mean of 25 runs with its margin."""
    problem, checkpoints = quadratic(PROXES["none"], d=6), (20, 50, 100)
    found = {k: [] for k in checkpoints}
    for seed in range(25):
        opt = NesterovSpokoiny(
            torch.zeros(6, dtype=torch.float64),
            max_queries=200,
            smoothness=20.0,
            strong_convexity=mu,
            seed=seed,
            smoothing_radius=1e-6,
        )
        product = 1.0
        initial = float(problem.gap(opt.x)) + 10.0 * float(problem.minimizer.square().sum())
        while not opt.stopped:
            product *= 1 - next_alpha(opt.state.gamma, mu, 36 * 20.0)
            batch = opt.ask()
            opt.tell(batch, problem.f(batch.points()))
            if opt.iterations in found:
                distance = float((opt.state.v - problem.minimizer).square().sum())
                potential = float(problem.gap(opt.x)) + opt.state.gamma / 2 * distance
                found[opt.iterations].append(potential / (product * initial))
    for ratios in map(torch.tensor, found.values()):
        assert float(ratios.mean() + 2.6 * ratios.std() / math.sqrt(len(ratios))) <= 1.0


@pytest.mark.slow
def test_faster_than_descent_without_a_constraint():
    problem = quadratic(PROXES["none"], d=4, kappa=100.0)
    common = {"smoothness": 100.0, "strong_convexity": 1.0}
    for seed in range(2):
        accelerated = float(problem.gap(solve(problem, 1500, seed=seed, **common).x))
        plain = float(problem.gap(solve(problem, 1500, ProjectedZO, step_schedule="constant", seed=seed, **common).x))
        assert accelerated < 1e-3 * plain


@pytest.mark.slow
def test_a_box_stalls_it():
    free, box = quadratic(PROXES["none"]), quadratic(Box(-0.5, 0.5))
    common = {"smoothness": 20.0, "strong_convexity": 1.0}
    assert max(abs(float(free.gap(solve(free, 1600, seed=s, **common).x))) for s in range(2)) < 1e-8
    assert min(float(box.gap(solve(box, 1600, seed=s, **common).x)) for s in range(2)) > 1e-3


def test_a_failed_query_leaves_the_state():
    opt = NesterovSpokoiny(torch.ones(4), max_queries=50, smoothness=2.0)
    opt.tell(opt.ask(), [math.nan, 0.0])
    assert torch.equal(opt.x, torch.ones(4)) and torch.equal(opt.state.v, torch.ones(4))
    assert opt.state.gamma == 2.0


def test_the_ridge_of_a_prox_counts():
    problem = quadratic(PROXES["box and ridge"], d=4, kappa=4.0)
    opt = NesterovSpokoiny(torch.zeros(4), prox=problem.prox, max_queries=50, smoothness=4.0, strong_convexity=1.0)
    assert opt.mu_psi == 0.5
    opt.tell(opt.ask(), [0.0, 0.0])
    alpha = next_alpha(4.0, 1.5, 64.0)
    assert opt.state.gamma == pytest.approx((1 - alpha) * 4.0 + alpha * 1.5)
