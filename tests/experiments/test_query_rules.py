"""Rules for ZoRD's active queries that lost: what they ask, by dense algebra."""

import pytest
import torch

from experiments.beyond.query_rules import CANDIDATES, ProbabilityGate, RandomQueries, candidate_cloud
from optimizers import ZoRD
from tests.optimizers.surrogate_reference import Reference

X0 = torch.tensor([2.0, -1.0, 0.5, 1.5], dtype=torch.float64)
OPTIONS = {"active": "gated", "initial_points": 4, "lengthscale": 2.0, "radius": 0.3}


def function(x):
    return (x.square() * torch.linspace(1.0, 3.0, x.shape[-1], dtype=x.dtype)).sum(-1) + x.sin().sum(-1)


def flat(x):
    return torch.ones(len(x), dtype=x.dtype)


def run(opt, fun=function, queries=None):
    while not opt.stopped and (queries is None or opt.queries < queries):
        batch = opt.ask()
        opt.tell(batch, fun(batch.points()))
    return opt


def test_clouds_lie_at_four_distances_and_take_turns():
    lengths = candidate_cloud(torch.zeros(1000).double(), 0.1, 0.8, 0, 0).norm(dim=1)
    assert len(lengths) == CANDIDATES
    torch.testing.assert_close(lengths[:4], torch.tensor([0.1, 0.2, 0.4, 0.8]).double(), rtol=0.15, atol=0)
    torch.testing.assert_close(lengths[4:8], lengths[:4], rtol=0.2, atol=0)


def test_the_probability_gate_asks_where_information_is_largest():
    """The gate and the choice are compared with the drop in trace of every candidate, by dense inverses."""
    opt = run(ProbabilityGate(X0, max_queries=100, nugget=0.2, **OPTIONS), queries=4)
    in_a_row = asked = 0
    for _ in range(14):
        query = opt.state.query
        x = opt._x if query is not None else opt.state.best_point
        Z, y = opt.trajectory.X.clone(), opt.trajectory.y.clone()
        gp = Reference(Z, y, float(y.std()), 2.0, 1.0, 0.2)
        if query is None:
            assert gp.measure("descent", x) <= 0.1 + 1e-9 or in_a_row == 5
            in_a_row = 0
        else:
            in_a_row, asked = in_a_row + 1, asked + 1
            assert gp.measure("descent", x) > 0.1
            cloud, before = candidate_cloud(x, 0.3, 1.0, 0, opt.iterations), gp.measure("mean_variance", x)
            drops = [
                before
                - Reference(torch.cat([Z, c[None]]), torch.cat([y, y[:1]]), 1.0, 2.0, 1.0, 0.2).measure(
                    "mean_variance", x
                )
                for c in cloud
            ]
            chosen = int((cloud - query).norm(dim=1).argmin())
            assert torch.equal(cloud[chosen], query)
            assert drops[chosen] == pytest.approx(max(drops), rel=1e-6)
            torch.testing.assert_close(opt.ask().points()[0], query)
        assert in_a_row == opt.state.active <= 5
        run(opt, queries=opt.queries + 1)
    assert 3 <= asked < 14


@pytest.mark.slow
def test_random_queries_have_the_librarys_gate_and_another_point_each_time():
    gated, random = (run(made(X0, max_queries=9, nugget=1.0, **OPTIONS), queries=4) for made in (ZoRD, RandomQueries))
    cloud = candidate_cloud(random._x, 0.3, 1.0, 0, random.iterations)
    assert gated.state.query is not None and not torch.equal(gated.state.query, random.state.query)
    assert torch.equal(random.state.query, cloud[(random.iterations - 1) % CANDIDATES])
    opt, opened = run(RandomQueries(X0, max_queries=60, nugget=0.05, **OPTIONS), queries=4), []
    while not opt.stopped:
        twin = ZoRD(X0, max_queries=60, nugget=0.05, **OPTIONS)
        twin.load_state_dict(opt.state_dict() | {"method": "zord"})
        value = function(opt.ask().points())
        twin.tell(twin.ask(), value)
        opt.tell(opt.ask(), value)
        assert opt.state.active == twin.state.active
        opened.append(opt.state.active > 0)
    assert any(opened) and not all(opened)


@pytest.mark.parametrize("rule", [ProbabilityGate, RandomQueries])
def test_five_in_a_row_are_the_limit(rule):
    """Where all values are equal no step gains anything, and both gates are always open."""
    opt = run(rule(X0, max_queries=40, active="gated", lengthscale=2.0), flat, queries=10)
    streaks = []
    while not opt.stopped:
        streaks.append(opt.state.active)
        run(opt, flat, opt.queries + 1)
    assert streaks == [1, 2, 3, 4, 5, 0] * 5


@pytest.mark.parametrize("rule", [ProbabilityGate, RandomQueries])
def test_a_box_of_one_point_leaves_nothing_to_ask(rule):
    opt = rule(X0, bounds=[(v, v) for v in X0.tolist()], max_queries=20, active="gated", radius=1.0)
    assert run(opt, flat).queries == 20 and opt.failures == 0
