"""The benchmark of ZoRD's iteration: its parts are parts of the whole, and its summary says what was missed."""

import json

from experiments.benchmarks import zord
from experiments.cli import main


def test_parts_add_up_and_are_written(tmp_path, capsys):
    arguments = ["--dimension", "30", "--history", "160", "--iterations", "12", "--steps", "3"]
    assert main(["benchmark", "zord", *arguments, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "benchmark-zord.json").read_text())["seconds"]
    assert len(rows) == 12 and sum(row["fit"] > 0 for row in rows) in (1, 2)
    assert all(row["selection"] > 0 and sum(row[part] for part in zord.PARTS) < row["whole"] for row in rows)
    assert "whole iteration" in capsys.readouterr().out


def test_the_summary_compares_selection_and_refit_with_the_steps():
    cheap = {"whole": 0.010, "selection": 0.002, "conditioning": 0.001, "fit": 0.0}
    text = "\n".join(zord.summary([cheap] * 9 + [cheap | {"whole": 0.017, "fit": 0.007}], 5, 7, 10))
    assert "met     selection and refit over the virtual steps, at most 2: 0.429" in text
    assert "met     the same with fits of hyper-parameters, at most 2: 0.529" in text
    dear = {"whole": 0.020, "selection": 0.014, "conditioning": 0.0, "fit": 0.0}
    assert sum("MISSED" in line for line in zord.summary([dear], 5, 7, 10)) == 3
