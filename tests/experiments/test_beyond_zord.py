"""Beyond ZoRD: problems, budgets, noise and tuning of the comparison."""

import dataclasses

import numpy as np
import pytest
import torch

from experiments.beyond import zord
from experiments.papers.zord import descent
from optimizers.comparison.records import by_seed, where

SMALL = dataclasses.replace(zord.EXPERIMENT.settings("quick"), methods=tuple(zord.GRIDS), queries=14)


@pytest.mark.parametrize(("name", "condition"), [("ill", 1000.0), ("noisy", 10.0)])
def test_quadratics_have_their_spectrum_and_the_seeds_rotation(name, condition):
    settings = dataclasses.replace(SMALL, quadratic_dim=6)
    problem, other = (zord.problem_of(settings, name, seed) for seed in (0, 1))
    hessian = torch.autograd.functional.hessian(problem.function, problem.minimizer)
    spectrum = torch.linalg.eigvalsh(hessian)
    assert float(spectrum[-1] / spectrum[0]) == pytest.approx(condition, rel=1e-6)
    assert float(spectrum[0]) == pytest.approx(1.0, rel=1e-6)
    off = hessian - torch.diag(hessian.diagonal())
    assert float(off.norm()) > 0.1 * float(hessian.norm())
    assert not torch.allclose(problem.minimizer, other.minimizer)
    assert float(problem(problem.minimizer)) == problem.minimum == 0.0


def test_noise_is_told_and_not_reported():
    problem = zord.problem_of(SMALL, "noisy", 0)
    recorder = zord.Recorder(problem, 10.0, 0)
    X = problem.sample(4000, torch.Generator().manual_seed(0))
    told = recorder(X)
    np.testing.assert_allclose(recorder.true, problem(X))
    assert recorder.told == told.tolist()
    assert float((told - problem(X)).std()) == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("method", zord.GRIDS)
def test_every_method_starts_at_the_same_point_and_keeps_to_its_budget(method, monkeypatch):
    asked = []

    class Counting(zord.Recorder):
        def __call__(self, X):
            asked.append(X.reshape(-1, X.shape[-1]))
            return super().__call__(X)

    monkeypatch.setattr(zord, "Recorder", Counting)
    found = zord.gaps(SMALL, "noisy", method, zord.GRIDS[method][1], 3)
    problem = zord.problem_of(SMALL, "noisy", 3)
    points = torch.cat(asked)
    assert len(points) <= SMALL.queries + 6 * (method == "cma_es")
    assert bool(((points >= problem.lower - 1e-9) & (points <= problem.upper + 1e-9)).all())
    starts = problem.sample(SMALL.start_points, torch.Generator().manual_seed(3))
    assert found[0] == (0, pytest.approx(float(problem(starts).min().log10())))
    assert [n for n, _ in found] == [0, 4, 8, 12, 14]


def test_the_tuned_numbers_are_of_the_grids_and_tuning_has_seeds_of_its_own():
    assert set(zord.TUNED) == set(zord.GRIDS) and len({len(grid) for grid in zord.GRIDS.values()}) == 1
    for method, numbers in zord.TUNED.items():
        assert len(numbers) == len(zord.PROBLEMS) and set(numbers) <= set(zord.GRIDS[method])
    first = zord.Settings().first_seed
    assert not set(zord.Settings().tuning_seeds) & set(range(first, first + 100))
    settings = dataclasses.replace(SMALL, tuning_seeds=(1000,))
    tuned = zord.tune(settings, "ackley", "rgf")
    assert tuned == {step: zord.gaps(settings, "ackley", "rgf", step, 1000)[-1][1] for step in zord.STEPS}


def test_ackley_and_levy_start_where_turbo_ended():
    problem = zord.problem_of(SMALL, "ackley", 3)
    start = zord.start_of(SMALL, "ackley", problem, 3)
    turbo = descent.turbo_start("ackley", SMALL.dim, SMALL.start_queries, 3, "", SMALL.turbo)
    assert torch.equal(start.x, turbo.x) and start.value == float(turbo.y.min())
    assert len(start.X) == len(start.y) == 1 and not start.state


@pytest.mark.parametrize(
    ("better", "status"), [(5, "reproduced"), (3, "reproduced"), (2, "not reproduced"), (0, "not reproduced")]
)
def test_three_problems_of_five_are_enough(better, status):
    settings = dataclasses.replace(
        SMALL, problems=zord.PROBLEMS, methods=("zord_kept", "zord_gated", "zord_random", "rgf")
    )
    rows = [
        {"seed": seed, "problem": name, "method": method, "queries": 9, "value": 0.01 * seed - shift}
        for seed in range(3)
        for i, name in enumerate(zord.PROBLEMS)
        for method, shift in zip(settings.methods, (0.0, 1.0 if i < better else -1.0, 0.0, 0.0), strict=True)
    ]
    verdict = next(v for v in zord.claims(settings, rows) if "at least 3 of the 5" in v.claim)
    assert (verdict.status, verdict.held, verdict.settings) == (status, better, 5)


def test_mean_ranks_and_the_table():
    settings = dataclasses.replace(SMALL, problems=("ackley", "ill"), methods=("rgf", "zord_kept", "cma_es"))
    finals = {"ackley": (3.0, 1.0, 2.0), "ill": (2.0, 1.0, 3.0)}
    rows = [
        {"seed": seed, "problem": name, "method": method, "queries": 9, "value": value + 0.1 * seed}
        for seed in (0, 1)
        for name, values in finals.items()
        for method, value in zip(settings.methods, values, strict=True)
    ]
    ranks = zord.mean_ranks(settings, rows)
    assert {method: values.tolist() for method, values in ranks.items()} == {
        "rgf": [2.5, 2.5],
        "zord_kept": [1.0, 1.0],
        "cma_es": [2.5, 2.5],
    }
    table = zord.table(settings, rows)
    assert table.rows[0][0] == "ZoRD, kept information" and len(table.rows) == 3
    assert by_seed(where(rows, method="rgf"), problem="ackley").tolist() == pytest.approx([3.0, 3.1])
