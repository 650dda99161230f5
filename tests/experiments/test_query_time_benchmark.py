"""The benchmark of a query's time divides the time of each part of a run by its queries."""

import dataclasses
import json
import types

import numpy as np
import pytest

from experiments.benchmarks import query_time
from experiments.benchmarks.problems.rivals import RIVALS


def test_each_part_of_a_run_has_the_time_of_its_own_queries(monkeypatch, tmp_path, capsys):
    """A method that takes 3 ms for each of the first 2 d = 6 queries, and 7 ms for each later one."""
    clock = types.SimpleNamespace(now=0.0)

    def run(queries, x0, seed):
        for i in range(queries.max_queries):
            clock.now += 0.003 if i < 6 else 0.007
            queries(np.full(3, 0.5))

    monkeypatch.setattr(query_time.time, "process_time", lambda: clock.now)
    monkeypatch.setattr(query_time, "RIVALS", {"cobyqa": dataclasses.replace(RIVALS["cobyqa"], run=run)})
    monkeypatch.setattr(query_time, "METHODS", ("cobyqa",))
    assert query_time.main(["--dimensions", "3", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "benchmark-query-time.json").read_text())["milliseconds"]
    assert found == {"cobyqa, d = 3": pytest.approx([3.0, 7.0])}
    assert "cobyqa, d = 3" in capsys.readouterr().out
