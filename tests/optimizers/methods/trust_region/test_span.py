import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from optimizers import SurrogateTrustRegion, run
from optimizers.methods.trust_region.radius import Radius
from optimizers.methods.trust_region.rules import NoiseRule, TrustRegionRules
from optimizers.methods.trust_region.state import Data


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def sphere(x):
    return float((x - 0.5).square().sum())


def test_a_sphere_in_61_variables_is_near_its_minimum_after_two_queries_a_variable():
    x0 = torch.full((61,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 61, max_queries=122)
    assert run(opt, sphere).fun < 1e-2 * sphere(x0)


def test_fewer_queries_than_variables_descend_inside_of_the_box_and_the_state_has_no_number_for_each_pair():
    d, x0 = 300, torch.full((300,), -4.9, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * d, max_queries=40, store_points=True)
    result = run(opt, lambda x: float((x + 6.0).square().sum()))
    assert result.fun < 0.995 * d * 1.1**2
    assert float(result.history.x.min()) >= -5.0
    state = opt.state
    held = (state.data.points, state.data.values, state.data.failed, state.fit.basis, state.fit.metric)
    assert max(v.numel() for v in held) <= 40 * d


def test_a_run_forgets_what_is_far_and_goes_on():
    d = 70
    opt = SurrogateTrustRegion(normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=50, window=10)
    run(opt, sphere)
    assert len(opt.state.data.points) == len(opt.state.data.values) <= 30
    assert opt.best_fun == pytest.approx(float(opt.state.data.values.min()))


def test_a_saved_run_goes_on_bitwise():
    d = 70
    runs = [SurrogateTrustRegion(normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=30) for _ in range(2)]
    full = run(runs[0], sphere)
    half = SurrogateTrustRegion(normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=30)
    while half.queries < 20:
        batch = half.ask()
        half.tell(batch, [sphere(x) for x in batch])
    runs[1].load_state_dict(half.state_dict())
    assert torch.equal(run(runs[1], sphere).x, full.x)


def test_what_is_held_before_the_first_query_does_not_grow_with_the_square_of_the_dimension():
    """A metric of 200,000² numbers would be 320 GB."""
    opt = SurrogateTrustRegion(torch.zeros(200_000, dtype=torch.float64), max_queries=20)
    assert opt.ask().points().shape == (9, 200_000)


def test_a_step_that_falls_short_by_chance_has_failed_as_the_fourth_in_a_row():
    """Chance explains each of them alone, but not that none was lower."""
    slope = normal(100)
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), bounds=[(-5.0, 5.0)] * 100, max_queries=150)
    opt.tell(design := opt.ask(), design.points() @ slope)
    for count in range(4):
        step = opt.ask()
        assert step.info["kind"] == "Step"
        opt.state.plan = replace(opt.state.plan, exploration_std=1e9)
        length = float((step[0] - opt.x).norm())
        opt.tell(step, [opt.best_fun + 1e-3])
        assert (opt.state.run.radius.delta < length) is (count == 3)


@pytest.mark.parametrize("better", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_begins_at_a_random_point_that_is_better_than_x0_and_at_the_best_one_else(better):
    """Terraces about x0, which go down or up: a run cannot go on from any, and no random point is near."""
    x0 = normal(100, seed=3).clamp(-1.0, 1.0)
    rules = TrustRegionRules(noise=NoiseRule(plateaus=0))  # else the search becomes coarser on a terrace
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 100, max_queries=300, rules=rules)
    begun, best, sign = [], None, -1.0 if better else 1.0
    while not opt.stopped:
        batch = opt.ask()
        if batch.info["kind"] == "Restart":
            best = opt.best_x
        elif batch.info["kind"] == "Design" and best is not None:
            begun.append(float(torch.linalg.vector_norm(batch.points() - best, dim=1).max()))
            best = None
        opt.tell(batch, sign * torch.linalg.vector_norm(batch.points() - x0, dim=1).floor().clamp(max=10.0))
    nearest = 0.2 * 10.0 * 5.0**0.5
    assert len(begun) >= 3 and all((distance > 2.0 * nearest) is better for distance in begun)


def test_the_best_query_is_kept_whatever_is_forgotten():
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), max_queries=400, window=10)
    opt.tell(design := opt.ask(), range(len(design)))
    points, values = normal(40, 100), normal(40)
    points[3], values[3] = 1e3, -9.0
    state = opt.state.copied()
    state.data, state.run.run_start = Data(points, values, points[:0]), 20
    opt._models.forget(state)
    kept, first = state.data, state.run.run_start
    assert len(kept.values) < 20 and float(kept.values.min()) == -9.0
    assert 1e3 in kept.points[:first] and 1e3 not in kept.points[first:]


@pytest.mark.parametrize(
    ("d", "window", "most"), [(700, None, 100), (1600, None, 200), (3000, None, 300), (3000, 20, 20)]
)
def test_with_noise_in_a_model_of_a_subspace_it_has_more_queries(d, window, most):
    opt = SurrogateTrustRegion(torch.zeros(d, dtype=torch.float64), max_queries=400, window=window)
    opt.tell(design := opt.ask(), range(len(design)))
    state, points = opt.state.copied(), normal(1000, d)
    state.data, state.run.noisy, state.run.repeated_gap = Data(points, normal(1000), points[:0]), False, 0.0
    opt._models.forget(state)
    for smoothing, size in ((True, most), (False, window or 100)):
        state.run.smoothing = smoothing
        assert len(opt._models.window(state, 0)) == size


@pytest.mark.slow
def test_ripples_in_a_subspace_average_out_over_more_queries():
    """The mean over four seeds of log10 of the decrease of a sphere under ripples, paired, and twice its error."""

    def decrease(seed, rules):
        center, spheres = torch.from_numpy(np.random.default_rng(seed).uniform(-2.0, 2.0, 1600)), []
        opt = SurrogateTrustRegion([0.0] * 1600, bounds=[(-5.0, 5.0)] * 1600, max_queries=300, seed=seed, rules=rules)
        while not opt.stopped:
            x = (batch := opt.ask()).points()
            spheres.append((x - center).square().sum(dim=1))
            opt.tell(batch, spheres[-1] + 20.0 * torch.cos(1e4 * x.sum(dim=1)))
        return float(spheres[0][0] - torch.cat(spheres).min())

    rules = TrustRegionRules(noise=NoiseRule(window=0)), TrustRegionRules()
    gains = [math.log10(decrease(seed, rules[1]) / decrease(seed, rules[0])) for seed in range(4)]
    assert np.mean(gains) - 2.0 * np.std(gains, ddof=1) / math.sqrt(len(gains)) > 0.0


@pytest.mark.parametrize("noisy", [False, True])
def test_queries_of_a_finer_scale_are_out_of_the_window_of_a_run_that_begins_again(noisy):
    """Those nearer than ρ/100 say what f does at a finer scale; where values have noise more of it averages out."""
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), max_queries=400)
    opt.tell(design := opt.ask(), range(len(design)))
    directions = torch.nn.functional.normalize(normal(4, 100), dim=1)
    points = torch.cat([torch.zeros(1, 100), torch.tensor([[1e-6], [0.009], [0.011], [1.0]]) * directions])
    state = opt.state.copied()
    state.data, state.run.noisy, state.run.radius = Data(points, normal(5), points[:0]), noisy, Radius(1.0, 1.0, 9.0)
    distances = torch.linalg.vector_norm(points[opt._models.window(state, 0)], dim=1)
    np.testing.assert_allclose(distances, [1e-6, 0.009, 0.011, 1.0] if noisy else [0.011, 1.0])


@pytest.mark.parametrize("taught", [0, 3])
def test_geometry_queries_count_among_those_that_only_improve_the_model(taught):
    """After three of them a step that falls short by chance has failed."""
    slope = normal(100)
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), bounds=[(-5.0, 5.0)] * 100, max_queries=150)
    opt.tell(design := opt.ask(), design.points() @ slope)
    step = opt.ask()
    opt.state.plan, opt.state.run.model_queries = replace(opt.state.plan, exploration_std=1e9), taught
    before = opt.state.run.radius.delta
    opt.tell(step, [opt.best_fun + 1e-3])
    assert (opt.state.run.radius.delta <= 0.5 * before) is (taught == 3)
