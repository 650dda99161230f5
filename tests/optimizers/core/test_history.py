"""Evaluations that a run did not ask for: the history, told points, and runs without x0."""

import io
import logging
import math

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, NonlinearConstraint
from scipy.optimize import minimize as scipy_minimize

from optimizers import (
    L1,
    RGF,
    CandidateGenerator,
    History,
    Space,
    SurrogateTrustRegion,
    compare,
    minimize,
    scipy_method,
)
from optimizers.registry import METHODS, method_class

D = 3
BOX = [(-5.0, 5.0)] * D
MODELS = [name for name in METHODS if method_class(name).has_model]
FEWER = [pytest.param(name, marks=pytest.mark.slow if name == "cobbo" else ()) for name in MODELS]
"""Where CobBO takes long and has what TuRBO has."""


def f(x):
    x = np.asarray(x, dtype=float)
    return float((np.arange(1, len(x) + 1) * (x - 1.0) ** 2).sum() + 0.3 * (x[:-1] * x[1:]).sum())


def given(n=20, width=5.0, seed=0):
    X = np.random.default_rng(seed).uniform(-width, width, (n, D))
    return X, np.array([f(x) for x in X])


def make(method, x0=None, queries=12, **options):
    if method in ("turbo", "cobbo"):  # their queries take longest
        queries = min(queries, 24) if x0 is None and "history" not in options else queries // 2
    if method == "turbo":
        options = {"batch_size": 1, "candidates": 50, "fit_steps": 5, **options}
    if method == "cobbo":
        options = {"fit_steps": 5, **options}
    return method_class(method)(x0, **({"bounds": BOX, "max_queries": queries} | options))


def drive(opt, most=1000):
    asked = []
    while not opt.stopped and len(asked) < most:
        batch = opt.ask()
        asked += batch.points().tolist()
        opt.tell(batch, [f(x) for x in batch.points()])
    return asked


@pytest.mark.parametrize("method", MODELS)
def test_a_run_begins_at_the_best_of_its_history_which_costs_nothing(method):
    X, y = given()
    opt = make(method, history=(X, y))
    assert (opt.queries, opt.best_fun) == (0, y.min()) and opt.best_x.tolist() == X[y.argmin()].tolist()
    asked = drive(opt)
    assert opt.queries == opt.max_queries and opt.best_fun < y.min()
    assert not {tuple(x) for x in asked} & {tuple(x) for x in X.tolist()}
    assert opt.result().history.y.tolist() == [f(x) for x in asked]


@pytest.mark.parametrize("method", MODELS)
def test_a_run_with_a_history_resumes_bitwise(method):
    X, y = given()
    whole = drive(make(method, history=(X, y)))
    opt, state = make(method, history=(X, y)), io.BytesIO()
    first = drive(opt, most=3)
    opt.tell(np.full((1, D), 0.7), [f(np.full(D, 0.7))])
    torch.save(opt.state_dict(), state)
    rest = drive(opt)
    state.seek(0)
    again = make(method, history=(X, y))
    again.load_state_dict(torch.load(state, weights_only=True))
    assert drive(again) == rest and whole[: len(first)] == first
    with pytest.raises(ValueError, match="history"):
        make(method, history=(X, y + 1.0)).load_state_dict(opt.state_dict())


@pytest.mark.parametrize("method", MODELS)
def test_a_run_without_x0_or_history_begins_at_the_best_of_a_sobol_design(method):
    opt = make(method, queries=30)
    points = opt.ask().points()
    unit = (points + 5.0) / 10.0
    assert len(points) == 2 * D and bool(((unit > 0.0) & (unit < 1.0)).all())
    assert not torch.equal(points, make(method, queries=30, seed=1).ask().points())
    asked = drive(opt, most=2 * D + 6 if method in ("turbo", "cobbo") else 30)
    assert opt.best_fun < min(map(f, asked[: 2 * D]))
    # The design is a history: what follows has the same model.
    X = np.array(asked[: 2 * D])
    after = make(method, queries=24, history=(X, [f(x) for x in X]))
    assert torch.equal(after.x0, torch.from_numpy(X[np.argmin([f(x) for x in X])]))


def test_a_design_that_fails_is_followed_by_another():
    opt = make("trust_region", queries=40)
    first = opt.ask()
    opt.tell(first, [math.nan] * len(first))
    second = opt.ask()
    assert second.info["opening"] and not torch.equal(first.points()[: len(second)], second.points())
    opt.tell(second, [math.nan] * (len(second) - 1) + [1.0])
    assert torch.equal(opt.x, second.points()[-1]) and not opt.ask().info.get("opening")
    assert len(opt.state.data.failed) == len(first) + len(second) - 1


@pytest.mark.parametrize("method", FEWER)
def test_told_points_do_not_count_and_may_become_the_best(method):
    opt = make(method, np.full(D, 3.0), queries=25)
    drive(opt, most=1)
    told = opt.queries
    X = np.array([[1.0, 1.0, 0.9], [4.0, 4.0, 4.0], [20.0, 1.0, 1.0]])
    opt.tell(X, [f(X[0]), math.nan, -1e6])
    assert (opt.queries, opt.failures) == (told, 0) and opt.best_fun == f(X[0]) and opt.best_x.tolist() == X[0].tolist()
    batch = opt.ask()
    opt.tell(batch.points(), [f(x) for x in batch.points()])  # its answers, which count
    assert opt.queries == told + len(batch) and batch not in opt.pending
    drive(opt)
    assert opt.queries == opt.max_queries and opt.best_fun <= f(X[0])


def test_a_told_point_is_where_the_run_goes_on():
    opt = make("trust_region", np.full(D, -4.0), queries=40)
    drive(opt, most=9)
    near = np.full((1, D), 0.8)
    opt.tell(near, [f(near[0])])
    assert torch.allclose(opt.x, torch.from_numpy(near[0]))
    assert float((opt.ask().points()[0] - opt.x).norm()) < 6.0


@pytest.mark.parametrize("method", FEWER)
def test_points_outside_new_bounds_help_but_never_win(method):
    X, y = given(30)
    box = [(-5.0, 0.5), *BOX[1:]]
    inside = X[:, 0] <= 0.5
    assert y.argmin() not in np.flatnonzero(inside)
    opt = make(method, bounds=box, history=(X, y))
    assert opt.best_fun == y[inside].min() and float(opt.x[0]) <= 0.5
    asked = drive(opt)
    assert max(x[0] for x in asked) <= 0.5 and opt.best_fun < y[inside].min() and float(opt.best_x[0]) <= 0.5
    if method == "trust_region":
        assert opt.state.data.outside == (~inside).sum() and len(opt.state.data.values) == 30 + 12


@pytest.mark.parametrize("method", FEWER)
def test_points_of_another_value_of_a_fixed_variable_are_left_out(method, caplog):
    X, y = given(30)
    X[::2, 1] = 2.0
    y = np.array([f(x) for x in X])
    with caplog.at_level(logging.WARNING):
        opt = make(method, bounds=[BOX[0], (2.0, 2.0), BOX[2]], history=(X, y))
    assert "15 of 30 given evaluations" in caplog.text
    assert opt.best_fun == y[::2].min()
    asked = drive(opt)
    assert {x[1] for x in asked} == {2.0} and opt.best_fun < y[::2].min()


def test_a_method_with_a_model_that_lacks_its_hook_is_told_its_name():
    class Forgets(RGF):
        has_model = True

    with pytest.raises(NotImplementedError, match="Forgets sets has_model and must define _take_history"):
        Forgets([0.0, 0.0], max_queries=20, history=([[1.0, 1.0]], [2.0]))


def test_methods_without_a_model_refuse():
    with pytest.raises(ValueError, match=r"RGF takes no history.*no model of f"):
        RGF(np.zeros(D), max_queries=50, history=given())
    with pytest.raises(ValueError, match="RGF needs an x0"):
        minimize(f, method="rgf", bounds=BOX, max_queries=50)
    opt = RGF(np.zeros(D), max_queries=50)
    batch = opt.ask()
    with pytest.raises(ValueError, match="only the values of its own batches"):
        opt.tell(np.full((1, D), 0.1), [1.0])
    opt.tell(batch.points().numpy(), [f(x) for x in batch.points()])
    assert opt.queries == len(batch)


@pytest.mark.parametrize(
    ("history", "error", "message"),
    [
        (3.0, TypeError, r"pair \(X, y\)"),
        ((np.zeros((3, 4)), np.zeros(3)), ValueError, r"\(n, 3\)"),
        ((np.zeros((3, D)), np.zeros(2)), ValueError, "one for each point"),
        ((np.full((2, D), np.inf), np.zeros(2)), ValueError, "finite, but row 0"),
        (History(np.zeros((2, D)), np.zeros(2), yvar=[-1.0, 1.0]), ValueError, "yvar"),
        (History(np.zeros((2, D)), np.zeros(2), c=np.zeros((3, 1))), ValueError, "2 rows"),
        (History(np.zeros((2, D)), np.zeros(2), c=np.zeros((2, 1))), ValueError, "but no constraint of the run"),
        ((np.zeros((2, D)), np.zeros(2), 0.1, None, 1), TypeError, "pair"),
    ],
)
def test_histories_that_do_not_fit_are_refused(history, error, message):
    with pytest.raises(error, match=message):
        minimize(f, bounds=BOX, history=history, max_queries=20)


def test_what_a_run_without_x0_needs():
    with pytest.raises(ValueError, match="needs bounds, or a history"):
        minimize(f, max_queries=20)
    with pytest.raises(ValueError, match="a successful point in the bounds, or bounds that are all finite"):
        minimize(f, bounds=[(0.0, None)] * D, history=([[-1.0] * D], [0.0]), max_queries=20)
    X, y = given()
    result = minimize(f, history=(torch.from_numpy(X), y), max_queries=20)
    assert isinstance(result.x, torch.Tensor) and result.fun < y.min()


@pytest.mark.parametrize("method", ["zord", "turbo", "cobbo"])
def test_variances_need_a_model_that_has_them(method):
    with pytest.raises(ValueError, match="one noise variance for all values"):
        make(method, history=History(*given(), yvar=0.1))


def test_psi_is_part_of_what_is_compared():
    X, y = given()
    opt = make("zord", bounds=None, prox=L1(2.0), history=(X, y))
    totals = y + 2.0 * np.abs(X).sum(1)
    assert math.isclose(opt.best_fun, totals.min()) and opt.best_x.tolist() == X[totals.argmin()].tolist()


def test_a_checkpoint_knows_the_history(tmp_path):
    X, y = given()
    call = {"bounds": BOX, "max_queries": 12, "checkpoint": tmp_path / "run"}
    first = minimize(f, history=(X, y), target=y.min() - 1e-3, **call)
    again = minimize(f, history=(X, y), **call)
    straight = minimize(f, history=(X, y), bounds=BOX, max_queries=12)
    assert first.nfev < 12 and again.history.y.tolist() == straight.history.y.tolist()
    with pytest.raises(ValueError, match="another run: it has history"):
        minimize(f, history=(X, y + 1.0), **call)


def test_constraints_judge_the_history():
    """The optimum without the constraint is infeasible; the best given point is the best feasible one."""
    X, y = given(30)
    c = X[:, 0] + X[:, 1]
    constraint = NonlinearConstraint(lambda x: x[0] + x[1], -np.inf, 0.5)
    opt = make("trust_region", constraints=constraint, history=History(X, y, c=c))
    feasible = c <= 0.5
    assert (
        opt.best_fun == y[feasible].min() > y.min()
        and opt.best_x.tolist() == X[feasible][y[feasible].argmin()].tolist()
    )
    result = minimize(f, bounds=BOX, constraints=constraint, history=History(X, y, c=c), max_queries=15)
    exact = minimize(f, np.zeros(D), bounds=BOX, constraints=constraint, max_queries=60)
    assert result.nfev == 15 and len(result.history.maxcv) == 15 and result.maxcv <= 1e-5
    assert abs(result.fun - exact.fun) < 1e-3 * abs(exact.fun)
    with pytest.raises(ValueError, match=r"pass the values of the constraints .* as c"):
        make("trust_region", constraints=constraint, history=(X, y))


def test_kept_constraints_are_kept_by_every_query():
    X, y = given(30)
    constraint, seen = LinearConstraint(np.ones(D), -np.inf, 1.0, keep_feasible=True), []

    def watched(x):
        seen.append(x.sum())
        return f(x)

    result = minimize(watched, bounds=BOX, constraints=constraint, history=(X, y), max_queries=12)
    assert max(seen) <= 1.0 + 1e-9 and result.fun < y[X.sum(1) <= 1.0].min()
    minimize(watched, bounds=BOX, constraints=constraint, max_queries=30)
    assert max(seen) <= 1.0 + 1e-9


def test_compare_gives_every_method_the_history():
    X, y = given()
    methods = {"default": "trust_region", "zord": "zord"}
    comparison = compare(f, bounds=BOX, max_queries=6, methods=methods, seeds=2, history=(X, y))
    after = {(row["method"], row["queries"]): row["value"] for row in comparison.rows}
    assert all(after[name, 6] < y.min() for name in methods)
    with pytest.raises(ValueError, match="'cobyqa' does not take 'history'"):
        compare(f, bounds=BOX, max_queries=6, methods=["cobyqa"], seeds=2, history=(X, y))


def test_adapters_pass_evaluations_on():
    X, y = given()
    options = {"maxfev": 10, "history": (X, y)}
    result = scipy_minimize(f, X[y.argmin()], method=scipy_method(), bounds=BOX, options=options)
    assert result.nfev == 10 and result.fun < y.min()
    lower_upper = torch.tensor(BOX, dtype=torch.float64).T
    generator = CandidateGenerator("trust_region", torch.zeros(D), bounds=lower_upper, max_queries=20)
    candidates = generator.generate_candidates()
    both = torch.cat([torch.from_numpy(X).to(candidates), candidates])
    generator.observe(both, -torch.tensor([[f(x)] for x in both]))
    assert generator.optimizer.queries == len(candidates) and not len(generator.X_pending)
    assert math.isclose(generator.optimizer.best_fun, min(f(x) for x in both), rel_tol=1e-6)


def test_a_history_of_integers_and_decades():
    """Fractions of an integer are an error; points without a logarithm are left out."""
    space = Space([(1e-3, 1e3), (1, 12)], log=[True, False], integrality=[0, 1])

    def g(x):
        assert x[1] == round(x[1])
        return (np.log10(x[0]) - 1.0) ** 2 + (x[1] - 7.0) ** 2 / 10.0

    X = np.array([[0.01, 2.0], [1.0, 4.0], [5.0, 9.0], [1e4, 7.0], [-1.0, 7.0], [100.0, 11.0]])
    y = np.array([g(x) if x[0] > 0.0 else -9.0 for x in X])
    opt = SurrogateTrustRegion(bounds=space, max_queries=20, history=(X, y))
    assert opt.best_x.tolist() == [5.0, 9.0] and opt.state.data.outside == 1 and len(opt.state.data.values) == 5
    with pytest.raises(ValueError, match="not whole"):
        SurrogateTrustRegion(bounds=space, max_queries=20, history=(X + np.array([0.0, 0.5]), y))
    assert minimize(g, bounds=space, history=(X, y), max_queries=25).fun < 1e-3
    assert minimize(g, bounds=space, max_queries=30).fun < 1e-2
