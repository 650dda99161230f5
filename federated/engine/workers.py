"""A host of clients in several worker processes of one machine."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from federated.core.algorithm import Algorithm, Gradient
from federated.core.reception import Content
from federated.engine.host import Host, Request, Service
from optimizers.core.options import check_choice
from optimizers.evaluation import Evaluator

START_METHODS = ("spawn", "forkserver", "fork")


class WorkerError(RuntimeError):
    """A worker process has ended, or a client raised an exception that cannot be pickled."""


class WorkerPool:
    """A ``Host`` in each of W worker processes; client i lives in process i mod W.

    The results are those of one ``Host`` to the last bit: clients share nothing, and a worker computes with as many
    torch threads as this process, because the last bits of large sums depend on their number.

    Args:
        algorithm: the options.
        evaluators: the clients' objectives, by number.
        gradients: the clients' gradients, by number, if the algorithm needs them.
        workers: W; not more than one for each client are started.
        start_method: ``"spawn"``, ``"forkserver"`` or ``"fork"``. Unless it is the last, the arguments must be
            picklable.

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
    ) -> None:
        check_choice("start_method", start_method, START_METHODS)
        self._count = min(workers, len(evaluators))
        hosts = []
        for worker in range(self._count):
            own = {i: evaluator for i, evaluator in evaluators.items() if i % self._count == worker}
            hosts.append(Host(algorithm, own, {i: gradients[i] for i in own if i in gradients}))
        if start_method != "fork":
            _check_picklable(hosts)
        context: Any = multiprocessing.get_context(start_method)
        self._links, self._processes = [], []
        for host in hosts:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, host, torch.get_num_threads()), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """See ``ClientHost.absent``; clients in workers are always there."""
        return {}

    def serve_all(self, requests: Sequence[Request]) -> list[Service]:
        """See ``ClientHost.serve_all``; the workers serve their clients at the same time."""
        shares = {w: [r for r in requests if r.client % self._count == w] for w in range(self._count)}
        given = {w: (share,) for w, share in shares.items() if share}
        answers = self._call("serve_all", given).items()
        by_client = {s.client: s for w, services in answers for s in services if s.client % self._count == w}
        none = [r.client for r in requests if r.client not in by_client]
        by_client |= {client: Service(client, reason="its worker gave no answer") for client in none}
        return [by_client[request.client] for request in requests]

    def catch_up(self, number: int, message: Content) -> str:
        """See ``ClientHost.catch_up``."""
        return self._one("catch_up", number, message)

    def restart(self, number: int) -> None:
        """See ``ClientHost.restart``."""
        self._one("restart", number)

    def states(self) -> dict[int, dict[str, Any]]:
        """See ``ClientHost.states``."""
        found = self._call("states", dict.fromkeys(range(self._count), ()))
        return dict(sorted((i, state) for states in found.values() for i, state in states.items()))

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """See ``ClientHost.load_states``."""
        shares = {w: {i: s for i, s in states.items() if i % self._count == w} for w in range(self._count)}
        self._call("hold_states", {w: (share,) for w, share in shares.items()})
        self._call("take_held", dict.fromkeys(range(self._count), ()))

    def close(self) -> None:
        """See ``ClientHost.close``; the workers end."""
        for link in self._links:
            try:
                link.send_bytes(pickle.dumps(None))
            except (BrokenPipeError, OSError):
                continue
            finally:
                link.close()
        for process in self._processes:
            process.join(timeout=5.0)
            if process.is_alive():
                process.terminate()
                process.join()
        self._links, self._processes = [], []

    def _one(self, name: str, number: int, *arguments: Any) -> Any:
        worker = number % self._count
        return self._call(name, {worker: (number, *arguments)})[worker]

    def _call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Calls a method of the hosts in several workers at once, with arguments and results by worker.

        After all workers have answered, the first exception that one of them raised is raised.
        """
        answers: dict[int, Any] = {}
        errors: list[BaseException] = []
        for worker, given in arguments.items():
            try:
                self._links[worker].send_bytes(pickle.dumps((name, given)))
            except (BrokenPipeError, OSError):
                errors.append(WorkerError(f"worker {worker} has ended"))
        for worker in arguments:
            try:
                succeeded, answer = pickle.loads(self._links[worker].recv_bytes())
            except (EOFError, OSError):
                errors.append(WorkerError(f"worker {worker} ended while its clients were served"))
                continue
            if succeeded:
                answers[worker] = answer
            else:
                errors.append(answer)
        if errors:
            raise errors[0]
        return answers


def _work(link: Any, host: Host, threads: int) -> None:
    """Runs in a worker: answers calls until it is sent None or the other side has ended."""
    torch.set_num_threads(threads)
    while True:
        try:
            data = link.recv_bytes()
        except (EOFError, OSError):
            return
        call = pickle.loads(data)
        if call is None:
            return
        name, arguments = call
        try:
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


def _check_picklable(hosts: Sequence[Host]) -> None:
    try:
        pickle.dumps(hosts)
    except Exception as error:
        raise TypeError(
            f"objectives and options go to worker processes, and these cannot be pickled ({error}): define them at "
            "module level, or take start_method='fork' or workers=1"
        ) from error
