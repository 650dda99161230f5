"""Intervals against scipy's, their coverage, and when a claim counts as reproduced."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from experiments.harness.verdicts import at_least, judge, judge_pairs, never
from optimizers.comparison.interval import bootstrap_interval


def _sample(mean, seed=0, sd=1.0):
    return mean + sd * np.random.default_rng(seed).standard_normal(10)


def test_interval_equals_scipys_bootstrap():
    values = _sample(0.3)
    for method in ("BCa", "percentile"):
        theirs = stats.bootstrap((values,), np.mean, n_resamples=50_000, method=method, rng=np.random.default_rng(1))
        np.testing.assert_allclose(bootstrap_interval(values), theirs.confidence_interval, atol=0.1)
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_interval_covers_the_mean_about_as_often_as_it_says():
    covered = [low <= 0 <= high for low, high in (bootstrap_interval(_sample(0.0, seed)) for seed in range(200))]
    assert 0.85 <= np.mean(covered) <= 0.99


def test_interval_of_few_seeds_does_not_depend_on_rounding():
    """In other units, in which every mean rounds otherwise, it is the same."""
    for seed in range(20):
        values = np.random.default_rng(seed).standard_normal(3)
        np.testing.assert_allclose(bootstrap_interval(0.1 * values), 0.1 * np.array(bootstrap_interval(values)), 1e-9)


def test_interval_of_equal_values_is_a_point():
    assert bootstrap_interval(np.full(10, 0.1)) == (0.1, 0.1)


@pytest.mark.parametrize("values", [[1.0], [], [1.0, np.nan], [[1.0, 2.0]]])
def test_interval_refuses_what_has_none(values):
    with pytest.raises(ValueError, match="at least two finite values"):
        bootstrap_interval(np.array(values))


@pytest.mark.parametrize(
    ("means", "status"),
    [
        ((3.0, 4.0), "reproduced"),
        ((3.0, 0.0), "partly"),
        ((3.0, -3.0), "partly"),
        ((0.0, -3.0), "not reproduced"),
        ((-3.0,), "not reproduced"),
        ((0.0,), "undecided"),
        ((0.0, 0.0), "undecided"),
    ],
)
def test_judge_asks_every_setting_for_an_interval_above_the_bar(means, status):
    cells = {f"n={number}": _sample(mean, seed=7, sd=0.5) for number, mean in enumerate(means)}
    cells = {label: values - values.mean() + means[number] for number, (label, values) in enumerate(cells.items())}
    verdict = judge("a beats b", "difference", cells, above=0.0)
    assert verdict.status == status
    assert verdict.estimate == pytest.approx(np.mean(means))
    assert verdict.interval[0] <= verdict.estimate <= verdict.interval[1]
    assert (verdict.held, verdict.settings) == (sum(mean > 0 for mean in means), len(means))
    assert verdict.undecided == sum(mean == 0 for mean in means)
    said = [f"fails at {', '.join(f'n={i}' for i, mean in enumerate(means) if mean < 0)}"] if -3.0 in means else []
    said += [f"undecided at {', '.join(f'n={i}' for i, mean in enumerate(means) if mean == 0)}"] if 0.0 in means else []
    assert len(means) == 1 or verdict.detail.split("; ")[2:] == said


def test_judge_moves_with_its_bar():
    cells = {"n=5": _sample(1.0, sd=0.1)}
    assert judge("c", "s", cells, above=0.5).status == "reproduced"
    assert judge("c", "s", cells, above=1.5).status == "not reproduced"
    assert judge("c", "s", cells, below=1.5).status == "reproduced"
    assert judge("c", "s", cells, above=0.5, below=0.9).status == "not reproduced"
    with pytest.raises(ValueError, match="needs a threshold"):
        judge("c", "s", cells)


@pytest.mark.parametrize(
    ("cells", "status"),
    [
        # A cell fails where its interval lies wholly beyond the threshold: one that touches it is undecided.
        ({"a": [0.0, 0.0, 0.0]}, "undecided"),
        ({"a": [-0.1, -0.1, -0.1]}, "not reproduced"),
        # None holds and one fails: it depends on the mean over the cells.
        ({"a": [-0.1, 0.1, 0.0], "b": [-0.02, -0.02, -0.02]}, "undecided"),
        ({"a": [-0.1, 0.1, 0.0], "b": [-1.0, -1.0, -1.0]}, "not reproduced"),
        # Every cell is undecided, though their mean is not.
        ({"a": [-0.01, 1.0, 1.0], "b": [1.0, -0.01, -0.01]}, "undecided"),
    ],
)
def test_a_claim_is_undecided_where_the_seeds_say_neither(cells, status):
    cells = {label: np.array(values) for label, values in cells.items()}
    assert judge("c", "s", cells, above=0.0).status == status
    assert judge("c", "s", {label: -values for label, values in cells.items()}, below=0.0).status == status


def test_between_two_bars_a_cell_fails_on_either_side_and_is_undecided_across():
    def status(low, high, middle):
        return judge("c", "s", {"": np.array([low, middle, high])}, above=-1.0, below=1.0).status

    assert status(-0.5, 0.5, 0.0) == "reproduced"
    assert status(1.5, 2.5, 2.0) == status(-2.5, -1.5, -2.0) == "not reproduced"
    assert status(0.5, 1.5, 1.0) == status(-1.5, -0.5, -1.0) == status(-9.0, 9.0, 0.0) == "undecided"


@pytest.mark.parametrize(("enough", "status"), [(1, "reproduced"), (2, "undecided"), (3, "not reproduced")])
def test_at_least_so_many_cells_are_undecided_while_they_could_hold(enough, status):
    cells = {"holds": np.ones(2), "open": np.array([-1.0, 1.0]), "fails": -np.ones(2)}
    verdict = at_least(judge("all", "s", cells, above=0.0), enough, "some")
    assert (verdict.claim, verdict.status, verdict.held, verdict.undecided) == ("some", status, 1, 1)


def test_judge_needs_a_number_from_every_seed():
    for cells in ({"n=5": np.zeros(9), "n=9": np.zeros(10)}, {}):
        with pytest.raises(ValueError, match="one number for each seed"):
            judge("c", "s", cells, above=0.0)


def test_never_counts_violations():
    trials = np.full(10, 100)
    assert never("c", "share", np.zeros(10), trials).status == "reproduced"
    assert never("c", "share", np.eye(10)[0], trials).status == "partly"
    verdict = never("c", "share", np.full(10, 30), trials)
    assert verdict.status == "not reproduced" and verdict.estimate == pytest.approx(0.3)


def test_line_says_status_claim_estimate_and_interval():
    line = judge("a beats b", "difference", {"n=5": np.full(10, 0.25)}, above=0.0).line()
    assert line == "reproduced: a beats b; difference: 0.25 (0.25 to 0.25)"
    cells = {"n=5": np.full(10, 0.25), "n=9": np.full(10, -0.25)}
    line = judge("a beats b", "difference", cells, above=0.0, control=True).line()
    assert line.startswith("holds partly, in 1 of 2 settings: a beats b")
    verdict = dataclasses.replace(judge("a", "s", cells, above=0.0), stand_in="digits for MNIST")
    assert verdict.line().startswith("partly on the stand-in, in 1 of 2 settings: a; ")
    undecided = judge("a", "s", {"": np.zeros(10)}, above=0.0, control=True)
    assert undecided.line().startswith("undecided: a; ")


def test_pairs_are_judged_on_the_difference_of_their_measures():
    values = {("one", "zord"): _sample(-5.0, 1), ("one", "rgf"): _sample(0.0, 2), ("one", "mine_own"): _sample(-5.0, 3)}
    pairs = [("zord", "rgf", False), ("rgf", "mine_own", True)]
    first, second = judge_pairs(
        pairs, "{} ends under {}", "gap", lambda cell, method: values[cell, method], {"d = 1": "one"}, below=0.0
    )
    assert (first.claim, first.status, first.control) == ("ZoRD ends under RGF", "reproduced", False)
    assert (second.claim, second.status, second.control) == ("RGF ends under mine own", "not reproduced", True)
    assert first == judge("ZoRD ends under RGF", "gap", {"": values["one", "zord"] - values["one", "rgf"]}, below=0.0)
