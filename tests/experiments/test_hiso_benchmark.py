import json

import pytest
import torch

from experiments.benchmarks import hiso
from experiments.benchmarks.timing import timed
from optimizers import Displacement


@pytest.mark.slow
def test_benchmark_writes_what_it_measured(tmp_path, capsys):
    size = ["--dimension", "200000", "--seconds", "0.1", "--replay-dimension", "2000", "--rounds", "5"]
    assert hiso.main([*size, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "benchmark-hiso.json").read_text())
    assert all(seconds > 0.0 for seconds in report["seconds"].values())
    assert report["replay"]["coordinates_that_differ"] == 0
    assert "met     coordinates in which the replay is not the server, bit for bit" in capsys.readouterr().out


def test_a_replay_that_differs_is_a_missed_target():
    times = dict.fromkeys(("ours, x and H", "torch, whole vectors"), timed(lambda: None, 1e-5))
    replay = {"dimension": 10, "rounds": 1, "seconds": 1.0, "coordinates_that_differ": 3}
    lines = hiso.summary(times, dict.fromkeys(times, 70.0), replay, 10, 1)
    assert sum("MISSED" in line for line in lines) == 3


def test_the_torch_expression_is_the_formula():
    torch.manual_seed(0)
    x, h = torch.ones(1000), torch.linspace(0.5, 2.0, 1000)
    before = h.clone()
    hiso.torch_step(x, h, 2)
    torch.manual_seed(0)
    delta = 0.1 * (torch.randn(1000) + torch.randn(1000)) / before.sqrt()
    rule = Displacement()
    torch.testing.assert_close(x, 1.0 - 1e-3 * delta)
    torch.testing.assert_close(h, (1 - rule.weight) * before + rule.weight * (delta**2 + rule.epsilon))


@pytest.mark.slow
def test_a_hundred_rounds_at_a_million_coordinates_replay_bitwise():
    assert hiso.replayed(1_000_000, 100)["coordinates_that_differ"] == 0


@pytest.mark.slow
def test_an_update_of_1e8_coordinates_has_small_temporaries():
    _, memory = hiso.measure(100_000_000, 1.0, 1)
    assert memory["ours, x and H"] < 64.0 and memory["ours, one number a group"] < 64.0
