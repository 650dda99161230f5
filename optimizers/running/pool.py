"""A pool of spawned processes that keeps finished results through interrupts, errors and processes that die."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from optimizers.running.interrupts import follow_parent

Task = TypeVar("Task")
Result = TypeVar("Result")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def _raise_died(task: Any) -> None:
    raise RuntimeError(
        f'the process of {task} died: it ran out of memory, or the script lacks `if __name__ == "__main__":`'
    )


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    keep: Callable[[Task, Result], object],
    *,
    jobs: int,
    threads: int | None = None,
    died: Callable[[Task], object] = _raise_died,
) -> None:
    """Evaluates a function at each task, and calls ``keep`` with each result as soon as it arrives.

    With one job or one task everything runs in this process. Otherwise tasks start in the order given, at most ``jobs``
    at a time, in spawned processes with this process's default dtype; each task gets its own copy of ``function``.
    ``keep`` and ``died`` are called in this process. If a process dies, the tasks that were running are repeated, each
    alone in a process, and ``died`` is called for each task whose process dies again. An interrupt, or an exception in
    ``function``, ``keep`` or ``died``, ends all processes; ``keep`` first gets the results that have arrived.

    Args:
        function: picklable if there are several jobs.
        tasks: picklable if there are several jobs.
        keep: called with a task and its result.
        jobs: the number of processes.
        threads: the number of threads of torch and of linear algebra, in spawned processes and, while tasks run, in
            this one. None: torch's number of threads in this process.
        died: called with a task whose process dies; by default it raises.

    Raises:
        RuntimeError: by default, if a task's process dies.
        TypeError: if ``function`` cannot be pickled (raised before any task starts), or another process cannot load it.
    """
    payload = b"" if jobs == 1 else _pickled(function)
    with _limited(threads):
        if jobs == 1 or len(tasks) < 2:
            for task in tasks:
                keep(task, function(task))
            return
        waiting = deque(tasks)
        while waiting:
            # A broken pool does not say which process died.
            for suspect in _run_in_processes(payload, waiting, keep, jobs):
                if _run_in_processes(payload, deque([suspect]), keep, 1):
                    died(suspect)


def _run_in_processes(
    payload: bytes, waiting: deque[Task], keep: Callable[[Task, Any], object], jobs: int
) -> list[Task]:
    """Runs the waiting tasks until none is left or a process dies; returns the tasks that were running then."""
    before, spawn = set(multiprocessing.active_children()), multiprocessing.get_context("spawn")
    settings = payload, torch.get_num_threads(), torch.get_default_dtype()
    pool = ProcessPoolExecutor(min(jobs, len(waiting)), mp_context=spawn, initializer=_start_worker, initargs=settings)
    running: dict[Future[Any], Task] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running[pool.submit(_work, waiting[0])] = waiting[0]
                waiting.popleft()
            wait(running, return_when=FIRST_COMPLETED)
            _hand_over(running, keep)
            for future in running:
                if future.done():
                    future.result()  # raises
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        _hand_over(running, keep)
        if not isinstance(error, BrokenProcessPool):
            raise
    else:
        pool.shutdown()
    return list(running.values())


def _hand_over(running: dict[Future[Any], Task], keep: Callable[[Task, Any], object]) -> None:
    """Calls ``keep`` with the results that have arrived, and removes their tasks from ``running``."""
    for future in list(running):
        if future.done() and not future.cancelled() and future.exception() is None:
            keep(running.pop(future), future.result())


def _pickled(function: Callable[..., Any]) -> bytes:
    parts = {**getattr(function, "__dict__", {}), getattr(function, "__name__", type(function).__name__): function}
    for name, part in parts.items():
        try:
            payload = pickle.dumps(part)
        except Exception as error:
            raise TypeError(
                f"{name} must be picklable for more than one job: a function at the top of a module, not a "
                f"lambda or a function in a function: {error}"
            ) from error
    return payload


_worker: dict[str, bytes] = {}


def _start_worker(payload: bytes, threads: int, dtype: torch.dtype) -> None:
    follow_parent()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    _worker["payload"] = payload


def _work(task: Any) -> Any:
    try:
        function = pickle.loads(_worker["payload"])
    except Exception as error:
        raise TypeError(
            f"another process cannot load the function or its options; define them in a module: {error}"
        ) from error
    return function(task)


@contextmanager
def _limited(threads: int | None) -> Iterator[None]:
    """Sets the number of torch's threads here, and of libraries' threads in processes that start within the block."""
    if threads is None:
        yield
        return
    before, variables = torch.get_num_threads(), {name: os.environ.get(name) for name in THREAD_VARIABLES}
    torch.set_num_threads(threads)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
        for name, value in variables.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
