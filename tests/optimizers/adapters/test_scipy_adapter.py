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
    result = minimize(fun, X0, method=scipy_method("rgf"), options={"max_queries": 99, "seed": 3})
    ours = our_minimize(fun, X0, "rgf", max_queries=99, seed=3, numpy=True)
    assert isinstance(result, OptimizeResult) and isinstance(result.x, np.ndarray)
    assert np.array_equal(result.x, ours.x.numpy()) and result.fun == ours.fun
    assert isinstance(result.history.y, np.ndarray) and result.nfev == 99 and result.status == 1


def test_default_budget_and_defaults_of_the_method():
    result = minimize(fun, X0, method=scipy_method("rgf"))
    assert result.nfev == 500 and result.fun < 0.05
    method = scipy_method("rgf", max_queries=66, smoothing_radius=0.1)
    assert minimize(fun, X0, method=method).nfev == 66
    assert minimize(fun, X0, method=method, options={"max_queries": 33}).nfev == 33


def test_bounds_and_args():
    for bounds in (Bounds(2.0, 4.0), [(2.0, 4.0)] * 4):
        points = []

        def logged(x, center, points=points):
            points.append(x.copy())
            return fun(x, center)

        result = minimize(logged, X0, args=(1.5,), method=scipy_method("prgf"), bounds=bounds)
        assert np.min(points) >= 2.0 and np.max(points) <= 4.0
        assert result.fun == pytest.approx(4 * 0.25, rel=1e-2)


def test_both_callback_signatures():
    points, results = [], []

    def old(xk):
        points.append(xk)

    def new(intermediate_result):
        results.append(intermediate_result)

    options = {"max_queries": 33}
    minimize(fun, X0, method=scipy_method("rgf"), callback=old, options=options)
    minimize(fun, X0, method=scipy_method("rgf"), callback=new, options=options)
    assert len(points) == len(results) == 3
    for x, result in zip(points, results, strict=True):
        assert isinstance(x, np.ndarray) and np.array_equal(x, result.x) and fun(x) == result.fun


@pytest.mark.parametrize("keyword", [False, True])
def test_stop_iteration(keyword):
    def old(xk):
        raise StopIteration

    def new(*, intermediate_result):
        raise StopIteration

    result = minimize(fun, X0, method=scipy_method("rgf"), callback=new if keyword else old)
    scipys = minimize(fun, X0, method="nelder-mead", callback=new if keyword else old)
    assert (result.status, result.success, result.message) == (99, False, scipys.message)
    assert scipys.status == 99 and result.nfev == 11


def test_what_a_callback_returns_is_not_read():
    result = minimize(fun, X0, method=scipy_method("rgf"), callback=lambda xk: True, options={"max_queries": 33})
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
        minimize(fun, X0, jac=lambda x: x, method=scipy_method("rgf"), options={"max_queries": 33})
    with pytest.warns(RuntimeWarning, match="Hessian"):
        minimize(fun, X0, hess=lambda x: x, method=scipy_method("rgf"), options={"max_queries": 33})
    with pytest.raises(ValueError, match="constraints"):
        minimize(fun, X0, constraints={"type": "eq", "fun": sum}, method=scipy_method("rgf"))
    with pytest.raises(ValueError, match="tol"):
        minimize(fun, X0, tol=1e-3, method=scipy_method("rgf"))
    with pytest.raises(TypeError, match="did you mean 'smoothing_radius'"):
        minimize(fun, X0, method=scipy_method("rgf"), options={"radus": 0.1})
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
