"""The benchmark of the derived GP: peers give ours' numbers, what is left out is said, and options are checked."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from experiments.benchmarks import derived_gp, growth, output, peers
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import Timing, duration, interleaved, threads
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


def test_every_competitor_has_a_row_or_a_reason(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(derived_gp, "COMPETITORS", tuple(replace(one, make=idle) for one in derived_gp.COMPETITORS))
    monkeypatch.setattr(derived_gp, "peak_memory", lambda call: 1.0)
    size = ["--n", "20", "--d", "5", "40", "--q", "1", "2", "--seconds", "1e-5", "--block", "1e-6"]
    limits = ["--memory", "0.0001", "--threads", "1", "2"]
    before = torch.get_num_threads()
    assert main(["benchmark", "derived-gp", "--only", "grid", *size, *limits, "--out", str(tmp_path)]) == 0
    torch.set_num_threads(before)
    rows = json.loads((tmp_path / "benchmark-derived-gp.json").read_text())["rows"]
    for d, q, running in itertools.product((5, 40), (1, 2), (1, 2)):
        cell = [row for row in rows if (row["d"], row["q"], row["threads"]) == (d, q, running)]
        assert [(row["name"], row["gives"]) for row in cell] and len(cell) == len(derived_gp.COMPETITORS)
        assert all(row["repetitions"] or row["note"].startswith("left out") for row in cell)
        measured = [row for row in cell if row["repetitions"]]
        assert {row["megabytes"] == 1.0 for row in measured} == {running == 1}
    out = capsys.readouterr().out
    assert "for one point only" in out and "needs about 0 GB" in out and "3 of 5 rows, scaled" in out
    assert main(["benchmark", "derived-gp", "--only", "nothing"]) == 2
    assert "--only takes all, grid, updates, growth, got 'nothing'" in capsys.readouterr().err


def idle(problem):
    return lambda: None


def test_growth_has_a_row_a_size_and_an_exponent_a_cost(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(growth, "N", (8, 16))
    monkeypatch.setattr(growth, "D", (20, 40))
    monkeypatch.setattr(growth, "MANY", 8)
    assert main(["benchmark", "derived-gp", "--only", "growth", "--seconds", "1e-5", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "benchmark-derived-gp.json").read_text())["rows"]
    assert [(row["n"], row["d"]) for row in rows[:: len(growth.COSTS)]] == [(8, 4), (16, 4), (8, 20), (8, 40)]
    out = capsys.readouterr().out
    assert all(f"{cost.name}: exponent of n, at most {cost.over_n + growth.MARGIN:g}" in out for cost in growth.COSTS)


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


def test_at_many_points_the_mean_is_to_be_as_fast_as_autograd_by_hand_on_every_number_of_threads():
    cells = [{"n": 500, "d": 2189, "q": 100, "threads": running} for running in (1, 2)]
    rows = [
        derived_gp._row(*name, cell, Timing.of([seconds]))
        for cell, ours in zip(cells, (0.02, 0.01), strict=True)
        for name, seconds in ((derived_gp.HAND, 0.015), (derived_gp.MEAN, ours))
    ]
    assert [(target.value, target.met) for target in derived_gp._targets(rows)] == [
        (pytest.approx(0.75), False),
        (pytest.approx(1.5), True),
    ]


class Bench:
    """Calls that take known seconds on a clock of their own, and in which order they came."""

    def __init__(self):
        self.now, self.asked = 0.0, []

    def clock(self):
        return self.now

    def call(self, name, *seconds):
        """A call that takes these seconds, the last of them ever after."""
        left = list(seconds)

        def run():
            self.now += left.pop(0) if len(left) > 1 else left[0]
            self.asked.append((name, self.now))

        return run


def test_calls_are_timed_in_turn_in_blocks_of_at_least_50_milliseconds():
    bench, seconds = Bench(), {"microseconds": 40e-6, "milliseconds": 3e-3, "a block": 0.2}
    times = interleaved({name: bench.call(name, s) for name, s in seconds.items()}, 1.0, clock=bench.clock)
    for name, timing in times.items():
        assert timing == pytest.approx((seconds[name], seconds[name], seconds[name], timing.repetitions))
    blocks = [(name, len(list(calls))) for name, calls in itertools.groupby(bench.asked, key=lambda entry: entry[0])]
    warm, blocks = blocks[:3], blocks[3:]
    assert warm == [(name, 2) for name in seconds]
    rounds = min(timing.repetitions for timing in times.values())
    assert rounds >= 4 and [name for name, _ in blocks[: 3 * rounds]] == list(seconds) * rounds
    for name, count in blocks[: 3 * rounds]:
        assert 0.05 <= count * seconds[name] + 1e-9 < max(0.07, 2 * seconds[name])


def test_no_compilation_is_counted():
    bench = Bench()
    calls = {
        "in the first call": bench.call("a", 6.0, 1e-3),
        "in the first two": bench.call("b", 6.0, 2.0, 1e-3),
        "slow when warm": bench.call("c", 9.0, 6.0),
    }
    times = interleaved(calls, 0.5, clock=bench.clock)
    assert [timing.slowest for timing in times.values()] == pytest.approx([1e-3, 1e-3, 6.0])
    assert times["slow when warm"].repetitions == 1


def test_a_call_alone_has_as_many_blocks_as_are_asked_for():
    bench = Bench()
    times = interleaved({"a": bench.call("a", 0.3)}, most=3, clock=bench.clock)
    assert times["a"].repetitions == 3 and len(bench.asked) == 2 + 3


def test_threads_are_set_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_times_are_written_in_their_unit():
    assert [duration(s) for s in (2.0, 2e-3, 2e-6)] == ["2 s", "2 ms", "2 µs"]
    assert str(Timing.of([1.0, 3.0, 2.0]).times(2.0)) == "4 s [2 s-6 s]"
