"""Limits of time: a run returns when its own is spent, and a query that takes more than its own has failed."""

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest
import torch

from optimizers import RGF, minimize, run
from optimizers.running import limits

X0 = torch.full((3,), 2.0, dtype=torch.float64)
LONG = 300.0
"""Seconds that no test waits for: what ends sooner was ended."""

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no alarm"),
    pytest.mark.timeout(200, method="thread"),  # the other method has the alarm
]


def value(x):
    return float((x - 1.0).square().sum())


class Slow:
    """A function some of whose calls, by number from 1, take ``LONG`` seconds and are seen to end."""

    def __init__(self, *slow):
        self.slow, self.calls, self.ended, self.lock = slow, 0, 0, threading.Lock()

    def __call__(self, x):
        with self.lock:
            self.calls += 1
            slow = self.calls in self.slow
        if slow:
            time.sleep(LONG)
            self.ended += 1
        return value(x)


def slow_in_a_file(path, slow, stubborn, x):
    """The same in another process: each call is a line of a file."""
    with open(path, "a+") as file:
        file.seek(0)
        number = len(file.readlines()) + 1
        file.write(f"{os.getpid()}\n")
    end = time.monotonic() + LONG
    while number in slow and time.monotonic() < end:
        try:
            time.sleep(LONG)
        except BaseException:
            if not stubborn:
                raise
    return value(x)


def call(fun, **changes):
    return minimize(fun, X0, "rgf", **{"max_queries": 20, "directions": 3, "progress": False} | changes)


def pool(workers=1):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))


@pytest.mark.parametrize("crew", [{}, {"workers": 2}, {"executor": ThreadPoolExecutor}], ids=["here", "own", "pool"])
def test_a_run_returns_when_its_time_is_spent(crew, tmp_path):
    expected = call(value)  # so that the limited run does not import modules for a second
    fun, made = Slow(7), crew | ({"executor": crew["executor"](1)} if "executor" in crew else {})
    result = call(fun, max_seconds=0.4, checkpoint=tmp_path / "run", **made)
    assert (result.stop_reason, result.status, fun.ended) == ("time", 4, 0) and 1 <= result.nfev < 20
    assert "time of max_seconds is spent" in result.message and "running and ignored" in result.message
    assert result.nfail == 0 and result.success
    whole = call(Slow(), checkpoint=tmp_path / "run")
    assert (whole.nfev, whole.fun) == (20, expected.fun), "what was left out is asked again"


def test_a_run_in_a_process_returns_and_its_process_is_free_again(tmp_path):
    with pool() as executor:
        slow = partial(slow_in_a_file, tmp_path / "calls", {4}, False)
        result = call(slow, max_seconds=0.5, executor=executor)
        assert result.stop_reason == "time" and result.nfail == 0
        process = executor.submit(os.getpid).result()
    assert str(process) == (tmp_path / "calls").read_text().split()[0]


@pytest.mark.parametrize("workers", [None, 2])
def test_a_query_that_takes_too_long_has_failed(workers, caplog):
    fun = Slow(5, 9)
    with caplog.at_level(logging.WARNING):
        result = call(fun, query_timeout=0.3, workers=workers)
    assert (result.nfev, result.nfail, result.stop_reason, fun.ended) == (20, 2, "budget", 0)
    assert "raised TimeoutError" in caplog.text and "took more than query_timeout=0.3 s" in caplog.text
    assert ("abandoned" in caplog.text) == (workers is not None)
    again = call(Slow(5), query_timeout=0.3, workers=workers, on_failure="retry")
    assert again.nfail == 1 and not math.isnan(again.fun)
    with pytest.raises(TimeoutError, match=r"query_timeout=0\.3 s"):
        call(Slow(5), query_timeout=0.3, workers=workers, on_failure="raise")


def test_a_query_in_a_process_is_ended_and_the_process_goes_on(tmp_path):
    with pool() as executor:
        slow = partial(slow_in_a_file, tmp_path / "calls", {3, 6}, False)
        result = call(slow, query_timeout=0.3, executor=executor)
    assert (result.nfev, result.nfail) == (20, 2)
    assert len(set((tmp_path / "calls").read_text().split())) == 1


def test_a_process_whose_query_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "GRACE", 0.2)
    with pool() as executor, pytest.raises(BrokenExecutor):
        call(partial(slow_in_a_file, tmp_path / "calls", {3}, True), query_timeout=0.3, executor=executor)


def test_an_alarm_of_the_users_stays_the_users():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        fun = Slow(5)
        result = call(fun, query_timeout=0.5)
        assert result.nfail == 1 and rung == [signal.SIGALRM] and fun.ended == 0
    finally:
        signal.signal(signal.SIGALRM, before)
    call(value, query_timeout=60.0, max_seconds=60.0)
    assert signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_limits_that_are_not_reached_change_nothing():
    limited = {"query_timeout": LONG, "max_seconds": LONG}
    assert call(value, **limited).history.y.tolist() == call(value).history.y.tolist()


def test_a_run_whose_time_was_spent_goes_on_by_hand():
    optimizer = RGF(X0, max_queries=20, directions=3)
    assert run(optimizer, Slow(7), max_seconds=0.7).nfev == 6
    assert run(optimizer, value).fun == run(RGF(X0, max_queries=20, directions=3), value).fun


@pytest.mark.parametrize("option", ["max_seconds", "query_timeout"])
@pytest.mark.parametrize(("given", "error"), [(0.0, ValueError), (math.inf, ValueError), ("5", TypeError)])
def test_a_limit_is_a_positive_number(option, given, error):
    with pytest.raises(error, match=option):
        call(value, **{option: given})
