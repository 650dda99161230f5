"""Checks that a run depends on its state and seed only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
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
    reloaded,
    start,
    state_bytes,
    trace,
    with_failures,
)


def check_resume(factory: Factory, promises: Promises) -> None:
    """A run that is saved and loaded at every step equals the unbroken run."""
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


def check_several_points_are_out(factory: Factory, promises: Promises) -> None:
    """With four points pending, the order of their values determines the run, also with saving and loading."""
    whole, broken = (_run_by_four(factory, promises, reload) for reload in (False, True))
    assert len(whole) == len(broken), f"{len(broken)} batches, {len(whole)} in the unbroken run"
    for k, (ours, theirs) in enumerate(zip(broken, whole, strict=True)):
        assert torch.equal(ours, theirs), f"batch {k} differs after loading"


def _run_by_four(factory: Factory, promises: Promises, reload: bool) -> list[Tensor]:
    """Runs with up to four points pending, told in a random order; returns the points of every batch."""
    opt = make(factory, promises, seed=3)
    order = np.random.Generator(np.random.Philox(1))
    asked: list[Tensor] = []
    out: list[tuple[int, int]] = []
    numbers: set[int] = set()
    while not opt.stopped:
        if reload and opt.queries % 3 == 0:  # each time would take as long as the whole run
            opt = reloaded(opt, make(factory, promises, seed=4))
        while len(out) < 4:
            idle = [(b.id, i) for b in opt.pending for i in opt.untold(b) if (b.id, i) not in out]
            if idle:
                out.append(idle[0])
                continue
            before = None if reload else state_bytes(opt, "pending")  # the other run checks it
            batch = opt.ask_another()
            assert reload or state_bytes(opt, "pending") == before, "asking another batch changes the state"
            if batch is None:
                break
            assert batch.id not in numbers, f"two batches have the number {batch.id}"
            numbers.add(batch.id)
            asked.append(batch.points())
        planned = opt.queries + sum(len(opt.untold(b)) for b in opt.pending)
        assert planned <= opt.max_queries, f"{planned} queries planned of {opt.max_queries}"
        number, i = out.pop(int(order.integers(len(out))))
        batch = next(b for b in opt.pending if b.id == number)
        opt.tell(batch, with_failures(quadratic(batch.points([i])), opt.queries), which=[i])
    return asked


def check_tell_is_atomic(factory: Factory, promises: Promises) -> None:
    """A tell that is interrupted at any line leaves no trace, and telling again gives the undisturbed run."""
    opt, undisturbed = (make(factory, promises, seed=3) for _ in range(2))
    lines = np.random.Generator(np.random.Philox(0))
    for _ in range(3):
        if undisturbed.stopped or opt._moves_in_place:
            break
        batch = opt.ask()
        values = with_failures(quadratic(batch.points()), opt.queries)
        before = state_bytes(opt)
        total, _ = interrupted_at(None, partial(undisturbed.tell, undisturbed.ask(), values))
        chosen = sorted(lines.integers(1, max(2, total - 50), 8).tolist())  # what is cached takes fewer lines
        for line in chosen:
            _, interrupted = interrupted_at(line, partial(opt.tell, batch, values))
            assert interrupted, f"no line {line} of {total}"
            assert state_bytes(opt) == before, f"an interrupt at line {line} of {total} leaves a trace"
        opt.tell(batch, values)
        assert state_bytes(opt) == state_bytes(undisturbed), "interrupts change the run"


def interrupted_at(line: int | None, call: Callable[[], object]) -> tuple[int, bool]:
    """Calls a function and raises ``KeyboardInterrupt`` after this many lines of the packages; None: never.

    Returns:
        The number of lines run, and whether the call was interrupted.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("optimizers", "surrogates"):
            return None
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return trace

    traced_before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return count, True
    finally:
        sys.settrace(traced_before)
    return count, False


def check_extended_budget(factory: Factory, promises: Promises) -> None:
    """A run that is loaded under a larger budget continues up to that budget."""
    opt = make(factory, promises)
    run(opt, quadratic)
    longer = make(factory, promises, max_queries=2 * opt.max_queries)
    longer.load_state_dict(opt.state_dict())
    result = run(longer, quadratic)
    assert opt.queries < result.nfev <= 2 * opt.max_queries
    assert result.fun <= opt.best_fun


def check_states_are_copies(factory: Factory, promises: Promises) -> None:
    """A saved state changes neither with its run nor with a run into which it is loaded."""
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


def check_seeds(factory: Factory, promises: Promises) -> None:
    """A seed determines the run; the global generators are neither used nor changed."""
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
                assert opt.best_fun < float(quadratic(start())) or not promises.descent
                runs.append(traces[dtype])
            opt = make(factory, promises, x0=start().tolist())
            assert all(map(torch.equal, trace(opt), traces[torch.float64])), "a list is not float64"
            assert make(factory, promises, x0=[2, 2, 3, 3, 3]).ask().points().dtype == torch.float64
    for under_float32, under_float64 in zip(runs[:2], runs[2:], strict=True):
        same = all(map(torch.equal, under_float32, under_float64))
        assert same, "the default dtype changes the run"
