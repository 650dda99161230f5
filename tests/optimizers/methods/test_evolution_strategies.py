import pytest
import torch
from scipy.stats import rankdata

from optimizers import ES, Simplex
from tests.optimizers.estimates import assert_mean, estimate, sgd, step

A = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
X0 = torch.zeros(4, dtype=torch.float64)


def linear(x):
    return A @ x


def test_raw_estimates_are_unbiased():
    options = {"directions": 4, "shaping": "none", "antithetic": True}
    assert_mean(torch.stack([estimate(ES, X0, linear, seed=s, **options) for s in range(1000)]), A)


def test_the_step_is_the_formula():
    opt = ES(X0, max_queries=100, directions=6, smoothing_radius=0.1, update_rule=sgd)
    batch = opt.ask()
    values = torch.stack([linear(p) for p in batch.points()])
    opt.tell(batch, values)
    assert torch.equal(batch.points()[0], X0)
    u, values = (batch.points()[1:] - X0) / 0.1, values[1:]
    s = torch.as_tensor(rankdata(values) - 1) / 5 - 0.5
    torch.testing.assert_close(X0 - opt.x, s @ u / (6 * 0.1), rtol=1e-11, atol=1e-11)


def test_steps_do_not_change_under_increasing_transformations():
    a, b = ES(X0, max_queries=100), ES(X0, max_queries=100)
    for _ in range(5):
        step(a, linear)
        step(b, lambda x: torch.exp(linear(x)))
    assert torch.equal(a.x, b.x)


def test_the_iterate_is_queried_where_others_may_be_infeasible():
    x0 = torch.full((4,), 0.25, dtype=torch.float64)
    opt = ES(x0, max_queries=110, prox=Simplex())
    for _ in range(10):
        step(opt, linear)
    assert opt.queries == 110 and float(opt.best_x.sum()) == pytest.approx(1.0) and opt.best_fun < 0.0
    for confined, count in ((True, 10), (False, 11)):
        opt = ES(X0, max_queries=100, bounds=[(-9.0, 9.0)] * len(X0), confine_queries=confined)
        assert len(opt.ask()) == 11
        step(opt, linear)
        assert len(opt.ask()) == count


@pytest.mark.parametrize("options", [{}, {"antithetic": True}])
def test_no_result_is_worse_than_x0(options):
    """From the minimum every perturbed point is worse."""
    opt = ES(X0, max_queries=100, **options)
    while not opt.stopped:
        step(opt, lambda x: x @ x)
    assert torch.equal(opt.best_x, X0) and opt.best_fun == 0.0


def test_the_last_batch_fits_the_budget_in_whole_pairs():
    for antithetic, last in ((False, 5), (True, 4)):
        opt = ES(X0, max_queries=16, antithetic=antithetic)
        step(opt, linear)
        assert len(opt.ask()) == last
        step(opt, linear)
        assert opt.stop_reason == "budget"


def test_the_query_of_the_iterate_counts_in_the_last_batch():
    for first, last in ((11, 5), (12, 4)):
        opt = ES(X0, max_queries=first + last, directions=first - 1)
        step(opt, linear)
        assert opt.remaining == last and len(opt.ask()) == last
    assert len(ES(X0, max_queries=5).ask()) == 5


@pytest.mark.parametrize("options", [{"directions": 1}, {"antithetic": True, "directions": 5}, {"shaping": "rank"}])
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ES(X0, max_queries=100, **options)
