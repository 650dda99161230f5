import json
import math

import numpy as np
import pytest

from experiments.benchmarks import least_squares as benchmark
from experiments.cli import main
from experiments.workloads.calibrations import calibrations
from experiments.workloads.more_wild import FUNCTIONS, LeastSquaresProblem, problems

AT_START = """
7.20000e+01 1.12500e+03 1.16542e+07 1.16859e+09 4.98920e+06 5.00936e+08 2.42000e+01 1.79577e+06 2.50000e+03
1.06000e+04 2.15000e+02 1.61540e+06 4.00500e+02 1.54575e+08 4.16817e+01 1.30623e+03 5.31317e-03 1.69361e+09 1.64308e+01
2.32337e+06 2.69042e+01 8.15888e+06 7.36782e+01 2.05938e+07 1.03115e+03 4.17131e+03 7.92669e+06 3.08106e+11 4.64282e-02
3.37706e-02 3.86177e-02 2.88830e-02 3.37633e-02 2.67406e-02 2.73248e+02 1.61741e+01 2.09342e+00 1.99685e+02 9.04000e+02
1.35600e+03 1.58200e+03 1.80800e+03 5.65000e+01 7.05625e+01 9.86875e+01 2.53908e+09 6.87380e+12 3.36796e+09 3.73513e+09
3.99107e+09 1.13001e+13 9.38567e+00 3.36582e+10"""
"""Sums of squares at the starts, from BenDFO's data/testout.dat."""


def test_the_problems_have_the_published_values_at_their_starts():
    found = [float((problem.r(problem.x0) ** 2).sum()) for problem in problems()]
    assert found == pytest.approx([float(text) for text in AT_START.split()], rel=1e-5)
    assert len({problem.name for problem in problems()}) == 53 and len(FUNCTIONS) == 22


def test_calibrations_have_small_residuals_at_the_truth_and_large_ones_at_the_start():
    for problem, truth in zip(calibrations(), ([5e-5, 0.1, 10.0, 1e4], [2e-6, 5e-4, 1e-3, 1e4]), strict=True):
        assert problem.r(np.array(truth)).std() == pytest.approx(0.02, rel=0.3)
        assert np.abs(problem.r(problem.x0)).max() > 0.1


def test_a_run_counts_every_evaluation_and_ends_where_it_no_longer_improves():
    problem = LeastSquaresProblem("far", lambda x: np.append(x, 1.0), np.array([3.0, 4.0]))

    def halving(r, x0):
        while True:
            r(x0)
            x0 = 0.5 * x0

    costs = benchmark.costs_of(halving, problem, problem.x0)
    # After 15 halvings the excess is 4⁻¹⁵ < 1e-9 of the decrease; a fifth of the budget is 30 evaluations more.
    assert len(costs) == 16 + 30 and costs[:2] == [13.0, 3.625]
    assert benchmark.evaluations(costs, 0.5, 1e-3) == 6 and benchmark.evaluations([2.0, 1.0], 0.0, 1e-3) == math.inf


def test_the_command_compares_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "problems", lambda: problems()[6:8])
    monkeypatch.setattr(benchmark, "calibrations", list)
    assert benchmark.main(["--out", str(tmp_path), "--methods", "scipy", "ours"]) == 0
    report = json.loads((tmp_path / "benchmark-least-squares.json").read_text())
    assert [len(row["costs"]) for row in report["problems"]] == [2, 2]
    assert "ours" in (tmp_path / "benchmark-least-squares.txt").read_text()


def test_an_unknown_method_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["benchmark", "least-squares", "--methods", "newton"])
    assert "invalid choice: 'newton' (choose from 'dfo-ls', 'scipy', 'ours', 'scalar')" in capsys.readouterr().err
