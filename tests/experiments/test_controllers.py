"""Controllers: the papers' sizes, functions of their parameters and seeds, budgets of the search."""

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")
pytest.importorskip("Box2D")

from experiments.papers.zord import table2_table3 as tables
from experiments.workloads import controllers
from experiments.workloads.controllers import ENVIRONMENTS, Controller, environment, layers, unpacked
from optimizers.comparison.records import where

TABLE2, TABLE3 = tables.EXPERIMENTS


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_controller_has_its_size_and_is_a_function(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fun = Controller(name, episodes=2, seed=3, horizon=40)
    assert fun.dimension == ENVIRONMENTS[name][1]
    theta = 2 * torch.rand(fun.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    first = fun(theta)
    fun(-theta)
    assert fun(theta) == first and np.isfinite(first)
    by_hand = -np.mean([fun.episode(theta.numpy(), seed) for seed in (3, 4)])
    assert first == by_hand
    assert not list(tmp_path.iterdir())


def test_the_network_is_torchs():
    widths = layers(environment("swimmer"))
    assert widths == (8, 10, 10, 2)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 10), torch.nn.Tanh(), torch.nn.Linear(10, 10), torch.nn.Tanh(), torch.nn.Linear(10, 2)
    ).double()
    theta = torch.randn(222, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(theta, net.parameters())
    for layer, (weight, bias) in zip((net[0], net[2], net[4]), unpacked(theta.numpy(), widths), strict=True):
        assert np.array_equal(layer.weight.detach().numpy(), weight)
        assert np.array_equal(layer.bias.detach().numpy(), bias)


def test_an_unknown_environment_is_refused():
    with pytest.raises(ValueError, match="choose from"):
        controllers.make("cartpole")


def test_every_method_has_its_budget_from_the_best_of_the_hypercube():
    settings = dataclasses.replace(
        TABLE3.settings("quick"),
        environments=("acrobot",),
        methods=("zord", *tables.BASELINES),
        horizon=3,
        turbo_candidates=50,
    )
    fun = Controller("acrobot", 1, 0, 3)
    X, y = tables.start_of(settings, fun, 0)
    assert X.shape == (settings.design, 213) and float(X.abs().max()) <= 1.0
    calls = []

    def counted(theta):
        calls.append(theta)
        assert float(theta.abs().max()) <= 1.0
        return fun(theta)

    for method in settings.methods:
        calls.clear()
        optimizer = tables.searcher(settings, method, fun, X, y, 0)
        result = tables.run(optimizer, tables.Evaluator(counted))
        assert len(calls) == result.nfev <= settings.max_queries
        assert result.nfev >= settings.max_queries - 1


def test_rewards_never_fall_and_the_tables_hold_all():
    settings = dataclasses.replace(TABLE3.settings("quick"), methods=("rgf",))
    rows = TABLE3.run(settings, [0, 1])
    for seed in (0, 1):
        values = [r["value"] for r in where(rows, seed=seed, environment="lunar_lander", method="rgf")]
        start = where(rows, seed=seed, environment="lunar_lander", method="latin_hypercube", queries=0)[0]["value"]
        assert values == sorted(values) and values[0] == start
    table = tables.table3(settings, rows)
    assert table.columns[1:] == ("Acrobot", "paper, Acrobot", "LunarLander", "paper, LunarLander")
    assert [row[::2] for row in table.rows][1] == ("RGF", "-83.0 ± 5.6", "-93.8 ± 19.1")
    two = dataclasses.replace(TABLE2.settings("quick"), environments=("walker2d",))
    assert tables.table2(two, TABLE2.run(two, [0, 1])).rows[0][2:6] == ("17", "6", "356", "356")
