"""SciPy's methods and CMA-ES on values alone: what they ask is counted here by the objective itself."""

import logging
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from scipy import optimize

from optimizers.comparison.outside import (
    NAMES,
    NEED_DERIVATIVES,
    SCIPY,
    SEARCHES,
    outside_name,
    run_outside,
    search_from,
)
from optimizers.comparison.queries import Queries
from optimizers.core.constraints import ReturnedConstraints

LOWER, UPPER = [-1.0, 0.0, -2.0, -1.0], [1.0, 2.0, 0.5, 1.0]
CENTER, WEIGHTS = np.array([0.3, 2.5, 0.1, 0.2]), np.array([1.0, 10.0, 3.0, 1.0])
START = [0.0, 1.0, -0.5, 0.1]


def bowl(x):
    """Its minimum over the box is 2.5, on a face."""
    return float(np.sum(WEIGHTS * (np.asarray(x) - CENTER) ** 2))


class Logged:
    """The objective, and all that it was asked."""

    def __init__(self, answer=bowl):
        self.answer, self.points, self.values = answer, [], []

    def __call__(self, x):
        self.points.append(np.asarray(x).copy())
        self.values.append(math.nan)
        self.values[-1] = self.answer(np.asarray(x))
        return self.values[-1]


def queries(fun, max_queries, lower=LOWER, upper=UPPER, **options):
    return Queries(fun, *(torch.tensor(v, dtype=torch.float64) for v in (lower, upper)), max_queries, **options)


def run(name, fun, max_queries, start=START, seed=0, own=(), **options):
    asked = queries(fun, max_queries, **options)
    run_outside(name, asked, torch.tensor(start, dtype=torch.float64), seed, dict(own))
    return asked


@pytest.mark.parametrize("max_queries", [1, 3, 7, 60])
@pytest.mark.parametrize("name", NAMES)
def test_budget_and_box_hold_and_every_value_is_recorded(name, max_queries):
    fun = Logged()
    asked = run(name, fun, max_queries)
    assert len(fun.points) <= max_queries and asked.values == fun.values
    assert np.all(fun.points >= np.array(LOWER)) and np.all(fun.points <= np.array(UPPER))
    if name not in ("cma", "cobyqa"):
        assert np.array_equal(fun.points[0], START)
    if max_queries < 10:
        assert len(fun.points) == max_queries


@pytest.mark.parametrize("name", sorted(set(SCIPY) - {"cg", "bfgs", "cobyla"}))
def test_scipys_methods_ask_what_they_ask_without_us(name):
    theirs, ours = Logged(), Logged()
    bounds = optimize.Bounds(np.array(LOWER), np.array(UPPER), keep_feasible=True)
    limits = dict.fromkeys(SCIPY[name], 200)
    optimize.minimize(theirs, np.array(START), method=name, bounds=bounds, options=limits)
    run(name, ours, 200)
    assert np.array_equal(ours.points, theirs.points[:200]) and len(ours.points) > 10


@pytest.mark.parametrize("name", ["cg", "bfgs", "cobyla"])
def test_methods_that_step_out_see_the_projection(name):
    def projected(x):
        return bowl(np.clip(x, LOWER, UPPER))

    theirs, ours = Logged(projected), Logged()
    bounds = optimize.Bounds(LOWER, UPPER) if name == "cobyla" else None
    optimize.minimize(theirs, np.array(START), method=name, bounds=bounds)
    assert np.any(theirs.points > np.array(UPPER)), "it steps out"
    run(name, ours, 200)
    assert ours.values == theirs.values[:200]
    assert np.array_equal(ours.points, np.clip(theirs.points, LOWER, UPPER))


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"cg", "bfgs", *SEARCHES}))
def test_they_find_the_minimum_on_the_face(name):
    assert min(run(name, bowl, 600).values) == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_failed_queries_count_and_end_no_run_before_the_method_does(name):
    def flaky(x):
        kind = len(fun.points) % 9
        if kind == 3:
            raise ArithmeticError("out of reach")
        return {6: math.nan, 0: math.inf}.get(kind, bowl(x))

    fun = Logged(flaky)
    asked = run(name, fun, 40)
    failed = [not math.isfinite(value) for value in fun.values]
    assert [math.isnan(value) for value in asked.values] == failed and len(failed) > 10
    assert sum(failed) == len(failed) // 3
    given = [value for value, lost in zip(fun.values, failed, strict=True) if not lost]
    assert [value for value in asked.values if not math.isnan(value)] == given


def test_a_failed_query_is_as_bad_as_the_worst_so_far(caplog):
    found = iter([math.nan, 2.0, 5.0, math.nan, 1.0])
    asked = queries(lambda x: next(found), 9)
    x = np.array(START)
    assert [asked(x) for _ in range(5)] == [math.inf, 2.0, 5.0, 5.0, 1.0]
    assert asked(np.full(4, math.nan)) == 5.0 and len(asked.values) == 6, "no point to ask at"
    with caplog.at_level(logging.WARNING):
        assert asked(x) == 5.0  # the generator is exhausted, and that is an exception
    assert "query 7 failed" in caplog.text and "StopIteration" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_errors_of_the_program_are_raised(name):
    def breaks(x):
        raise KeyError("typo")

    with pytest.raises(KeyError, match="typo"):
        run(name, breaks, 20)
    counted = Logged(lambda x: 1j if len(counted.points) == 4 else bowl(x))
    with pytest.raises(TypeError, match="real numbers"):
        run(name, counted, 20)
    assert len(counted.points) == 4
    stopped = Logged(lambda x: (_ for _ in ()).throw(KeyboardInterrupt) if len(stopped.points) == 5 else bowl(x))
    with pytest.raises(KeyboardInterrupt):
        run(name, stopped, 20)
    assert len(stopped.points) == 5


def test_what_the_method_itself_raises_later_ends_its_run(monkeypatch, caplog):
    def stumbles(fun, x0, **options):
        fun(x0)
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(optimize, "minimize", stumbles)
    with caplog.at_level(logging.WARNING):
        assert len(run("powell", bowl, 20).values) == 1
    assert "powell ended after 1 queries: singular" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_the_target_ends_the_run(name):
    values = run(name, bowl, 600, target=4.0).values
    assert values[-1] <= 4.0 < min(values[:-1])


def test_options_of_the_method():
    wide = Logged()
    run("cobyqa", wide, 4, own={"initial_tr_radius": 0.25})
    assert np.abs(np.array(wide.points[1]) - START).max() == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"nelder-mead: Unknown solver options: adaptve"):
        run("nelder-mead", bowl, 4, own={"adaptve": True})
    with pytest.raises(ValueError, match="popsizes is not a valid option"):
        run("cma", bowl, 4, own={"popsizes": 3})


def test_points_are_of_the_kind_that_the_objective_takes():
    seen = []

    def kind(x):
        seen.append((type(x), x.shape, x.dtype))
        return x.sum() if x.ndim == 1 else x.sum(-1)

    low, high, x0 = torch.zeros(3), torch.ones(3), torch.full((3,), 0.5)
    for options in ({}, {"numpy": True}, {"batched": True}):
        run_outside("powell", Queries(kind, low, high, 2, **options), x0, 0, {})
    assert seen[::2] == [
        (torch.Tensor, (3,), torch.float32),
        (np.ndarray, (3,), np.dtype("float32")),
        (torch.Tensor, (1, 3), torch.float32),
    ]


def test_cma_es_draws_from_its_seed_alone():
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    first, other = (run("cma", bowl, 500, seed=seed).values for seed in (0, 1))
    assert np.array_equal(before, np.random.get_state(legacy=False)["state"]["key"])  # noqa: NPY002
    np.random.rand(7)  # noqa: NPY002
    assert run("cma", bowl, 500, seed=0).values == first != other


def test_cma_es_takes_the_box_as_its_unit():
    """f of a box stretched twelvefold and moved: the same values in the same order."""
    plain, stretched = Logged(), Logged(lambda x: bowl((x - 7.0) / 12.0))
    run("cma", plain, 60)
    moved = {"lower": 12.0 * np.array(LOWER) + 7.0, "upper": 12.0 * np.array(UPPER) + 7.0}
    run("cma", stretched, 60, start=(12.0 * np.array(START) + 7.0).tolist(), **moved)
    np.testing.assert_allclose(stretched.values, plain.values, rtol=1e-6)


def test_cma_es_with_a_fixed_coordinate_or_an_open_box():
    fixed = Logged()
    run("cma", fixed, 60, lower=[-1.0, 1.0, -2.0, -1.0], upper=[1.0, 1.0, 0.5, 1.0])
    assert {point[1] for point in fixed.points} == {1.0} and len(fixed.points) == 60
    half = [math.inf] * 4
    with pytest.raises(ValueError, match="needs an initial standard deviation"):
        run("cma", bowl, 60, upper=half)
    opened = Logged()
    run("cma", opened, 600, upper=half, own={"sigma0": 0.5})
    assert min(opened.values) < 1e-3 and np.all(opened.points >= np.array(LOWER))


def test_names_in_any_case_and_what_is_not_to_be_had(monkeypatch):
    assert [outside_name(name) for name in ("COBYQA", "L-BFGS-B", "Nelder-Mead", "CMA")] == [
        "cobyqa",
        "l-bfgs-b",
        "nelder-mead",
        "cma",
    ]
    assert outside_name("zord") is None and outside_name(Queries) is None
    known = {name.lower() for name in optimize._minimize.MINIMIZE_METHODS}
    assert {*SCIPY, *NEED_DERIVATIVES} == known, "SciPy has a method that we do not know"
    for name in NEED_DERIVATIVES:
        with pytest.raises(ValueError, match="needs derivatives"):
            outside_name(name.upper())
        with warnings.catch_warnings(), pytest.raises((ValueError, TypeError)):
            warnings.simplefilter("ignore")
            optimize.minimize(bowl, np.array(START), method=name)
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(ImportError, match=r"which is not installed: pip install 'gradient-surrogates\[compare\]'"):
        outside_name("cma")


# Restarts and blind search.


@pytest.mark.parametrize(("name", "budget"), [("cma", 1300), ("cobyqa", 120), ("l-bfgs-b", 300), ("nelder-mead", 600)])
def test_restarts_spend_the_budget_to_the_last_query(name, budget):
    stopped, fun = run(name, bowl, budget), Logged()
    asked = queries(fun, budget)
    run_outside(name, asked, torch.tensor(START, dtype=torch.float64), 0, {}, restarts=True)
    assert len(stopped.values) < budget == len(asked.values)
    assert asked.values[: len(stopped.values)] == stopped.values, "the first start is the same"
    assert np.all(fun.points >= np.array(LOWER)) and np.all(fun.points <= np.array(UPPER))


def test_no_start_follows_when_a_search_ends_with_the_budget():
    asked, starts = queries(bowl, 6), []

    def search(start, number):
        starts.append(start)
        for _ in range(3):
            asked(start)

    search_from(np.array(START), search, asked, np.random.default_rng(0), "three queries")
    assert len(starts) == 2 and len(asked.values) == 6


def test_a_restart_of_cma_has_twice_the_population(monkeypatch):
    cma, sizes = pytest.importorskip("cma"), []
    search = cma.CMAEvolutionStrategy

    def noted(*arguments):
        made = search(*arguments)
        sizes.append(made.popsize)
        return made

    monkeypatch.setattr(cma, "CMAEvolutionStrategy", noted)
    asked = queries(lambda x: float(np.sum(np.round(np.asarray(x), 1) ** 2)), 2500)
    run_outside("cma", asked, torch.tensor(START, dtype=torch.float64), 0, {}, restarts=True)
    assert sizes[:5] == [8, 8, 16, 8, 32], sizes


def test_random_search_is_uniform_and_sobol_is_more_even():
    from scipy import stats

    for name in SEARCHES:
        fun = Logged()
        run(name, fun, 513, seed=3)
        cube = (np.array(fun.points[1:]) - LOWER) / (np.array(UPPER) - LOWER)
        assert all(stats.kstest(column, "uniform").pvalue > 1e-3 for column in cube.T)
        counts = [np.histogram(column, 16, (0, 1))[0] for column in cube.T]
        assert (np.ptp(counts) <= 2) == (name == "sobol")
        other = Logged()
        run(name, other, 513, seed=4)
        assert not np.array_equal(other.points, fun.points)


def test_random_points_need_a_box():
    free = [-math.inf] * 4, [math.inf] * 4
    with pytest.raises(ValueError, match="finite bounds"):
        run("random", bowl, 10, lower=free[0], upper=free[1])


def constrained(name, start, max_queries, seed=0):
    """The points that a method queries on |x|² with x₀ ≥ 0.5, x₁ ≥ x₀² and x₂ = 0.25, which one function returns."""
    fun = Logged(lambda x: (float(x @ x), np.array([x[0], x[1] - x[0] ** 2, x[2]])))
    x0, limits = torch.tensor(start, dtype=torch.float64), ReturnedConstraints([0.5, 0.0, 0.25], [np.inf, np.inf, 0.25])
    asked = queries(fun, max_queries, numpy=True, constraints=limits, x0=x0)
    run_outside(name, asked, x0, seed, {})
    return np.array(fun.points)


def test_slsqp_queries_a_start_its_differences_and_then_a_step():
    points = constrained("slsqp", [0.9, 1.5, -1.5, 0.9], 40)
    far = np.abs(points - points[0]).max(axis=1)
    assert np.all(far[:5] < 1e-6) and far[5] > 1e-2 and len(np.unique(points, axis=0)) == len(points)
    assert points[-1] == pytest.approx([0.5, 0.25, 0.25, 0.0], abs=1e-5)


def test_cobyqa_does_not_query_a_start_that_it_moves():
    start = [0.9, 1.5, -1.5, 0.9]
    points = constrained("cobyqa", start, 60)
    assert not np.any(np.all(points == start, axis=1)) and np.allclose(points[-1], [0.5, 0.25, 0.25, 0.0], atol=1e-3)


def test_cma_with_constraints_is_its_packages_own_loop_and_writes_no_files(tmp_path, monkeypatch):
    cma = pytest.importorskip("cma")
    monkeypatch.chdir(tmp_path)
    ours = constrained("cma", START, 200, seed=3)
    assert not list(tmp_path.iterdir())
    rng, sides, theirs = np.random.default_rng(3), np.subtract(UPPER, LOWER), []

    def rows(z):
        x = np.clip(LOWER + sides * np.asarray(z), LOWER, UPPER)
        if not theirs or tuple(x) != theirs[-1]:
            theirs.append(tuple(x))
        return [0.5 - x[0], x[0] ** 2 - x[1], x[2] - 0.25, 0.25 - x[2]]

    def value(z):
        rows(z)
        return float(np.square(theirs[-1]).sum())

    options = {"bounds": [[0.0] * 4, [1.0] * 4], "seed": math.nan, "verbose": -10, "maxiter": 30}
    options["randn"] = lambda *shape: rng.standard_normal(shape)
    z0 = (np.subtract(START, LOWER) / sides).tolist()
    cma.fmin_con2(value, z0, 0.3, constraints=rows, options=options, kwargs_confit={"logging": 0})
    assert np.allclose(sorted(map(tuple, ours)), sorted(theirs[: len(ours)]), rtol=0.0, atol=1e-12) and len(ours) == 200


def test_integers_are_rounded_and_searched_as_a_lattice():
    whole = torch.tensor([True, False, False, True])
    fun = Logged()
    asked = run("cma", fun, 60, start=[0.0, 1.0, -0.5, 0.0], integrality=whole)
    points = np.array(fun.points)
    assert set(points[:, 0]) == set(points[:, 3]) == {-1.0, 0.0, 1.0} and len(set(points[:, 1])) > 40
    fun = Logged()
    run("random", fun, 3000, start=[0.0, 1.0, -0.5, 0.0], integrality=whole)
    counts = np.unique(np.array(fun.points)[:, 0], return_counts=True)[1]
    assert len(counts) == 3 and np.all(np.abs(counts - 1000) < 100), "each integer has the same share"
    assert math.isfinite(asked.least)
