"""The benchmark of threads: every number of threads asks the same queries, and the summary says what was missed."""

import json

import pytest

from experiments.benchmarks import threads
from experiments.cli import main


@pytest.mark.slow
def test_turns_are_timed_and_the_queries_are_the_same(tmp_path):
    arguments = ["--dimensions", "5", "--history", "12", "--block", "3", "--rounds", "2", "--busy", "1"]
    assert main(["benchmark", "threads", *arguments, "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "benchmark-threads.json").read_text())["rows"]
    assert (row["dimension"], row["busy"], row["sequences"]) == (5, 1, 1)
    assert {name: len(seconds) for name, seconds in row["seconds"].items()} == {"default": 2, "one": 2, "16": 2}
    assert all(second > 0 for seconds in row["seconds"].values() for second in seconds)


def test_the_summary_compares_with_one_thread_and_counts_the_sequences():
    row = {
        "dimension": 20,
        "busy": 0,
        "sequences": 2,
        "seconds": {"default": [0.02] * 3, "one": [0.01] * 3, "16": [0.0105] * 3},
    }
    text = "\n".join(threads.summary([row]))
    assert "2.00 x one thread" in text
    assert "MISSED  default threads over one, d = 20, 0 busy processes beside it, at most 1.1: 2" in text
    assert "met     16 threads over one, d = 20, 0 busy processes beside it, at most 1.1: 1.05" in text
    assert "MISSED  sequences of queries, d = 20, 0 busy processes beside it, at most 1: 2" in text
