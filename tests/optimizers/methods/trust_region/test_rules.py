import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from optimizers import SurrogateTrustRegion, minimize, run
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.radius import Radius, RadiusRule
from optimizers.methods.trust_region.rules import DesignRule, FailureRule, GeometryRule, RestartRule, TrustRegionRules

RULE = RadiusRule()


@pytest.mark.slip(
    "optimizers/methods/trust_region/radius.py",
    "        if ratio <= self.failed:\n            delta = 0.5 * radius.delta",
    "        if ratio <= self.failed:\n            delta = radius.delta",
    "a radius that stays where the ratio of actual to predicted decrease is bad",
    of="optimizers/trust_region",
)
def test_the_radius_follows_the_ratio():
    radius = Radius(1.0, 0.1, 3.0)
    assert RULE.after(radius, 0.1, 1.0) == Radius(0.5, 0.1, 3.0)
    assert RULE.after(radius, -5.0, 0.3) == Radius(0.5, 0.1, 3.0)
    assert RULE.after(radius, 0.5, 0.9) == Radius(0.9, 0.1, 3.0)
    assert RULE.after(radius, 0.7, 0.2) == Radius(0.5, 0.1, 3.0)
    assert RULE.after(radius, 0.9, 0.2) == radius
    assert RULE.after(radius, 0.9, 1.0) == Radius(2.0, 0.1, 3.0)
    assert RULE.after(radius, 0.9, 2.5) == Radius(3.0, 0.1, 3.0)
    assert RULE.after(Radius(0.15, 0.1, 3.0), 0.0, 0.15) == Radius(0.1, 0.1, 3.0)
    assert RULE.after(radius, math.nan, 0.1) == Radius(0.05, 0.05, 3.0)
    assert RULE.lowered(Radius(0.1, 0.1, 3.0)) == Radius(0.05, 0.025, 3.0)
    assert RULE.raised(Radius(0.1, 0.1, 3.0)) == Radius(0.2, 0.2, 3.0)
    assert RULE.raised(Radius(2.5, 2.0, 3.0)) == Radius(3.0, 3.0, 3.0)
    assert RULE.is_short(radius, 0.04) and not RULE.is_short(radius, 0.06)


@pytest.mark.parametrize(("d", "axes"), [(30, False), (30, True), (5, False)])
def test_a_design_is_the_center_and_orthogonal_directions_and_has_an_opposite(d, axes):
    rule, box = DesignRule(), FreeBox(torch.zeros(d, dtype=torch.float64), None)
    center = torch.from_numpy(np.random.default_rng(1).standard_normal(d))
    points = rule.points(box, center, 2.0, None if axes else np.random.default_rng(0))
    moved = points - center
    assert not bool(moved[0].any())
    np.testing.assert_allclose(moved[1:] @ moved[1:].mT, 4.0 * np.eye(d if axes else min(d, 8)), atol=1e-12)
    assert bool(((moved != 0.0).sum(1)[1:] == 1).all()) is axes
    np.testing.assert_allclose(rule.opposite(box, center, points) - center, -moved, atol=1e-12)


def test_a_plane_is_of_the_queries_within_its_reach():
    failed, rows = torch.tensor([[2.0, 0.0], [-9.0, 0.0]]).double(), torch.tensor([[1.0, 0.5], [-1.0, 0.0]]).double()
    plane = FailureRule().half_space(failed, rows, 1.0)
    assert float(failed[0] @ plane.normal) == pytest.approx(1.0) and float((rows @ plane.normal).max()) <= 1.0
    assert FailureRule().half_space(failed, rows, 3.0) is None
    assert FailureRule(reach=0.0).half_space(failed, rows, 1.0) is None


def quadratic(x):
    return float((torch.logspace(0, 1, len(x), dtype=torch.float64) * (x - 0.7).square()).sum())


def kinds(rules, fun=quadratic, queries=60):
    opt = SurrogateTrustRegion([2.0, -3.0, 1.0], bounds=[(-5.0, 5.0)] * 3, max_queries=queries, rules=rules)
    found = []
    while not opt.stopped:
        batch = opt.ask()
        found.append((batch.info["kind"], batch.points()))
        opt.tell(batch, [fun(x) for x in batch])
    return found


def test_a_user_may_write_another_radius_rule():
    class Halving(RadiusRule):
        def after(self, radius, ratio, length):
            return replace(radius, delta=max(0.5 * radius.delta, radius.rho))

    rules = TrustRegionRules(radius=Halving())
    opt = SurrogateTrustRegion([2.0, -3.0], bounds=[(-5.0, 5.0)] * 2, max_queries=30, rules=rules)
    deltas = []
    while not opt.stopped and len(deltas) < 12:
        batch = opt.ask()
        opt.tell(batch, [quadratic(x) for x in batch])
        deltas.append(opt.state.run.radius.delta)
    assert max(deltas) <= deltas[0]


def test_there_may_be_no_geometry_queries():
    assert "GeometryQuery" in [kind for kind, _ in kinds(TrustRegionRules())]
    assert "GeometryQuery" not in [kind for kind, _ in kinds(TrustRegionRules(geometry=GeometryRule(limit=0)))]


def test_restarts_may_be_at_a_users_points():
    class At(RestartRule):
        def point(self, box, center, delta, queries, failed, random):
            return torch.full((1, box.d), 7.25, dtype=torch.float64)

    restarts = [x[0] for kind, x in kinds(TrustRegionRules(restart=At()), queries=200) if kind == "Restart"]
    assert restarts and all(torch.allclose(x, torch.full((3,), 2.25).double()) for x in restarts)  # of [0, 10]


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_an_option_out_of_range_is_refused_by_its_name(wrong):
    with pytest.raises(ValueError, match=r"RadiusRule\(poor=...\).*at least 0"):
        TrustRegionRules(radius=RadiusRule(poor=wrong))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rules": RULE}, r"rules must be TrustRegionRules\(...\), got RadiusRule"),
        ({"residuals": "huber"}, r"residuals must be Loss\(...\), got 'huber'"),
        ({"feasibility_probability": "high"}, "feasibility_probability must be a number, got 'high'"),
    ],
)
def test_options_of_another_type_are_refused_by_their_names(wrong, says):
    with pytest.raises(TypeError, match=says):
        minimize(quadratic, [2.0, -3.0], max_queries=30, **wrong)


def test_a_checkpoint_of_other_rules_is_refused():
    runs = [
        SurrogateTrustRegion([2.0, -3.0], max_queries=30, rules=TrustRegionRules(radius=RadiusRule(poor=poor)))
        for poor in (0.7, 0.1)
    ]
    run(runs[0], quadratic)
    with pytest.raises(ValueError, match="rules"):
        runs[1].load_state_dict(runs[0].state_dict())
