"""Checks that a run depends on its state and seed, and not on global generators or the default dtype."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from optimizers.running.loop import run
from optimizers.testing.harness import (
    Factory,
    Promises,
    default_dtype,
    disturb_generators,
    generator_states,
    make,
    quadratic,
    raises,
    reloaded,
    start,
    state_bytes,
    trace,
    with_failures,
)


def check_resume(factory: Factory, promises: Promises) -> None:
    """A run that is saved and loaded at every step, between moves of the global generators, equals the unbroken run."""
    whole = trace(make(factory, promises, seed=3))
    opt = make(factory, promises, seed=3)
    asked: list[Tensor] = []
    while not opt.stopped:
        opt = reloaded(opt, make(factory, promises, seed=4))
        batch = opt.ask()
        opt = reloaded(opt, make(factory, promises, seed=4))
        assert opt.pending, "the pending batch is not in the state"
        assert torch.equal(opt.ask().points(), batch.points())
        asked.append(batch.points())
        opt.tell(batch, with_failures(quadratic(batch.points()), opt.queries))
    assert len(asked) == len(whole), f"{len(asked)} batches, {len(whole)} in the unbroken run"
    for k, (ours, theirs) in enumerate(zip(asked, whole, strict=True)):
        assert torch.equal(ours, theirs), f"batch {k} differs after loading"


def check_values_as_they_come(factory: Factory, promises: Promises) -> None:
    """Values that are told one by one, in any order, between which the run is saved and loaded, give the same run."""
    whole, parts = (make(factory, promises, seed=3) for _ in range(2))
    order = torch.Generator().manual_seed(7)
    for _ in range(3):
        if whole.stopped:
            break
        batch, same = whole.ask(), parts.ask()
        assert torch.equal(batch.points(), same.points()), "parts of a batch change the next one"
        values = with_failures(quadratic(batch.points()), whole.queries)
        for count, i in enumerate(torch.randperm(len(batch), generator=order).tolist()):
            before = parts.queries
            assert parts.pending and len(parts.untold(same)) == len(batch) - count
            parts.tell(same, values[i], which=[i])
            assert parts.queries == before + 1, "a value is not counted when it is told"
            if not parts.stopped and parts.pending:
                reached = state_bytes(parts)
                for which, given in (([i], 1.0), (None, values), ([len(same)], 1.0), ([], [])):
                    raises(ValueError, partial(parts.tell, same, given, which=which))
                assert state_bytes(parts) == reached, "a refused tell changed the state"
                parts = reloaded(parts, make(factory, promises, seed=4))
                same = parts.ask()
        whole.tell(batch, values)
        assert (parts.queries, parts.failures, parts.best_y) == (whole.queries, whole.failures, whole.best_y)
        assert torch.equal(parts.x, whole.x) and torch.equal(parts.best_x, whole.best_x)


def check_extended_budget(factory: Factory, promises: Promises) -> None:
    """A run that is loaded under a larger budget continues up to that budget."""
    opt = make(factory, promises)
    run(opt, quadratic)
    longer = make(factory, promises, max_queries=2 * opt.max_queries)
    longer.load_state_dict(opt.state_dict())
    result = run(longer, quadratic)
    assert opt.queries < result.nfev <= 2 * opt.max_queries
    assert result.fun <= opt.best_y


def check_states_are_copies(factory: Factory, promises: Promises) -> None:
    """A state changes neither with the run from which it was saved nor with a run into which it is loaded."""
    opt = make(factory, promises)
    for _ in range(2):
        if not opt.stopped:
            batch = opt.ask()
            opt.tell(batch, quadratic(batch.points()))
    state = opt.state_dict()
    runs = [trace(opt)]
    for _ in range(2):
        loaded = make(factory, promises)
        loaded.load_state_dict(state)
        runs.append(trace(loaded))
    assert len({len(points) for points in runs}) == 1
    assert all(map(torch.equal, runs[0] + runs[0], runs[1] + runs[2])), "the state changed with a run"


def check_foreign_states(factory: Factory, promises: Promises) -> None:
    """A state of another method, version, dimension, dtype or box is refused, and the optimizer stays as it was."""
    opt = make(factory, promises)
    batch = opt.ask()
    opt.tell(batch, quadratic(batch.points()))
    state, before = opt.state_dict(), state_bytes(opt)
    wrong: list[dict[str, Any]] = [
        state | {"method": "another"},
        state | {"version": state["version"] + 1},
        state | {"x": start(4)},
        state | {"x": start().to(torch.float32)},
        state | {"options": state["options"] | {"bounds": [[0.0] * 5, [4.0] * 5]}},
        {"method": state["method"]},
    ]
    for given in wrong:
        raises(ValueError, partial(opt.load_state_dict, given))
    assert state_bytes(opt) == before


def check_seeds(factory: Factory, promises: Promises) -> None:
    """A seed determines the run; the global generators are neither read nor moved."""
    disturb_generators(1)
    first = trace(make(factory, promises, seed=5))
    disturb_generators(2)
    before = generator_states()
    second = trace(make(factory, promises, seed=5))
    assert before == generator_states(), "a global generator moved"
    assert len(first) == len(second) and all(map(torch.equal, first, second)), "one seed, two runs"
    other = trace(make(factory, promises, seed=6))
    same = len(first) == len(other) and all(map(torch.equal, first, other))
    assert not (promises.seeded and same), "two seeds, one run"


def check_dtypes(factory: Factory, promises: Promises) -> None:
    """Points and results have x0's dtype, float64 for lists, and are the same under every default dtype."""
    runs: list[list[Tensor]] = []
    for default in (torch.float32, torch.float64):
        with default_dtype(default):
            traces: dict[torch.dtype, list[Tensor]] = {}
            for dtype in (torch.float32, torch.float64):
                opt = make(factory, promises, x0=start(dtype=dtype))
                traces[dtype] = trace(opt)
                assert all(points.dtype == dtype for points in traces[dtype])
                assert opt.best_x.dtype == opt.x.dtype == dtype
                assert opt.best_y < float(quadratic(start())) or not promises.descent
                runs.append(traces[dtype])
            opt = make(factory, promises, x0=start().tolist())
            assert all(map(torch.equal, trace(opt), traces[torch.float64])), "a list is not float64"
            assert make(factory, promises, x0=[2, 2, 3, 3, 3]).ask().points().dtype == torch.float64
    for under_float32, under_float64 in zip(runs[:2], runs[2:], strict=True):
        same = all(map(torch.equal, under_float32, under_float64))
        assert same, "the default dtype changes the run"
