import pytest
import torch

from optimizers import Box
from optimizers.methods.katyusha.zo_svrg import ZOSVRG
from tests.optimizers.composite import quadratic


def solve(problem, max_queries, **options):
    opt = ZOSVRG(torch.zeros(problem.d, dtype=torch.float64), prox=problem.prox, max_queries=max_queries, **options)
    sizes = []
    while not opt.stopped:
        batch = opt.ask()
        sizes.append(len(batch))
        opt.tell(batch, problem.f(batch.points()))
    return opt, sizes


@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_svrg.py",
    "self.batch_size / (self.dimension * self.state.smoothness)",
    "self.batch_size / self.state.smoothness",
    "η without 1/d",
    of="optimizers/zo_svrg",
)
def test_steps_are_those_of_proximal_svrg():
    problem = quadratic(Box(-0.5, 0.5))
    opt = ZOSVRG(torch.zeros(8, dtype=torch.float64), prox=problem.prox, max_queries=300, smoothness=20.0)
    x = w = torch.zeros(8, dtype=torch.float64)
    while not opt.stopped:
        batch = opt.ask()
        assert torch.equal(batch.base, opt.x)
        opt.tell(batch, problem.f(batch.points()))
        if len(batch) == 9:
            w = x
            continue
        j = batch.addresses[1][1]
        g = problem.gradient(w)
        g[j] += 8 * (problem.gradient(x) - problem.gradient(w))[j]
        x = (x - g / (8 * 20.0)).clamp(-0.5, 0.5)
        torch.testing.assert_close(opt.x, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_epochs(size):
    """A reference, then ⌈d/|S|⌉ steps."""
    problem = quadratic(Box(-0.5, 0.5))
    _, sizes = solve(problem, 200, smoothness=20.0, batch_size=size)
    epoch = [9] + [size + 1] * -(-8 // size)
    assert sizes == (epoch * 20)[: len(sizes)]


@pytest.mark.slow
def test_convergence_on_a_box():
    problem = quadratic(Box(-0.5, 0.5))
    opt, _ = solve(problem, 6000, smoothness=20.0, step_factor=2.0, smoothing_radius=1e-6)
    assert abs(float(problem.gap(opt.x))) < 1e-10


def test_bad_options():
    with pytest.raises(ValueError, match="at most d = 3"):
        ZOSVRG(torch.zeros(3), max_queries=50, batch_size=4)
    with pytest.raises(ValueError, match="step_factor must be positive"):
        ZOSVRG(torch.zeros(3), max_queries=50, step_factor=0.0)
