"""The engine: it drives one server and a host of clients, round by round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial
from itertools import chain
from textwrap import shorten
from typing import Any, Protocol

from torch import Tensor

from federated.core.algorithm import UNLIMITED, Algorithm
from federated.core.codec import encode
from federated.core.configuration import describe_tensor
from federated.core.ledger import Ledger, Spent
from federated.core.messages import Broadcast, MessageError
from federated.core.reception import Content, refusing
from federated.core.restoring import check_integers, check_saved
from federated.core.server import Arrival, Outcome, Server
from federated.engine.host import Request, Service
from optimizers.core.options import check_boolean

STATE_VERSION = 4
MAX_COMPARED = 16
"""Maximal size of a tensor that is compared by value."""


class ClientHost(Protocol):
    """The interface of ``Host``, ``WorkerPool`` and ``flower.grid_host.GridHost``."""

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """Returns the unreachable clients among those given, with reasons."""

    def serve_all(self, requests: Sequence[Request]) -> Iterator[Service]:
        """Runs clients through a phase; yields a ``Service`` for each request, in order, without storing them."""

    def catch_up(self, number: int, message: Content) -> str:
        """Passes the server's answer to a client that is behind; returns why the client refused it, or ""."""

    def states(self) -> dict[int, dict[str, Any]]:
        """Returns the ``state_dict`` of each client, by number."""

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Restores ``states``; other clients are new. If an error is raised, no client has changed."""

    def close(self) -> None:
        """Releases the clients and their processes."""


@dataclass(frozen=True, repr=False)
class RoundRecord:
    """The history's record of a round; counts are cumulative over all clients and rounds.

    Attributes:
        round: r; 0 is the start.
        fun: F(x_r); NaN if the global function is not given.
        queries: queries, including failed ones.
        failures: failed queries.
        gradients: gradient evaluations.
        payload_up: payload bytes from the clients.
        payload_down: payload bytes to the clients.
        participants: the clients of the round's first phase.
        accepted: the clients whose report of the last phase was used.
        refused: client, phase and reason of every refused or missing report.
        skipped: why the round was skipped; None otherwise.
        rejected: whether ``accept="monotone"`` restored the previous model because F did not fall.
    """

    round: int
    fun: float = math.nan
    queries: int = 0
    failures: int = 0
    gradients: int = 0
    payload_up: int = 0
    payload_down: int = 0
    participants: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    refused: tuple[tuple[int, str, str], ...] = ()
    skipped: str | None = None
    rejected: bool = False

    def __repr__(self) -> str:
        ending = [f"skipped: {shorten(self.skipped, 80)}"] if self.skipped else []
        ending += ["taken back"] if self.rejected else []
        counts = f"fun {self.fun:.6g}, {self.queries} queries, {self.failures} failed"
        reports = f"{len(self.participants)} participants, {len(self.accepted)} accepted"
        return f"<round {self.round}: {', '.join([counts, reports, *ending])}>"


class History(list[RoundRecord]):
    """The records of rounds; at most four are printed."""

    def __repr__(self) -> str:
        shown = list(map(repr, self)) if len(self) <= 4 else [*map(repr, self[:2]), "...", repr(self[-1])]
        return "\n  ".join([f"{len(self)} rounds:", *shown])


@dataclass
class Federation:
    """A server and a host of clients, driven round by round; ``make_federation`` creates one.

    Reports are aggregated in the order of clients, whatever the order in which the host serves them.

    Attributes:
        algorithm: the options.
        host: the host of the clients.
        fun: F, evaluated for the history and not counted as queries; None: the history has NaN.
        codec: whether messages are encoded as bytes; False passes the objects and counts no message bytes.
        server: the server.
        ledger: each client's costs by round.
        history: the rounds' records, from round 0.
    """

    algorithm: Algorithm
    host: ClientHost
    _: KW_ONLY
    fun: Callable[[Tensor], Any] | None = None
    codec: bool = True

    def __post_init__(self) -> None:
        check_boolean("codec", self.codec)
        self.server: Server = self.algorithm.server()
        self.ledger = Ledger()
        self.history = History([RoundRecord(0, self._value())])

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return self.server.round - 1

    def run_round(self) -> RoundRecord:
        """Runs all phases of the next round and appends its record to the history."""
        number = self.server.round
        asked, outcomes = self.server.participants, [self.run_phase()]
        while not (outcome := outcomes[-1]).ended:
            outcomes.append(self.run_phase())
        refused = [(refusal.client, o.phase, refusal.reason) for o in outcomes for refusal in o.refused]
        totals = {name: self.ledger.total(name) for name in (*Spent._fields, "payload_up", "payload_down")}
        ending = {name: getattr(outcome, name) for name in ("accepted", "skipped", "rejected")}
        record = RoundRecord(number, self._value(), participants=asked, refused=tuple(refused), **totals, **ending)
        self.history.append(record)
        return record

    def run_phase(self) -> Outcome:
        """Runs the next phase: a broadcast, the clients' work and the aggregation."""
        number, participants = self.server.round, self.server.participants
        absent = self.host.absent(participants)
        missing = [Arrival(client, None, absent[client]) for client in participants if client in absent]
        services = self.host.serve_all(self._requests(number, [c for c in participants if c not in absent]))
        outcome = self.server.aggregate(chain(missing, self._arrivals(number, services)))
        for refusal in outcome.refused:
            self.ledger.refuse(number, refusal.client, refusal.reason)
        return outcome

    def settle(self, services: Sequence[Service]) -> None:
        """Adds costs that became known after the last round to that round's entries of the ledger."""
        for service in services:
            self._count(max(self.rounds, 1), service)

    def state_dict(self) -> dict[str, Any]:
        """Returns the federation's state between two rounds, as tensors and plain values for ``torch.save``."""
        history = [asdict(record) for record in self.history]
        return self.present_state() | {"ledger": self.ledger.state_dict(), "history": history}

    def present_state(self) -> dict[str, Any]:
        """Returns ``state_dict`` without the ledger and the history, which only grow."""
        a, parts = self.algorithm, {"server": self.server.state_dict(), "clients": self.host.states()}
        return {"version": STATE_VERSION, "configuration": a.configuration, "x0": describe_tensor(a.x0)} | parts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state_dict`` after validating all of it.

        Raises:
            ValueError: if the state has another version or configuration, or is invalid; nothing has then changed.
        """
        with refusing():
            if state.get("version") != STATE_VERSION:
                raise MessageError(f"the state has version {state.get('version')!r}, expected {STATE_VERSION}")
            self.algorithm.check_configuration(state["configuration"], "the state")
            if state["x0"] != describe_tensor(self.algorithm.x0):
                raise MessageError("the state belongs to a run that began at another x0")
            server, ledger = self.algorithm.server(), Ledger.from_state_dict(state["ledger"])
            server.load_state_dict(state["server"])
            history = History(_record(i, entry) for i, entry in enumerate(state["history"]))
            if len(history) != server.round:
                raise MessageError(
                    f"the history ends at round {len(history) - 1}, but the server is in round {server.round}"
                )
            check_integers("clients", list(state["clients"]), self.algorithm.clients)
            self.host.load_states(state["clients"])
        self.server, self.ledger, self.history = server, ledger, history

    def _arrivals(self, number: int, services: Iterable[Service]) -> Iterator[Arrival]:
        """Yields the arrivals one by one, dropping a report's bytes as soon as the server has processed it."""
        for service in map(partial(self._after_catch_up, number), services):
            self._count(number, service)
            yield Arrival(service.client, service.report, service.reason)
            del service

    def _requests(self, number: int, clients: Sequence[int]) -> list[Request]:
        """Returns requests to clients, with encoded broadcasts that are booked as sent."""
        made = dict[Any, Any]()
        shared = None if self.algorithm.personal else self._encoded(self.server.broadcast())
        return [Request(c, self._sent(number, c, shared or self._personal(c, made))) for c in clients]

    def _after_catch_up(self, number: int, service: Service) -> Service:
        """Returns the service, or a new one after a client that was behind has caught up."""
        if service.position is None:
            return service
        client = service.client
        self._count(number, service)
        try:
            answer = self.server.catch_up(service.position, client)
        except MessageError as error:
            return Service(client, reason=f"the position was refused: {error}")
        if reason := self.host.catch_up(client, self._sent(number, client, self._encoded(answer))):
            return Service(client, reason=f"the client could not catch up: {reason}")
        broadcast = self._sent(number, client, self._encoded(self.server.broadcast(client)))
        (again,) = self.host.serve_all([Request(client, broadcast)])
        return again

    def _personal(self, client: int, made: dict[Any, Any]) -> tuple[Broadcast | bytes, int]:
        """Returns a client's broadcast, encoded once for all clients that receive the same tensors and values."""
        message = self.server.broadcast(client)
        tensors = message.tensors.items()
        marks = [(name, id(t) if t.numel() > MAX_COMPARED else str(describe_tensor(t))) for name, t in tensors]
        key = (tuple(marks), repr(dict(message.values)))
        if key not in made:
            made[key] = self._encoded(message), message  # keeping the message alive keeps its ids unique
        return made[key][0]

    def _encoded(self, message: Broadcast) -> tuple[Broadcast | bytes, int]:
        return (encode(message) if self.codec else message), message.payload_bytes

    def _sent(self, number: int, client: int, encoded: tuple[Broadcast | bytes, int]) -> Broadcast | bytes:
        """Returns the encoded message and books its bytes as sent to a client."""
        message, payload = encoded
        size = len(message) if isinstance(message, bytes) else 0
        self.ledger.add(number, client, payload_down=payload, message_down=size)
        return message

    def _count(self, number: int, service: Service) -> None:
        sent = service.report if service.position is None else service.position
        traffic = {"message_up": len(sent) if isinstance(sent, bytes) else 0, **service.traffic}
        costs = {"payload_up": service.payload, "seconds": service.seconds} | service.spent._asdict()
        self.ledger.add(number, service.client, **costs, **traffic)
        if service.note:
            self.ledger.refuse(number, service.client, service.note)

    def _value(self) -> float:
        return math.nan if self.fun is None else float(self.fun(self.server.x))


def _record(number: int, entry: Mapping[str, Any]) -> RoundRecord:
    """Returns the record from a state's entry; raises an error for other names, types or another round."""
    check_saved("record", RoundRecord(0), entry, {})
    record = RoundRecord(**entry)
    check_integers("participants", [*record.participants, *record.accepted], UNLIMITED)
    if record.round != number or any(list(map(type, refusal)) != [int, str, str] for refusal in record.refused):
        raise MessageError(f"the history's entry {number} is not a valid record of that round")
    return record
