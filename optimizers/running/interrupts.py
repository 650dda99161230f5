"""Ctrl-C during a run: the first ends it gracefully, the second at once."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

logger = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds that running queries get after an interrupt."""


class Interrupted(KeyboardInterrupt):
    """Raised in an objective that still runs ``GRACE`` seconds after an interrupt."""


class Interrupts:
    """Handles SIGINT during a run, and restores the previous handler.

    The first interrupt sets ``requested``; an objective that runs in the main thread gets ``GRACE`` seconds, then
    ``Interrupted`` is raised in it. A second interrupt raises ``KeyboardInterrupt`` at once. Only Python's default
    handler, in the main thread, is replaced; a user's handler stays.

    Args:
        notify: called in the main thread at the first interrupt.
        ending: the beginning of the log's message, which continues with the number of seconds.
    """

    def __init__(
        self,
        notify: Callable[[], object] = lambda: None,
        ending: str = "no new query starts, running ones have",
    ) -> None:
        self._notify, self._ending = notify, ending
        self.requested_at: float | None = None
        self.in_objective = False
        self._timer: threading.Timer | None = None
        self._overdue = False
        self._taken, self._process = False, os.getpid()

    @property
    def requested(self) -> bool:
        """Whether there was an interrupt, so that the run must end."""
        return self.requested_at is not None

    @property
    def grace_left(self) -> float:
        """Seconds left for running queries."""
        return GRACE if self.requested_at is None else max(0.0, self.requested_at + GRACE - time.monotonic())

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._taken = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # so that its signal does not reach the previous handler
        if self._taken:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._overdue:
            self._overdue = False
            if self.in_objective:
                raise Interrupted("the query was still running")
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested_at = time.monotonic()
        if os.getpid() != self._process:
            return  # a forked worker continues until a second interrupt; its parent decides about the run
        logger.warning("interrupted: %s %g s to finish; interrupt again to stop at once", self._ending, GRACE)
        self._notify()
        if self.in_objective:
            self._timer = threading.Timer(GRACE, self._end_objective, (threading.get_ident(),))
            self._timer.daemon = True
            self._timer.start()

    def _end_objective(self, main: int) -> None:
        self._overdue = True
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main, signal.SIGINT)
        else:
            signal.raise_signal(signal.SIGINT)


def follow_parent() -> None:
    """Makes a worker process ignore interrupts and exit when its parent does, even if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()  # the end of a pipe would not do: other workers also hold the parent's end
    os._exit(1)
