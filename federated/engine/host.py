"""The host of clients: it stores them with their objectives and runs them through phases."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from federated.core.algorithm import UNLIMITED, Algorithm, Gradient, NoReportError
from federated.core.client import Client
from federated.core.codec import encode
from federated.core.ledger import Spent
from federated.core.messages import BehindError, Message, MessageError
from federated.core.reception import Content
from federated.methods.local_descent import autograd
from optimizers.core.batch import SMALL, Batch
from optimizers.core.values import InvalidValueError, numeric
from optimizers.evaluation import Evaluator
from optimizers.running.limits import Limit, OutOfTime

T = TypeVar("T")

CRASHED = "the client crashed"
"""The reason for a missing report after ``Request.crash_after``."""


@dataclass(frozen=True)
class Request:
    """A request to a client to take part in a phase.

    Attributes:
        client: the client's number.
        message: the broadcast, as it is sent to the client.
        crash_after: number of batches after which the client loses its state, for tests; None for no crash.
    """

    client: int
    message: Content
    crash_after: int | None = None


@dataclass(frozen=True)
class Service:
    """A client's response to a request, with its costs.

    Attributes:
        client: the client's number.
        report: the report, encoded if the request was; None if there is none.
        payload: payload bytes of the report or position.
        reason: why there is no report.
        position: a message by which the client asks to catch up, or None.
        spent: queries, failed queries and gradient evaluations.
        seconds: wall time.
        traffic: message and wire bytes, named as in ``ledger.Entry``, if the host counts them.
        note: a remark for the ledger.
    """

    client: int
    report: Content | None = None
    payload: int = 0
    reason: str = ""
    position: Content | None = None
    spent: Spent = field(default_factory=Spent)
    seconds: float = 0.0
    traffic: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


@dataclass
class Host:
    """Clients in this process, each created when it is first used.

    Attributes:
        algorithm: the options.
        evaluators: the clients' objectives, by number.
        gradients: the clients' gradients, by number, if the algorithm needs them.
        timeout: maximal seconds of a client's work in a phase, or None. A query in progress is interrupted only in a
            main thread on a system with timers, unless you have set an alarm there; otherwise the client gets no
            further query.
    """

    algorithm: Algorithm
    evaluators: Mapping[int, Evaluator]
    gradients: Mapping[int, Gradient] = field(default_factory=dict)
    timeout: float | None = None
    _clients: dict[int, Client] = field(default_factory=dict, init=False)
    _traced: set[tuple[str, str, int]] = field(default_factory=set, init=False)

    def client(self, number: int) -> Client:
        """Returns client ``number``, which is created if necessary."""
        if number not in self._clients:
            self._clients[number] = self.algorithm.client(number, self.gradients.get(number))
        return self._clients[number]

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """See ``ClientHost.absent``; clients in this process are always reachable."""
        return {}

    def serve_all(self, requests: Sequence[Request]) -> Iterator[Service]:
        """See ``ClientHost.serve_all``; each request is served lazily."""
        return map(self.serve, requests)

    def serve(self, request: Request) -> Service:
        """Runs one client through a phase: it receives the broadcast, makes its queries and reports.

        An exception from the objective is propagated with ``on_failure="raise"``.
        """
        client, began = self.client(request.client), time.perf_counter()
        before = client.spent
        outcome: dict[str, Any]
        try:
            client.receive(request.message)
            if self._work(client, request.crash_after):
                report = client.report()
                outcome = {"report": _as(request.message, report), "payload": report.payload_bytes}
            else:
                del self._clients[request.client]
                outcome = {"reason": CRASHED}
        except BehindError as error:
            position = client.position()
            outcome = {"reason": str(error), "position": _as(request.message, position)}
            outcome["payload"] = position.payload_bytes
        except MessageError as error:
            outcome = {"reason": f"the client refused the broadcast: {error}"}
        except NoReportError as error:
            outcome = {"reason": str(error)}
        except OutOfTime:
            outcome = {"reason": f"no reply within {self.timeout:g} s"}
        spent, seconds = client.spent.since(before), time.perf_counter() - began
        return Service(request.client, **outcome, spent=spent, seconds=seconds)

    def catch_up(self, number: int, message: Content) -> str:
        """See ``ClientHost.catch_up``."""
        try:
            self.client(number).catch_up(message)
        except MessageError as error:
            return str(error)
        return ""

    def restart(self, number: int) -> None:
        """Replaces a client by a new one, without state."""
        self._clients.pop(number, None)

    def states(self) -> dict[int, dict[str, Any]]:
        """See ``ClientHost.states``; unused clients have no state."""
        return {number: self._clients[number].state_dict() for number in sorted(self._clients)}

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """See ``ClientHost.load_states``."""
        loaded = Host(self.algorithm, self.evaluators, self.gradients)
        for number, state in states.items():
            loaded.client(number).load_state_dict(state)
        self._clients = loaded._clients

    def close(self) -> None:
        """See ``ClientHost.close``."""
        self._clients = {}

    def take_over(self, number: int, evaluator: Evaluator, gradient: Gradient | None) -> None:
        """Stores a client's objective and gradient, which another process has sent."""
        assert isinstance(self.evaluators, MutableMapping) and isinstance(self.gradients, MutableMapping)
        self._traced |= evaluator.traced
        self.evaluators[number] = replace(evaluator, traced=self._traced)
        if gradient is not None:
            self.gradients[number] = gradient

    def _work(self, client: Client, crash_after: int | None) -> bool:
        """Runs a client's queries; False if it crashed before their end."""
        evaluate, told, start = self.evaluators[client.number], 0, time.monotonic()
        while (batch := client.ask()) is not None:
            if told == crash_after:
                return False
            left = None if self.timeout is None else start + self.timeout - time.monotonic()
            if left is not None and left <= 0.0:
                raise OutOfTime
            limit = Limit(None, left, threads=False)
            try:
                values, retries = limit(partial(evaluate, _made(batch, evaluate), UNLIMITED))
            except OutOfTime:
                client.tell(batch, torch.full((len(batch),), torch.nan, dtype=torch.float64))
                raise
            client.tell(batch, values, retries=retries)
            told += 1
        if self.timeout is not None and time.monotonic() - start >= self.timeout:
            raise OutOfTime
        return crash_after is None


def drained(services: Iterable[Service]) -> Iterator[Service]:
    """Yields completed services one by one, without keeping a reference to those already yielded."""
    waiting = deque(services)
    while waiting:
        yield waiting.popleft()


class LazyMapping(Mapping[int, T]):
    """A mapping from 0 … count − 1 to values that a function creates at first use."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make
        self._made: dict[int, T] = {}

    def __getitem__(self, number: int) -> T:
        if number not in self._made:
            if not 0 <= number < self._count:
                raise KeyError(number)
            self._made[number] = self._make(number)
        return self._made[number]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))

    def __len__(self) -> int:
        return self._count


def prepared(
    algorithm: Algorithm, objectives: Mapping[int, Callable[[Any], Any]], **evaluation: Any
) -> tuple[Mapping[int, Evaluator], Mapping[int, Gradient]]:
    """Returns the evaluators and, if needed, the gradients of clients' objectives; keys are the clients' numbers.

    Items of a ``LazyMapping`` of objectives are checked at first use; ``evaluation`` has options of ``Evaluator``.

    Raises:
        ValueError: if an objective's attribute ``dimension`` differs from the algorithm's.
        TypeError: if an objective is not callable.
    """
    traced: set[tuple[str, str, int]] = set()

    def evaluator(number: int) -> Evaluator:
        objective = objectives[number]
        dimension = getattr(objective, "dimension", None)
        if isinstance(dimension, int) and dimension != algorithm.dimension:
            raise ValueError(f"client {number} has dimension {dimension}, but x0 has {algorithm.dimension}")
        return Evaluator(objective, **evaluation, name=f"client {number}'s objective", traced=traced)

    def gradient(number: int) -> Gradient:
        return NamedGradient(f"the gradient of client {number}'s objective", autograd(objectives[number]))

    count = len(objectives) if algorithm.needs_gradient else 0
    if isinstance(objectives, LazyMapping):
        return LazyMapping(len(objectives), evaluator), LazyMapping(count, gradient)
    evaluators = {number: evaluator(number) for number in objectives}
    return evaluators, {number: gradient(number) for number in objectives if count}


@dataclass(frozen=True)
class NamedGradient:
    """∇fᵢ with validation: it raises ``InvalidValueError`` with the gradient's name for an invalid value."""

    name: str
    of: Gradient

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the gradient at x, both of shape ``d``."""
        given = self.of(x)
        try:
            gradient = numeric(self.name, given)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(str(error)) from error
        if gradient.shape != x.shape:
            raise InvalidValueError(f"{self.name} has shape {tuple(gradient.shape)}, expected {tuple(x.shape)}")
        return gradient


def _made(batch: Batch, evaluator: Evaluator) -> Batch:
    """Returns the batch with small points computed at once: bitwise the same points in fewer calls."""
    in_place = hasattr(evaluator.fun, "evaluate_at")
    if in_place or batch.explicit is not None or len(batch) * batch.dimension > SMALL:
        return batch
    return Batch(batch.id, batch.base, torch.zeros_like(batch.scales), explicit=batch.points())


def _as(like: Content, message: Message) -> Message | bytes:
    """Encodes the message if the other message is encoded."""
    return encode(message) if isinstance(like, bytes) else message
