"""What a run says of its end: failures that do not end it, ends that are none, runs that did nothing, mere designs."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from optimizers import L1, minimize
from optimizers.registry import METHODS
from optimizers.testing import quadratic

D = 3
X0 = torch.full((D,), 2.0, dtype=torch.float64)
BOX = [(-5.0, 5.0)] * D
OPTIONS = {"gradient_descent": {"jac": torch.zeros_like}, "accelerated_zo": {"strong_convexity": 1.0}}
OPTIONS |= {name: {"bounds": BOX} for name in ("turbo", "cobbo")}


class Counted:
    """A function that knows the number of each call, from 1."""

    def __init__(self, of):
        self.of, self.calls = of, 0

    def __call__(self, x):
        self.calls += 1
        return self.of(self.calls, x)


def call(fun, method="rgf", x0=X0, **changes):
    return minimize(fun, x0, method, **{"max_queries": 100, "progress": False} | OPTIONS.get(method, {}) | changes)


def test_failures_after_a_finite_value_do_not_end_a_run():
    fun = Counted(lambda i, x: float(quadratic(x)) if i < 5 or i > 2000 else math.nan)
    result = call(fun, "gld", max_queries=2100)
    assert (result.nfev, result.stop_reason) == (2100, "budget") and result.success
    result = call(Counted(fun.of), "gld", max_queries=2100, max_failures=30)
    assert (result.nfev, result.stop_reason, result.success) == (34, "all queries failed", False)
    assert (
        "The last 30 queries all failed, after 34 queries, 30 of them failed. This is the limit max_failures=30"
        in result.message
    )


def test_a_feasible_share_of_two_thousandths_is_found():
    lucky = Counted(lambda i, x: float(quadratic(x)) if i >= 1400 else math.nan)
    assert call(lucky, "gld", max_queries=1600).nfev == 1600
    result = call(lambda x: math.nan, "gld", max_queries=5000)
    assert 1500 <= result.nfev < 1600 and not result.success
    assert "queries all failed" in result.message and "max_failures='auto'" in result.message
    assert call(lambda x: math.nan, "gld", max_queries=3000, max_failures=None).nfev == 3000


@pytest.mark.parametrize("policy", ["skip", "retry", "raise"])
@pytest.mark.parametrize("last", [1, 7])
@pytest.mark.parametrize("crew", [{}, {"workers": 2}, {"executor": ThreadPoolExecutor}], ids=["here", "own", "pool"])
def test_a_function_that_raises_stop_iteration_ends_the_run(policy, last, crew):
    def value(i, x):
        if i >= last:
            raise StopIteration
        return float(quadratic(x))

    made = crew | ({"executor": crew["executor"](1)} if "executor" in crew else {})
    result = call(Counted(value), on_failure=policy, **made)
    assert (result.stop_reason, result.status, result.success) == ("function", 99, False)
    assert (result.nfev, result.nfail) == (last - 1, 0) and "raised StopIteration" in result.message


def test_a_first_query_that_raises_is_retried_first():
    def value(raises, i, x):
        if i <= raises:
            raise OSError("the licence server is away")
        return float(quadratic(x))

    result = call(Counted(lambda i, x: value(2, i, x)), on_failure="retry", retries=2)
    assert result.nfail == 2 and result.success
    with pytest.raises(OSError, match="licence") as caught:
        call(Counted(lambda i, x: value(3, i, x)), on_failure="retry", retries=2)
    assert "the first of the run" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="licence"):
        call(Counted(lambda i, x: value(1, i, x)))


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.slow if name in ("turbo", "cobbo") else ()) for name in METHODS]
)
def test_a_run_whose_values_are_all_the_same_is_no_success(method):
    result = call(lambda x: 3.0, method)
    assert not result.success and "All values are 3: they do not show where" in result.message


@pytest.mark.parametrize("method", ["zo_svrg", "projected_zo", "nesterov_spokoiny", "zo_l_katyusha"])
def test_a_run_whose_differences_are_lost_is_no_success(method):
    result = call(lambda x: 1e9 + 1e-3 * float(quadratic(x)), method, max_queries=200)
    assert not result.success and "none improved" in result.message and "Subtract a constant" in result.message
    assert call(lambda x: float(quadratic(x)), method).success


def test_a_run_whose_every_estimate_is_zero_is_no_success():
    """Central differences of an even function about its centre, from where it falls on both sides."""
    result = call(lambda x: -float(x.square().sum()), "decomfl", x0=0.0 * X0, scheme="central")
    assert not result.success and "The iterate never moved" in result.message


def test_an_iterate_that_half_precision_holds_is_no_success():
    x0 = torch.full((D,), 1000.0, dtype=torch.bfloat16)
    slow = {"smoothing_radius": 32.0, "update_rule": lambda p: torch.optim.SGD([p], lr=1e-6)}
    result = call(lambda x: float(quadratic(x.double())), x0=x0, **slow)
    assert len(set(result.history.y.tolist())) > 50
    assert not result.success and "The iterate never moved" in result.message
    assert call(lambda x: float(quadratic(x.double())), x0=x0.double(), **slow).success


@pytest.mark.parametrize(
    "case",
    [
        {"x0": X0 * 0 - 5.0, "bounds": BOX, "fun": lambda x: float(x.sum())},
        {"x0": X0 * 0, "prox": L1(1e3), "fun": lambda x: float(quadratic(x))},
        {"x0": X0 * 0, "method": "gld", "fun": lambda x: float(x.square().sum())},
        {"method": "gld", "max_queries": 400, "fun": lambda x: float((2 * x.abs().sum()).round())},
    ],
    ids=["a corner", "a sparse solution", "the least value", "few levels"],
)
def test_a_run_that_stays_where_it_should_is_a_success(case):
    assert call(**case).success


@pytest.mark.parametrize(
    "method",
    [
        *("trust_region", "zord", "zo_svrg", "projected_zo"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("turbo", "cobbo")),
    ],
)
def test_a_budget_that_only_pays_the_design_says_so(method):
    sizes = {"trust_region": 1, "zo_svrg": 2 * D + 1, "projected_zo": 2 * D + 1}
    size = sizes.get(method, 6)
    options = {} if method in sizes else {"initial_points": 6}
    result = call(lambda x: float(quadratic(x)), method, max_queries=size, **options)
    assert result.nfev == size and "The initial design used them all" in result.message
    more = call(lambda x: float(quadratic(x)), method, max_queries=40, **options)
    assert "design" not in more.message
