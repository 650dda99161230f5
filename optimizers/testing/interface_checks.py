"""Checks of the interface: ask, tell, budget, stop reasons, executors, bad arguments."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import Bounds
from torch import Tensor

from optimizers.evaluation import Evaluator, FailurePolicy
from optimizers.running.loop import run
from optimizers.testing.harness import Factory, Promises, first_batch, make, quadratic, raises, start, state_bytes


def check_budget(factory: Factory, promises: Promises) -> None:
    """Queries never exceed the budget, every point is counted, and the run stops when the next batch does not fit."""
    least = first_batch(factory)
    for budget in (least, least + 1, least + 2, promises.budget + least + 7):
        opt = factory(quadratic, start(), max_queries=budget, max_failures=None)
        evaluated = 0
        while not opt.stopped:
            batch = opt.ask()
            assert 0 < len(batch) <= budget - opt.queries, f"{len(batch)} asked, {opt.remaining} left"
            assert batch.points().shape == (len(batch), 5)
            evaluated += len(batch)
            opt.tell(batch, quadratic(batch.points()))
        assert opt.queries == evaluated <= budget
        assert opt.stop_reason == "budget" and opt.result().nfev == evaluated
        raises(RuntimeError, opt.ask)


def check_too_small_budget(factory: Factory, promises: Promises) -> None:
    """A budget smaller than the first batch raises an error that states how many queries are needed."""
    del promises
    least = first_batch(factory)
    for budget in {1, least - 1} - {0, least}:
        error = raises(ValueError, partial(factory, quadratic, start(), max_queries=budget))
        assert str(least) in str(error), f"the message does not say {least}: {error}"


def check_ask_is_idempotent(factory: Factory, promises: Promises) -> None:
    """The first ``ask`` changes only the pending batch, and further ones return that batch."""
    opt = make(factory, promises)
    for _ in range(3):
        if opt.stopped:
            return
        before = state_bytes(opt, "pending")
        batch = opt.ask()
        assert state_bytes(opt, "pending") == before, "the first ask changed the state"
        before = state_bytes(opt)
        assert opt.ask() is batch and opt.pending == (batch,)
        assert torch.equal(batch.points(), batch.points())
        for i, point in enumerate(batch):
            assert torch.allclose(point, batch.points()[i], rtol=1e-6, atol=1e-6)
        assert state_bytes(opt) == before, "ask changed the state"
        opt.tell(batch, quadratic(batch.points()))


def check_points_are_addressable(factory: Factory, promises: Promises) -> None:
    """A single point, and a piece of one, equals its row of the dense batch bitwise."""
    opt = make(factory, promises)
    for _ in range(3):
        if opt.stopped:
            return
        batch = opt.ask()
        dense = batch.points()
        for i in range(len(batch)):
            assert torch.equal(batch.point(i), dense[i])
            pieces = [batch.point(i, 0, 2), batch.point(i, 2)]
            assert torch.equal(torch.cat(pieces), dense[i])
        opt.tell(batch, quadratic(dense))


def check_wrong_tells(factory: Factory, promises: Promises) -> None:
    """Values of a wrong number, shape or type and foreign or old batches are rejected without changing the state."""
    opt, other = make(factory, promises), make(factory, promises, seed=1)
    batch = opt.ask()
    foreign, values = other.ask(), quadratic(batch.points())
    before = state_bytes(opt)
    raises(ValueError, lambda: opt.tell(batch, torch.cat([values, values[:1]])))
    raises(ValueError, lambda: opt.tell(batch, values.expand(2, -1).T))
    raises(TypeError, lambda: opt.tell(batch, values.to(torch.complex128)))
    raises(TypeError, lambda: opt.tell(batch, ["a"] * len(batch)))
    raises(TypeError, partial(cast(Any, opt).tell, "no batch", values))
    raises(ValueError, lambda: opt.tell(batch, values, retries=opt.max_queries))
    if not torch.equal(foreign.points(), batch.points()):
        raises(ValueError, lambda: opt.tell(foreign, quadratic(foreign.points())))
    assert state_bytes(opt) == before, "a refused tell changed the state"
    opt.tell(batch, values)
    raises(ValueError, lambda: opt.tell(batch, values))
    if not opt.stopped:
        opt.ask()
        raises(ValueError, lambda: opt.tell(batch, values))


def check_accepted_values(factory: Factory, promises: Promises) -> None:
    """Values may be a tensor, array, list or column, also of integers; those that require a gradient are rejected."""
    kinds: list[Callable[[Tensor], Any]] = [
        lambda y: y.numpy(),
        lambda y: y.tolist(),
        lambda y: y[:, None],
        lambda y: list(y.clone()),
        lambda y: [np.float64(v) for v in y.tolist()],
    ]
    whole: list[Callable[[Tensor], Any]] = [
        lambda y: y.round(),
        lambda y: y.round().to(torch.int64),
        lambda y: [int(v) for v in y.round().tolist()],
    ]
    for same in (kinds, whole):
        _check_same_run(factory, promises, same)
    opt = make(factory, promises)
    batch = opt.ask()
    before, values = state_bytes(opt), quadratic(batch.points())
    raises(TypeError, lambda: opt.tell(batch, values + 1j))
    raises(TypeError, lambda: opt.tell(batch, values.clone().requires_grad_()))
    assert state_bytes(opt) == before, "a refused tell changed the state"


def _check_same_run(factory: Factory, promises: Promises, kinds: list[Callable[[Tensor], Any]]) -> None:
    runs = []
    for kind in kinds:
        opt = make(factory, promises)
        for _ in range(2):
            if not opt.stopped:
                batch = opt.ask()
                opt.tell(batch, kind(quadratic(batch.points())))
        runs.append(state_bytes(opt))
    assert len(set(runs)) == 1, "the kind of the values changes the run"


def check_exceptions_and_retries(factory: Factory, promises: Promises) -> None:
    """An exception of the objective is a failed query; the policy skips, retries (within the budget) or raises."""
    calls = 0

    def flaky(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ArithmeticError("no value here")
        return quadratic(x)

    policies: tuple[FailurePolicy, ...] = ("skip", "retry")
    for policy in policies:
        calls = 0
        opt = make(factory, promises)
        run(opt, Evaluator(flaky, on_failure=policy))
        assert calls == opt.queries <= opt.max_queries, f"{calls} calls, {opt.queries} counted"
        assert opt.failures == calls // 3
    opt = make(factory, promises)
    calls = 0
    raises(ArithmeticError, lambda: run(opt, Evaluator(flaky, on_failure="raise")))
    assert opt.pending
    run(opt, quadratic)
    assert opt.stop_reason == "budget"


def check_bad_arguments(factory: Factory, promises: Promises) -> None:
    """Bad x0, bounds, budgets, seeds and option names are rejected with messages that name the error."""
    good: dict[str, Any] = {"max_queries": max(promises.budget, first_batch(factory))}
    x0 = start()

    def refused(kind: type[Exception], x: Any = x0, **changed: Any) -> str:
        return str(raises(kind, lambda: factory(quadratic, x, **(good | changed))))

    assert "coordinate 0" in refused(ValueError, bounds=[(2.5, 4.0)] * 5)
    assert "coordinate 2" in refused(ValueError, bounds=[(0, 4), (0, 4), (4, 0), (0, 4), (0, 4)])
    refused(ValueError, bounds=[(0.0, 4.0)] * 4)
    refused(ValueError, bounds=[(0.0, math.nan)] * 5)
    refused(ValueError, bounds=Bounds([0.0, 1.0], 4.0))
    refused(TypeError, bounds=3.0)
    refused(ValueError, torch.tensor([1.0, math.nan]))
    refused(ValueError, torch.zeros(2, 2))
    refused(ValueError, torch.zeros(0))
    refused(TypeError, torch.zeros(2, dtype=torch.complex64))
    refused(TypeError, ["a", "b"])
    refused(ValueError, max_queries=0)
    refused(TypeError, max_queries=10.5)
    refused(ValueError, seed=-1)
    refused(TypeError, seed="seed")
    assert "'target'" in refused(TypeError, targt=0.0)
    assert "'stagnation'" in refused(TypeError, stagnaton=3)


def check_executor(factory: Factory, promises: Promises) -> None:
    """A run whose values come out of order from threads equals the sequential run bitwise."""
    plain = run(make(factory, promises, store_points=True), quadratic)
    delays = np.random.Generator(np.random.Philox(0))

    def slow(x: Tensor) -> float:
        time.sleep(float(delays.uniform(0.0, 2e-3)))
        return float(quadratic(x))

    with ThreadPoolExecutor(4) as executor:
        result = run(make(factory, promises, store_points=True), slow, executor=executor)
    assert torch.equal(plain.history.x, result.history.x)
    assert torch.equal(plain.history.y, result.history.y)


def check_stopping(factory: Factory, promises: Promises) -> None:
    """Target, callback and StopIteration end the run with their reasons, and the result agrees with the run."""
    opt = make(factory, promises, target=float(quadratic(start())) + 1e3)
    first = len(opt.ask())
    result = run(opt, quadratic)
    assert result.stop_reason == "target reached" and result.status == 0 and result.success
    assert result.nfev == 1 <= first, "the run goes on after the target"

    def stop_iteration(intermediate_result: Any) -> None:
        assert intermediate_result.nfev > 0 and math.isfinite(intermediate_result.fun)
        raise StopIteration

    for callback in (stop_iteration, lambda intermediate_result: True):
        result = run(make(factory, promises), quadratic, callback=callback)
        assert result.stop_reason == "callback" and result.status == 99 and not result.success
        assert result.nit == 1
    opt = make(factory, promises, store_points=True)
    result = run(opt, quadratic)
    assert result.stop_reason == "budget" and result.status == 1
    assert result.fun == float(result.history.y.min()) == float(result.history.best_y[-1])
    assert len(result.history.y) == len(result.history.x) == result.nfev
    assert torch.equal(result.history.x[int(result.history.y.argmin())], result.x)
    assert torch.equal(result.history.best_y, result.history.y.cummin(0).values)
