"""The default method on integers: a lattice for its queries, continuous for its model."""

import itertools
import math

import numpy as np
import pytest
import torch

from optimizers import ReturnedConstraints, Space, SurrogateTrustRegion, minimize
from optimizers.core.stopping import StopReason
from optimizers.methods.trust_region.lattice import unique_rows

GRID = Space([(0, 4), (-2, 2), (1, 6)], integrality=True)
Q = np.array([[2.0, 0.6, 0.2], [0.6, 1.0, -0.4], [0.2, -0.4, 0.5]])


def rough(x):
    """A quadratic with a term that no quadratic has; its least value on GRID is found by enumeration."""
    return float((x - [1.3, 0.7, 4.4]) @ Q @ (x - [1.3, 0.7, 4.4]) + 0.3 * math.cos(5.0 * x.sum()))


def minimized(fun, x0, space, queries, **options):
    result = minimize(fun, x0, bounds=space, max_queries=queries, progress=False, store_points=True, **options)
    return result, result.history.x


def test_the_least_value_is_found_with_few_of_the_points():
    least = min(rough(np.array(p)) for p in itertools.product(range(5), range(-2, 3), range(1, 7)))
    result, _ = minimized(rough, [3, -1, 2], GRID, 60)
    assert result.fun == pytest.approx(least)


@pytest.mark.parametrize("noise", [None, 0.0])
def test_all_points_are_asked_once_and_then_the_run_ends(noise):
    space = Space([(0, 3), (0, 4), (0, 1)], integrality=True)
    result, points = minimized(lambda x: float((x - 1.2) @ (x - 1.2)), [0, 4, 1], space, 100, noise=noise)
    assert result.stop_reason == StopReason.EXHAUSTED and result.success
    assert "All points were evaluated" in result.message
    assert len(np.unique(points, axis=0)) == 40
    again = result.nfev - 40  # the center may be evaluated a second time, which shows that there is no noise
    assert again <= (noise is None)


def test_failed_points_are_asked_once_too():
    def fails(x):
        return math.nan if x[0] > 2 else float(x @ x)

    result, points = minimized(fails, [2, 2], Space([(0, 4), (0, 3)], integrality=True), 100, noise=0.0)
    assert result.stop_reason == StopReason.EXHAUSTED
    assert result.nfev == 20 == len(np.unique(points, axis=0))
    assert result.nfail == 8


def test_workers_never_wait_for_a_point_that_is_out():
    space = Space([(0, 3), (0, 4)], integrality=True)
    optimizer = SurrogateTrustRegion([3, 4], bounds=space, max_queries=100, noise=0.0)
    asked, pending = [], []
    while not optimizer.stopped or pending:
        while len(pending) < 3 and (batch := optimizer.ask_another()) is not None:
            pending.append(batch)
            asked += batch.points().tolist()
        batch = pending.pop(0)
        optimizer.tell(batch, [(x[0] - 1) ** 2 + (x[1] - 2) ** 2 for x in batch.points().tolist()])
    assert len(asked) == 20 == len({tuple(x) for x in asked})
    assert optimizer.stop_reason == StopReason.EXHAUSTED


def test_mixed_variables_end_at_the_minimum_of_the_best_integers():
    """On min ‖Lx − b‖² with two integers the minimum is known for each pair of them."""
    rng = np.random.default_rng(3)
    L, b = rng.standard_normal((4, 4)) + 2.0 * np.eye(4), 3.0 * rng.standard_normal(4)
    whole = np.array([True, True, False, False])

    def least(k):
        return float(np.linalg.lstsq(L[:, ~whole], b - L[:, whole] @ k, rcond=None)[1][0])

    best = min(least(np.array(k)) for k in itertools.product(range(-4, 5), repeat=2))
    space = Space([(-4, 4)] * 2 + [(-10, 10)] * 2, integrality=whole)
    result, points = minimized(lambda x: float(np.sum((L @ x - b) ** 2)), np.zeros(4), space, 80)
    assert result.fun == pytest.approx(best, rel=1e-6)
    np.testing.assert_array_equal(points[:, whole], np.round(points[:, whole]))


def test_infinite_bounds_and_a_fixed_variable():
    space = Space([(None, None), (2, 2), (0, None)], integrality=[1, 1, 0])
    result, points = minimized(lambda x: (x[0] - 40) ** 2 + x[1] + (x[2] - 1.5) ** 2, [0, 2, 0.5], space, 60)
    assert result.x[:2].tolist() == [40, 2] and result.x[2] == pytest.approx(1.5, abs=1e-3)
    assert set(points[:, 1]) == {2.0}


def test_evaluated_and_known_constraints_hold_on_the_lattice():
    from scipy.optimize import LinearConstraint

    space = Space([(0, 9), (0, 9), (0.0, 9.0)], integrality=[1, 1, 0])
    cost = np.array([-5.0, -4.0, -3.0])
    known = LinearConstraint([[2.0, 3.0, 1.0]], -np.inf, [11.5], keep_feasible=True)
    product = ReturnedConstraints([-np.inf], [6.0])
    result, points = minimized(
        lambda x: (float(cost @ x), [x[0] * (1.0 + x[1])]), [0, 0, 0.0], space, 60, constraints=[known, product]
    )
    best = min(
        -5 * i - 4 * j - 3 * min(9.0, 11.5 - 2 * i - 3 * j)
        for i, j in itertools.product(range(10), repeat=2)
        if i * (1 + j) <= 6 and 2 * i + 3 * j <= 11.5
    )
    assert (points @ [2.0, 3.0, 1.0] <= 11.5 + 1e-9).all()
    assert result.fun == pytest.approx(best, abs=1e-4)
    assert result.x[0] * (1 + result.x[1]) <= 6.0 + 1e-5


def test_noisy_values_are_averaged_at_lattice_points():
    rng = np.random.default_rng(0)
    space = Space([(0, 9), (0, 9)], integrality=True)
    result, _ = minimized(lambda x: float((x - 6) @ (x - 6) + rng.standard_normal()), [1, 1], space, 60, noise=1.0)
    assert result.fun_std > 0.0
    assert np.abs(result.x - 6).max() <= 1


@pytest.mark.slow
def test_a_run_of_many_integers_and_a_save_between_two_calls():
    d, target = 70, np.arange(70) % 5
    space = Space([(0, 4)] * d, integrality=True)

    def made():
        return SurrogateTrustRegion(np.full(d, 2), bounds=space, max_queries=75, noise=0.0)

    def told(optimizer, queries):
        while optimizer.queries < queries and not optimizer.stopped:
            batch = optimizer.ask()
            optimizer.tell(batch, [float(((x - target) ** 2).sum()) for x in batch.points().numpy()])
        return optimizer

    whole, half = told(made(), 75), told(made(), 40)
    other = made()
    other.load_state_dict(half.state_dict())
    assert torch.equal(told(other, 75).best_x, whole.best_x)
    assert whole.best_fun < 0.8 * float(((2 - target) ** 2).sum())


def test_unique_rows_keep_their_order():
    points = torch.tensor([[2.0, 1.0], [0.0, 1.0], [2.0, 1.0], [0.0, 0.0]])
    assert unique_rows(points).tolist() == [[2.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
