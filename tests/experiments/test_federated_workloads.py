"""Federated attacks and metrics: bounds, budgets and bytes, what clients know, one start for all."""

import dataclasses

import pytest
import torch

from experiments import registry
from experiments.papers.fzoos import attacks, comparison, metrics
from experiments.workloads.attack import fooled
from experiments.workloads.metrics import DIMENSION
from experiments.workloads.unit_box import InUnitBox, UnitBoxProblem
from experiments.workloads.victims import predict
from optimizers.comparison.records import where

ATTACK = dataclasses.replace(registry.get("fzoos-fig2").settings("quick"), clients=2, panels=((8, 2),))
METRIC = registry.get("fzoos-fig8").settings("quick").at(2)


class Recorded:
    """An objective that keeps what it is asked for."""

    def __init__(self, fun):
        self.fun, self.asked = fun, []

    def __call__(self, z):
        self.asked.append(z.reshape(-1, z.shape[-1]).clone())
        return self.fun(z)

    def __getattr__(self, name):
        return getattr(self.fun, name)


@pytest.mark.parametrize("method", ATTACK.methods)
def test_queries_keep_the_bound_and_are_all_counted(method):
    (clients,) = attacks.attacks(ATTACK, 8, 0)
    problem = UnitBoxProblem([InUnitBox(client) for client in clients])
    recorded = [Recorded(client) for client in problem.clients]

    class Watched:
        clients, x0, bounds = recorded, problem.x0, problem.bounds

    q = 3 if method in comparison.BASELINES else 0
    federation = comparison.federation_of(
        Watched(), method, local_steps=2, seed=0, options=ATTACK.options(method, q), batched=True
    )
    for _ in range(2):
        federation.run_round()
    for client in recorded:
        delta = problem.clients[0].centred(torch.cat(client.asked))
        assert float(delta.abs().max()) <= ATTACK.bound * (1 + 1e-12)
    asked = sum(len(z) for client in recorded for z in client.asked)
    history = federation.history[-1]
    assert asked == history.queries
    if method == "fedzo":
        assert history.queries == 2 * 2 * 2 * (1 + 3)
        assert history.payload_up == history.payload_down == 2 * 2 * 64 * 8
    if method == "scaffold2":
        assert history.payload_up == 2 * 2 * 2 * 64 * 8
    if method == "fzoos":
        assert history.payload_up == 2 * 2 * (64 + ATTACK.num_features) * 8


def test_every_class_is_known_to_p_victims():
    for count in (2, 5, 8):
        known = [c for i in range(10) for c in attacks.classes_of(i, count)]
        assert all(known.count(c) == count for c in range(10))
    images, victims, recognized = attacks.victims(ATTACK, 3)
    for i, victim in enumerate(victims):
        assert set(predict(victim, images.test).tolist()) <= set(attacks.classes_of(i, 3))
    together = sum(v.logits(images.test.double()).softmax(-1) for v in victims).argmax(-1)
    assert torch.equal(together == images.test_labels, recognized)


def test_success_is_what_the_victims_say_together_and_ends_the_attack():
    settings = dataclasses.replace(ATTACK, bound=1.0, rates=(0.3,) * len(ATTACK.methods), rounds=4)
    (clients,) = attacks.attacks(settings, 8, 0)
    assert not fooled(clients, torch.zeros(clients[0].dimension).double())
    row = attacks.attacked(settings, clients, "fedzo", 3, 2, 0)
    assert row["rounds"] <= 4 and row["success"] in (0, 1)
    assert row["success"] or row["rounds"] == 4
    assert row["num_queries"] == row["rounds"] * 2 * 2 * (1 + 3)


def test_success_rates_along_rounds_and_queries():
    key = {"method": "fedzo", "seed": 0, "classes": 8, "local_steps": 2, "directions": 3}
    rows = [
        key | {"image": 0, "success": 1, "rounds": 2, "num_queries": 20},
        key | {"image": 1, "success": 0, "rounds": 4, "num_queries": 40},
    ]
    settings = dataclasses.replace(ATTACK, rounds=4)
    rounds, shares = attacks.success_rates(settings, rows, (8, 2), "fedzo", 3, "rounds")
    assert rounds.tolist() == [0, 1, 2, 3, 4] and shares.tolist() == [[0, 0, 0.5, 0.5, 0.5]]
    queries, shares = attacks.success_rates(settings, rows, (8, 2), "fedzo", 3, "num_queries")
    assert queries[-1] == 40 and shares[0].tolist() == [0.5 * (q >= 20) for q in queries]


@pytest.mark.parametrize(("module", "grid"), [(attacks, attacks.RATES), (metrics, [(0.003, 0.1), (0.01, 0.3)])])
def test_tuning_compares_the_grid_on_seeds_of_its_own(module, grid, monkeypatch):
    monkeypatch.setattr(metrics, "RATES", (0.003, 0.01))
    monkeypatch.setattr(metrics, "RADII", (0.1, 0.3))
    settings = METRIC if module is metrics else ATTACK
    found = module.tune(dataclasses.replace(settings, methods=("fedzo",), rounds=1), "fedzo")
    assert set(grid) <= set(found) and all(value >= 0.0 for value in found.values())


def test_clients_hold_their_classes_and_share_a_start():
    problem = metrics.problem_of(METRIC, 0)
    assert len(problem.clients) == METRIC.clients
    for i, client in enumerate(problem.clients):
        assert set(client.fun.points.labels.tolist()) == {i % 7, (i + 1) % 7}
        assert len(client.fun.points) == METRIC.points and client.fun.dimension == DIMENSION
        assert torch.equal(client.fun.trained, problem.clients[0].fun.trained)
        assert float(client(problem.x0)) == float(client.fun(torch.zeros_like(problem.x0)))
    rows = metrics.run_seed(dataclasses.replace(METRIC, values=(2,), methods=("fzoos", "fedzo")), 0)
    starts = {row["value"] for row in where(rows, round=0)}
    assert len(starts) == 1 and starts.pop() == pytest.approx(problem.gap(problem.x0))
    last = where(rows, method="fedzo", round=2)[0]
    assert last["num_queries"] == METRIC.clients * 2 * METRIC.local_steps * (1 + 3)


@pytest.mark.parametrize(("number", "metric"), [(8, "precision"), (10, "recall"), (11, "f1"), (12, "jaccard")])
def test_figures_are_of_their_metric(number, metric):
    experiment = registry.get(f"fzoos-fig{number}")
    assert all(settings.metric == metric for settings in experiment.scales.values())
    assert experiment.settings("paper").clients == 7 and experiment.settings("paper").rounds == 50


def test_figure_7_is_no_other_figures_runs_again():
    """On the stand-in both data sets are the same digits: Figure 7 has victims, images and an ε of its own."""
    sixth, seventh = (next(e for e in attacks.EXPERIMENTS if e.id == f"fzoos-fig{i}") for i in (6, 7))
    (panel,) = set(sixth.settings("quick").panels) & set(seventh.settings("quick").panels)
    ours, theirs = (dataclasses.replace(e.settings("quick"), panels=(panel,)) for e in (seventh, sixth))
    (one,), (other,) = (attacks.attacks(settings, panel[0], 0) for settings in (ours, theirs))
    assert not torch.equal(one[0].image, other[0].image)
    assert not torch.equal(one[0].victim.parameters[0], other[0].victim.parameters[0])
    found, known = ({row["value"] for row in attacks.run_seed(settings, 0)} for settings in (ours, theirs))
    assert not found & known
    for scale in ("paper", "reduced"):
        assert seventh.settings(scale).bound == pytest.approx(1.5 * sixth.settings(scale).bound)
