import pytest
import torch

from optimizers.directions.axes import Axes


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
