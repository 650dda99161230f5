import math

import numpy as np
import pytest
import torch

from experiments.workloads.problems import standard_problem
from optimizers import CobBO, minimize
from optimizers.designs import latin_hypercube
from optimizers.methods.bayesian import local_gp
from optimizers.methods.bayesian.cobbo import backs_off
from optimizers.methods.bayesian.coordinate_blocks import (
    interpolate,
    sample_block,
    spread_out,
    updated_weights,
    virtual_points,
)
from optimizers.testing import CHECKS, Promises
from tests.optimizers.boxed import boxed_factory
from tests.optimizers.methods.busy import check_resumes

QUICK = boxed_factory("cobbo", initial_points=6, fit_steps=5)


@pytest.fixture
def rough(monkeypatch):
    """What the tests say of a run holds wherever the acquisition is evaluated, thus also short of its maximum."""
    monkeypatch.setattr(local_gp, "ITERATIONS", 3)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check, rough):
    check(QUICK, Promises(max_queries=6, convergence_queries=22))


@pytest.mark.slip(
    "optimizers/methods/bayesian/coordinate_blocks.py",
    "math.log(REWARD) if improved else -math.log(PENALTY)",
    "math.log(PENALTY) if improved else -math.log(REWARD)",
    "reward and penalty, swapped (Tan et al., eq. 2)",
    of="optimizers/cobbo",
)
def test_weights_follow_equation_2():
    log_weights = torch.zeros(4, dtype=torch.float64)
    block = torch.tensor([1, 3])
    up = updated_weights(log_weights, block, True).softmax(0)
    assert torch.allclose(up, torch.tensor([1.0, 2.0, 1.0, 2.0]).double() / 6)
    down = updated_weights(log_weights, block, False).softmax(0)
    weights = torch.tensor([1.0, 1 / 1.1, 1.0, 1 / 1.1]).double()
    assert torch.allclose(down, weights / weights.sum())
    for _ in range(3000):
        log_weights = updated_weights(log_weights, block, True)
    assert bool(torch.isfinite(log_weights).all())


@pytest.mark.slip(
    "optimizers/methods/bayesian/coordinate_blocks.py",
    "(log_weights + noise).topk(size)",
    "(log_weights - noise).topk(size)",
    "the sign of the Gumbel noise (Tan et al., Theorem 2)",
    of="optimizers/cobbo",
)
def test_blocks_are_drawn_without_replacement_by_the_preference():
    weights = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    p, runs = weights / weights.sum(), 4000
    generator = np.random.default_rng(0)
    first, pairs = torch.zeros(4), torch.zeros(4)
    for _ in range(runs):
        first[sample_block(weights.log(), 1, generator)] += 1
        pair = sample_block(weights.log(), 2, generator)
        assert len(pair.unique()) == 2
        pairs[pair] += 1
    exact = p + torch.stack([sum(p[i] * p[j] / (1 - p[i]) for i in range(4) if i != j) for j in range(4)])
    assert float((first / runs - p).abs().max()) < 5 * 0.5 / runs**0.5
    assert float((pairs / runs - exact).abs().max()) < 5 * 0.5 / runs**0.5


def test_interpolation_reproduces_values_and_a_smooth_function_between():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, 3, generator=generator, dtype=torch.float64)
    y = 5.0 + X.sin().sum(-1)
    assert torch.allclose(interpolate(X, y, X), y, atol=1e-8)
    inner = 0.1 + 0.8 * torch.rand(50, 3, generator=generator, dtype=torch.float64)
    error = interpolate(X, y, inner) - (5.0 + inner.sin().sum(-1))
    assert float(error.abs().max()) < 0.02
    assert torch.allclose(interpolate(X[:1], y[:1], inner), y[:1].expand(50))


@pytest.mark.parametrize("n", [7, 20])
def test_interpolation_is_of_multiquadrics_as_wide_as_the_points_are_apart(n):
    """φ(r) = √(1 + (r/s)²) with s = n^(−1/d) and a constant, by the dense system; ``scipy.interpolate.Rbf``'s s."""
    X, queries = latin_hypercube(n, 3, 0), latin_hypercube(5, 3, 1)
    y, s = 4.0 + torch.sin(3 * X.sum(1)), n ** (-1 / 3)

    def phi(a, b):
        return (1 + (torch.cdist(a, b) / s).square()).sqrt()

    ones = torch.ones(n, 1).double()
    system = torch.cat([torch.cat([phi(X, X), ones], dim=1), torch.cat([ones, torch.zeros(1, 1)]).T])
    weights = torch.linalg.solve(system, torch.cat([y, torch.zeros(1)]))
    expected = phi(queries, X) @ weights[:-1] + weights[-1]
    assert torch.allclose(interpolate(X, y, queries), expected, rtol=0, atol=1e-8)


def test_clusters_keep_their_best_point():
    X = torch.tensor([[0.0, 0.0], [0.01, 0.0], [0.5, 0.5], [0.011, 0.0], [0.5, 0.52]], dtype=torch.float64)
    y = torch.tensor([3.0, 1.0, 2.0, 2.5, 7.0], dtype=torch.float64)
    assert spread_out(X, y, 0.05).tolist() == [1, 2]
    assert spread_out(X, y, 1e-9).tolist() == [0, 1, 2, 3, 4]
    repeated = torch.cat([X, X])
    assert bool(torch.isfinite(interpolate(repeated, torch.cat([y, y + 1]), X + 0.1)).all())


@pytest.mark.slip(
    "optimizers/methods/bayesian/coordinate_blocks.py",
    "torch.where(count > 0, total / count.clamp(min=1.0), values)",
    "torch.where(count > 0, total, values)",
    "the sum, not the mean, of values observed twice (Tan et al., eq. 1)",
    of="optimizers/cobbo",
)
def test_virtual_points_are_projections_with_observed_values_where_there_are_any():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 4, generator=generator, dtype=torch.float64)
    pivot, block = X[5].clone(), torch.tensor([0, 2])
    X[6] = pivot
    X[6, 2] = 0.123
    X[7], X[8] = X[9], X[9]
    X[7, 1], X[8, 1] = 0.1, 0.9
    y = (X - 0.3).square().sum(-1)
    virtual, values = virtual_points(X, y, pivot, block)
    assert virtual.shape == (38, 2) and len(torch.unique(virtual, dim=0)) == 38
    assert sorted(map(tuple, virtual.tolist())) == sorted(set(map(tuple, X[:, block].tolist())))
    for observed in (5, 6):
        match = (virtual == X[observed, block]).all(dim=1)
        assert math.isclose(float(values[match]), float(y[observed]), rel_tol=1e-14)
    full = pivot.expand(38, 4).clone()
    full[:, block] = virtual
    assert float((values - (full - 0.3).square().sum(-1)).abs().max()) < 0.15
    averaged, means = virtual_points(torch.cat([X, X]), torch.cat([y, y + 2.0]), pivot, block)
    match = (averaged == pivot[block]).all(dim=1)
    assert math.isclose(float(means[match]), float(y[5]) + 1.0, rel_tol=1e-12)


def test_stopping_rule():
    stay = {"queries": 4, "failures": 1, "gain": 0.0, "step": 0.3, "limit": 10, "patience": 3}
    assert not backs_off(**stay)
    assert backs_off(**stay | {"failures": 3})
    assert backs_off(**stay | {"queries": 10})
    assert backs_off(**stay | {"gain": 0.005, "step": 0.001})
    assert not backs_off(**stay | {"gain": 0.005})
    assert not backs_off(**stay | {"gain": 0.5, "step": 0.001})


def test_queries_stay_in_the_subspace_and_region_and_the_state_follows(rough):
    p = standard_problem("levy", 8)
    opt = CobBO(torch.full((8,), 4.0).double(), bounds=p.bounds.T, max_queries=36, fit_steps=5, seed=2)
    opt.tell(opt.ask(), p(opt.ask().points()))
    assert len(opt.state.data) == 16
    blocks = set()
    while not opt.stopped:
        before, batch = opt.state, opt.ask()
        assert len(batch) == 1
        query = opt.box.to_unit(batch.explicit[0])
        outside = torch.ones(8, dtype=torch.bool)
        outside[before.block] = False
        assert torch.allclose(query[outside], before.pivot[outside], atol=1e-12)
        assert float((query - before.pivot).abs().max()) <= 0.5 * before.region.length + 1e-12
        value = p(batch.points())
        opt.tell(batch, value)
        after, improved = opt.state, float(value) < before.best
        blocks.add(tuple(after.block.tolist()))
        assert torch.equal(after.pivot, query if improved else before.pivot)
        assert after.failures == (0 if improved else before.failures + 1)
        expected = updated_weights(before.log_weights, before.block, improved)
        assert torch.equal(after.log_weights, expected)
        if after.blocks == before.blocks:
            assert torch.equal(after.virtual[-1], query[before.block])
            assert float(after.virtual_values[-1]) == float(value)
    assert len(blocks) > 3 and len({len(block) for block in blocks}) > 2


def test_escape_moves_the_pivot_among_the_better_points():
    opt = CobBO(
        torch.zeros(3).double(),
        bounds=[(-1, 1)] * 3,
        max_queries=40,
        initial_points=12,
        escape_after=5,
        fit_steps=3,
    )
    batch = opt.ask()
    opt.tell(batch, batch.points().square().sum(1))
    pivot = opt.state.pivot
    for _ in range(5):
        assert torch.equal(opt.state.pivot, pivot)
        opt.tell(opt.ask(), [9.0])
    escaped = opt.state
    assert not torch.equal(escaped.pivot, pivot)
    assert escaped.failures == 0 and escaped.region.number == 1 and escaped.region.length == 0.8
    assert float((escaped.pivot - pivot).abs().max()) > 0.4
    X, y = opt.box.to_unit(escaped.data.points), escaped.data.totals
    row = (escaped.pivot == X).all(dim=1)
    assert bool(row.any()) and escaped.best == float(y[row][0]) <= float(y.median())


def test_failed_queries_are_failures_and_no_data():
    opt = CobBO(torch.zeros(3).double(), bounds=[(-1, 1)] * 3, max_queries=30, fit_steps=3)
    batch = opt.ask()
    opt.tell(batch, batch.points().square().sum(1))
    data, weights = len(opt.state.data), opt.state.log_weights
    virtual = len(opt.state.virtual)
    opt.tell(opt.ask(), [math.nan])
    assert len(opt.state.data) == data and len(opt.state.virtual) == virtual
    assert opt.state.failures == 1 and not torch.equal(opt.state.log_weights, weights)
    assert opt.observations[1].shape == (data,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ackley", "levy"])
def test_beats_random_search(name):
    """95% interval of log10(CobBO / random search), 70 queries each on the same box, is under 0."""
    p, gains = standard_problem(name, 10), []
    for seed in range(8):
        generator = torch.Generator().manual_seed(200 + seed)
        x0 = p.sample(1, generator)[0]
        result = minimize(p, x0, "cobbo", max_queries=70, bounds=p.bounds.T, seed=seed, fit_steps=20)
        gains.append(math.log10(result.fun / float(p(p.sample(70, generator)).min())))
    gains = torch.tensor(gains)
    assert float(gains.mean() + 2.365 * gains.std() / 8**0.5) < 0.0, gains


def test_needs_finite_bounds_and_says_so():
    with pytest.raises(ValueError, match="needs bounds"):
        CobBO(torch.zeros(3), max_queries=20)


# Several queries at a time.


def bowl(X):
    return (X - 0.3).square().sum(-1)


def designed(**options):
    """A run after its design, whose value at the pivot is 1."""
    options = {"fit_steps": 5, "initial_points": 8, "seed": 3} | options
    opt = CobBO(torch.zeros(4).double(), bounds=[(-1, 1)] * 4, max_queries=60, **options)
    design = opt.ask()
    assert opt.ask_another() is None
    opt.tell(design, 1.0 + torch.arange(8.0))
    return opt


@pytest.mark.slow
def test_a_run_with_several_batches_out_resumes_bitwise(rough):
    def make():
        return CobBO(torch.zeros(4).double(), bounds=[(-1, 1)] * 4, max_queries=60, fit_steps=3, seed=3)

    check_resumes(make, lambda X: torch.where(X[:, 0] > 0.9, torch.nan, bowl(X)), 4, 16, 12)


@pytest.mark.parametrize(("seed", "size"), [(3, 1), (4, 3)])
def test_queries_of_a_block_are_joint_and_lie_in_its_subspace(seed, size):
    """In the block of one coordinate improvement is expected at one point alone."""
    opt = designed(fit_steps=50, seed=seed)
    assert len(opt.state.block) == size
    batches = [opt.ask_another() for _ in range(4)]
    queries = torch.cat([opt.box.to_unit(batch.explicit) for batch in batches])
    outside = torch.ones(4, dtype=torch.bool)
    outside[opt.state.block] = False
    assert torch.allclose(queries[:, outside], opt.state.pivot[outside].expand(4, -1), rtol=0, atol=1e-12)
    assert float((torch.cdist(queries, queries) + torch.eye(4).double()).min()) > 1e-3 * size**0.5


def test_values_of_an_ended_block_are_data_unless_they_improve(rough):
    opt = designed(patience=1)
    pending = [opt.ask_another() for _ in range(4)]
    opt.tell(pending[0], [9.0])
    before = opt.state
    assert before.blocks == 2
    opt.tell(pending[1], [5.0])
    after = opt.state
    assert len(after.data) == len(before.data) + 1
    for name in ("block", "pivot", "virtual", "log_weights", "region", "failures", "block_queries"):
        assert getattr(after, name) is getattr(before, name)
    opt.tell(pending[2], [0.5])
    assert opt.state.best == 0.5 and torch.equal(opt.state.pivot, opt.box.to_unit(pending[2].explicit[0]))
    assert opt.state.blocks == 3 and opt.state.failures == 0


def test_a_late_value_does_not_undo_an_escape(rough):
    opt = designed(escape_after=1)
    pending = [opt.ask_another() for _ in range(2)]
    opt.tell(pending[0], [9.0])
    pivot = opt.state.pivot
    assert opt.state.region.number == 1
    opt.tell(pending[1], [0.5])
    assert torch.equal(opt.state.pivot, pivot) and opt.best_fun == 0.5
