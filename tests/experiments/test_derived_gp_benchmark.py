"""The benchmark of the derived GP: peers give ours' numbers, and what is left out is said."""

import itertools
import json
import math
import time
from dataclasses import replace

import pytest
import torch

from experiments.benchmarks import derived_gp, output, peers
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import timed
from experiments.cli import main


@pytest.mark.parametrize("q", [1, 3])
def test_peers_give_the_same_numbers(q):
    problem = peers.Problem(12, 3, q)
    mean, trace = peers.our_mean_and_trace(problem)()
    covariance = peers.our_covariance(problem)()
    torch.testing.assert_close(peers.our_mean(problem)(), mean)
    for make in (peers.autograd_by_hand, peers.botorch_autograd):
        torch.testing.assert_close(make(problem)(), mean, rtol=1e-6, atol=1e-8)
    means, traces = peers.jacobian_and_solve(problem)()
    torch.testing.assert_close(means, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(traces, trace, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(peers.double_jacobian(problem)(), covariance, rtol=1e-5, atol=1e-6)
    means, joint = peers.kernel_grad(problem)()
    torch.testing.assert_close(means, mean, rtol=1e-6, atol=1e-8)
    own = joint.view(q, 4, q, 4)[range(q), 1:, range(q), 1:]
    torch.testing.assert_close(own, covariance, rtol=1e-6, atol=1e-8)


def test_every_competitor_has_a_row_or_a_reason(tmp_path, capsys, monkeypatch):
    def idle(problem):
        return lambda: None

    monkeypatch.setattr(derived_gp, "COMPETITORS", tuple(replace(one, make=idle) for one in derived_gp.COMPETITORS))
    size = ["--n", "20", "--d", "5", "40", "--q", "1", "2", "--seconds", "1e-5"]
    limits = ["--memory", "0.0001", "--threads", "1", "2"]
    before = torch.get_num_threads()
    assert main(["benchmark", "derived-gp", *size, *limits, "--out", str(tmp_path)]) == 0
    torch.set_num_threads(before)
    rows = json.loads((tmp_path / "benchmark-derived-gp.json").read_text())["rows"]
    out = capsys.readouterr().out
    for d, q, threads in itertools.product((5, 40), (1, 2), (1, 2)):
        measured = [row for row in rows if row[3:6] == [d, q, threads]]
        left_out = {line for line in out.splitlines() if line.startswith(f"left out at n = 20, d = {d}, q = {q}:")}
        assert measured and len(measured) + len(left_out) == len(derived_gp.COMPETITORS)


def test_targets_are_met_or_missed():
    lines = output.target_lines([Target("a", 2.0, 1.0), Target("b", 2.0, 1.0, True), Target("c", math.nan, 1.0)])
    assert lines[1:] == ["  MISSED  a, at most 1: 2", "  met     b, at least 1: 2", "  met     c, at most 1: nan"]
    cell = (150, 2189, 1, 1)
    medians = {(*derived_gp.BOTH, *cell): 1e-3, (*derived_gp.JACOBIAN, *cell): 5e-2, (*derived_gp.GEMV, *cell): 1e-4}
    assert [(target.value, target.met) for target in derived_gp._targets(medians)] == [
        (pytest.approx(50.0), True),
        (pytest.approx(10.0), False),
    ]


def test_the_first_run_is_not_counted():
    left = [0.2]
    found = timed(lambda: time.sleep(left.pop() if left else 1e-3), 0.02, threads=torch.get_num_threads() + 1)
    assert 1e-3 <= found.median < 0.1
