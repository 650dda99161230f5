import math

import pytest
import torch

from optimizers import run
from optimizers.methods.katyusha.projected_zo import ProjectedZO
from optimizers.methods.katyusha.smooth_method import LARGEST, default_radius, measured_smoothness
from optimizers.testing import quadratic


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_default_radius():
    assert default_radius(torch.zeros(2, dtype=torch.float64)) == 1e-6
    assert default_radius(torch.tensor([1.0, -30.0], dtype=torch.float64)) == pytest.approx(3e-5)
    assert default_radius(torch.zeros(2)) == pytest.approx(2.0**-11.5)


def test_measured_smoothness():
    assert measured_smoothness(1.0, values(3.0, 2.0), values(1.0, 6.0), 0.5, 1.0) == pytest.approx(6.0 / 0.25)
    assert measured_smoothness(1.0, values(3.0, math.nan), values(1.0, 6.0), 0.5, 1.0) == pytest.approx(8.0)
    assert measured_smoothness(0.0, values(1.0), values(-1.0), 0.5, 2.0) == pytest.approx(2.0 / 20.0)
    assert measured_smoothness(5.0, values(5.0), values(5.0), 0.5, 2.0) == 1.0
    assert math.isnan(measured_smoothness(math.nan, values(1.0), values(2.0), 0.5, 1.0))
    assert math.isnan(measured_smoothness(0.0, values(math.nan), values(2.0), 0.5, 1.0))
    assert math.isnan(measured_smoothness(0.0, values(1e308), values(1e308), 1e-3, 1.0))


def test_the_largest_curvature_is_at_least_the_mean():
    """Along a basis: tr(H)/d ≤ L ≤ λ_max; Σ aⱼ xⱼ² has H = 2 diag(a), a from 1 to 10."""
    for seed in range(5):
        opt = ProjectedZO(torch.full((5,), 2.0, dtype=torch.float64), max_queries=20, seed=seed)
        batch = opt.ask()
        assert len(batch) == 11
        opt.tell(batch, quadratic(batch.points()))
        mean = 2.0 * float(torch.logspace(0.0, 1.0, 5, dtype=torch.float64).mean())
        assert mean * (1 - 1e-6) <= opt.state.smoothness <= 20.0 * (1 + 1e-6)
        assert opt.state.ceiling == pytest.approx(float(quadratic(batch.points()).max()))


def test_a_bound_is_no_curvature():
    """At a corner f(x + hu) is clamped on one side; the probe is made at a distance h from it."""
    x0 = torch.full((4,), 2.0, dtype=torch.float64)
    opt = ProjectedZO(x0, max_queries=20, bounds=[(1.0, 2.0), (2.0, 3.0), (2.0, 2.0), (2.0, 2.0005)])
    batch = opt.ask()
    opt.tell(batch, quadratic(batch.points()))
    assert opt.state.smoothness <= 20.0 * 1.01


def test_smoothness_doubles_above_the_ceiling():
    opt = ProjectedZO(torch.full((3,), 2.0, dtype=torch.float64), max_queries=400)
    batch = opt.ask()
    opt.tell(batch, quadratic(batch.points()))
    best = opt.best_x
    opt.state.smoothness = 0.5
    batch = opt.ask()
    opt.tell(batch, torch.full((2,), opt.state.ceiling + 1.0))
    assert opt.state.smoothness == 1.0 and torch.equal(opt.x, best)
    batch = opt.ask()
    opt.tell(batch, [opt.state.ceiling + 1.0, opt.state.ceiling - 0.1])
    assert opt.state.smoothness == 1.0
    given = ProjectedZO(torch.zeros(3), max_queries=400, smoothness=2.0)
    given.tell(given.ask(), [1e9, 1e9])
    assert given.state.smoothness == 2.0
    opt.state.smoothness = LARGEST
    opt.tell(opt.ask(), [1e300, 1e300])
    assert opt.state.smoothness == LARGEST


def test_divergence_is_caught():
    opt = ProjectedZO(torch.full((5,), 2.0, dtype=torch.float64), max_queries=2000)
    batch = opt.ask()
    opt.tell(batch, quadratic(batch.points()))
    opt.state.smoothness = 1e-4
    run(opt, quadratic)
    assert opt.state.smoothness > 1.0 and float(quadratic(opt.x)) < 1.0


def test_a_base_point_that_keeps_failing_is_left():
    opt = ProjectedZO(
        torch.full((3,), 2.0, dtype=torch.float64), max_queries=100, estimator="coordinates", smoothness=20.0
    )
    for k in range(3):
        assert float(opt.x[0]) == 2.0 and opt.state.failed == k
        batch = opt.ask()
        y = quadratic(batch.points())
        y[0] = math.nan
        opt.tell(batch, y)
    assert opt.state.failed == 0 and float(opt.x.sum()) == pytest.approx(6.0 + 1e-6 * 2.0, abs=1e-5)
    assert torch.equal(opt.x, opt.best_x)
