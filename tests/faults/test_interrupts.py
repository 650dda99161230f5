"""SIGINT in the middle of a run: everything that has come is kept, and the next run makes the rest of the calls."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from optimizers import minimize
from optimizers.core.optimizer import Optimizer
from optimizers.running import checkpoint, interrupts
from tests.faults.harness import CASES, X0, Objective, call, calls, counted, forked, key, same, summary, undisturbed

CASE = CASES["rgf"]
SERIAL = {"max_queries": 12, "directions": 3, "seed": 1, "progress": False}


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 0.2)


@pytest.fixture(autouse=True)
def the_handler_of_before_comes_back():
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    yield
    assert signal.getsignal(signal.SIGINT) is before


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def at_call(number, act):
    """An objective that counts its calls under ``count`` and acts at one of them."""
    lock = threading.Lock()

    def fun(x):
        with lock:
            fun.count += 1
            mine = fun.count
        if mine == number:
            act()
        return float((x - 1.0).square().sum())

    fun.count = 0
    return fun


def crews(kind):
    return {} if kind == "serial" else {"workers": 3} if kind == "threads" else {"executor": ThreadPoolExecutor(2)}


@pytest.mark.parametrize("kind", ["serial", "threads", "executor"])
@pytest.mark.parametrize("number", [1, 6])
def test_an_interrupt_in_a_batch_keeps_all_and_leaves_the_rest(kind, number, tmp_path):
    fun = at_call(number, interrupt)
    result = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL, **crews(kind))
    assert (result.status, result.stop_reason, result.success) == (98, "interrupted", False)
    assert result.nfev == fun.count == len(result.history.y) and (kind != "serial" or fun.count == number)
    assert np.isfinite(result.fun)
    again = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL, **crews(kind))
    assert again.stop_reason == "budget" and again.nfev == fun.count == 12
    assert same(summary(again), summary(minimize(at_call(0, interrupt), X0, "rgf", **SERIAL)))


def test_a_query_that_outlasts_the_grace_is_cut_and_asked_again(tmp_path, short_grace):
    fun = at_call(6, lambda: (interrupt(), time.sleep(60.0)))
    begun = time.monotonic()
    result = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL)
    assert 0.2 <= time.monotonic() - begun < 30.0
    assert (result.status, result.nfev, fun.count) == (98, 5, 6)
    assert minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL).nfev == 12
    assert fun.count == 12 + 1


@pytest.mark.parametrize("lost", ["", ".journal"])
def test_an_interrupted_retry_is_no_further_retry(lost, tmp_path, short_grace):
    """Files that are saved between the attempts at a point know how many there were."""

    def fun(x):
        calls.append(key(x))
        if len(calls) == 3:
            interrupt()
            time.sleep(60.0)
        return float("nan") if calls[-1] in calls[1:2] else float(x.square().sum())

    calls, path = [], tmp_path / "run.pt"
    options = SERIAL | {"on_failure": "retry", "checkpoint": path}
    result = minimize(fun, X0, "rgf", **options)
    assert (result.status, result.nfev, result.nfail) == (98, 2, 1)
    path.with_name("run.pt" + lost).unlink()
    result = minimize(fun, X0, "rgf", **options)
    assert result.nfail == 2 and calls.count(calls[1]) == 3


def test_threads_that_outlast_the_grace_are_left_and_said(tmp_path, short_grace):
    free = threading.Event()
    fun = at_call(6, lambda: (interrupt(), free.wait(60.0)))
    try:
        result = minimize(fun, X0, "rgf", workers=3, checkpoint=tmp_path / "run.pt", **SERIAL)
    finally:
        free.set()
    assert result.status == 98 and result.nfev == fun.count - 1
    assert "1 query was still running and ignored" in result.message


@pytest.mark.parametrize("kind", ["serial", "threads"])
def test_a_second_interrupt_raises_at_once_and_loses_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 60.0)
    free, heard = threading.Event(), threading.Event()
    monkeypatch.setattr(interrupts.logger, "warning", lambda *_: heard.set())

    def twice():
        interrupt()
        heard.wait(30.0)
        interrupt()
        free.wait(60.0)

    fun, begun = at_call(6, twice), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL, **crews(kind))
    free.set()
    assert time.monotonic() - begun < 30.0
    had, before = counted(tmp_path / "run.pt.journal"), fun.count
    assert had == 5 if kind == "serial" else had >= 3
    again = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL, **crews(kind))
    assert again.nfev == 12 and fun.count == before + 12 - had


def test_an_interrupt_while_the_method_thinks_asks_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 60.0)
    fun, tell = at_call(0, interrupt), Optimizer.tell

    def interrupted(self, *args, **kwargs):
        tell(self, *args, **kwargs)
        if self.queries == 7:
            interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "tell", interrupted)
        result = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL)
    assert (result.status, result.nfev, fun.count) == (98, 7, 7)


@pytest.mark.parametrize("kind", ["serial", "threads", "executor"])
def test_an_interrupt_while_the_method_asks_sends_nothing_out(kind, tmp_path, monkeypatch):
    fun, ask = at_call(0, interrupt), Optimizer.ask_another

    def interrupted(self):
        batch = ask(self)
        if batch is not None and batch.id == 1:
            interrupt()
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "ask_another", interrupted)
        result = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL, **crews(kind))
    assert (result.status, result.nfev, fun.count) == (98, 4, 4)
    again = minimize(fun, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL)
    assert again.nfev == fun.count == 12


def test_an_interrupt_while_the_method_thinks_waits_for_the_queries_that_run(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 60.0)
    tell = Optimizer.tell

    def interrupted(self, *args, **kwargs):
        tell(self, *args, **kwargs)
        if self.queries == 5:
            interrupt()

    def slow(x):
        time.sleep(0.02)
        return float(x.square().sum())

    fun = at_call(0, interrupt)
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "tell", interrupted)
        result = minimize(lambda x: slow(x) + fun(x), X0, "rgf", workers=3, **SERIAL)
    assert result.status == 98 and result.nfev == fun.count >= 6
    assert "ignored" not in result.message


def test_the_handler_of_the_user_stays(tmp_path):
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        result = minimize(at_call(6, interrupt), X0, "rgf", **SERIAL)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.SIGINT] and result.stop_reason == "budget"


def test_a_run_in_another_thread_goes_on(tmp_path):
    waits = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(minimize, at_call(6, lambda: (waits.wait(30), interrupt())), X0, "rgf", **SERIAL)
        with pytest.raises(KeyboardInterrupt):
            waits.set()
            time.sleep(30.0)
        assert future.result(timeout=30).stop_reason == "budget"


def test_an_interrupt_in_a_run_within_a_query_ends_the_outer_run(short_grace):
    inner = []

    def fun(x):
        act = (lambda: (interrupt(), time.sleep(60.0))) if len(inner) == 4 else (lambda: None)
        inner.append(minimize(at_call(2, act), X0, "gld", max_queries=5, progress=False))
        return inner[-1].fun

    result = minimize(fun, X0, "rgf", **SERIAL)
    assert (result.status, result.nfev, len(inner)) == (98, 4, 4)


def square(x):
    if x is not None:
        time.sleep(0.1)
    return float(x.square().sum())


def test_a_terminals_interrupt_goes_to_the_workers_too(tmp_path):
    """Idle workers die by it and break the pool: the run ends as interrupted, with what has come."""

    def interrupt_all():
        while counted(tmp_path / "run.pt.journal") < 2:
            time.sleep(0.02)
        os.killpg(os.getpgid(0), signal.SIGINT)

    def attempt():
        pool = ProcessPoolExecutor(4, mp_context=get_context("fork"))
        threading.Thread(target=interrupt_all).start()
        result = minimize(square, X0, "rgf", workers=3, executor=pool, checkpoint=tmp_path / "run.pt", **SERIAL)
        assert result.status == 98 and 2 <= result.nfev == counted(tmp_path / "run.pt.journal")

    assert forked(attempt) == 0
    result = minimize(square, X0, "rgf", checkpoint=tmp_path / "run.pt", **SERIAL)
    assert result.nfev == 12


def interrupts_at_lines(folder, name, numbers, packages):
    """Two interrupts at a line each, of an attempt each, until a run ends; the second comes where it hurts."""
    case = CASES[name]
    path = folder / "run.pt"
    lost = raised = 0
    for number in numbers:
        objective = Objective(folder / "calls")
        begun, had = calls(folder).total(), counted(folder / "run.pt.journal")
        interrupted = InterruptAt(number, packages)
        try:
            with interrupted:
                result = call(case, objective, path)
        except KeyboardInterrupt:
            raised += 1
        else:
            if result.status != 98:
                return summary(result), lost, raised
        ours = calls(folder).total() - begun - (counted(folder / "run.pt.journal") - had)
        assert ours in (0, 1)
        lost += ours
    return summary(call(case, Objective(folder / "calls"), path)), lost, raised


class InterruptAt:
    """Raises SIGINT at two lines in a row of some packages, the first of which has a number."""

    def __init__(self, number, packages):
        self.left, self.packages = number, packages

    def trace(self, frame, event, argument):
        if not frame.f_globals.get("__name__", "").startswith(self.packages):
            return None
        if event == "line":
            self.left -= 1
            if self.left in (0, -1):
                signal.raise_signal(signal.SIGINT)
        return self.trace

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["rgf", "zord"])
def test_two_interrupts_at_any_line_lose_nothing_that_is_in_the_journal(name, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LEAST_BETWEEN", 0.0 if seed % 2 else 1e9)
    whole = undisturbed(CASES[name], tmp_path / "undisturbed")
    rng = np.random.default_rng(seed)
    packages = ("optimizers.running", "optimizers.core", "optimizers.evaluation")
    ours, lost, raised = interrupts_at_lines(tmp_path, name, rng.integers(1, 1500, size=12).tolist(), packages)
    assert same(ours, whole) and raised > 0
    assert calls(tmp_path).total() == ours["nfev"] + lost


def _interrupted_twice(link):
    said, first = [], True
    interrupts.logger.warning = lambda *words: said.append(words)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        first = False
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        link.send((first, said))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_a_forked_worker_says_nothing_of_an_interrupt_and_ends_at_the_second():
    fork = get_context("fork")
    ours, theirs = fork.Pipe()
    with interrupts.Interrupts():
        worker = fork.Process(target=_interrupted_twice, args=(theirs,))
        worker.start()
        worker.join()
    assert ours.poll() and ours.recv() == (False, [])
