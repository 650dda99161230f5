import math

import pytest
import torch

from optimizers.batch import Batch
from optimizers.bounds import Domain
from optimizers.directions.axes import Axes
from optimizers.estimators.axis_differences import axes_batch, axis_derivatives

X = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=torch.float64)


def domain(lower, upper, confine=True):
    low, high = (torch.as_tensor(side, dtype=torch.float64).expand(4).clone() for side in (lower, upper))
    return Domain.of(low, high, rescale=False, confine=confine)


def test_rows_are_unit_vectors():
    axes = Axes(5)
    assert torch.equal(axes.block(7, 5), torch.eye(5, dtype=torch.float64))
    assert torch.equal(axes.row(0, 3, 2, 5), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert axes.row(0, 1, dtype=torch.float32).dtype == torch.float32
    for start in (0, 2, 4):
        x = torch.zeros(1, dtype=torch.float64)
        assert float(axes.add_to(x, 0, 2, 1.5, start)) == (1.5 if start == 2 else 0.0)
    table = torch.zeros(2, 5, dtype=torch.float64).T
    axes = Axes(10)
    assert torch.equal(axes.add_to(table, 0, 3, 2.0), torch.tensor([[0.0, 0.0], [0.0, 2.0], *[[0.0, 0.0]] * 3]))
    with pytest.raises(ValueError, match="axis 10"):
        axes.row(0, 10)


def test_points_and_derivatives():
    batch = axes_batch(3, X, [2, 0], 1e-3)
    expected = torch.stack([X, X, X])
    expected[1, 2] += 1e-3
    expected[2, 0] += 1e-3
    assert torch.equal(batch.points(), expected)
    assert all(torch.equal(batch.point(i), expected[i]) for i in range(3))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(axis_derivatives(batch, expected @ weights), weights[[2, 0]], rtol=1e-11, atol=0)


def test_a_failed_query_has_no_derivative():
    batch = axes_batch(0, X, [0, 1], 1e-3)
    found = axis_derivatives(batch, torch.tensor([0.0, math.nan, 1e-3], dtype=torch.float64))
    assert math.isnan(found[0]) and float(found[1]) == pytest.approx(1.0)
    found = axis_derivatives(batch, torch.tensor([math.nan, 0.0, 0.0], dtype=torch.float64))
    assert bool(found.isnan().all())


def test_differences_stay_inside_the_bounds():
    box = domain([-1.0, -1.0, -2.0, 0.7], [0.3005, 3.0, 2.0, 0.7])
    batch = axes_batch(0, X, range(4), 1e-3, box)
    assert batch.scales.tolist() == [0.0, -1e-3, 1e-3, -1e-3, 1e-3]
    assert bool(((batch.points() >= box.lower) & (batch.points() <= box.upper)).all())
    slopes = torch.tensor([1.0, -2.0, 3.0, 4.0], dtype=torch.float64)
    found = axis_derivatives(batch, batch.points() @ slopes)
    torch.testing.assert_close(found, torch.tensor([1.0, -2.0, 3.0, 0.0], dtype=torch.float64), rtol=1e-10, atol=0)
    free = axes_batch(0, X, range(4), 1e-3, domain(-1.0, 2.0, confine=False))
    assert bool((free.scales[1:] > 0).all())


def test_rounded_displacements_count():
    """In float32 3 + 1e-6 is 3 + 9.5e-7: what was done divides the difference."""
    x = torch.full((2,), 3.0)
    batch = axes_batch(0, x, [0, 1], 1e-6)
    values = batch.points().double().sum(-1)
    assert axis_derivatives(batch, values).tolist() == [1.0, 1.0]


def test_a_batch_is_restored():
    batch = axes_batch(4, X, [1, 3], 1e-3, info={"renew": True})
    again = Batch.from_state_dict(batch.state_dict(), None, torch.device("cpu"))
    assert again.same_as(batch) and torch.equal(again.points(), batch.points()) and again.info["renew"]
