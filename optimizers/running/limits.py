"""Time limits of queries and runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from types import FrameType
from typing import TypeVar

from optimizers.core.options import optional, positive

T = TypeVar("T")

SLACK = 1.0
"""Extra seconds for a query in another process, so that the run's own limit comes first."""

LEAST = 1e-3
"""The least limit in seconds; an alarm after 0 s would never go off."""

GRACE = 5.0
"""Seconds after the limit at which the process of a query that still runs is killed."""


class OutOfTime(BaseException):
    """Raised in a query that still runs when the run's time is spent; the query does not count as failed."""


class _Alarm(BaseException):
    """Raised in a function at its limit."""


@dataclass(frozen=True)
class Limit:
    """The time limit of a query.

    Attributes:
        query: seconds after which the query fails, or None.
        left: seconds after which the run ends, or None.
        threads: whether the query may run in a separate thread, which is abandoned at the limit.
        process: the run's process, by default this one. Any other process is killed if its query does not end.
    """

    query: float | None
    left: float | None
    threads: bool = True
    process: int = field(default_factory=os.getpid)

    def __call__(self, call: Callable[[], T]) -> T:
        """Calls a function and returns its result.

        In the main thread a signal ends a call at the limit. In other threads, and if the user has a handler for the
        signal, the call runs in a separate thread, which is abandoned at the limit.

        Raises:
            TimeoutError: after ``query`` seconds.
            OutOfTime: after ``left`` seconds, if these are fewer.
        """
        seconds = min(self.query or inf, self.left or inf)
        if seconds == inf:
            return call()
        late = f"it took more than query_timeout={self.query} s"
        try:
            with self._last_resort(seconds):
                if _has_signal():
                    return _ended_by_signal(call, seconds)
                if not self.threads:
                    return call()
                late += ", and goes on in an abandoned thread"
                return _left_behind(call, seconds)
        except _Alarm:
            if seconds == self.left:
                raise OutOfTime from None
            raise TimeoutError(late) from None

    @contextmanager
    def _last_resort(self, seconds: float) -> Iterator[None]:
        if os.getpid() == self.process:
            yield
            return
        timer = threading.Timer(seconds + GRACE, os._exit, (1,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


UNLIMITED = Limit(None, None)


class Limits:
    """The time limits of a run, which begin when the object is made.

    Args:
        max_seconds: the limit of the run in seconds, or None.
        query_timeout: the limit of a query in seconds, or None.
        threads: whether a query may run in a separate thread.

    Raises:
        TypeError, ValueError: If a limit is not a positive number.
    """

    def __init__(self, max_seconds: float | None, query_timeout: float | None, *, threads: bool) -> None:
        seconds = optional(positive, "max_seconds", max_seconds)
        self.query, self.threads = optional(positive, "query_timeout", query_timeout), threads
        self.end = inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left for the run."""
        return self.end - time.monotonic()

    def of_a_query(self, *, here: bool) -> Limit:
        """The limit of a query that begins now, plus ``SLACK`` unless it runs ``here``, in this process."""
        left = None if self.end == inf else max(self.left, LEAST) + (0.0 if here else SLACK)
        return Limit(self.query, left, self.threads)


def _has_signal() -> bool:
    """Whether an alarm can be set here: on Unix, in the main thread, if the user has none."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def _ended_by_signal(call: Callable[[], T], seconds: float) -> T:
    def ring(number: int, frame: FrameType | None) -> None:
        raise _Alarm

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _left_behind(call: Callable[[], T], seconds: float) -> T:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([future], seconds).done:
        raise _Alarm
    return future.result()
