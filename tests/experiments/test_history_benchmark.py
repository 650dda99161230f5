"""The benchmark of histories pairs runs that share their first values."""

import json

import pytest

from experiments.benchmarks import history
from experiments.cli import main


def test_the_command_reports_both_kinds_of_given_values(tmp_path):
    pytest.importorskip("cocoex")
    arguments = ["--dimension", "2", "--functions", "8", "--seeds", "2", "--given", "4", "--asked", "4"]
    assert main(["benchmark", "history", *arguments, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "benchmark-history.json").read_text())
    assert found["pairs"] == [[8, 0], [8, 1]] and all(len(found[kind]) == 2 for kind in history.GIVEN)
    assert (tmp_path / "benchmark-history.txt").read_text().count("upper end") == 2


def test_values_that_are_all_there_leave_nothing_to_compare():
    """f1 is at the floor after the given half already."""
    pytest.importorskip("cocoex")
    assert history.differences(1, 0, 2, 20, 4) == [0.0, 0.0]
