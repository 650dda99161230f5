"""What RGF, PRGF and ES make of failed queries, from one table."""

import math

import pytest
import torch

from optimizers import ES, PRGF, RGF
from optimizers.testing import quadratic
from tests.optimizers.estimates import step

X0 = torch.full((5,), 2.0, dtype=torch.float64)
METHODS = {
    "rgf": (RGF, {}),
    "prgf": (PRGF, {"directions": 4}),
    "es": (ES, {"directions": 6}),
    "es-antithetic": (ES, {"directions": 6, "antithetic": True}),
    "es-iterate": (ES, {"directions": 6, "query_iterate": True}),
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
