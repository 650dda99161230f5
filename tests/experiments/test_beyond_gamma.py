"""beyond-gamma: rules are compared with the best fixed γ of their cell, and the oracle is no worse a round than any."""

import dataclasses

import numpy as np
import pytest

from experiments.beyond import gamma
from experiments.beyond.gamma import FIXED, ORACLE, RULES, Size, name_of
from experiments.papers.fzoos.quadratics import quadratics

QUICK = gamma.EXPERIMENT.settings("quick")
SIZE = Size(6, 40, 3, noises=(0.0,))
ALONE = dataclasses.replace(QUICK, sizes=(SIZE,))


def rows_of(gaps, rounds=SIZE.rounds, **cell):
    """Records of two seeds with the given last gaps."""
    key = {"dim": 6, "heterogeneity": 5.0, "noise": 0.0} | cell
    return [
        key | {"seed": seed, "method": method, "round": rounds, "gamma": 0.5, "value": value}
        for method, values in gaps.items()
        for seed, value in enumerate(values)
    ]


def test_regret_is_to_the_fixed_gamma_that_is_best_on_the_mean_of_the_logarithm():
    gaps = {name_of(g): (1.0, 1.0) for g in FIXED} | {"gamma 0.25": (1e-1, 1e-3), "gamma 1": (1e-4, 1.0)}
    rows, cell = rows_of(gaps | {"fzoos_adaptive": (1e-2, 1e-2)}), (6, 5.0, 0.0)
    assert gamma.best_fixed(rows, cell) == 0.25
    np.testing.assert_allclose(gamma.regret(rows, cell, "fzoos_adaptive"), [-1.0, 1.0])


@pytest.mark.parametrize("worst, status", [(0.2, "reproduced"), (0.3, "partly")])
def test_the_claim_is_on_every_cell(worst, status):
    size = Size(6, 40, 3, ("fzoos", "fzoos_adaptive"), noises=(0.0, 1e-2))
    settings = dataclasses.replace(QUICK, sizes=(size,))
    rows = []
    for noise, high in ((0.0, 0.1), (1e-2, worst)):
        gaps = {name_of(g): (1e-2, 1e-3) for g in FIXED}
        gaps |= {"fzoos_adaptive": (1e-2 * 10**high, 1e-3 * 10**high), "fzoos": (1.0, 1.0)}
        rows += rows_of(gaps, noise=noise)
    verdicts = {v.claim: v for v in gamma.claims(settings, rows)}
    ours = next(v for claim, v in verdicts.items() if claim.startswith("FZooS, adaptive γ ends within"))
    assert ours.status == status and not ours.control and ours.settings == 2
    lead = next(v for claim, v in verdicts.items() if "noise 0, d" in claim)
    assert lead.status == "reproduced" and lead.estimate == pytest.approx(2.4)
    assert next(v for claim, v in verdicts.items() if "1/t ends within" in claim).status == "not reproduced"


@pytest.fixture(scope="module")
def problem():
    return quadratics(6, 2, 20.0, seed=1)


def test_a_fixed_gamma_is_an_oracle_with_one_choice(problem, monkeypatch):
    plain = gamma.run(ALONE, SIZE, problem, "gamma 0.75", 1)
    monkeypatch.setattr(gamma, "CHOICES", (0.75,))
    assert [r["value"] for r in gamma.run(ALONE, SIZE, problem, ORACLE, 1)] == [r["value"] for r in plain]
    assert [r["gamma"] for r in plain] == [0.0, 0.75, 0.75]


def test_the_oracle_takes_the_lowest_of_the_next_round(problem):
    """In round 2 it has what every fixed γ has, as nobody corrects in round 1."""
    two = dataclasses.replace(SIZE, rounds=2)
    oracle = gamma.run(ALONE, two, problem, ORACLE, 1)
    second = {g: gamma.run(ALONE, two, problem, name_of(g), 1)[1]["value"] for g in gamma.CHOICES}
    assert oracle[1]["value"] == min(second.values()) < max(second.values())
    assert second[oracle[1]["gamma"]] == oracle[1]["value"]


def test_gamma_of_a_round_is_recorded(problem):
    rows = gamma.run(ALONE, SIZE, problem, "fzoos", 1)
    assert [r["gamma"] for r in rows] == [0.0, 0.75, 0.75]
    for rule in RULES.keys() - {"fzoos"}:
        found = [r["gamma"] for r in gamma.run(ALONE, SIZE, problem, rule, 1)]
        assert found[0] == 0.0 and all(0.0 <= g <= 1.0 for g in found)
    assert set(RULES) < set(SIZE.rules)


def test_a_size_is_left_out_beyond_its_seeds(monkeypatch):
    monkeypatch.setattr(gamma, "run", lambda *given: [{}])
    settings = dataclasses.replace(QUICK, sizes=(SIZE, dataclasses.replace(SIZE, dim=8, seeds=2)))
    assert {row["dim"] for row in gamma.run_seed(settings, 1)} == {6, 8}
    assert {row["dim"] for row in gamma.run_seed(settings, 2)} == {6}
