"""Executors whose workers die, and answers that come in another order, twice or never."""

import os
import signal
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from optimizers import minimize
from optimizers.running import interrupts
from tests.faults.harness import CASES, OPTIONS, X0, counted, same, summary

COMMON = {"max_queries": 18, "seed": 1, "progress": False}


def square(x):
    return float((x - 1.0).square().sum())


class Dies:
    """An objective one of whose calls kills the process in which it is; it counts in a file."""

    def __init__(self, path, at):
        self.path, self.at = path, at

    def __call__(self, x):
        with self.path.open("ab", buffering=0) as file:
            file.write(b".")
            number = file.tell()
        if number == self.at:
            time.sleep(0.1)
            os._exit(3)
        return square(x)


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_a_worker_that_dies_ends_the_run_and_keeps_what_was_told(workers, tmp_path):
    def attempt():
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            fun, path = Dies(tmp_path / "calls", at=7), tmp_path / "run.pt"
            return minimize(fun, X0, "rgf", directions=3, workers=workers, executor=pool, checkpoint=path, **COMMON)

    with pytest.raises(BrokenProcessPool):
        attempt()
    had, made = counted(tmp_path / "run.pt.journal"), (tmp_path / "calls").stat().st_size
    assert had >= 4 and made >= 7
    result = attempt()
    assert result.stop_reason == "budget" and result.nfev == 18 == len(result.history.y)
    assert (tmp_path / "calls").stat().st_size == made + 18 - had
    assert same(summary(result), summary(minimize(square, X0, "rgf", directions=3, **COMMON)))


class Shuffled:
    """An executor that answers when all of a batch are there, in the order of a permutation."""

    def __init__(self, seed, size):
        self.rng, self.size, self.held = np.random.default_rng(seed), size, []

    def submit(self, fn, /, *args):
        future = Future()
        self.held.append((future, fn(*args)))
        if len(self.held) == self.size:
            for i in self.rng.permutation(self.size):
                self.held[i][0].set_result(self.held[i][1])
            self.held = []
        return future


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_answers_of_a_batch_changes_nothing(seed, tmp_path):
    whole = minimize(square, X0, "rgf", directions=5, **COMMON)
    path = tmp_path / "run.pt"
    ours = minimize(square, X0, "rgf", directions=5, executor=Shuffled(seed, 6), checkpoint=path, **COMMON)
    path.unlink()  # the journal alone tells them again in that order
    again = minimize(square, X0, "rgf", directions=5, checkpoint=path, **COMMON)
    for name in ("x", "fun", "nfev", "nit", "nfail"):
        assert repr(ours[name]) == repr(whole[name]) == repr(again[name])
    assert torch.equal(ours.history.y, whole.history.y) and torch.equal(again.history.y, whole.history.y)


class Twice:
    """An executor whose futures say twice that they have ended."""

    def submit(self, fn, /, *args):
        future = Future()
        future.set_result(fn(*args))
        future.add_done_callback = lambda call: (call(future), call(future))
        return future


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_an_answer_that_comes_twice_counts_once(workers):
    ours = minimize(square, X0, "rgf", directions=3, executor=Twice(), workers=workers, **COMMON)
    assert same(summary(ours), summary(minimize(square, X0, "rgf", directions=3, **COMMON)))


class Never:
    """An executor that does not answer the query of a number, and interrupts the run a moment later."""

    def __init__(self, number):
        self.number, self.count = number, 0

    def submit(self, fn, /, *args):
        self.count += 1
        future = Future()
        if self.count == self.number:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            future.set_result(fn(*args))
        return future


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_an_answer_that_never_comes_is_left_at_an_interrupt_and_asked_again(workers, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(interrupts, "GRACE", 0.1)
    path, options = tmp_path / "run.pt", {"directions": 3, "workers": workers} | COMMON
    result = minimize(square, X0, "rgf", executor=Never(6), checkpoint=path, **options)
    assert result.status == 98 and result.nfev == (5 if workers == 1 else 7) == counted(tmp_path / "run.pt.journal")
    assert "1 query was still running and ignored" in result.message
    again = minimize(square, X0, "rgf", checkpoint=path, **{**options, "workers": None})
    assert "evaluated again: point 1 of batch 1" in caplog.text
    assert same(summary(again), summary(minimize(square, X0, "rgf", directions=3, **COMMON)))


class Breaks(Never):
    """An executor that an interrupt breaks, as one from a terminal does, which goes to the workers too."""

    def submit(self, fn, /, *args):
        future = super().submit(fn, *args)
        if self.count == self.number:
            threading.Timer(0.3, future.set_exception, (BrokenProcessPool("a worker died"),)).start()
        return future


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_an_interrupt_that_breaks_the_executor_is_an_interrupt(workers, tmp_path):
    path, options = tmp_path / "run.pt", {"directions": 3, "workers": workers} | COMMON
    result = minimize(square, X0, "rgf", executor=Breaks(6), checkpoint=path, **options)
    assert result.status == 98 and result.nfev == counted(tmp_path / "run.pt.journal") >= 5


@pytest.mark.parametrize("seed", range(4))
def test_values_that_have_come_are_kept_when_another_query_raises(seed, tmp_path):
    count = iter(range(1, 99))

    def fun(x):
        if next(count) == 5:
            raise OSError("no value")
        return square(x)

    crew = {"workers": 3, "executor": Shuffled(seed, 3)}  # the fourth to the sixth answer come at once
    with pytest.raises(OSError, match="no value"):
        minimize(fun, X0, "rgf", on_failure="raise", checkpoint=tmp_path / "run.pt", **crew, **COMMON)
    assert counted(tmp_path / "run.pt.journal") == 5


@pytest.mark.parametrize("name", ["zord", "turbo"])
def test_a_run_that_a_raised_query_ended_goes_on(name, tmp_path):
    calls = []

    def fun(x):
        calls.append(x)
        if len(calls) in (4, 9):
            raise OSError("no value")
        return square(x)

    options = {**CASES[name].options, "on_failure": "raise", "checkpoint": tmp_path / "run.pt"} | COMMON
    for _ in range(2):
        with pytest.raises(OSError, match="no value"):
            minimize(fun, X0, name, **options)
    result = minimize(fun, X0, name, **options)
    assert result.nfev == 18 and len(calls) == 20
    assert same(summary(result), summary(minimize(square, X0, name, **OPTIONS.get(name, {}), **COMMON)))
