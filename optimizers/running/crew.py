"""What evaluates the points that are out: this thread, threads of our own, or an executor of the user's."""

from __future__ import annotations

import os
import queue
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from optimizers.core.batch import Batch
from optimizers.evaluation import Call

POLL = 0.2
"""Seconds between looks at the jobs of an executor that does not say when they end, such as submitit's."""


class Submits(Protocol):
    """An executor: of ``concurrent.futures``, loky, Dask (``client.get_executor()``), MPI, submitit, or an adapter."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Starts ``fn(*args)``, and returns a future, which has at least ``done()`` and ``result()``."""


@dataclass(frozen=True)
class Query:
    """Points of a batch that are out in one call.

    Attributes:
        batch: the batch.
        rows: the numbers of the points.
        call: what evaluates them.
    """

    batch: Batch
    rows: Sequence[int]
    call: Call


class Crew:
    """The queries that are out.

    Without an executor and with one worker a query is evaluated in this thread when its answer is waited for.

    Args:
        workers: most queries that are out at once; None: no limit.
        executor: where they go; None: this thread, or a thread for each worker.
    """

    def __init__(self, workers: int | None, executor: Submits | None) -> None:
        self.workers = workers
        self._own = ThreadPoolExecutor(workers) if executor is None and workers is not None and workers > 1 else None
        self._executor = executor or self._own
        self._here: list[Query] = []
        self._out: dict[int, tuple[Query, Any]] = {}
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._polled: list[int] = []
        self._count, self._run = 0, uuid.UUID(bytes=os.urandom(16)).hex

    def __len__(self) -> int:
        """The number of queries that are out."""
        return len(self._here) + len(self._out)

    @property
    def idle(self) -> bool:
        """Whether one more query can go out."""
        return self.workers is None or len(self) < self.workers

    @property
    def runs_here(self) -> bool:
        """Whether queries are evaluated in this thread."""
        return self._executor is None

    def submit(self, query: Query) -> None:
        """Sends a query out."""
        if self._executor is None:
            self._here.append(query)
            return
        number = self._count
        self._count += 1
        future = self._executor.submit(answered, query.call, f"{self._run}-{number}")
        self._out[number] = (query, future)
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(lambda _: self._ended.put(number))
        else:
            self._polled.append(number)

    def wake(self) -> None:
        """Ends a wait, from a signal's handler too."""
        self._ended.put(None)

    def wait(self, seconds: float | None = None) -> tuple[Query, Call] | None:
        """The next query that has ended, with what returns its values or raises; None after a time or a ``wake``.

        Of those that have ended the one that ended first is next.
        """
        if self._here:
            query = self._here.pop(0)
            return query, query.call
        number = self._next(seconds)
        if number is None:
            return None
        query, future = self._out.pop(number)
        return query, future.result

    def _next(self, seconds: float | None) -> int | None:
        try:
            if not self._polled:
                return self._ended.get(timeout=seconds)
            waited = 0.0
            while True:
                for number in self._polled:
                    if self._out[number][1].done():
                        self._polled.remove(number)
                        return number
                waited += POLL
                if seconds is not None and waited > seconds:
                    return None
                try:
                    return self._ended.get(timeout=POLL)
                except queue.Empty:
                    continue
        except queue.Empty:
            return None

    def leave(self) -> Iterator[Query]:
        """Calls back what has not begun and yields the queries that stay unanswered; threads of our own are let go."""
        self._here.clear()
        for query, future in self._out.values():
            getattr(future, "cancel", lambda: None)()
            yield query
        self._out.clear()
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)


def answered(call: Call, token: str) -> list[float]:
    """What a call returns.

    The token differs in every submission: Dask takes equal calls for one computation, and would hand a retry the
    failure that it has already.
    """
    return call()
