"""The problems of beyond-curvature, and that methods are compared at equal queries."""

import dataclasses
import itertools
import math

import pytest
import torch

from experiments.beyond import curvature
from experiments.beyond.curvature_problems import NETWORKS, QUADRATICS, SCALES, problem_of
from experiments.papers.hiso import training
from optimizers import HiSo
from optimizers.comparison.records import where
from tests.experiments import quick


def hessian_of(fun, x):
    return torch.autograd.functional.hessian(fun, x)


@pytest.mark.parametrize("family", QUADRATICS)
def test_quadratics_are_what_they_are_called(family):
    problem = problem_of(family, 20, 3)
    A = hessian_of(problem.whole, torch.zeros(20, dtype=torch.float64))
    values = torch.linalg.eigvalsh(A)
    torch.testing.assert_close(problem.diagonal, A.diagonal(), rtol=1e-9, atol=0)
    assert float(values[0]) > 0.0 and problem.minimum == 0.0
    assert problem.base(1) == pytest.approx(1.0 / float(A.trace() + 2.0 * values[-1]))
    off = (A - torch.diag(A.diagonal())).abs() > 1e-12
    assert bool(off.any()) == (family in ("correlated", "rotated", "blocks"))
    if family == "blocks":
        assert not bool(off[:2, 2:].any()) and problem.groups == 10
    if family == "five_large":
        assert sorted(values.round().tolist())[-2:] == [1.0, 1000.0]
    root = A.diagonal().sqrt()
    whitened = torch.linalg.eigvalsh(A / root[:, None] / root)
    narrow = float(whitened[-1] / whitened[0]) < 0.1 * float(values[-1] / values[0])
    assert narrow == (family != "rotated")


@pytest.mark.slow
def test_logistic_regression_ends_at_its_minimum():
    problem = problem_of("logistic", 0, 2)
    assert len(problem.x0) == 31
    found = HiSo(problem.x0, curvature="group_probe", max_queries=8000, seed=1)
    while not found.stopped:
        batch = found.ask()
        found.tell(batch, problem.whole(batch.points()))
    assert 0.0 < float(problem.whole(found.x)) - problem.minimum < 0.1 * float(problem.whole(problem.x0))
    at_start = hessian_of(problem.whole, problem.x0)
    trace, largest = float(at_start.trace()), float(torch.linalg.eigvalsh(at_start)[-1])
    assert problem.base(1) == pytest.approx(1.0 / (trace + 2.0 * largest))
    assert problem_of("logistic", 0, 3).minimum == problem.minimum


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_one_function_in_other_units(name):
    problem = problem_of(name, 0, 1)
    _, pooled, _ = training.federation_of("mlp", 2, 1.0, 1)
    theta = training.initial("mlp", 1).double()
    loss = training.Loss("mlp", pooled.inputs[:300].double(), pooled.labels[:300])
    assert float(problem.whole(problem.x0)) == pytest.approx(float(loss(theta)), rel=1e-12)
    assert len(problem.groups) == len(SCALES) and problem.x0.dtype == torch.float64
    many = problem_of(name, 0, 1, clients=8)
    assert len(many.clients) == 8 and torch.equal(many.x0, problem.x0)


@pytest.mark.parametrize("method", curvature.METHODS)
def test_all_methods_have_the_same_queries(method):
    settings = dataclasses.replace(curvature.EXPERIMENT.settings("quick"), queries=130)
    found = curvature.trajectory(settings, "log_uniform", method, 0.5, 1)
    assert found[0] == (0, 0.0) and found[-1][0] == 130 and all(b >= a for (a, _), (b, _) in itertools.pairwise(found))
    if method != "oracle_diagonal":
        found = curvature.trajectory(settings, "mlp_64", method, 0.5, 1)
        budget = settings.rounds * 2 * settings.federated_perturbations
        assert found[-1][0] == budget and max(q for q, _ in found[:-1]) < budget


def test_a_run_that_diverged_is_given_the_worst_value():
    settings = dataclasses.replace(curvature.EXPERIMENT.settings("quick"), queries=400)
    assert curvature.trajectory(settings, "log_uniform", "decomfl", 64.0, 1)[-1][1] == curvature.WORST


def test_settings_of_the_figure_have_every_problem_and_its_tuning():
    settings = curvature.EXPERIMENT.settings("paper")
    for name in settings.problems:
        for method in curvature.methods_of(settings, name):
            assert curvature.GRID[0] < curvature.TUNED[name][method] < curvature.GRID[-1]
            assert curvature.TUNED[name][method] in curvature.GRID


@pytest.mark.parametrize(
    ("optimum", "tried"), [(1.0, [2, 0.5, 1]), (4.0, [2, 1, 8, 4]), (0.25, [2, 1, 0.5, 0.125, 0.25])]
)
def test_the_best_factor_is_tried_between_two_others(monkeypatch, optimum, tried):
    seen = []

    def trajectory(settings, name, method, factor, seed):
        seen.append((factor, seed))
        return [(0, 0.0), (6000, abs(math.log(factor / optimum)) + 0.1 * (seed % 2))]

    monkeypatch.setattr(curvature, "trajectory", trajectory)
    found = curvature.tune(curvature.EXPERIMENT.settings("quick"), "blocks", "decomfl")
    assert list(found) == tried and found[optimum] == pytest.approx(0.05)
    assert sorted(seen) == sorted((f, s) for f in tried for s in curvature.TUNING_SEEDS)


def test_seeds_of_the_figure_are_fresh(monkeypatch):
    seen = set()
    monkeypatch.setattr(curvature, "trajectory", lambda *given: seen.add(given[-1]) or [(0, 0.0), (1, 0.0)])
    for seed in range(10):
        curvature.run_seed(curvature.EXPERIMENT.settings("quick"), seed)
    assert min(seen) >= curvature.FIRST_SEED > 9 and not seen & set(curvature.TUNING_SEEDS)


@pytest.mark.slow
def test_divergence_is_counted():
    _, settings, rows = quick.finished("beyond-curvature")
    wrong = [
        row | {"value": 1.9} if row["method"] == "group_probe" and row["problem"] == "blocks" else row for row in rows
    ]
    for given, status in ((rows, "reproduced"), (wrong, "not reproduced")):
        (verdict,) = (v for v in curvature.claims(settings, given) if "ends above" in v.claim)
        assert verdict.status == status
    assert where(rows, record="last", method="oracle_diagonal", problem="mlp_scaled_64") == []
