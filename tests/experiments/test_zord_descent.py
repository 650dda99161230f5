"""ZoRD's Figures 3, 5, 7 and 8: equal budgets, shared starts, and what a gap is."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from experiments import registry
from experiments.papers.zord import descent, fig7
from experiments.workloads.problems import standard_problem
from optimizers.comparison.records import by_seed, where
from tests.experiments import quick

BUDGET = 14


@pytest.fixture(scope="module")
def start():
    return descent.turbo_start("ackley", 3, 11, 0, "")


@pytest.mark.parametrize("method", descent.METHODS)
def test_every_method_makes_its_queries_in_the_box_and_no_more(method, start):
    problem, asked = standard_problem("ackley", 3), []

    def counted(X):
        asked.extend(X.reshape(-1, 3).tolist())
        return standard_problem("ackley", 3).function(X)

    counting = dataclasses.replace(problem, function=counted)
    values = descent.METHODS[method](counting, start, BUDGET, 0)
    if method == "gradient_descent":
        asked = asked[::2]
    # COBYQA may end before, and CMA-ES's last generation, of 7, is evaluated whole and cut.
    assert len(values) == BUDGET or (method == "cobyqa" and 0 < len(values) < BUDGET)
    assert len(values) <= len(asked) <= BUDGET + 6 * (method == "cma_es")
    points = torch.tensor(asked, dtype=torch.float64)
    assert bool(((points >= problem.lower - 1e-9) & (points <= problem.upper + 1e-9)).all())
    np.testing.assert_allclose(problem(points[: len(values)]).tolist(), values, rtol=1e-9)


def test_the_start_is_turbos_best_and_is_kept_in_files(start, tmp_path):
    problem = standard_problem("ackley", 3)
    assert start.value == float(start.y.min()) == pytest.approx(float(problem(start.x)))
    assert len(start.y) == 11
    kept = descent.turbo_start("ackley", 3, 11, 0, str(tmp_path))
    descent.turbo_start.cache_clear()
    again = descent.turbo_start("ackley", 3, 11, 0, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    for found in (kept, again):
        assert torch.equal(found.x, start.x) and torch.equal(found.y, start.y)


def test_turbo_goes_on_as_one_run(start):
    problem = standard_problem("ackley", 3)
    whole = descent.turbo_start("ackley", 3, 11 + 10, 0, "")
    assert descent.METHODS["turbo1"](problem, start, 10, 0) == pytest.approx(whole.y[11:].tolist())


def test_a_gap_is_the_least_so_far_and_begins_at_the_start(start):
    problem = dataclasses.replace(standard_problem("ackley", 3), minimum=1.0)
    values, start = [101.0, 3.0, math.nan, 2.0], dataclasses.replace(start, value=11.0)
    rows = descent.gap_rows({"method": "m"}, problem, start, values, 7, 2)
    assert {row["method"] for row in rows} == {"m"}
    assert {row["queries"]: row["value"] for row in rows} == pytest.approx(
        {0: 1.0, 2: math.log10(2.0), 4: 0.0, 6: 0.0, 7: 0.0}
    )


def test_all_methods_share_x0_and_budget():
    _, settings, rows = quick.finished("zord-fig3")
    rows = where(rows, seed=0)
    first = {row["value"] for row in where(rows, queries=0)}
    assert len(first) == 1
    assert {row["method"] for row in where(rows, queries=15)} == set(settings.methods)


def test_history_helps_zord_to_start_at_once(start):
    problem = standard_problem("ackley", 3)
    with_history = descent.METHODS["zord_history"](problem, start, 1, 0)
    assert len(with_history) == 1 and with_history[0] != start.value


def test_one_step_a_query_is_threshold_zero():
    settings = dataclasses.replace(registry.get("zord-fig7").settings("quick"), thresholds=(("spectral_norm", (0.0,)),))
    rows = fig7.run_seed(settings, 0)
    problem, start = descent.problem_and_start("ackley", 20.0, settings.dim, settings.start_queries, 0, "")
    assert problem.bounds.tolist() == [[-20.0] * settings.dim, [20.0] * settings.dim]
    ell = settings.lengthscale * math.sqrt(settings.dim)
    capped = descent.METHODS["zord"](problem, start, settings.queries, 0, max_virtual_steps=1, lengthscale=ell)
    expected = descent.gap_rows({}, problem, start, capped, settings.queries, settings.every)
    assert [row["value"] for row in rows] == [row["value"] for row in expected]


def test_figure_5_starts_both_methods_at_one_point():
    rows = where(quick.rows_of("zord-fig5"), seed=0)
    for name in ("ackley", "levy"):
        firsts = [where(rows, problem=name, method=method, queries=1)[0] for method in ("zord", "rgf")]
        assert firsts[0]["x1"] == firsts[1]["x1"] and firsts[0]["value"] == firsts[1]["value"]
        assert by_seed(where(rows, queries="final"), problem=name, method="zord")[0] <= math.log10(firsts[0]["value"])
