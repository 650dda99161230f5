"""A host of clients in several worker processes on one machine."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import torch

from federated.core.algorithm import Algorithm, Gradient
from federated.core.reception import Content
from federated.engine.host import Host, LazyMapping, Request, Service, drained
from optimizers.core.options import check_choice
from optimizers.evaluation import Evaluator
from optimizers.running.interrupts import follow_parent


class WorkerError(RuntimeError):
    """Raised if a worker process has ended, or a client raised an exception that cannot be pickled."""


class WorkerPool:
    """A ``Host`` in each of W worker processes, with clients assigned to idle workers.

    A client's first request goes to an idle worker, which then keeps the client's state and objective and serves its
    later requests. If a worker is idle while several clients wait for another worker, one of these clients moves to the
    idle one with its objective and state; a client whose objective cannot be pickled (with ``"fork"``) stays.

    The results are bitwise those of one ``Host``, because they depend only on the client's state and objective, and
    workers use as many torch threads as this process.

    Args:
        algorithm: the options.
        evaluators: the clients' objectives, by number.
        gradients: the clients' gradients, by number, if the algorithm needs them.
        workers: W; at most one per client is started.
        start_method: ``"spawn"``, ``"forkserver"`` or ``"fork"``; all but ``"fork"`` need picklable arguments.
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
        self._algorithm = algorithm
        self._given = None if start_method == "fork" else (evaluators, gradients)
        if self._given is None:
            host = Host(algorithm, ChainMap({}, evaluators), ChainMap({}, gradients), timeout)  # type: ignore[arg-type]
        else:
            host = Host(algorithm, {}, {}, timeout)
            _picklable((host, *(() if isinstance(evaluators, LazyMapping) else self._given)))
        self._homes: dict[int, int] = {}
        self._unpicklable: set[int] = set()
        context: Any = multiprocessing.get_context(start_method)
        self._links, self._processes = [], []
        for _ in range(min(workers, len(evaluators))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, host, torch.get_num_threads()), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)
        self._unread = [0] * len(self._links)

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """See ``ClientHost.absent``; clients in workers are always reachable."""
        return {}

    def serve_all(self, requests: Sequence[Request]) -> Iterator[Service]:
        """See ``ClientHost.serve_all``; requests are sent as workers become idle."""
        waiting, running = list(requests), dict[int, Request]()
        found: dict[int, Service] = {}
        errors: dict[int, BaseException] = {}
        while running or (waiting and not errors):
            idle = [worker for worker in range(len(self._links)) if worker not in running]
            for worker, request in self._assignments(waiting, idle) if not errors else ():
                waiting.remove(request)
                try:
                    self._send(worker, "serve", request)
                    running[worker] = request
                except WorkerError as error:
                    errors[request.client] = error
            for link in wait([self._links[worker] for worker in running]):
                worker = self._links.index(link)
                request = running.pop(worker)
                try:
                    answer = self._answer(worker)
                    own = isinstance(answer, Service) and answer.client == request.client
                    lost = Service(request.client, reason="its worker did not answer")
                    found[request.client] = answer if own else lost
                except Exception as error:
                    errors[request.client] = error
        for request in requests:
            if request.client in errors:
                raise errors[request.client]
        return drained(found.pop(request.client) for request in requests)

    def catch_up(self, number: int, message: Content) -> str:
        """See ``ClientHost.catch_up``."""
        worker = self._worker_of(number)
        return str(self._call("catch_up", {worker: (number, message)})[worker])

    def restart(self, number: int) -> None:
        """See ``Host.restart``."""
        if number in self._homes:
            self._call("restart", {self._homes[number]: (number,)})

    def states(self) -> dict[int, dict[str, Any]]:
        """See ``ClientHost.states``."""
        found = self._call("states", dict.fromkeys(range(len(self._links)), ()))
        return dict(sorted((i, state) for states in found.values() for i, state in states.items()))

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """See ``ClientHost.load_states``; this process checks all states before a worker loads its own."""
        for number, state in states.items():
            self._algorithm.client(number, torch.zeros_like).load_state_dict(state)
        shares: dict[int, dict[int, Any]] = {worker: {} for worker in range(len(self._links))}
        for number, state in states.items():
            shares[self._worker_of(number)][number] = state
        self._call("load_states", {w: (share,) for w, share in shares.items()})

    def close(self) -> None:
        """See ``ClientHost.close``; the workers end."""
        for link in self._links:
            with suppress(OSError):
                link.send_bytes(pickle.dumps(None))
            link.close()
        for process in self._processes:
            process.join(timeout=5.0)
            if process.is_alive():
                process.terminate()
                process.join()
        self._links, self._processes = [], []

    def _assignments(self, waiting: Sequence[Request], idle: Sequence[int]) -> Iterator[tuple[int, Request]]:
        """Assigns requests to idle workers: first their own clients, then new ones, then clients that move."""
        left, given = list(waiting), dict[int, Request]()
        for own in (True, False):
            for worker in idle:
                wanted = worker if own else None
                request = next((r for r in left if self._homes.get(r.client) == wanted), None)
                if worker not in given and request is not None:
                    left.remove(request)
                    given[worker] = request
                    self._worker_of(request.client, worker)
        for worker in idle:
            there = [r for r in left if self._homes.get(r.client) in given and r.client not in self._unpicklable]
            if worker not in given and there:
                crowds = Counter(self._homes[r.client] for r in there)
                request = max(there, key=lambda r: crowds[self._homes[r.client]])
                if self._move(request.client, worker):
                    left.remove(request)
                    given[worker] = request
        yield from given.items()

    def _worker_of(self, number: int, worker: int | None = None) -> int:
        """Returns a client's worker; a new client is assigned to ``worker``, or to the one with the fewest clients."""
        if number not in self._homes:
            if worker is None:
                crowds = Counter(self._homes.values())
                worker = min(range(len(self._links)), key=lambda w: crowds[w])
            if self._given is not None:
                evaluators, gradients = self._given
                evaluator = evaluators[number]
                self._call("take_over", {worker: (number, evaluator, gradients.get(number), None)})
            self._homes[number] = worker
        return self._homes[number]

    def _move(self, number: int, worker: int) -> bool:
        """Moves a client between two idle workers; False if its objective cannot be pickled."""
        home = self._homes[number]
        client = self._call("hand_over", {home: (number,)})[home]
        if client is None:
            self._unpicklable.add(number)
            return False
        self._call("take_over", {worker: (number, *pickle.loads(client))})
        self._homes[number] = worker
        return True

    def _send(self, worker: int, name: str, *arguments: Any) -> None:
        data = _picklable((name, arguments))
        try:
            self._links[worker].send_bytes(data)
        except OSError:
            raise WorkerError(f"worker {worker} has ended") from None
        self._unread[worker] += 1

    def _answer(self, worker: int) -> Any:
        """Returns a worker's answer to its last call, or raises its exception; skips answers to abandoned calls."""
        data = b""
        while self._unread[worker]:
            try:
                data = self._links[worker].recv_bytes()
            except (EOFError, OSError):
                raise WorkerError(f"worker {worker} ended while its clients were served") from None
            self._unread[worker] -= 1
        succeeded, answer = pickle.loads(data)
        if not succeeded:
            raise answer
        return answer

    def _call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Calls a method of the hosts in several workers concurrently; arguments and results are by worker.

        The first exception is raised after all workers have answered.
        """
        answers: dict[int, Any] = {}
        errors: list[BaseException] = []
        asked = []
        for worker, given in arguments.items():
            try:
                self._send(worker, name, *given)
                asked.append(worker)
            except WorkerError as error:
                errors.append(error)
        for worker in asked:
            try:
                answers[worker] = self._answer(worker)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers


def _work(link: Any, host: Host, threads: int) -> None:
    """The main loop of a worker: answers calls until it receives None or the other side has ended.

    Workers ignore Ctrl-C, which terminals send to all processes; the main process decides what happens.
    """
    follow_parent()
    torch.set_num_threads(threads)
    while True:
        try:
            data = link.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            call = pickle.loads(data)
            if call is None:
                return
            name, arguments = call
            answer = (True, getattr(host, name)(*arguments))
        except Exception as error:
            answer = (False, error)
        link.send_bytes(_pickled(answer))


def _pickled(answer: tuple[bool, Any]) -> bytes:
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)
    except Exception:
        if answer[0]:
            raise
        return pickle.dumps((False, WorkerError(f"{type(answer[1]).__name__}: {answer[1]}")))
    return data


def _picklable(given: Any) -> bytes:
    try:
        return pickle.dumps(given)
    except Exception as error:
        ways = "define them at module level, or pass start_method='fork' or workers=1"
        raise TypeError(f"objectives and options must be picklable for worker processes ({error}): {ways}") from error
