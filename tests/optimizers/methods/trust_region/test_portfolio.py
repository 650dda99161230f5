import itertools
import math

import numpy as np
import pytest
import torch

from optimizers import ReturnedConstraints, Space, SurrogateTrustRegion
from optimizers.methods.trust_region.portfolio import REGION, Portfolio, PortfolioRule, Share
from optimizers.methods.trust_region.rules import NoiseRule, TrustRegionRules
from optimizers.prox import L1

LONG = TrustRegionRules(noise=NoiseRule(patience=math.inf))
"""Smoothing, and with it samples, until ρ reaches the scale of the ripples."""


def funnels(x):
    """Two funnels under ripples: a wide one, where a run begins, and a deeper one, as in Lunacek's function."""
    wide, deep = (x - 2.5).square().sum(-1), 0.5 * (x + 2.5).square().sum(-1) - 30.0
    return torch.minimum(wide, deep) + 3.0 * (1.0 - torch.cos(9.0 * x)).mean(-1)


def ran(f=funnels, d=6, n=60, seed=0, bounds=None, unit=1.0, **options):
    """The optimizer after n queries, and the kinds of its batches."""
    start = unit * np.random.default_rng(seed).uniform(1.0, 4.0, d)
    bounds = [(-5.0, 5.0)] * d if bounds is None else bounds
    opt, kinds = SurrogateTrustRegion(start, bounds=bounds, max_queries=n, seed=seed, store_points=True, **options), []
    while not opt.stopped:
        batch = opt.ask()
        kinds.append(batch.info["kind"])
        opt.tell(batch, f(batch.points()))
    return opt, kinds


def test_a_gain_is_a_mean_with_weights_that_fall():
    share, decreases = Share(), [3.0, 0.0, 0.0, 1.0, 0.0, 2.0]
    for decrease in decreases:
        share = share.after(1, decrease, 4.0)
    weights = 0.25 * 0.75 ** np.arange(6)[::-1]
    assert share.queries == 6 and share.gain == pytest.approx(float(weights @ decreases), rel=1e-12)
    assert Share().after(5, 10.0, 4.0).gain == pytest.approx(2.0 * (1.0 - 0.75**5), rel=1e-12)


@pytest.mark.parametrize(
    ("local", "wide", "mean", "expected"),
    [
        (1.0, 2.0, 1.0, 0.67),
        (2.0, 1.0, 1.0, 0.1),
        (2.0, 1.0, 30.0, 0.33),
        (0.0, 0.0, 1.0, 0.33),
    ],
)
def test_the_search_that_gains_more_has_what_is_not_reserved(local, wide, mean, expected):
    """A third is reserved for samples while local steps gain less than a tenth of the mean decrease, else a tenth."""
    rule, known = PortfolioRule(), Portfolio()
    for _ in range(300):
        samples = rule.wants_sample(known, mean)
        name, count, gain = ("wide", rule.batch, wide) if samples else ("local", 1, local)
        known = rule.noted(known, count * gain, known.noted_at + count, name)
        queries = known.local.queries + known.wide.queries
        assert known.local.queries >= rule.least * (queries - rule.batch) - 1
    assert known.wide.queries / queries == pytest.approx(expected, abs=0.03)


def test_evaluations_before_ripples_do_not_count():
    known = PortfolioRule().noted(Portfolio(), math.inf, 7, None)
    assert (known.noted_at, known.local, known.wide) == (7, Share(), Share())


def test_the_region_is_halved_after_failures_and_begins_anew():
    rule, known = PortfolioRule(), Portfolio()
    lengths = []
    for _ in range(40):
        known = rule.sampled(known, 1.0, torch.tensor([2.0, math.nan, 1.0, 5.0, math.inf]), 10)
        lengths.append(known.region.length)
    assert lengths[:4] == [0.8, 0.4, 0.4, 0.2] and set(lengths) == {0.8 * 0.5**i for i in range(7)}
    assert lengths[13] == REGION.length_init and REGION.length_min > 0.8 * 0.5**7
    for _ in range(3):
        known = rule.sampled(known, 1.0, torch.tensor([0.5]), 10)
    assert known.region.length == 2.0 * lengths[-1]


def test_samples_find_a_deeper_funnel():
    """From five starts in four variables from which runs without samples stay in the first funnel."""
    found = []
    for least in (0.0, 0.33):
        rules = TrustRegionRules(portfolio=PortfolioRule(least=least))
        found.append(sum(ran(d=4, n=50, seed=seed, rules=rules)[0].best_fun < 0.0 for seed in range(1, 10, 2)))
    assert found[1] >= found[0] + 3


def test_samples_are_in_the_box_and_no_two_are_equal():
    opt, kinds = ran(n=100, rules=LONG)
    x = opt.result().history.x
    assert kinds.count("Sample") >= 3 and bool((x.abs() <= 5.0).all())
    assert len(x) - len(x.unique(dim=0)) == kinds.count("Repeat") == 1


@pytest.mark.parametrize(
    "options",
    [
        {"rules": TrustRegionRules(portfolio=PortfolioRule(least=0))},
        {"rules": TrustRegionRules(portfolio=PortfolioRule(most=5))},
        {"bounds": [(-5.0, 5.0)] * 5 + [(-5.0, math.inf)]},
        {"bounds": Space([(-5.0, 5.0)] * 6, integrality=[1] + [0] * 5)},
        {"prox": L1(0.1)},
        {"noise": 1.0},
        {"constraints": ReturnedConstraints([-np.inf], [100.0])},
        {"d": 1},
    ],
    ids=["least", "most", "infinite", "integers", "prox", "noise", "constraints", "one variable"],
)
def test_where_samples_are_not_taken(options):
    limited = "constraints" in options
    f = (lambda x: torch.stack([funnels(x), x.sum(-1)], dim=1)) if limited else funnels
    assert "Sample" not in ran(f, **options)[1]


def test_a_run_is_resumed_bitwise_between_samples():
    opts = [
        SurrogateTrustRegion([2.0] * 4, bounds=[(-5.0, 5.0)] * 4, max_queries=90, seed=3, rules=LONG) for _ in range(2)
    ]
    asked = [[], []]
    while not opts[0].stopped:
        batch = opts[0].ask()
        asked[0].append(batch.points())
        opts[0].tell(batch, funnels(batch.points()))
        if len(asked[1]) == 0 and opts[0].state.run.portfolio.wide.queries >= 10 and batch.info["kind"] == "Sample":
            opts[1].load_state_dict(opts[0].state_dict())
            asked[1].append(None)
    while not opts[1].stopped:
        batch = opts[1].ask()
        asked[1].append(batch.points())
        opts[1].tell(batch, funnels(batch.points()))
    assert len(asked[1]) > 5
    for one, other in zip(asked[0][1 - len(asked[1]) :], asked[1][1:], strict=True):
        assert torch.equal(one, other)


def test_samples_follow_the_units_of_x_and_f():
    """Powers of two, so that nothing is rounded."""
    x = [
        ran(lambda x, c=c, u=u: c * funnels(x / u), bounds=[(-5.0 * u, 5.0 * u)] * 6, unit=u)[0].result().history.x / u
        for c, u in ((1.0, 1.0), (1024.0, 1.0), (1.0, 0.125))
    ]
    assert torch.equal(x[0], x[1]) and torch.equal(x[0], x[2])


def test_a_sample_that_fails_is_survived():
    failing = itertools.cycle([False, True])
    opt = SurrogateTrustRegion([2.0] * 4, bounds=[(-5.0, 5.0)] * 4, max_queries=80, seed=0, rules=LONG)
    kinds = []
    while not opt.stopped:
        batch = opt.ask()
        kinds.append(batch.info["kind"])
        values = funnels(batch.points())
        opt.tell(batch, torch.full_like(values, math.nan) if kinds[-1] == "Sample" and next(failing) else values)
    assert kinds.count("Sample") >= 2 and opt.best_fun < 0.0
