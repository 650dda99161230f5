"""What RGF, PRGF and ES make of failed queries, from one table."""

import math

import pytest
import torch

from optimizers import ES, PRGF, RGF
from optimizers.first_order import adam
from optimizers.testing import quadratic
from tests.optimizers.estimates import step

X0 = torch.full((5,), 2.0, dtype=torch.float64)
METHODS = {
    "rgf": (RGF, {}),
    "prgf": (PRGF, {"directions": 4}),
    "es": (ES, {"directions": 6}),
    "es-antithetic": (ES, {"directions": 6, "antithetic": True}),
}


@pytest.fixture(params=METHODS)
def started(request):
    """A method that has made two steps, and whether its differences are all taken to f(x)."""
    method, options = METHODS[request.param]
    opt = method(X0, max_queries=1000, **options)
    for _ in range(2):
        step(opt, quadratic)
    assert not torch.equal(opt.x, opt.best_x)
    return opt, not request.param.startswith("es")


def tell(opt, failed):
    """Tell the next batch with some of its values failed; x before and after."""
    before, batch = opt.x, opt.ask()
    values = quadratic(batch.points()) + 1e3
    values[failed(len(values))] = math.nan
    opt.tell(batch, values)
    return before, opt.x


def test_one_failed_query_is_left_out(started):
    opt, _ = started
    best = opt.best_x
    before, after = tell(opt, lambda n: [n - 1])
    assert not torch.equal(after, before) and not torch.equal(after, best)


@pytest.mark.parametrize("left", [0, 1])
def test_without_a_difference_the_iterate_returns_to_the_best_point(started, left):
    """All values failed, or all but the first: f(x), or a value that is compared with none."""
    opt, _ = started
    before, after = tell(opt, lambda n: list(range(left, n)))
    assert torch.equal(after, opt.best_x) and not torch.equal(after, before)


def test_a_failed_value_at_x_loses_the_estimates_that_need_it(started):
    opt, needed = started
    best = opt.best_x
    _, after = tell(opt, lambda n: [0])
    assert torch.equal(after, best) == needed


def test_where_nothing_succeeded_the_iterate_stays():
    for method, options in METHODS.values():
        opt = method(X0, max_queries=1000, **options)
        step(opt, lambda x: math.nan)
        assert torch.equal(opt.x, X0)


@pytest.mark.parametrize("queries", [40, 2000])
def test_steps_of_the_default_rule_suit_box_and_budget(queries):
    """Along a constant gradient, which d orthonormal directions give, Adam moves each variable by its rate."""
    opt = RGF(torch.full((4,), 3.0).double(), bounds=[(-8.0, 4.0)] * 4, max_queries=queries, directions=4)
    for k in range(1, 4):
        before = opt.x
        step(opt, lambda x: x.sum())
        moved = 12.0 / 5.0 / (1.0 + 5.0 * (k - 1) / 200.0)
        expected = torch.clamp(before - moved / 2.0, min=-8.0)
        torch.testing.assert_close(opt.x, expected, rtol=1e-6, atol=1e-6)


def test_a_rule_that_is_given_keeps_its_rate():
    opt = RGF(X0, max_queries=24, directions=5, update_rule=lambda p: torch.optim.SGD([p], lr=0.5))
    for _ in range(3):
        before = opt.x
        step(opt, lambda x: x.sum())
        torch.testing.assert_close(opt.x, before - 0.5, rtol=1e-9, atol=0)


@pytest.mark.parametrize("method", [RGF, PRGF, ES])
def test_defaults_reach_more_of_a_box_than_zord_s_settings(method):
    """A sphere whose minimum is 4 away in each of 5 variables, 20 queries a variable, over seeds."""
    printed = {"directions": 10, "smoothing_radius": 0.01, "update_rule": adam}
    differences = []
    for seed in range(8):
        best = []
        for options in ({}, printed):
            opt = method(X0, bounds=[(-5.0, 5.0)] * 5, max_queries=100, seed=seed, **options)
            while not opt.stopped:
                step(opt, lambda x: (x + 2.0).square().sum())
            best.append(math.log10(opt.best_fun))
        differences.append(best[0] - best[1])
    mean, error = torch.tensor(differences).mean(), torch.tensor(differences).std() / math.sqrt(8)
    assert float(mean + 3.0 * error) < 0.0
