"""Checks of the interface: budget, ask, executors, retries, bad arguments."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.evaluation import Evaluator
from optimizers.running.loop import run
from optimizers.testing.harness import Factory, Promises, first_batch, make, quadratic, raises, start, state_bytes


def check_budget(factory: Factory, promises: Promises) -> None:
    """Queries never exceed the budget, every point is counted, and the run stops when the next batch does not fit."""
    least = first_batch(factory)
    for budget in (least, least + 1, least + 2, promises.max_queries + least + 7):
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


def check_ask_is_idempotent(factory: Factory, promises: Promises) -> None:
    """The first ``ask`` changes only the pending batch, and further calls return that batch."""
    opt = make(factory, promises)
    for _ in range(3):
        if opt.stopped:
            return
        before = state_bytes(opt, "pending")
        batch = opt.ask()
        assert state_bytes(opt, "pending") == before, "the first ask changed the state"
        before = state_bytes(opt)
        assert opt.ask() is batch and opt.pending == (batch,)
        assert state_bytes(opt) == before, "ask changed the state"
        opt.tell(batch, quadratic(batch.points()))


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


def check_retries(factory: Factory, promises: Promises) -> None:
    """Retries of failed queries count against the budget, which is not exceeded."""
    calls = 0

    def flaky(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ArithmeticError("no value here")
        return quadratic(x)

    opt = make(factory, promises)
    run(opt, Evaluator(flaky, on_failure="retry"))
    assert calls == opt.queries <= opt.max_queries, f"{calls} calls, {opt.queries} counted"
    assert opt.failures == calls // 3


def check_bad_arguments(factory: Factory, promises: Promises) -> None:
    """A bad x0, bounds, budget, seed or option name is rejected, as by ``Optimizer``."""

    def refused(kind: type[Exception], x0: Any = None, **changed: Any) -> str:
        common = {"max_queries": max(promises.max_queries, first_batch(factory))} | changed
        return str(raises(kind, lambda: factory(quadratic, start() if x0 is None else x0, **common)))

    assert "coordinate 0" in refused(ValueError, bounds=[(2.5, 4.0)] * 5)
    refused(ValueError, torch.tensor([1.0, math.nan]))
    refused(TypeError, ["a", "b"])
    refused(ValueError, max_queries=0)
    refused(ValueError, seed=-1)
    assert "'target'" in refused(TypeError, targt=0.0)
