"""FZooS's figures: the quadratics, who is compared with whom at how many queries, and what Figure 3 measures."""

import dataclasses

import numpy as np
import pytest
import torch

from experiments import registry
from experiments.papers.fzoos import comparison, convergence
from experiments.papers.fzoos.comparison import BASELINES, leads, log_gap
from experiments.papers.fzoos.quadratics import quadratics
from optimizers.comparison.records import where
from tests.experiments import quick

F64 = torch.float64


@pytest.mark.parametrize("heterogeneity", [0.5, 50.0])
def test_the_quadratics_average_to_one_function_whatever_c_is(heterogeneity):
    p = quadratics(20, 5, heterogeneity, seed=3)
    x = torch.rand(20, dtype=F64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.stack([f(x) for f in p.clients]).mean(), p.mean(x))
    torch.testing.assert_close(torch.stack([f.gradient(x) for f in p.clients]).mean(0), p.mean.gradient(x))
    for f in p.clients:
        gradient = torch.autograd.functional.jacobian(f.exact, x)
        torch.testing.assert_close(f.gradient(x), gradient)
    assert p.gap(x) == pytest.approx(float(p.mean(x)) - (1.0 - 20 / 4) / 200, rel=1e-12)
    assert p.gap(torch.full((20,), 0.475, dtype=F64)) == pytest.approx(0.0, abs=1e-25)
    spread = torch.stack([f.a for f in p.clients])
    assert float(spread.max() - spread.min()) == pytest.approx(heterogeneity, rel=0.05)


def test_noise_is_a_function_of_the_point_and_of_the_client():
    p = quadratics(4, 2, 5.0, seed=0, noise=0.1)
    f, X = p.clients[0], torch.rand(2000, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
    noise = torch.stack([f(x) - f.exact(x) for x in X])
    assert f(X[0]) == f(X[0]) and abs(float(noise.mean())) < 0.01
    assert float(noise.std()) == pytest.approx(0.1, rel=0.06)
    assert float(p.clients[1](X[0]) - p.clients[1].exact(X[0])) != float(noise[0])


@pytest.fixture(scope="module")
def finished():
    _, settings, rows = quick.finished("fzoos-fig1")
    return settings, where(rows, heterogeneity=50.0)


def test_queries_are_those_of_all_clients(finished):
    settings, rows = finished
    for method, directions, of_a_step in (("fzoos", 0, 6), ("fedzo", 20, 21), ("scaffold2", 5, 6)):
        chosen = where(rows, seed=0, method=method, directions=directions)
        assert [row["num_queries"] for row in chosen] == [3 * 3 * of_a_step * r for r in range(settings.rounds + 1)]
    starts = {row["value"] for row in where(rows, seed=0, round=0)}
    assert len(starts) == 1


def test_equal_queries_are_not_more_than_the_methods_own(finished):
    settings, rows = finished
    budget = comparison.total_queries(rows, method="fzoos", heterogeneity=50.0)
    cells = leads(rows, settings, [50.0], "fzoos", equal="queries")
    assert len(cells) == len(BASELINES) * 2 and budget == 162
    chosen = where(rows, method="fedzo", directions=20, round=0)  # a round costs 189 queries, over the budget
    theirs = np.log10([row["value"] for row in chosen])
    ours = log_gap(rows, settings, 50.0, "fzoos")
    np.testing.assert_allclose(cells["heterogeneity 50, FedZO, Q = 20"], theirs - ours)
    last = np.log10([row["value"] for row in where(rows, method="fedzo", directions=5, round=3)])
    np.testing.assert_allclose(cells["heterogeneity 50, FedZO, Q = 5"], last - ours)
    at_rounds = leads(rows, settings, [50.0], "fzoos", equal="rounds")
    last = np.log10([row["value"] for row in where(rows, method="fedzo", directions=20, round=3)])
    np.testing.assert_allclose(at_rounds["heterogeneity 50, FedZO, Q = 20"], last - ours)


def test_figure_3_measures_the_directions_of_steps():
    settings = dataclasses.replace(registry.get("fzoos-fig3").settings("quick"), directions=10, heterogeneity=0.0)
    problem = quadratics(10, 3, 0.0, seed=0)
    found = convergence.cosines(problem, "fedzo", settings, 0)
    # As many orthonormal differences as dimensions, and clients that are all F.
    assert found.shape == (2, 3, 3) and float(found.min()) > 0.999
    rows = where(convergence.run_fig3(settings, 0), method="fedzo", round=2)
    running = found[1].mean(0).cumsum(0) / torch.arange(1, 4)
    np.testing.assert_allclose([row["value"] for row in rows], running.numpy(), rtol=1e-12)


def test_the_two_fedprox_pull_by_1_and_by_d():
    problem = quadratics(10, 3, 5.0, seed=0)
    pulls = [
        comparison.federation_of(problem, method, local_steps=2, seed=0, options={"directions": 3}).algorithm.pull
        for method in ("fedzo", "fedprox", "fedprox_d")
    ]
    assert pulls == [0.0, 1.0, 10.0]


@pytest.mark.parametrize("name", ["fzoos-fig2", "fzoos-fig8"])
def test_both_fedprox_have_fedzos_rate(name):
    settings = registry.get(name).settings("reduced")
    tuned = dict(zip(settings.methods, settings.rates if name == "fzoos-fig2" else settings.tuned, strict=True))
    assert tuned["fedzo"] == tuned["fedprox"] == tuned["fedprox_d"] and set(BASELINES) < set(tuned)
