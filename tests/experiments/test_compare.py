"""A user's own function under several methods: equal budgets and starts, failures, labels of one's own."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds

from experiments.compare import PANELS, compare
from experiments.harness.records import where
from optimizers import minimize
from optimizers.registry import METHODS

BOX = [(-1.0, 1.0)] * 3


def bowl(x):
    return float((x - 0.3).square().sum())


def test_values_are_those_of_minimize_from_the_same_starts():
    starts = [torch.zeros(3, dtype=torch.float64), torch.full((3,), 0.9, dtype=torch.float64)]
    found = compare(bowl, bounds=BOX, max_queries=25, seeds=2, starts=starts, methods=["rgf", "gld"])
    for seed, x0 in enumerate(starts):
        for method in ("rgf", "gld"):
            result = minimize(bowl, x0, method, bounds=BOX, max_queries=25, seed=seed)
            rows = where(found.rows, seed=seed, method=method)
            assert [row["value"] for row in rows] == np.minimum.accumulate(result.history.y.numpy()).tolist()
            assert rows[-1]["queries"] == 25 and rows[0]["value"] == pytest.approx(bowl(x0))


def test_every_method_is_compared_by_default(monkeypatch):
    grouped = [name for names in PANELS.values() for name in names]
    assert len(set(grouped)) == len(grouped) and set(grouped) < set(METHODS)
    ran = []

    def minimize_no_more(fun, x0, method, **options):
        ran.append(method)
        return type("Result", (), {"history": type("History", (), {"y": torch.zeros(2)})})

    monkeypatch.setattr("experiments.compare.minimize", minimize_no_more)
    assert (
        set(compare(bowl, bounds=BOX, max_queries=2, seeds=2).methods)
        == set(METHODS) - {"gradient_descent", "accelerated_zo"}
        == set(ran)
    )


def test_a_method_of_ones_own_is_one_entry_and_ranked_by_what_it_reached():
    methods = {"gld": "gld", "bold": ("rgf", {"directions": 3})}
    found = compare(bowl, bounds=Bounds([-1.0] * 3, [1.0] * 3), max_queries=30, seeds=3, methods=methods)
    assert found.methods == ("gld", "bold")
    means = [found.final(method).mean() for method in found.ranking()]
    assert means == sorted(means)
    text = str(found)
    assert text.index(found.ranking()[0]) < text.index(found.ranking()[1])
    axes = found.figure().axes
    assert [panel.get_title() for panel in axes] == ["ZoRD and its baselines", "others"]
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == ["bold"]
    assert axes[0].get_xlabel() == "queries" and axes[0].get_ylabel() == "least value found"


def test_failed_queries_count_and_are_no_value():
    def fails_outside(x):
        return math.nan if float(x[0]) > 0 else bowl(x)

    starts = [torch.full((3,), -0.5, dtype=torch.float64)] * 2
    found = compare(fails_outside, bounds=BOX, max_queries=20, seeds=2, starts=starts, methods=["gld"])
    assert all(math.isfinite(row["value"]) for row in found.rows)
    assert {row["queries"] for row in found.rows} == set(range(1, 21))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 1}, "at least two seeds, got 1"),
        ({"seeds": 2, "starts": [[0.0, 0.0, 0.0]]}, "a start for each of the 2 seeds, got 1"),
        ({"methods": ["zrod"]}, "unknown method 'zrod'.*zord"),
        ({"bounds": [(0, None)] * 3}, "without starts, bounds must be d finite pairs"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        compare(bowl, **{"bounds": BOX, "max_queries": 10, **options})
