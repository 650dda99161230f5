import math

import numpy as np
import pytest
import torch

from optimizers.core.values import numeric, parse_point, parse_values


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([1.0, 2.0], ValueError),
        ([[1.0, 2.0, 3.0]], ValueError),
        ([[1.0], [2.0], [3.0, 4.0]], ValueError),
        (3.0, ValueError),
        ([1j, 2.0, 3.0], TypeError),
        ([None, 1.0, 2.0], TypeError),
        (torch.ones(3, dtype=torch.complex64), TypeError),
        ([np.array("1"), 2.0, 3.0], TypeError),
        (torch.ones(3, requires_grad=True), TypeError),
        ([1.0, torch.ones(1, requires_grad=True), 2.0], TypeError),
        ("abc", TypeError),
        ([torch.ones(2)] * 3, ValueError),
        (np.array(["a", "b", "c"]), TypeError),
    ],
)
def test_values_that_are_refused(values, error):
    with pytest.raises(error, match="values"):
        parse_values(values, 3)


def test_values_that_are_taken():
    expected = torch.tensor([1.0, 2.0, math.nan], dtype=torch.float64)
    for values in (
        [1.0, 2.0, math.inf],
        np.array([[1.0], [2.0], [-math.inf]], dtype=np.float32),
        torch.tensor([1.0, 2.0, math.nan]),
        [torch.tensor(1.0), torch.tensor([2.0]), torch.tensor(math.nan)],
        (np.float32(1), 2.0, math.nan),
        [1, 2, math.nan],
        [True, 2, math.nan],
        [np.int16(1), np.array([2]), torch.tensor([[math.nan]])],
        [torch.tensor(True), np.array(2), math.nan],
    ):
        y = parse_values(values, 3)
        assert y.dtype == torch.float64 and not y.requires_grad
        assert torch.equal(y.nan_to_num(-9), expected.nan_to_num(-9))
    for whole in (torch.tensor([1, 0, 1]), np.array([1, 0, 1]), np.array([True, False, True]), [True, False, 1]):
        assert parse_values(whole, 3).tolist() == [1.0, 0.0, 1.0]
    for four in (4.0, 4, np.int64(4), np.array(4), np.array([[4]]), torch.tensor(4), torch.tensor([[[4.0]]]), [[4]]):
        assert parse_values(four, 1).tolist() == [4.0]
    assert parse_values(True, 1).tolist() == parse_values(np.bool_(True), 1).tolist() == [1.0]


def test_points():
    assert parse_point([1, 2]).dtype == torch.float64
    assert parse_point(np.zeros(2, dtype=np.float32)).dtype == torch.float32
    x0 = torch.zeros(2)
    x = parse_point(x0.requires_grad_())
    assert not x.requires_grad and x.data_ptr() != x0.data_ptr()
    a = np.zeros(3)
    assert parse_point(a).numpy() is not a and not np.shares_memory(parse_point(a).numpy(), a)
    with pytest.raises(ValueError, match="shape"):
        parse_point(3.0)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ([1.0, None], "write NaN for a value that is missing or failed"),
        ([{"rate": 0.1}], r"Space\.point makes a point of a dictionary"),
        (torch.nn.Linear(2, 1), r"ModuleObjective\.x0\(\) makes one vector"),
    ],
)
def test_objects_that_are_no_numbers_are_refused_with_advice(given, advice):
    with pytest.raises(TypeError, match=f"values must be real numbers, got .*; {advice}"):
        numeric("values", given)
