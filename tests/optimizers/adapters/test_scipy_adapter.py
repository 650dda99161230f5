import concurrent.futures
import multiprocessing
import pickle

import joblib
import numpy as np
import pytest
from scipy.optimize import Bounds, OptimizeResult, minimize

from optimizers import minimize as our_minimize
from optimizers import scipy_method

X0 = np.linspace(2.0, 3.0, 4)


def fun(x, center=1.0):
    assert isinstance(x, np.ndarray)
    return float(np.sum((x - center) ** 2))


def test_results_are_those_of_minimize_in_numpy():
    result = minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"max_queries": 99, "seed": 3})
    ours = our_minimize(fun, X0, "rgf", directions=10, max_queries=99, seed=3, numpy=True)
    assert isinstance(result, OptimizeResult) and isinstance(result.x, np.ndarray)
    assert np.array_equal(result.x, ours.x) and result.fun == ours.fun
    assert isinstance(result.history.y, np.ndarray) and result.nfev == 99 and result.status == 1


def test_default_budget_and_defaults_of_the_method():
    result = minimize(fun, X0, method=scipy_method("rgf", directions=10))
    assert result.nfev == 500 and result.fun < 0.05
    method = scipy_method("rgf", directions=10, max_queries=66, smoothing_radius=0.1)
    assert minimize(fun, X0, method=method).nfev == 66
    assert minimize(fun, X0, method=method, options={"max_queries": 33}).nfev == 33


@pytest.mark.parametrize("name", ["maxfev", "maxfun"])
def test_scipys_names_of_the_budget(name):
    calls = []

    def counted(x):
        calls.append(x)
        return fun(x)

    for method, options in (
        (scipy_method("rgf", directions=10), {name: 66}),
        (scipy_method("rgf", directions=10), {name: 66.0, "max_queries": None}),
        (scipy_method("rgf", directions=10, max_queries=33), {name: 66}),
        (scipy_method("rgf", directions=10, **{name: 66}), {}),
    ):
        calls.clear()
        result = minimize(counted, X0, method=method, options=options)
        assert result.nfev == len(calls) == 66 and result.status == 1
        assert np.array_equal(result.x, our_minimize(fun, X0, "rgf", directions=10, max_queries=66, numpy=True).x)


def test_one_budget_has_one_name():
    for names in (("max_queries", "maxfev"), ("maxfev", "maxfun")):
        both = dict.fromkeys(names, 33)
        with pytest.raises(ValueError, match=f"{names[0]} and {names[1]} are names of the same query budget"):
            minimize(fun, X0, method=scipy_method("rgf", directions=10), options=both)
        with pytest.raises(ValueError, match="same query budget"):
            scipy_method("rgf", directions=10, **both)
    for name in ("maxfev", "maxfun", "maxiter"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            minimize(fun, X0, method=scipy_method("rgf", directions=10), options={name: 0})
        with pytest.raises(TypeError, match=f"{name} must be an integer, got 2.5"):
            minimize(fun, X0, method=scipy_method("rgf", directions=10), options={name: 2.5})


def test_maxiter_ends_the_run_with_scipys_message():
    scipys = minimize(fun, X0, method="BFGS", options={"maxiter": 1})
    result = minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"maxiter": 3})
    assert (result.status, result.message) == (scipys.status, scipys.message)
    assert result.nit == 3 and result.nfev == len(result.history.y) == 33 and result.success
    assert result.stop_reason == "iterations"
    assert np.array_equal(
        result.x, minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"maxfev": 33}).x
    )
    aimed = minimize(fun, X0, method=scipy_method("rgf", directions=10, maxiter=3, target=-1.0))
    assert aimed.status == 1 and not aimed.success
    spent = minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"maxiter": 100, "maxfev": 33})
    assert spent.nfev == 33 and spent.stop_reason == "budget"
    seen = []
    minimize(fun, X0, method=scipy_method("rgf", directions=10), callback=seen.append, options={"maxiter": 3})
    assert len(seen) == 3


def test_a_callback_that_stops_at_maxiter_has_stopped_the_run():
    def last(xk):
        raise StopIteration

    result = minimize(fun, X0, method=scipy_method("rgf", directions=10), callback=last, options={"maxiter": 1})
    assert (result.status, result.nit) == (99, 1)


def test_disp_prints_what_scipys_methods_print(capsys):
    result = minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"disp": True, "maxfev": 33})
    ours = capsys.readouterr()
    scipys = minimize(fun, X0, method="Nelder-Mead", options={"disp": True})
    theirs = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in ours.out.splitlines()[1:]] == [line.split(":")[0] for line in theirs[1:]]
    assert scipys.message == theirs[0] and ours.out.splitlines()[0] == result.message
    assert ours.out.splitlines()[1:] == [
        f"         Current function value: {result.fun:f}",
        "         Iterations: 3",
        "         Function evaluations: 33",
    ]
    for options in ({}, {"disp": False}):
        minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"maxfev": 33, **options})
        assert capsys.readouterr() == ("", "")


def test_disp_asks_for_the_progress_of_minimize(monkeypatch):
    shown = []

    def watched(*args, progress, **options):
        shown.append(progress)
        return our_minimize(*args, progress=False, **options)

    monkeypatch.setattr("optimizers.adapters.scipy_method.minimize", watched)
    for options in ({}, {"disp": True}, {"disp": False}, {"disp": True, "progress": False}):
        minimize(fun, X0, method=scipy_method("rgf", directions=10, maxfev=11), options=options)
    assert shown == [False, "auto", False, False]


def in_a_process(method, center):
    return minimize(fun, X0, args=(center,), method=method, bounds=Bounds(0.0, 4.0), options={"maxfev": 60})


def test_it_is_pickled():
    method = scipy_method("rgf", directions=10, seed=3, maxiter=4)
    again = pickle.loads(pickle.dumps(method))
    assert again == method
    expected, result = in_a_process(method, 1.5), in_a_process(again, 1.5)
    assert np.array_equal(result.x, expected.x) and result.nfev == expected.nfev == 44


def other(x, center):
    return -fun(x, center)


def test_a_checkpoint_knows_a_function_with_args_by_its_name(tmp_path):
    method = scipy_method("rgf", directions=10, checkpoint=tmp_path / "run.pt", store_points=True)
    first = minimize(fun, X0, args=(1.5,), method=method, options={"maxfev": 33})
    more = minimize(fun, X0, args=(1.5,), method=method, options={"maxfev": 66})
    assert np.array_equal(more.history.x[:33], first.history.x) and more.nfev == 66
    with pytest.raises(ValueError, match=r"another run.*'fun'.*'other'"):
        minimize(other, X0, args=(1.5,), method=method, options={"maxfev": 66})


@pytest.mark.slow
def test_process_pools_and_joblib():
    method, centers = scipy_method("zord", seed=3), [1.0, 1.5]
    expected = [in_a_process(method, center) for center in centers]
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        pooled = list(pool.map(in_a_process, [method] * 2, centers))
    joined = joblib.Parallel(n_jobs=2)(joblib.delayed(in_a_process)(method, center) for center in centers)
    for results in (pooled, joined):
        for result, one in zip(results, expected, strict=True):
            assert np.array_equal(result.x, one.x) and np.array_equal(result.history.y, one.history.y)


@pytest.mark.slow
def test_a_function_with_args_goes_to_an_executor_of_processes():
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        method = scipy_method("rgf", executor=pool, directions=10, maxfev=22)
        result = minimize(fun, X0, args=(1.5,), method=method)
    alone = minimize(fun, X0, args=(1.5,), method=scipy_method("rgf", directions=10, maxfev=22))
    assert np.array_equal(result.x, alone.x)


def test_bounds_and_args():
    for bounds in (Bounds(2.0, 4.0), Bounds([2.0] * 4, [4.0] * 4), [(2.0, 4.0)] * 4, np.array([[2.0, 4.0]] * 4)):
        points = []

        def logged(x, center, points=points):
            points.append(x.copy())
            return fun(x, center)

        result = minimize(logged, X0, args=(1.5,), method=scipy_method("prgf"), bounds=bounds)
        assert np.min(points) >= 2.0 and np.max(points) <= 4.0
        assert result.fun == pytest.approx(4 * 0.25, rel=1e-2)
    single = minimize(fun, X0, args=1.5, method=scipy_method("rgf", directions=10))
    assert single.fun == minimize(fun, X0, args=(1.5,), method=scipy_method("rgf", directions=10)).fun
    half = minimize(fun, X0, method=scipy_method("rgf", directions=10), bounds=[(2.0, None)] * 4)
    assert half.x.min() >= 2.0 and half.fun == pytest.approx(4.0, rel=1e-2)


def test_both_callback_signatures():
    points, results = [], []

    def old(xk):
        points.append(xk)

    def new(intermediate_result):
        results.append(intermediate_result)

    options = {"max_queries": 33}
    minimize(fun, X0, method=scipy_method("rgf", directions=10), callback=old, options=options)
    minimize(fun, X0, method=scipy_method("rgf", directions=10), callback=new, options=options)
    assert len(points) == len(results) == 3
    for x, result in zip(points, results, strict=True):
        assert isinstance(x, np.ndarray) and np.array_equal(x, result.x) and fun(x) == result.fun


@pytest.mark.parametrize("keyword", [False, True])
def test_stop_iteration(keyword):
    def old(xk):
        raise StopIteration

    def new(*, intermediate_result):
        raise StopIteration

    result = minimize(fun, X0, method=scipy_method("rgf", directions=10), callback=new if keyword else old)
    scipys = minimize(fun, X0, method="nelder-mead", callback=new if keyword else old)
    assert (result.status, result.success, result.message) == (99, False, scipys.message)
    assert scipys.status == 99 and result.nfev == 11


def test_what_a_callback_returns_is_not_read():
    result = minimize(
        fun, X0, method=scipy_method("rgf", directions=10), callback=lambda xk: True, options={"max_queries": 33}
    )
    assert result.nfev == 33


@pytest.mark.parametrize("together", [False, True])
def test_jac_reaches_gradient_descent(together):
    def gradient(x, center):
        return 2.0 * (x - center)

    def both(x, center):
        return fun(x, center), gradient(x, center)

    result = minimize(
        both if together else fun,
        X0,
        args=(1.5,),
        jac=True if together else gradient,
        method=scipy_method("gradient_descent"),
        options={"max_queries": 300},
    )
    assert result.fun < 1e-6 and result.nfev == 300


def test_what_is_not_used_is_said():
    with pytest.warns(RuntimeWarning, match="jac"):
        minimize(fun, X0, jac=lambda x: x, method=scipy_method("rgf", directions=10), options={"max_queries": 33})
    with pytest.warns(RuntimeWarning, match="Hessian"):
        minimize(fun, X0, hess=lambda x: x, method=scipy_method("rgf", directions=10), options={"max_queries": 33})
    with pytest.raises(ValueError, match="constraints"):
        minimize(fun, X0, constraints={"type": "eq", "fun": sum}, method=scipy_method("rgf", directions=10))
    with pytest.raises(ValueError, match="tol"):
        minimize(fun, X0, tol=1e-3, method=scipy_method("rgf", directions=10))
    with pytest.raises(ValueError, match="tol"):
        minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"tol": 1e-3})
    with pytest.raises(TypeError, match="did you mean 'smoothing_radius'"):
        minimize(fun, X0, method=scipy_method("rgf", directions=10), options={"radus": 0.1})
    with pytest.raises(ValueError, match="unknown method"):
        scipy_method("nelder")


def test_failures_are_survived():
    calls = 0

    def flaky(x):
        nonlocal calls
        calls += 1
        return np.nan if calls % 3 == 0 else fun(x)

    result = minimize(flaky, X0, method=scipy_method("rgf"))
    assert result.nfail > 100 and result.fun < 0.2 and result.success
