import logging
import math
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from optimizers import RGF, Evaluator, FailedQueryError, ModuleObjective, minimize, run
from optimizers.core.values import InvalidValueError
from optimizers.testing import quadratic, start


def numpy_quadratic(x):
    assert isinstance(x, np.ndarray)
    return float(np.sum((x - 1.0) ** 2))


def test_objectives_cannot_reach_the_state():
    def vandal(x):
        value = float(quadratic(x))
        x.zero_()
        return value

    plain = minimize(quadratic, start(), "rgf", max_queries=60, directions=10)
    assert torch.equal(minimize(vandal, start(), "rgf", max_queries=60, directions=10).x, plain.x)


@pytest.mark.slow
def test_processes():
    plain = minimize(numpy_quadratic, start(), "rgf", max_queries=33, directions=10, numpy=True)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        pooled = minimize(numpy_quadratic, start(), "rgf", max_queries=33, directions=10, numpy=True, executor=executor)
    assert np.array_equal(plain.x, pooled.x) and np.array_equal(plain.history.y, pooled.history.y)


def test_points_are_in_flight_together():
    barrier = threading.Barrier(3, timeout=10)

    def meets(x):
        barrier.wait()
        return quadratic(x)

    with ThreadPoolExecutor(3) as executor:
        result = minimize(meets, start(), "rgf", max_queries=6, directions=2, executor=executor)
    assert result.nfail == 0 and result.nfev == 6


def test_failure_policies():
    calls = []

    def flaky(x):
        calls.append(x)
        if len(calls) in (2, 3, 13):
            raise ArithmeticError("no value")
        return math.nan if len(calls) == 5 else quadratic(x)

    result = minimize(flaky, start(), "rgf", max_queries=30, directions=10)
    assert result.nfev == len(calls) == 30 and result.nfail == 4
    calls.clear()
    result = minimize(flaky, start(), "rgf", max_queries=30, directions=10, on_failure="retry", retries=2)
    assert result.nfev == len(calls) <= 30 and result.nfail == 4
    assert not result.history.y[:11].isnan().any()
    with pytest.raises(ArithmeticError, match="no value") as caught:
        calls.clear()
        minimize(flaky, start(), "rgf", max_queries=30, directions=10, on_failure="raise")
    assert "point 1" in caught.value.__notes__[0]
    with pytest.raises(FailedQueryError, match="query 1 \\(point 0 of batch 0\\)"):
        minimize(lambda x: math.inf, start(), "rgf", max_queries=30, directions=10, on_failure="raise")


@pytest.mark.parametrize("batched", [False, True])
def test_a_kind_of_exception_warns_once_a_run(batched, caplog):
    calls = 0

    def broken(x):
        nonlocal calls
        calls += 1
        if calls == 1:
            return x.new_ones(x.shape[:-1])
        raise (ArithmeticError if float(x.flatten()[0]) > 2.0 else LookupError)("no value")

    with caplog.at_level(logging.DEBUG, "optimizers.evaluation"):
        for _ in range(2):
            caplog.clear()
            calls = 0
            result = minimize(broken, start(), "es", max_queries=60, batched=batched)
            warned = [record for record in caplog.records if record.levelno == logging.WARNING]
            assert len({record.exc_info[0] for record in warned}) == len(warned) == 2
            assert len(caplog.records) == (result.nit - 1 if batched else result.nfail) > 3


@pytest.mark.parametrize("batched", [False, True])
def test_retries_stay_within_the_budget(batched):
    calls = 0

    def always_nan(x):
        nonlocal calls
        calls += 1 if x.ndim == 1 else len(x)
        return torch.full(x.shape[:-1], math.nan)

    result = minimize(
        always_nan, start(), "rgf", max_queries=25, directions=10, batched=batched, on_failure="retry", retries=5
    )
    assert result.nfev == calls == 25 and result.stop_reason == "all queries failed"


def test_a_batch_that_raises_is_failed_whole():
    calls = 0

    def broken(x):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("outside of the domain")
        return quadratic(x)

    result = minimize(broken, start(), "rgf", max_queries=33, directions=10, batched=True)
    assert result.nfail == 11 and result.history.y[11:22].isnan().all()


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("policy", ["skip", "retry", "raise"])
def test_an_exception_on_the_first_query_is_raised(policy, threads):
    """It is a bug, also where it is retried first; on a later one it is an experiment that failed."""

    def broken(x):
        raise ZeroDivisionError("a bug")

    workers = 3 if threads else None
    opt = RGF(start(), max_queries=30, directions=10)
    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        run(opt, Evaluator(broken, on_failure=policy), workers=workers)
    assert "the first of the run" in caught.value.__notes__[0] and (opt.queries > 0) == (policy == "retry")
    opt.tell(opt.ask(), 1.0, which=[0])
    if policy == "raise":
        with pytest.raises(ZeroDivisionError):
            run(opt, Evaluator(broken, on_failure=policy), workers=workers)
    else:
        assert run(opt, Evaluator(broken, on_failure=policy), workers=workers).nfail == 29


@pytest.mark.parametrize(
    ("returned", "error"),
    [(1j, TypeError), (None, TypeError), ("3", TypeError), (torch.ones(2), ValueError)],
)
def test_wrong_returns_are_mistakes_and_no_failures(returned, error):
    for policy in ("skip", "retry", "raise"):
        with pytest.raises(error, match="values"):
            minimize(lambda x: returned, start(), "rgf", max_queries=22, directions=10, on_failure=policy)
        with ThreadPoolExecutor(2) as executor, pytest.raises(error, match="values"):
            minimize(lambda x: returned, start(), "rgf", max_queries=22, directions=10, executor=executor)


def test_evaluator_arguments():
    with pytest.raises(TypeError, match="callable"):
        Evaluator(3)
    with pytest.raises(ValueError, match="on_failure"):
        Evaluator(quadratic, on_failure="ignore")
    with pytest.raises(ValueError, match="retries"):
        Evaluator(quadratic, retries=-1)
    opt = RGF(start(), max_queries=30, directions=10)
    with pytest.raises(TypeError, match="executor"):
        run(opt, quadratic, executor=3)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        run(opt, quadratic, workers=0)
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="cannot be combined with workers"):
        run(opt, Evaluator(quadratic, batched=True), executor=executor)


def with_gradient(x):
    return (x * torch.ones(5, dtype=x.dtype, requires_grad=True)).sum()


@pytest.mark.parametrize("policy", ["skip", "retry", "raise"])
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    ("fun", "says"),
    [
        (with_gradient, "carry a gradient"),
        (lambda x: "7", "real numbers"),
        (lambda x: 1j, "real numbers"),
        (lambda x: x, "one number, got shape"),
    ],
)
def test_what_is_no_value_is_no_failed_query(policy, threads, fun, says):
    opt = RGF(start(), max_queries=30, directions=10)
    with ThreadPoolExecutor(2) as executor, pytest.raises(InvalidValueError, match=says) as caught:
        run(opt, Evaluator(fun, on_failure=policy), executor=executor if threads else None)
    assert "query 1 (point" in caught.value.__notes__[0]
    assert opt.queries == 0 and opt.pending
    assert run(opt, quadratic).nfail == 0


def test_a_loss_of_a_module_that_is_no_value_is_no_failed_query():
    module = torch.nn.Linear(2, 1)
    before = module.weight.detach().clone()
    objective = ModuleObjective(module, lambda module: 3j)
    with pytest.raises(InvalidValueError, match="real numbers"):
        minimize(objective, objective.x0(), "decomfl", max_queries=30)
    assert torch.equal(module.weight, before)


def test_a_run_goes_on_within_a_batch_that_was_told_in_part():
    """The rest of its points are queried, each once, and the run is that of whole batches."""
    whole, parts = (RGF(start(), max_queries=33, directions=10, seed=1) for _ in range(2))
    batch = parts.ask()
    parts.tell(batch, [quadratic(batch[2]), quadratic(batch[0])], which=[2, 0])
    asked = []

    def counted(x):
        asked.append(x.clone())
        return quadratic(x)

    expected, found = run(whole, quadratic), run(parts, counted)
    assert len(asked) == whole.queries - 2 and torch.equal(asked[0], batch[1])
    assert torch.equal(found.x, expected.x) and found.nfev == expected.nfev
    assert sorted(found.history.y.tolist()) == sorted(expected.history.y.tolist())
