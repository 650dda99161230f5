"""A host of clients in several worker processes on one machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any

import torch

from federated.core.algorithm import Algorithm, Gradient
from federated.core.reception import Content
from federated.engine.host import Host, LazyMapping, Request, Service, drained
from optimizers.core.options import check_choice
from optimizers.evaluation import Evaluator
from optimizers.running.crew import Raised
from optimizers.running.interrupts import follow_parent

_here: dict[str, Host] = {}


class WorkerError(RuntimeError):
    """A worker process has ended."""


class WorkerPool:
    """A ``Host`` in each of W worker processes, with every client assigned to one of them.

    A client's first request goes to the worker that serves the fewest clients of the phase, which then has its state
    and objective and serves its later requests.

    The results are bitwise those of one ``Host``, because they depend only on the client's state and objective, and
    workers use as many torch threads as this process.

    Args:
        algorithm: the options.
        evaluators: the clients' objectives, by number.
        gradients: the clients' gradients, by number, if the algorithm needs them.
        workers: W; at most one per client is started.
        start_method: ``"spawn"``, ``"forkserver"`` or ``"fork"``. The arguments must be picklable, except with
            ``"fork"``.
        timeout: see ``Host``.

    Raises:
        ValueError: if the start method is unknown.
        TypeError: if an argument cannot be pickled.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        evaluators: Mapping[int, Evaluator],
        gradients: Mapping[int, Gradient],
        *,
        workers: int,
        start_method: str = "spawn",
        timeout: float | None = None,
    ) -> None:
        check_choice("start_method", start_method, multiprocessing.get_all_start_methods())
        self._algorithm, self._homes = algorithm, dict[int, int]()
        self._given = None if start_method == "fork" else (evaluators, gradients)
        host = Host(algorithm, *(({}, {}) if self._given else (evaluators, gradients)), timeout)
        if self._given is not None:
            _picklable((host, *(() if isinstance(evaluators, LazyMapping) else self._given)))
        context, initargs = multiprocessing.get_context(start_method), (host, torch.get_num_threads())
        before = set(multiprocessing.active_children())
        self._pools = [ProcessPoolExecutor(1, context, _start, initargs) for _ in range(min(workers, len(evaluators)))]
        for pool in self._pools:
            pool.submit(os.getpid)  # starts its process
        self._processes = set(multiprocessing.active_children()) - before

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """See ``ClientHost.absent``."""
        return {}

    def serve_all(self, requests: Sequence[Request]) -> Iterator[Service]:
        """See ``ClientHost.serve_all``; all are served before the first is returned.

        Raises:
            WorkerError: if a worker ended. A client's own exception is raised as it is.
        """
        busy = Counter(self._homes[request.client] for request in requests if request.client in self._homes)
        homes = [self._home(request.client, busy) for request in requests]
        asked = [self._submit(home, "serve", request) for home, request in zip(homes, requests, strict=True)]
        try:
            return drained([_answer(future) for future in asked])
        finally:
            for future in asked:
                future.cancel()

    def catch_up(self, number: int, message: Content) -> str:
        """See ``ClientHost.catch_up``."""
        return str(_answer(self._submit(self._home(number), "catch_up", number, message)))

    def restart(self, number: int) -> None:
        """See ``Host.restart``."""
        if number in self._homes:
            _answer(self._submit(self._homes[number], "restart", number))

    def states(self) -> dict[int, dict[str, Any]]:
        """See ``ClientHost.states``."""
        found = [self._submit(worker, "states") for worker in range(len(self._pools))]
        return dict(sorted(item for future in found for item in _answer(future).items()))

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """See ``ClientHost.load_states``; all states are checked before a worker loads one."""
        for number, state in states.items():
            self._algorithm.client(number, torch.zeros_like).load_state_dict(state)
        shares: list[dict[int, Any]] = [{} for _ in self._pools]
        for number, state in states.items():
            shares[self._home(number)][number] = state
        for future in [self._submit(worker, "load_states", share) for worker, share in enumerate(shares)]:
            _answer(future)

    def close(self) -> None:
        """See ``ClientHost.close``; a process that does not end within 5 s is terminated."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.join(timeout=5.0)
            if process.is_alive():
                process.terminate()
                process.join()
        self._pools = []

    def _home(self, number: int, busy: Counter[int] | None = None) -> int:
        """The worker of a client; a new client gets the one that is least busy and then has the fewest clients."""
        if number not in self._homes:
            busy, crowds = Counter() if busy is None else busy, Counter(self._homes.values())
            worker = min(range(len(self._pools)), key=lambda w: (busy[w], crowds[w]))
            if self._given is not None:
                evaluators, gradients = self._given
                _answer(self._submit(worker, "take_over", number, evaluators[number], gradients.get(number)))
            busy[worker] += 1
            self._homes[number] = worker
        return self._homes[number]

    def _submit(self, worker: int, name: str, *arguments: Any) -> Future[bytes]:
        data = _picklable((name, arguments))
        try:
            return self._pools[worker].submit(_do, data)
        except BrokenExecutor as error:
            raise WorkerError(f"worker {worker} has ended") from error


def _answer(future: Future[bytes]) -> Any:
    try:
        answer = pickle.loads(future.result())
    except BrokenExecutor as error:
        raise WorkerError("a worker ended while its clients were served") from error
    if isinstance(answer, Raised):
        raise answer.error
    return answer


def _start(host: Host, threads: int) -> None:
    follow_parent()
    torch.set_num_threads(threads)
    _here["host"] = host


def _do(data: bytes) -> bytes:
    """Calls a method of this process's host; the bytes keep tensors out of shared memory."""
    try:
        name, arguments = pickle.loads(data)
        answer = getattr(_here["host"], name)(*arguments)
    except Exception as error:
        answer = Raised(error)
    return pickle.dumps(answer)


def _picklable(given: Any) -> bytes:
    try:
        return pickle.dumps(given)
    except Exception as error:
        ways = "define them at module level, or pass start_method='fork' or workers=1"
        raise TypeError(f"objectives and options must be picklable for worker processes ({error}): {ways}") from error
