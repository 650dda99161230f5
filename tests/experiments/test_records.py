"""Records survive CSV exactly, and curves are what their formulas say."""

import numpy as np
import pytest
import torch

from experiments.harness.records import checkpoints, distinct, final, from_csv, log10_gap, plain, to_csv
from optimizers.comparison.records import best_so_far, by_seed, curve, mean_curve, seeds_of, where

ROWS = [
    {"seed": seed, "method": method, "num_queries": n, "value": 0.1 * seed + n + (method == "b")}
    for seed in (0, 1, 2)
    for method in ("a", "b")
    for n in (5, 10)
]


def test_csv_round_trip_is_exact():
    rows = [
        *ROWS,
        {"seed": 3, "method": 'é,"x"', "num_queries": 7, "value": 0.1 + 0.2},
        {"seed": 4, "value": 1e-300},
    ]
    assert from_csv(to_csv(rows)) == rows
    assert to_csv(from_csv(to_csv(rows))) == to_csv(rows)


def test_plain_makes_python_numbers():
    row = plain({"a": np.float64(0.5), "b": torch.tensor(2), "c": "x", "d": np.int64(3)})
    assert [type(value) for value in row.values()] == [float, int, str, int]


def test_selection():
    assert len(where(ROWS, method="a", num_queries=5)) == 3
    assert distinct(ROWS, "num_queries") == [5, 10]
    assert seeds_of(ROWS) == (0, 1, 2)


def test_by_seed_pairs_and_refuses_a_gap():
    np.testing.assert_allclose(by_seed(ROWS, method="b", num_queries=5) - by_seed(ROWS, method="a", num_queries=5), 1)
    with pytest.raises(ValueError, match=r"seeds \[2\]"):
        by_seed(ROWS[:-1], method="b", num_queries=10)


def test_curve_is_mean_and_standard_error_over_seeds():
    found = curve(ROWS, "num_queries", method="a")
    np.testing.assert_array_equal(found.x, [5, 10])
    np.testing.assert_allclose(found.mean, [5.1, 10.1])
    np.testing.assert_allclose(found.standard_error, np.std([0, 0.1, 0.2], ddof=1) / np.sqrt(3))


def test_one_seed_has_no_error_and_every_place_its_own_seeds():
    found = mean_curve((1, 2), ([3.0], [1.0, 5.0]))
    assert found.mean.tolist() == [3.0, 3.0] and found.standard_error.tolist() == [0.0, 2.0]


def test_final_is_each_seeds_value_at_the_largest_place():
    np.testing.assert_allclose(final(ROWS, "num_queries", method="b"), [11.0, 11.1, 11.2])


def test_the_best_so_far_begins_with_what_was_known_and_is_kept_to_the_end():
    found = best_so_far([5.0, np.nan, 2.0, 3.0], 6, 4.0)
    assert found.tolist() == [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 2.0]
    assert np.isnan(best_so_far([np.nan, 1.0], 2)).tolist() == [True, True, False]


def test_checkpoints_hold_the_last():
    assert checkpoints(10, 4) == [0, 4, 8, 10] and checkpoints(8, 4) == [0, 4, 8]


def test_a_gap_has_a_floor():
    assert log10_gap(3.01, 3.0) == pytest.approx(-2.0) and log10_gap(1.0, 1.0) == log10_gap(0.0, 1.0) == -16.0
