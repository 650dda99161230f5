"""Bars where somebody watches, log lines elsewhere, nothing where nothing is asked; by a clock that the test moves."""

import io
import logging
import math
import multiprocessing
import sys
import timeit
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from optimizers.progress import Progress

INF, NAN = math.inf, math.nan


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("optimizers.progress.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "optimizers.progress")
    return caplog


def stream_of(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream)
    return stream


def last(stream):
    """The text that a terminal ends with."""
    return stream.getvalue().split("\r")[-1]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_bar_where_it_is_asked_for(stream, monkeypatch, log):
    shown = stream_of(monkeypatch, stream())
    with Progress(True, total=33, name="RGF", unit="query") as show:
        assert "RGF:   0%" in last(shown) and " 0/33 " in last(shown)
        for done in range(1, 34):
            show(done, best=1 / done, failures=done // 10)
    assert "RGF: 100%" in last(shown) and "33/33" in last(shown) and "query" in last(shown)
    assert "best 0.030303, 3 failed" in last(shown) and last(shown).endswith("\n")
    assert not log.records


def test_nothing_where_nothing_is_asked(monkeypatch, clock, log):
    shown = stream_of(monkeypatch, Terminal())
    with Progress(False, total=33, name="RGF", unit="query") as show:
        for done in range(1, 34):
            clock.now += 60
            show(done, best=0.0)
    assert shown.getvalue() == "" and not log.records


def test_a_short_run_leaves_no_bar(monkeypatch, clock, log):
    shown = stream_of(monkeypatch, Terminal())
    with Progress("auto", total=20, name="RGF", unit="query") as show:
        assert "RGF:   0%" in last(shown), "a first query may take an hour"
        clock.now += 0.9
        show(19, best=1.0)
    *_, before, blank, end = shown.getvalue().split("\r")
    assert "19/20" in before and set(blank) == {" "} and len(blank) >= len(before) and end == ""


def test_a_long_run_leaves_a_bar(monkeypatch, clock, log):
    shown = stream_of(monkeypatch, Terminal())
    with Progress("auto", total=20, name="RGF", unit="query") as show:
        show(1, best=1.0)
        clock.now += 10.0
        show(5, best=1.0, failures=2)
        assert " 5/20 [" in last(shown) and "best 1, 2 failed" in last(shown)
        written = shown.getvalue()
        clock.now += 0.05
        show(6, best=1.0, failures=2)
        assert shown.getvalue() == written, "it is drawn ten times a second at most"
        clock.now += 0.1
        show(6, best=1.0, failures=2)
        assert " 6/20 [" in last(shown)
        show(7, best=0.5, failures=3)
    assert " 7/20 [" in last(shown) and "best 0.5, 3 failed" in last(shown) and last(shown).endswith("\n")
    assert not log.records


def test_a_kernel_s_bar_appears_after_a_second_with_the_time_of_the_run(monkeypatch, clock):
    shown = stream_of(monkeypatch, io.StringIO())
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    with Progress("auto", total=20, done=10, name="RGF", unit="query") as show:
        clock.now += 0.9
        show(11, best=1.0)
        assert shown.getvalue() == ""
        clock.now += 19.1
        show(15, best=1.0)
        assert " 15/20 [00:20<00:20, " in last(shown), "5 steps of its own in 20 s"


@pytest.mark.parametrize("good", [0, 2, 4, 6])
def test_a_stream_that_breaks_does_not_end_the_run(good, monkeypatch, clock):
    class Broken(Terminal):
        left = good

        def write(self, text):
            self.left -= 1
            if self.left < 0:
                raise BrokenPipeError
            return super().write(text)

    stream_of(monkeypatch, Broken())
    with Progress("auto", total=20, name="RGF", unit="query") as show:
        for done in range(20):
            clock.now += 1.0
            show(done, best=1.0)


def test_a_bar_below_another_is_removed(monkeypatch, clock):
    shown = stream_of(monkeypatch, Terminal())
    with tqdm(total=2, desc="outer", file=shown), Progress("auto", total=2, name="RGF", unit="query") as show:
        clock.now += 5.0
        show(1, best=1.0)
    *_, bar, blank, outer = shown.getvalue().split("\r")
    assert "RGF" in bar and "1/2" in bar and not blank.replace("\x1b[A", "").strip() and "outer" in outer


def test_lines_of_the_log_every_30_s(monkeypatch, clock, log):
    shown = stream_of(monkeypatch, io.StringIO())
    with Progress("auto", total=100, done=10, name="ZoRD", unit="query") as show:
        for done in range(11, 51):
            clock.now += 6.0
            show(done, best=INF if done < 20 else 0.123456789, failures=done // 10)
        clock.now += 18.0
        show(53, best=0.123456789, failures=5)
    assert shown.getvalue() == ""
    # 6 s a query, 10 of 100 were done before: after 30 s 15 are done, and 85 times 6 s are left.
    assert [record.getMessage() for record in log.records] == [
        "ZoRD: 15 of 100 queries, best inf, 1 failed, 0:08:30 left",
        *(
            f"ZoRD: {done} of 100 queries, best 0.123457, {done // 10} failed, "
            f"0:0{(100 - done) * 6 // 60}:{(100 - done) * 6 % 60:02} left"
            for done in range(20, 51, 5)
        ),
        "ZoRD: 53 of 100 queries, best 0.123457, 5 failed, 0:04:42 left",
    ]
    assert {(record.levelname, record.name) for record in log.records} == {("INFO", "optimizers.progress")}


def test_a_short_run_leaves_no_line(monkeypatch, clock, log):
    stream_of(monkeypatch, io.StringIO())
    with Progress("auto", total=3, name="fedzo", unit="round") as show:
        clock.now += 29.0
        show(3, best=1.0)
    assert not log.records


def test_rounds_have_their_queries_and_may_lack_a_value(monkeypatch, clock, log):
    stream_of(monkeypatch, None)
    with Progress("auto", total=3, name="fedzo", unit="round") as show:
        clock.now += 40.0
        show(0, best=NAN, queries=12)
        clock.now += 40.0
        show(1, best=2.5, queries=96)
    assert [record.getMessage() for record in log.records[:2]] == [
        "fedzo: 0 of 3 rounds, 12 queries, 0 failed",
        "fedzo: 1 of 3 rounds, best 2.5, 96 queries, 0 failed, 0:02:40 left",
    ]


def test_processes_that_work_for_another_draw_no_bar(monkeypatch, clock, log):
    shown = stream_of(monkeypatch, Terminal())
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    with Progress("auto", total=3, name="RGF", unit="query") as show:
        clock.now += 31.0
        show(1, best=1.0)
    assert shown.getvalue() == "" and len(log.records) == 1


def test_an_error_passes_and_the_bar_ends(monkeypatch):
    shown = stream_of(monkeypatch, Terminal())
    with pytest.raises(KeyboardInterrupt), Progress(True, total=3, name="RGF", unit="query") as show:
        show(2, best=1.0)
        raise KeyboardInterrupt
    assert " 2/3 [" in last(shown) and last(shown).endswith("\n")


@pytest.mark.parametrize("mode", ["bar", None, 2, ""])
def test_other_modes_are_refused(mode):
    with pytest.raises(ValueError, match="progress must be 'auto', True or False"):
        Progress(mode, total=1, name="RGF", unit="query")


@pytest.mark.parametrize("mode", ["auto", False])
def test_a_call_costs_microseconds(mode):
    with Progress(mode, total=1, name="RGF", unit="query") as show:
        seconds = min(timeit.repeat(lambda: show(0, best=1.0, failures=2), number=1000, repeat=20))
    assert seconds / 1000 < 2e-5
