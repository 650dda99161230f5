import math

import pytest
import torch
from scipy.stats import rankdata

from optimizers import ES, Simplex
from optimizers.methods.evolution_strategies import shape_values
from tests.optimizers.estimates import assert_mean, estimate, sgd, step

A = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
X0 = torch.zeros(4, dtype=torch.float64)


def linear(x):
    return A @ x


def test_centred_ranks():
    values = torch.tensor([3.0, -1.0, 3.0, 7.0, 0.0], dtype=torch.float64)
    expected = torch.tensor([2.5, 0.0, 2.5, 4.0, 1.0], dtype=torch.float64) / 4 - 0.5
    assert torch.equal(shape_values(values, "centred_ranks"), expected)
    assert torch.equal(shape_values(values.exp() * 5, "centred_ranks"), expected)
    assert torch.equal(shape_values(values, "none"), values)
    assert shape_values(torch.ones(3), "centred_ranks").tolist() == [0.0] * 3
    assert shape_values(torch.ones(1), "centred_ranks").tolist() == [0.0]


@pytest.mark.parametrize("antithetic", [False, True])
def test_raw_estimates_are_unbiased_with_their_closed_form_variance(antithetic):
    options = {"directions": 4, "shaping": "none", "antithetic": antithetic}
    samples = torch.stack([estimate(ES, X0, linear, seed=s, **options) for s in range(2000)])
    assert_mean(samples, A)
    # At f(x) = 0, Var g_j = (‖a‖² + a_j²)/m with m independent directions.
    variance = (A @ A + A.square()) / (2 if antithetic else 4)
    assert_mean((samples - A).square(), variance)


def test_antithetic_pairs_cancel_a_constant():
    options = {"directions": 4, "shaping": "none", "antithetic": True}
    plain = estimate(ES, X0, linear, **options)
    shifted = estimate(ES, X0, lambda x: linear(x) + 1e3, **options)
    torch.testing.assert_close(plain, shifted, rtol=0, atol=1e-8)
    opt = ES(X0, max_queries=100, antithetic=True)
    points = opt.ask().points()
    torch.testing.assert_close(points[0::2], -points[1::2], rtol=0, atol=0)


def test_the_step_is_the_formula():
    opt = ES(X0, max_queries=100, directions=6, smoothing_radius=0.1, update_rule=sgd)
    batch = opt.ask()
    values = torch.stack([linear(p) for p in batch.points()])
    opt.tell(batch, values)
    u = (batch.points() - X0) / 0.1
    s = torch.as_tensor(rankdata(values) - 1) / 5 - 0.5
    torch.testing.assert_close(X0 - opt.x, s @ u / (6 * 0.1), rtol=1e-11, atol=1e-11)


def test_failed_queries_leave_with_their_pair():
    opt = ES(X0, max_queries=100, directions=6, smoothing_radius=0.1, antithetic=True, update_rule=sgd)
    batch = opt.ask()
    values = torch.stack([linear(p) for p in batch.points()])
    values[3] = math.nan
    opt.tell(batch, values)
    kept = [0, 1, 4, 5]
    u = ((batch.points() - X0) / 0.1)[kept]
    s = torch.as_tensor(rankdata(values[kept]) - 1) / 3 - 0.5
    torch.testing.assert_close(X0 - opt.x, s @ u / (4 * 0.1), rtol=1e-11, atol=1e-11)


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
    assert opt.queries == 110 and float(opt.best_x.sum()) == pytest.approx(1.0) and opt.best_y < 0.0
    assert len(ES(X0, max_queries=100).ask()) == 10


@pytest.mark.parametrize("options", [{"directions": 1}, {"antithetic": True, "directions": 5}, {"shaping": "rank"}])
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ES(X0, max_queries=100, **options)
