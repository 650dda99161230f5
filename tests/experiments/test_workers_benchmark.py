"""The benchmark of workers: the runs it times, the least time that it sets them against, and what its summary says."""

import json

import pytest
import torch

from experiments.benchmarks import workers
from experiments.benchmarks.workers import Run
from experiments.cli import main


@pytest.mark.slow
def test_runs_are_set_against_the_least_number_of_turns(tmp_path):
    before = torch.get_num_threads()
    arguments = ["--dimension", "3", "--queries", "32", "--seconds", "0.02", "--workers", "1", "4"]
    try:
        assert main(["benchmark", "workers", *arguments, "--out", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(before)
    runs = json.loads((tmp_path / "benchmark-workers.json").read_text())["runs"]
    assert [(run["method"], run["workers"]) for run in runs] == [("zord", 1), ("zord", 4), ("rgf", 1), ("rgf", 4)]
    assert [run["queries"] for run in runs] == [32] * 4
    assert [run["ideal"] for run in runs] == pytest.approx([0.64, 0.16] * 2)
    assert all(run["wall"] >= run["ideal"] for run in runs)


def test_the_summary_judges_runs_of_several_workers():
    runs = [Run("zord", 1, 200, 150.0, 100.0), Run("zord", 4, 200, 26.0, 25.0), Run("rgf", 8, 192, 18.0, 12.0)]
    text = "\n".join(workers.summary(runs, 20, 0.5))
    assert "zord    4 workers, 200 queries:  26.00 s, at least  25.00 s, 4.0% over it" in text
    assert "met     zord with 4 workers, wall time over the least, at most 1.1: 1.04" in text
    assert "MISSED  rgf with 8 workers, wall time over the least, at most 1.1: 1.5" in text
    assert "with 1 workers, wall" not in text
