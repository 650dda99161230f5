import math

import numpy as np
import pytest
import torch

from optimizers import L1, RGF, Box, L2Ball, Optimizer, Simplex, StopReason, minimize
from optimizers.testing import quadratic, start


class Fixed(Optimizer):
    """Asks a given number of points at x0, at steps of one along the first coordinate."""

    method = "fixed"

    def __init__(self, x0, *, count=3, broken=False, **common):
        self.count, self.broken = count, broken
        super().__init__(x0, **common)

    def _next_queries(self):
        return self.count

    def _ask(self):
        points = self._x.repeat(self.count, 1)
        points[:, 0] += self.iterations * self.count + torch.arange(self.count).to(points)
        return self._points_batch(points)

    def _tell(self, batch, values):
        if self.broken:
            raise ArithmeticError("broken on purpose")
        self.last = values


def tell(opt, values, **kwargs):
    opt.tell(opt.ask(), values, **kwargs)


def test_counts_best_and_history():
    opt = Fixed([0.0, 0.0], max_queries=10, store_points=True)
    assert opt.best_fun == math.inf and torch.equal(opt.best_x, torch.zeros(2, dtype=torch.float64))
    tell(opt, [3.0, math.nan, 1.0])
    tell(opt, [2.0, -math.inf, 1.0], retries=2)
    assert (opt.queries, opt.failures, opt.remaining, opt.iterations) == (8, 4, 2, 2)
    assert opt.best_fun == 1.0 and opt.best_x.tolist() == [2.0, 0.0]
    assert opt.last.isnan().tolist() == [False, True, False]
    result = opt.result()
    assert opt.stop_reason is StopReason.BUDGET and opt.stop_reason == "budget"
    assert result.history.best_y.tolist() == [3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    expected = torch.tensor([3.0, math.nan, 1.0, 2.0, math.nan, 1.0, math.nan, math.nan], dtype=torch.float64)
    assert torch.equal(result.history.y.nan_to_num(-9), expected.nan_to_num(-9))
    assert result.history.x[:6, 0].tolist() == [0, 1, 2, 3, 4, 5] and result.history.x[6:].isnan().all()
    assert (result.nfev, result.nfail, result.nit, result.status, result.success) == (8, 4, 2, 1, True)
    assert "8 queries, 4 of them failed" in result.message


def test_values_count_when_they_come():
    opt = Fixed([0.0, 0.0], max_queries=10, store_points=True)
    batch = opt.ask()
    opt.tell(batch, [5.0, 4.0], which=[2, 0])
    assert (opt.queries, opt.iterations, opt.untold(batch), opt.best_fun) == (2, 0, [1], 4.0)
    assert opt.ask() is batch and not hasattr(opt, "last")
    opt.tell(batch, math.nan, which=[1])
    assert opt.last.nan_to_num(-9).tolist() == [4.0, -9.0, 5.0] and opt.pending == () and opt.iterations == 1
    history = opt.result().history
    assert history.x[:, 0].tolist() == [0.0, 1.0, 2.0] and history.y[[0, 2]].tolist() == [4.0, 5.0]
    assert history.best_y.tolist() == [4.0, 4.0, 4.0] and opt.best_x.tolist() == [0.0, 0.0]


def test_of_equal_values_the_first_asked_is_the_best_whatever_the_order():
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        opt = Fixed([0.0], max_queries=10)
        batch = opt.ask()
        for i in order:
            opt.tell(batch, [2.0, 1.0, 1.0][i], which=[i])
        assert opt.best_x.tolist() == [1.0] and opt.best_fun == 1.0


def test_a_value_ends_the_run_when_it_comes():
    opt = Fixed([0.0], max_queries=10, target=0.5)
    opt.tell(opt.ask(), 0.1, which=[1])
    assert opt.stop_reason == "target reached" and opt.result().fun == 0.1 and opt.best_x.tolist() == [1.0]


def test_the_last_value_is_told_again_after_an_error_and_others_are_kept():
    opt = Fixed([0.0], max_queries=10)
    batch = opt.ask()
    opt.tell(batch, [1.0, 2.0], which=[0, 1])
    opt.broken = True
    with pytest.raises(ArithmeticError):
        opt.tell(batch, 3.0, which=[2])
    assert (opt.queries, opt.untold(batch)) == (2, [2])
    opt.broken = False
    opt.tell(batch, 3.0, which=[2])
    assert opt.last.tolist() == [1.0, 2.0, 3.0] and opt.queries == 3


def test_parts_of_a_batch_and_the_budget():
    opt = Fixed([0.0], max_queries=4)
    batch = opt.ask()
    opt.tell(batch, 1.0, which=[0])
    with pytest.raises(ValueError, match="2 retries exceed the budget: queries left: 1"):
        opt.tell(batch, 1.0, which=[1], retries=2)
    opt.tell(batch, 1.0, which=[1], retries=1)
    with pytest.raises(ValueError, match="1 retries exceed the budget: queries left: 0"):
        opt.tell(batch, 1.0, which=[2], retries=1)
    opt.cancel()
    assert opt.queries == 3 and opt.pending == () and opt.stop_reason == "budget"


def test_a_retry_alone_is_told_and_kept_in_any_dtype():
    for dtype in (torch.float64, torch.bfloat16):
        opt = RGF(torch.zeros(2, dtype=dtype), max_queries=20, directions=2, store_points=True)
        batch = opt.ask()
        opt.tell(batch, [], which=[], retries=1)
        assert (opt.queries, opt.failures, opt.untold(batch)) == (1, 1, [0, 1, 2])
        opt.tell(batch, [1.0, 2.0, 3.0])
        history = opt.result().history
        assert history.y[:3].tolist() == [1.0, 2.0, 3.0] and history.y[3].isnan()
        assert history.x[3].isnan().all() and torch.equal(history.x[:3], batch.points())


@pytest.mark.parametrize(
    ("which", "error", "message"),
    [
        ([0], ValueError, "point 0 of the batch is told twice"),
        ([1, 1], ValueError, "point 1 of the batch is told twice"),
        ([3], ValueError, "which must be under 3, got 3"),
        ([-1], ValueError, "which must be at least 0"),
        ([1.0], TypeError, "which must be an integer"),
        ([], ValueError, "which must name a point"),
        (None, ValueError, "point 0 of the batch is told twice"),
    ],
)
def test_points_that_cannot_be_told(which, error, message):
    opt = Fixed([0.0], max_queries=10)
    batch = opt.ask()
    opt.tell(batch, 1.0, which=[0])
    with pytest.raises(error, match=message):
        opt.tell(batch, [1.0] * (3 if which is None else len(which)), which=which)
    assert opt.queries == 1 and opt.untold(batch) == [1, 2]


def test_a_batch_has_an_index():
    batch = Fixed([0.0, 0.0], max_queries=10).ask()
    assert torch.equal(batch[1], batch.points()[1]) and torch.equal(batch[-1], batch.points()[2])
    with pytest.raises(IndexError):
        batch[3]


def test_a_spent_budget_is_no_success_where_a_target_was_missed():
    opt = Fixed([0.0], max_queries=3, target=0.5)
    tell(opt, [3.0, 2.0, 1.0])
    assert opt.stop_reason == "budget" and not opt.result().success
    assert Fixed([0.0], max_queries=3).result().status == -1


def test_a_run_whose_queries_fail_is_no_success():
    for values, success in (([math.nan] * 3, False), ([1.0, math.nan, math.nan], False), ([1.0, 2.0, math.nan], True)):
        opt = Fixed([0.0], max_queries=3)
        tell(opt, values)
        assert opt.stopped and opt.result().success is success
    found = Fixed([0.0], max_queries=3, target=1.5)
    tell(found, [math.nan, math.nan, 1.0])
    assert found.stop_reason == "target reached" and found.result().success


def test_the_message_says_how_far_the_budget_was_spent():
    opt = Fixed([0.0], max_queries=3)
    tell(opt, [3.0, 2.0, 1.0])
    assert opt.result().message == "Budget of 3 queries spent, after 3 queries."
    opt = Fixed([0.0], max_queries=5)
    tell(opt, [3.0, 2.0, 1.0])
    assert opt.result().message == "Budget of 5 queries spent as far as whole batches fit, after 3 queries."
    opt.max_queries = 2
    assert opt.result().message == "Budget of 2 queries spent before, after 3 queries."


def test_a_tell_that_raises_changes_nothing():
    opt = Fixed([0.0], max_queries=6, broken=True)
    with pytest.raises(ArithmeticError):
        tell(opt, [1.0, 2.0, 3.0])
    assert (opt.queries, opt.best_fun, opt.iterations) == (0, math.inf, 0) and opt.pending
    opt.broken = False
    tell(opt, [1.0, 2.0, 3.0])
    assert opt.queries == 3 and len(opt.result().history.y) == 3


def test_stop_rules():
    opt = Fixed([0.0], max_queries=100, max_failures=4)
    tell(opt, [math.nan, math.nan, 1.0])
    tell(opt, [math.nan] * 3)
    assert not opt.stopped
    tell(opt, [1.0, math.nan, math.nan])
    tell(opt, [math.nan] * 3)
    assert opt.stop_reason == "all queries failed" and opt.best_fun == 1.0
    opt = Fixed([0.0], max_queries=100, stagnation=5)
    tell(opt, [3.0, 2.0, 2.0])
    assert not opt.stopped
    tell(opt, [2.0, 2.0, 2.0])
    assert not opt.stopped
    tell(opt, [2.0, 2.0, 2.0])
    assert opt.stop_reason == "stagnation"
    opt = Fixed([0.0], max_queries=100)
    opt.stop()
    opt.stop("budget")
    assert opt.stop_reason == "callback"
    with pytest.raises(RuntimeError, match="callback"):
        opt.ask()


def test_a_promise_of_queries_is_held():
    opt = Fixed([0.0], max_queries=10)
    opt._next_queries = lambda: 2
    with pytest.raises(RuntimeError, match=r"Fixed\._next_queries returned 2, but Fixed\._ask a batch of 3"):
        opt.ask()


class Done(Fixed):
    """Has nothing to ask any more after two batches."""

    def _next_queries(self):
        return 3 if self.iterations < 2 else 0


@pytest.mark.parametrize("workers", [None, 2])
def test_a_method_that_asks_no_more_ends_with_its_result(workers):
    result = minimize(lambda x: float(x.sum()), torch.zeros(1), Done, max_queries=100, workers=workers, progress=False)
    assert (result.nfev, result.stop_reason, result.success) == (6, "budget", True) and result.fun == 0.0


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (lambda o: o._points_batch(o._x), r"Wrong asks for points of shape \(2,\): _ask and .* q x d"),
        (lambda o: o._points_batch([[0.0, 0.0]]), r"Wrong must ask for points as a tensor, got \[\[0.0"),
        (lambda o: o._points_batch(torch.zeros(3, 4)), r"points of shape \(3, 4\): _ask .* q x 2"),
        (lambda o: o._directions_batch([0, 1], [0.5]), r"Wrong asks for directions of 2 rows .* shape \(1,\)"),
        (lambda o: o._directions_batch(1, [0.5]), r"Wrong must ask for directions by a list of rows, got 1"),
        (lambda o: o._x[None], r"Wrong\._ask must return a Batch, .* got tensor"),
    ],
)
def test_errors_of_a_batch_name_the_hook(asks, says):
    class Wrong(Fixed):
        def _ask(self):
            return asks(self)

    with pytest.raises((TypeError, ValueError), match=says):
        Wrong([0.0, 0.0], max_queries=9).ask()


def test_hooks_and_states_of_another_type_are_named():
    class Forgets(Fixed):
        def _next_queries(self):
            pass

    with pytest.raises(TypeError, match=r"Forgets\._next_queries must return an integer, got None"):
        Forgets([0.0], max_queries=9)
    opt = Fixed([0.0], max_queries=9)
    opt.state = {"moves": 0}
    with pytest.raises(TypeError, match=r"Fixed\.state must be a dataclass, got dict"):
        opt.state_dict()
    opt.ask()
    opt._ask_another = lambda pending, spare: torch.zeros(1)
    with pytest.raises(TypeError, match=r"Fixed\._ask_another must return a Batch, .* got tensor"):
        opt.ask_another()


def test_misspelt_options_name_the_nearest():
    with pytest.raises(TypeError, match="no option 'radus'; did you mean 'smoothing_radius'"):
        RGF([0.0], max_queries=10, radus=1.0)
    with pytest.raises(TypeError, match="did you mean 'max_queries'"):
        RGF([0.0], max_querys=10, max_queries=10)


def test_states_of_other_options_are_refused():
    state = RGF(start(), max_queries=40, smoothing_radius=0.1).state_dict()
    with pytest.raises(ValueError, match=r"radius 0\.1, this optimizer has 0\.2"):
        RGF(start(), max_queries=40, smoothing_radius=0.2).load_state_dict(state)
    RGF(start(), max_queries=80, smoothing_radius=0.1, target=1.0, seed=3).load_state_dict(state)


def test_composite_values_with_a_prox():
    opt = Fixed([1.0, 1.0], max_queries=3, prox=L1(2.0))
    tell(opt, [1.0, 0.5, 0.0])
    assert opt.best_fun == 5.0 and opt.best_x.tolist() == [1.0, 1.0]
    assert opt.result().history.y.tolist() == [1.0, 0.5, 0.0]
    opt = Fixed([0.0, 1.0], max_queries=3, prox=Simplex())
    tell(opt, [3.0, 2.0, 1.0])
    assert opt.best_x.tolist() == [0.0, 1.0] and opt.best_fun == 3.0
    opt = Fixed([0.0, 1.0], max_queries=3, prox=Simplex())
    tell(opt, [math.nan, 2.0, 1.0])
    assert opt.best_fun == math.inf and opt.best_x.tolist() == [0.0, 1.0] and opt.failures == 1


def test_composite_values_of_points_that_are_told_in_another_order():
    opt = Fixed([1.0, 1.0], max_queries=3, prox=L1(2.0))
    batch = opt.ask()
    opt.tell(batch, [0.0, 0.5], which=[2, 1])
    assert opt.best_fun == 6.5 and opt.best_x.tolist() == [2.0, 1.0]
    opt.tell(batch, [1.0], which=[0])
    assert opt.best_fun == 5.0 and opt.best_x.tolist() == [1.0, 1.0]


def test_unconfined_queries_outside_of_the_box_are_never_best():
    common = {"bounds": [(0.0, 1.5)], "rescale": False}
    opt = Fixed([1.0], max_queries=3, confine_queries=False, **common)
    assert opt.ask().points().flatten().tolist() == [1.0, 2.0, 3.0]
    tell(opt, [3.0, 2.0, 1.0])
    assert opt.best_fun == 3.0 and opt.best_x.tolist() == [1.0]
    opt = Fixed([1.0], max_queries=3, **common)
    assert opt.ask().points().flatten().tolist() == [1.0, 1.5, 1.5]


def test_bounds_go_with_separable_proxes_only():
    RGF([0.5, 0.5], max_queries=20, bounds=[(0, 1)] * 2, prox=L1(0.1))
    RGF([0.5, 0.5], max_queries=20, bounds=[(0, 1)] * 2, prox=Box(-1, 1))
    for prox in (Simplex(), L2Ball(1.0)):
        with pytest.raises(ValueError, match="separable"):
            RGF([0.5, 0.5], max_queries=20, bounds=[(0, 1)] * 2, prox=prox)
    with pytest.raises(ValueError, match="rescale"):
        RGF([0.5, 0.5], max_queries=20, bounds=[(0, 1)] * 2, prox=L1(0.1), rescale=True)


def test_rescaling_makes_a_run_independent_of_the_boxs_units():
    scale, shift = torch.tensor([1e-3, 1.0, 50.0]).double(), torch.tensor([5.0, -1.0, 0.0]).double()
    z0 = torch.tensor([2.0, 9.0, 4.0]).double()
    plain = RGF(z0, max_queries=80, bounds=[(0.0, 10.0)] * 3)
    bounds = [(float(s), float(s + 10.0 * w)) for w, s in zip(scale, shift, strict=True)]
    scaled = RGF(shift + scale * z0, max_queries=80, bounds=bounds)
    while not plain.stopped:
        a, b = plain.ask(), scaled.ask()
        torch.testing.assert_close((b.points() - shift) / scale, a.points(), rtol=1e-6, atol=1e-6)
        plain.tell(a, quadratic(a.points()))
        scaled.tell(b, quadratic(a.points()))
    unscaled = RGF(z0 / 10, max_queries=80, bounds=[(0.0, 1.0)] * 3, rescale=False)
    moved = unscaled.ask().points()[1] - z0 / 10
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-9)


def test_without_tracking_the_best_point_is_the_iterate():
    opt = RGF(start(), max_queries=40, track_best=False)
    while not opt.stopped:
        tell(opt, quadratic(opt.ask().points()))
    assert torch.equal(opt.best_x, opt.x) and opt.best_fun < float(quadratic(start()))


def test_addressed_generators():
    opt = Fixed([0.0], max_queries=9, seed=7)
    first = opt._generator(1).random(4)
    assert np.array_equal(first, opt._generator(1).random(4))
    assert not np.array_equal(first, opt._generator(2).random(4))
    tell(opt, [1.0, 2.0, 3.0])
    assert not np.array_equal(first, opt._generator(1).random(4))
    assert np.array_equal(first, opt._generator(1, step=0).random(4))
    assert not np.array_equal(first, Fixed([0.0], max_queries=9, seed=8)._generator(1).random(4))


def test_refusals_say_what_differs():
    opt = RGF(start(), max_queries=50)
    opt.ask()
    with pytest.raises(ValueError, match="batch 0 does not have the points"):
        opt.tell(RGF(start() + 1, max_queries=50).ask(), torch.zeros(11))
    with pytest.raises(TypeError, match="must be a mapping"):
        opt.load_state_dict(None)


def test_a_state_under_another_prox_is_refused():
    common = {"max_queries": 50, "rescale": False}
    state = RGF(start(), prox=L1(0.1), **common).state_dict()
    RGF(start(), prox=L1(0.1), **common).load_state_dict(state)
    for prox, says in ((None, "has None"), (L1(5.0), r"L1\(l1=5.0"), (lambda z, step: z, "function")):
        with pytest.raises(ValueError, match=says):
            RGF(start(), prox=prox, **common).load_state_dict(state)


def test_restart_goes_on_from_the_given_point_and_keeps_the_record():
    bounds = [(-2.0, 4.0)] * 2
    opt = RGF(torch.zeros(2, dtype=torch.float64), bounds=bounds, max_queries=50, directions=2)
    first = opt.ask()
    opt.tell(first, first.points().square().sum(1))
    best, dropped = opt.best_fun, opt.ask()
    opt.move_to([1.0, 3.0])
    assert opt.x.tolist() == pytest.approx([1.0, 3.0], abs=1e-15)
    assert not opt.pending and (opt.queries, opt.best_fun) == (3, best)
    batch = opt.ask()
    assert batch.point(0).tolist() == pytest.approx([1.0, 3.0], abs=1e-15)
    with pytest.raises(ValueError, match="does not have the points that ask returned"):
        opt.tell(dropped, [0.0] * 3)


@pytest.mark.parametrize(
    ("x", "message"),
    [([1.0], "shape"), ([5.0, 0.0], "bounds"), ([float("nan"), 0.0], "finite"), ([[0.0, 0.0]], "shape")],
)
def test_restart_refuses_what_is_no_point_of_the_domain(x, message):
    opt = RGF(torch.zeros(2, dtype=torch.float64), bounds=[(-2.0, 4.0)] * 2, max_queries=50)
    batch = opt.ask()
    with pytest.raises(ValueError, match=message):
        opt.move_to(x)
    assert opt.pending == (batch,) and opt.x.tolist() == [0.0, 0.0]


def test_retreat_moves_to_the_best_point():
    opt = RGF(torch.zeros(2, dtype=torch.float64), max_queries=50, directions=2)
    batch = opt.ask()
    opt.tell(batch, torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64))
    opt.retreat()
    assert torch.equal(opt.x, batch.point(1))


def test_values_are_kept_unless_they_are_not_wanted():
    """Without them a state does not grow with the queries; counts, best point and iterates are the same."""
    f, states = lambda x: float((x - 1.0).square().sum()), []
    kept, none = (RGF(torch.zeros(3, dtype=torch.float64), max_queries=40, store_values=s) for s in (True, False))
    while not kept.stopped:
        for opt in (kept, none):
            batch = opt.ask()
            opt.tell(batch, [f(x) if i != 1 else math.nan for i, x in enumerate(batch.points())])
        states.append(sum(v.numel() for v in none.state_dict()["record"].values() if torch.is_tensor(v)))
    assert torch.equal(kept.x, none.x) and torch.equal(kept.best_x, none.best_x) and kept.best_fun == none.best_fun
    assert (kept.queries, kept.failures) == (none.queries, none.failures) and len(set(states)) == 1
    assert len(kept.result().history.y) == kept.queries and len(none.result().history.y) == 0
