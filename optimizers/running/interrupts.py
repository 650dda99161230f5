"""Ctrl-C during a run: the first asks it to end, the second ends it at once; in a worker it is the parent's."""

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
"""Seconds that queries which are running get after an interrupt."""


class Interrupted(KeyboardInterrupt):
    """Raised in an objective that is still running ``GRACE`` seconds after an interrupt."""


class Interrupts:
    """Takes SIGINT for the time of a run, and gives the handler back that was there before.

    The first interrupt only sets ``requested``; an objective that runs in the main thread gets ``GRACE`` seconds to
    end, and then ``Interrupted``. A second one raises ``KeyboardInterrupt`` at once. It takes the signal in the main
    thread only, and only from Python's own handler: a handler of the user's stays.

    Args:
        notify: called in the main thread at the first interrupt.
        ending: what the log then says is done in the seconds that are left.
    """

    def __init__(
        self,
        notify: Callable[[], object] = lambda: None,
        ending: str = "no more queries are asked, those that are running have",
    ) -> None:
        self._notify, self._ending = notify, ending
        self.requested_at: float | None = None
        self.in_objective = False
        self._timer: threading.Timer | None = None
        self._overdue = False
        self._taken, self._process = False, os.getpid()

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        return self.requested_at is not None

    @property
    def grace_left(self) -> float:
        """Seconds that running queries still have."""
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
            self._timer.join()  # so that its signal does not reach the handler of before
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
            return  # a forked worker goes on until a second interrupt: what becomes of the run is its parent's to say
        logger.warning("interrupted: %s %g s to end; again to stop at once", self._ending, GRACE)
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
    """In a worker's process: leaves interrupts to the parent, and ends when the parent does, be it killed.

    The end of a pipe says it to some workers only: forked ones hold the other side too, and so do those of a pool of
    ``concurrent.futures``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
