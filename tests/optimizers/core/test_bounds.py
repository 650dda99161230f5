import math

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds

from optimizers import GLD
from optimizers.core.bounds import Domain, parse_bounds

X0 = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "bounds",
    [
        [(-1, 1), (0, 2.0), (2, 3)],
        ((-1, 1), (0, 2.0), (2, 3)),
        np.array([(-1, 1), (0, 2), (2, 3)]),
        torch.tensor([(-1.0, 1.0), (0.0, 2.0), (2.0, 3.0)]),
        Bounds([-1, 0, 2], [1, 2, 3]),
    ],
)
def test_every_form_gives_the_same_box(bounds):
    lower, upper = parse_bounds(bounds, X0)
    assert lower.tolist() == [-1.0, 0.0, 2.0] and upper.tolist() == [1.0, 2.0, 3.0]
    assert lower.dtype == upper.dtype == torch.float64


def test_none_and_infinity_are_no_bound():
    lower, upper = parse_bounds([(None, 1), (-math.inf, None), (2, math.inf)], X0)
    assert lower.tolist() == [-math.inf, -math.inf, 2.0] and upper.tolist() == [1.0, math.inf, math.inf]
    lower, upper = parse_bounds(Bounds(-1, np.inf), X0)
    assert lower.tolist() == [-1.0] * 3 and upper.tolist() == [math.inf] * 3


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([(0, 1), (0, 1)], "3 pairs"),
        (np.zeros((2, 3)), "transpose"),
        ([(0, 1), (1, 0), (0, 3)], "coordinate 1 has lower 1.0 > upper 0.0"),
        ([(0, 1), (0, math.nan), (0, 3)], "upper bound of coordinate 1 is NaN"),
        ([(0, 1), (math.inf, math.inf), (0, 3)], "empty interval"),
        ([(0, 1), (0, 1, 2), (0, 3)], "entry 1"),
        ([(0, 1), 5, (0, 3)], "entry 1"),
        (Bounds([0, 0], 5), "Bounds.lb"),
        ([(0, 1), (0, 1), (2.5, 3)], "coordinate 2 is 2.0"),
    ],
)
def test_bad_bounds_say_what_is_wrong(bounds, words):
    with pytest.raises(ValueError, match=words):
        parse_bounds(bounds, X0)


@pytest.mark.parametrize("bounds", [3.0, "ab", {0: (0, 1)}])
def test_other_types_are_refused(bounds):
    with pytest.raises(TypeError, match="pairs"):
        parse_bounds(bounds, X0)


def test_two_rows_in_two_dimensions_are_told_from_two_pairs():
    x0 = torch.tensor([0.5, 0.25], dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"its bounds are \[0.0, 0.0\]; each entry is .* pass the transpose of BoTorch's"
    ):
        parse_bounds(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), x0)
    with pytest.raises(ValueError, match=r"its bounds are \[1.0, 2.0\]$"):
        parse_bounds([(1.0, 2.0), (0.0, 1.0)], x0)


def test_domain_round_trip_and_search_box():
    lower = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    upper = torch.tensor([5.0, 1e-3, 2.0], dtype=torch.float64)
    domain = Domain.of(lower, upper, rescale=True)
    assert domain.search_lower.tolist() == [0.0, 0.0, 0.0]
    assert domain.search_upper.tolist() == [10.0, 10.0, 0.0]
    assert torch.equal(domain.to_user(domain.search_lower), lower)
    assert torch.equal(domain.to_user(domain.search_upper), upper)
    x = torch.tensor([1.25, 3e-4, 2.0], dtype=torch.float64)
    torch.testing.assert_close(domain.to_user(domain.to_search(x)), x, rtol=1e-15, atol=1e-15)


def test_an_infinite_bound_keeps_that_variable_alone_in_the_users_units():
    """It turned off the scaling of all variables."""
    lower = torch.tensor([0.0, -math.inf, 2.0, 5.0], dtype=torch.float64)
    upper = torch.tensor([1e-3, 1.0, math.inf, 5.0], dtype=torch.float64)
    domain = Domain.of(lower, upper, rescale=True)
    z = torch.tensor([5.0, -7.0, 3.0, 0.0], dtype=torch.float64)
    x = torch.tensor([5e-4, -7.0, 3.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(domain.to_user(z), x, rtol=1e-15, atol=0.0)
    torch.testing.assert_close(domain.to_search(x), z, rtol=1e-15, atol=0.0)
    assert domain.search_lower.tolist() == [0.0, -math.inf, 2.0, 0.0]
    assert domain.search_upper.tolist() == [10.0, 1.0, math.inf, 0.0]


@pytest.mark.parametrize(
    ("bounds", "words"), [(None, "no bounds"), ([(0, 1), (0, None)], r"coordinate 1 .*\[0.0, inf")]
)
def test_rescaling_without_a_finite_box_is_refused(bounds, words):
    with pytest.raises(ValueError, match=words):
        GLD([0.5, 0.5], max_queries=10, bounds=bounds, rescale=True)


def test_a_side_that_overflows_is_searched_like_an_infinite_one():
    """Its unit was infinite, and all queries NaN."""
    most = torch.full((3,), 1.7e308, dtype=torch.float64)
    domain = Domain.of(-most, most, rescale=True)
    assert domain.unit is None and torch.equal(domain.to_user(domain.to_search(X0)), X0)
