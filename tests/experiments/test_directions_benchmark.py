"""The benchmark of directions: every way is measured, and a target that is missed is said."""

import json

from experiments.benchmarks.directions import summary
from experiments.cli import main


def test_benchmark_writes_what_it_measured(tmp_path, capsys):
    assert main(["benchmark", "directions", "--sizes", "1000", "--numbers", "3000", "--out", str(tmp_path)]) == 0
    rates = json.loads((tmp_path / "benchmark-directions.json").read_text())["rates"]
    assert set(rates["1000"]) == {"torch.randn", "row", "add_to", "signs"} and min(rates["1000"].values()) > 0
    assert (tmp_path / "benchmark-directions.txt").read_text().strip() in capsys.readouterr().out


def test_a_missed_target_is_said():
    fast = {"torch.randn": 2e8, "row": 4e8, "add_to": 3e8, "signs": 1e9}
    assert summary({1000: fast})[-1] == "  met     normals over torch.randn's, d = 1,000, at least 1: 1.5"
    missed = summary({1000: fast, 2000: fast | {"add_to": 1e8}})[-1]
    assert missed == "  MISSED  normals over torch.randn's, d = 2,000, at least 1: 0.5"
