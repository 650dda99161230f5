"""The evaluation of points in this thread, in other threads, or in the user's executor."""

from __future__ import annotations

import contextlib
import pickle
import queue
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.evaluation import Call
from optimizers.running.limits import UNLIMITED, Limit

POLL = 0.2
"""Seconds between polls of an executor whose futures have no callbacks, such as submitit's."""


class Submits(Protocol):
    """An executor: of ``concurrent.futures``, loky, Dask (``client.get_executor()``), MPI, submitit, or an adapter."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Starts ``fn(*args)`` and returns a future with at least ``done()`` and ``result()``."""


class ExecutorError(BrokenExecutor):
    """Raised if the executor fails, which ends a run under every failure policy."""


@dataclass(frozen=True)
class Query:
    """Points of a batch that are evaluated in one call.

    Attributes:
        batch: the batch.
        rows: the indices of the points.
        call: a function that evaluates them.
    """

    batch: Batch
    rows: Sequence[int]
    call: Call


class Crew:
    """Sends queries to workers and waits for their values.

    With one worker and no executor, ``wait`` evaluates a query in this thread.

    Args:
        workers: the largest number of concurrent queries; None: no limit.
        executor: runs the queries; None: this thread or, with several workers, a thread for each.
    """

    def __init__(self, workers: int | None, executor: Submits | None) -> None:
        self.workers = workers
        self._own = ThreadPoolExecutor(workers) if executor is None and workers is not None and workers > 1 else None
        self._executor = executor if executor is not None else self._own
        self._here: list[tuple[Query, Limit]] = []
        self._out: dict[int, tuple[Query, Any]] = {}
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._polled: list[int] = []
        self._woken = False
        self._count, self._run = 0, uuid.uuid4().hex

    def __len__(self) -> int:
        """The number of queries without an answer."""
        return len(self._here) + len(self._out)

    @property
    def idle(self) -> bool:
        """Whether another query can be sent."""
        return self.workers is None or len(self) < self.workers

    @property
    def runs_here(self) -> bool:
        """Whether queries are evaluated in this thread."""
        return self._executor is None

    def submit(self, query: Query, limit: Limit = UNLIMITED) -> None:
        """Sends a query.

        Raises:
            ExecutorError: if the objective cannot be sent to the executor.
        """
        if self._executor is None:
            self._here.append((query, limit))
            return
        number = self._count
        self._count += 1
        try:
            future = self._executor.submit(answered, Errand(query.call, f"{self._run}-{number}", limit))
        except Exception as error:
            _raise_executors(error)
        self._out[number] = (query, future)
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(lambda _: self._ended.put(number))
        else:
            self._polled.append(number)

    def wake(self) -> None:
        """Ends a wait when an interrupt arrives; queries whose workers the interrupt kills do not count as failed."""
        self._woken = True
        self._ended.put(None)

    def wait(self, seconds: float) -> tuple[Query, Call] | None:
        """Returns an ended query and a function that returns its values or raises its error; None on timeout."""
        if self._here:
            query, limit = self._here.pop(0)
            return query, partial(limit, query.call)
        while (number := self._next(seconds)) is not None:
            if number in self._out:  # a future may announce its end twice
                query, future = self._out.pop(number)
                return query, partial(_answer, future, self._woken)
        return None

    def _next(self, seconds: float) -> int | None:
        if self._polled and self._woken and seconds == 0.0:
            return None  # submitit takes 15 s to notice that a job has died
        end = time.monotonic() + seconds
        while True:
            for number in self._polled:
                if self._out[number][1].done():
                    self._polled.remove(number)
                    return number
            left = max(0.0, end - time.monotonic())
            with contextlib.suppress(queue.Empty):
                return self._ended.get(timeout=min(left, POLL) if self._polled else left)
            if time.monotonic() >= end:
                return None

    def leave(self) -> Iterator[Query]:
        """Cancels queries that have not begun, yields all unanswered ones, and shuts down the threads."""
        self._here.clear()
        for query, future in self._out.values():
            getattr(future, "cancel", lambda: None)()
            yield query
        self._out.clear()
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Errand:
    """A call as it is sent to a worker.

    The token makes every submission different; otherwise Dask would answer a retry with the cached failure. Tensors are
    sent by value, because torch would move them to shared memory in place and keep a file open for each.
    """

    call: Call
    token: str
    limit: Limit = UNLIMITED

    def __reduce__(self) -> tuple[Any, ...]:
        call = self.call
        if isinstance(call, partial):
            call = partial(call.func, *(_ByValue(a) if isinstance(a, Tensor) else a for a in call.args))
        return Errand, (call, self.token, self.limit)

    def __dask_tokenize__(self) -> str:
        return self.token


@dataclass(frozen=True)
class _ByValue:
    """Pickles a tensor by its numbers; unpickling gives a tensor."""

    x: Tensor

    def __reduce__(self) -> tuple[Any, ...]:
        flat = self.x.detach().cpu().contiguous().view(-1)
        data = flat.view(torch.uint8).numpy().tobytes()
        return _tensor, (data, self.x.dtype, tuple(self.x.shape), str(self.x.device))


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape).to(device)


@dataclass(frozen=True)
class Raised:
    """An exception of the objective in a worker, which can always be pickled.

    Executors hang or break on exceptions that cannot be pickled or restored. Such an exception becomes a
    ``RuntimeError`` with the exception's type and text. A note has the traceback.
    """

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        data = None
        with contextlib.suppress(Exception):
            data = sys.modules.get("cloudpickle", pickle).dumps(self.error)
        text = "".join(traceback.format_exception_only(self.error)).strip()
        return _raised_elsewhere, (data, text, "".join(traceback.format_exception(self.error)).rstrip())


def _raised_elsewhere(data: bytes | None, text: str, lines: str) -> Raised:
    error: object = None
    with contextlib.suppress(Exception):
        error = None if data is None else pickle.loads(data)
    if not isinstance(error, BaseException):
        error = RuntimeError(text)
    error.add_note(f"in a worker:\n{lines}")
    return Raised(error)


def answered(errand: Errand) -> list[float] | Raised:
    """Returns a call's result, or its exception as ``Raised``; a future then raises only the executor's errors."""
    try:
        return errand.limit(errand.call)
    except BaseException as error:
        return Raised(error)


def _answer(future: Any, woken: bool) -> list[float]:
    try:
        found: list[float] | Raised = future.result()
    except Exception as error:
        if woken:
            raise ExecutorError("the executor lost a query after an interrupt") from error
        _raise_executors(error)
    if isinstance(found, Raised):
        try:
            raise found.error
        finally:
            # The traceback refers to this frame and would keep the future alive; Dask computes the result of a live
            # future again if its worker dies.
            del found, future
    return found


def _raise_executors(error: Exception) -> NoReturn:
    """Raises ``ExecutorError`` if queries cannot be sent, otherwise the error itself, e.g. of a worker that died."""
    if isinstance(error, pickle.PicklingError | TypeError | AttributeError | ImportError):
        why = error.__cause__ if isinstance(error.__cause__, TypeError | AttributeError | ImportError) else error
        raise ExecutorError(
            f"a query cannot be sent to the executor's workers ({type(why).__name__}: {why}). Another process needs a "
            "picklable fun: a function at the top level of an importable module, or a partial or object made from "
            "such, without locks, open files or connections. Threads (workers= alone) accept any function"
        ) from error
    if isinstance(error, CancelledError):
        raise ExecutorError("the executor cancelled a query") from error
    if isinstance(error, BrokenExecutor):
        error.add_note(
            "A worker process died. If this happens at once, it cannot import fun: define fun in a module, and protect "
            "a script's code by if __name__ == '__main__'. If it happens at the same points again, fun kills its "
            "process there: run the program by subprocess and return NaN where it dies, or use an executor in which "
            "only the dead job fails, such as loky's or submitit's."
        )
    raise error
