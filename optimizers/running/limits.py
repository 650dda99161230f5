"""Limits of time: what ends a query that takes too long, wherever it runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from types import FrameType
from typing import Self, TypeVar

from optimizers.core.options import optional, positive

T = TypeVar("T")

SLACK = 1.0
"""Seconds that a query which runs elsewhere has beyond the run's."""

LEAST = 1e-3
"""The least seconds of a limit: an alarm in 0 s is none."""

GRACE = 5.0
"""Seconds after which a process ends whose query did not end at its limit."""


class OutOfTime(BaseException):
    """Raised for a query that was still running when the run's own time was spent; it has not failed."""


class _Alarm(BaseException):
    """Raised in a function at its limit."""


@dataclass(frozen=True)
class Limit:
    """The time that a query may take.

    Attributes:
        query: seconds after which it has failed, or None.
        left: seconds after which the run has no use for it, or None.
        process: the process of the run; in another one a query that does not end takes its process with it.
        threads: whether the query may run in a thread of its own, which is left behind at the limit.
    """

    query: float | None
    left: float | None
    process: int
    threads: bool = True

    def __call__(self, call: Callable[[], T]) -> T:
        """What a call returns within the limit.

        In the main thread a signal ends the call. In other threads, and where the user has the signal, the call runs in
        a thread of its own, which is left behind.

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
                late += ", and goes on in a thread that is left behind"
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


UNLIMITED = Limit(None, None, os.getpid())


@dataclass(frozen=True)
class Limits:
    """The limits of a run, whose time begins when they are made.

    Attributes:
        end: when the run's time is spent, on the monotonic clock; inf for never.
        query: seconds after which a query has failed, or None.
        threads: whether a query may run in a thread of its own.
    """

    end: float
    query: float | None
    threads: bool

    @classmethod
    def of(cls, max_seconds: float | None, query_timeout: float | None, *, threads: bool) -> Self:
        """The limits of checked options.

        Raises:
            TypeError, ValueError: If one is no positive number.
        """
        seconds = optional(positive, "max_seconds", max_seconds)
        end = inf if seconds is None else time.monotonic() + seconds
        return cls(end, optional(positive, "query_timeout", query_timeout), threads)

    @property
    def left(self) -> float:
        """Seconds that the run has left."""
        return self.end - time.monotonic()

    def of_a_query(self, *, here: bool) -> Limit:
        """The limit of a query that begins now; elsewhere it ends after the run has left it, which is no failure."""
        left = None if self.end == inf else max(self.left, LEAST) + (0.0 if here else SLACK)
        return Limit(self.query, left, os.getpid(), self.threads)


def _has_signal() -> bool:
    """Whether an alarm can be set here: Unix, the main thread, and no alarm of the user's."""
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
    values: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not values:
        raise _Alarm
    return values[0]
