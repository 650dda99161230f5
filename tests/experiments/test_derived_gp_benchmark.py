"""The benchmark of the derived GP: peers give ours' numbers, what is left out is said, and options are checked."""

import json
import math

import pytest
import torch

from experiments.benchmarks import derived_gp, output, peers
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import Timing, duration, interleaved
from experiments.cli import main


@pytest.mark.parametrize("q", [1, 3])
def test_peers_give_the_same_numbers(q):
    problem = peers.Problem(12, 3, q)
    mean, trace = peers.our_mean_and_trace(problem)()
    covariance = peers.our_covariance(problem)()
    torch.testing.assert_close(peers.our_mean(problem)(), mean)
    for make in (peers.autograd_by_hand, peers.botorch_autograd, peers.gpytorch_autograd):
        torch.testing.assert_close(make(problem)(), mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(peers.sklearn_differences(problem)(), mean, rtol=1e-3, atol=1e-4)
    means, traces = peers.jacobian_and_solve(problem)()
    torch.testing.assert_close(means, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(traces, trace, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(peers.double_jacobian(problem)(), covariance, rtol=1e-5, atol=1e-6)
    means, joint = peers.kernel_grad(problem)()
    torch.testing.assert_close(means, mean, rtol=1e-6, atol=1e-8)
    own = joint.view(q, 4, q, 4)[range(q), 1:, range(q), 1:]
    torch.testing.assert_close(own, covariance, rtol=1e-6, atol=1e-8)


def test_every_competitor_has_a_row_or_a_reason(tmp_path, capsys):
    size = ["--n", "20", "--d", "5", "40", "--q", "1", "2", "--seconds", "0.001", "--memory", "0.0001"]
    assert main(["benchmark", "derived-gp", "--only", "grid", *size, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "benchmark-derived-gp.json").read_text())["rows"]
    for d, q in ((5, 1), (5, 2), (40, 1), (40, 2)):
        cell = [row for row in rows if (row["d"], row["q"]) == (d, q)]
        assert [(row["name"], row["gives"]) for row in cell if row["repetitions"] or row["note"].startswith("left out")]
        assert len(cell) == len(derived_gp.COMPETITORS)
    out = capsys.readouterr().out
    assert "for one point only" in out and "needs about 0 GB" in out and "3 of 5 rows, scaled" in out
    assert (tmp_path / "benchmark-derived-gp.png").exists()
    assert main(["benchmark", "derived-gp", "--only", "nothing"]) == 2
    assert "--only takes all, grid, updates, got 'nothing'" in capsys.readouterr().err


def test_targets_are_met_or_missed():
    lines = output.target_lines([Target("a", 2.0, 1.0), Target("b", 2.0, 1.0, True), Target("c", math.nan, 1.0)])
    assert lines[1:] == ["  MISSED  a, at most 1: 2", "  met     b, at least 1: 2", "  met     c, at most 1: nan"]
    cell = {"n": 150, "d": 2189, "q": 1}
    rows = [
        derived_gp._row(*name, cell, Timing.of([seconds]))
        for name, seconds in ((derived_gp.BOTH, 1e-3), (derived_gp.JACOBIAN, 5e-2), (derived_gp.GEMV, 1e-4))
    ]
    assert [(target.value, target.met) for target in derived_gp._targets(rows)] == [
        (pytest.approx(50.0), True),
        (pytest.approx(10.0), False),
    ]


def test_calls_are_timed_in_turn_and_times_are_written_in_their_unit():
    asked = []
    times = interleaved({"a": lambda: asked.append("a"), "b": lambda: asked.append("b")}, most=3)
    assert asked == ["a", "b"] * 4 and [timing.repetitions for timing in times.values()] == [3, 3]
    assert [duration(s) for s in (2.0, 2e-3, 2e-6)] == ["2 s", "2 ms", "2 µs"]
    assert str(Timing.of([1.0, 3.0, 2.0]).times(2.0)) == "4 s [2 s-6 s]"
