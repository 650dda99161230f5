"""The in-process engine: one server and its clients, round by round."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from federated.core.algorithm import Algorithm
from federated.core.codec import encode
from federated.core.ledger import Ledger
from federated.core.messages import Broadcast, MessageError, Report
from federated.core.server import Arrival, Outcome, Server
from federated.engine.faults import Fault, FaultPlan
from federated.engine.host import Request, Service

logger = logging.getLogger(__name__)

STATE_VERSION = 1


class ClientHost(Protocol):
    """What the engine asks of ``Host``, of ``WorkerPool`` and of ``flower.grid_host.GridHost``."""

    def absent(self, clients: Sequence[int]) -> dict[int, str]: ...  # noqa: D102
    def serve_all(self, requests: Sequence[Request]) -> list[Service]: ...  # noqa: D102
    def catch_up(self, number: int, message: Broadcast | bytes) -> str: ...  # noqa: D102
    def restart(self, number: int) -> None: ...  # noqa: D102
    def states(self) -> dict[int, dict[str, Any]]: ...  # noqa: D102
    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class RoundRecord:
    """A round as it ended; counts are of all rounds so far.

    Attributes:
        round: r; 0 is the start.
        fun: F(x_r), where the global function is given for reporting; NaN where not.
        queries: queries of all clients.
        failures: failed ones.
        gradients: gradient evaluations.
        payload_up: payload bytes from the clients.
        payload_down: payload bytes to them.
        participants: clients that were asked.
        accepted: clients whose report of the last phase was used.
        refused: (client or −1, phase, reason) of every report that was not.
        skipped: why the round was skipped, or None.
        rejected: whether the round did not lower F and its model was taken back (``accept="monotone"``).
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


@dataclass
class InFlight:
    """A delayed report: the round with which it arrives, its sender, its content."""

    due: int
    client: int
    content: Report | bytes


@dataclass
class Federation:
    """A server and a host of clients, driven round by round; ``simulate`` makes one.

    The order in which clients are served changes nothing: reports are aggregated by client.

    Attributes:
        algorithm: the options.
        host: where the clients live.
        fun: F for the history, never counted as a query; None: no values.
        faults: what goes wrong, for tests.
        codec: whether messages pass as bytes, as they would on a wire; False hands the objects on and counts
            no message bytes.
    """

    algorithm: Algorithm
    host: ClientHost
    fun: Callable[[Tensor], Any] | None = None
    faults: FaultPlan = field(default_factory=FaultPlan)
    codec: bool = True

    def __post_init__(self) -> None:
        if not self.codec and any(f.kind == "corrupt" for f in self.faults.faults):
            raise ValueError("corrupt faults alter bytes: they go with codec=True")
        self.server: Server = self.algorithm.server()
        self.ledger = Ledger()
        self.history: list[RoundRecord] = [RoundRecord(0, self._value())]
        self._down: set[int] = set()
        self._in_flight: list[InFlight] = []

    @property
    def rounds(self) -> int:
        """Rounds that have ended."""
        return self.server.round - 1

    def run_round(self) -> RoundRecord:
        """All phases of the next round."""
        number = self.server.round
        for client in self.faults.rejoining(number):
            self.host.restart(client)
            self._down.discard(client)
        asked, refused = self.server.participants, []
        while True:
            outcome = self.run_phase()
            refused += [(-1 if r.client is None else r.client, outcome.phase, r.reason) for r in outcome.refused]
            if outcome.ended:
                break
        totals = {
            name: self.ledger.total(name) for name in ("queries", "failures", "gradients", "payload_up", "payload_down")
        }
        record = RoundRecord(
            round=number,
            fun=self._value(),
            participants=asked,
            accepted=outcome.accepted,
            refused=tuple(refused),
            skipped=outcome.skipped,
            rejected=outcome.rejected,
            **totals,
        )
        self.history.append(record)
        return record

    def run_phase(self) -> Outcome:
        """One broadcast, the clients' work, one aggregation."""
        number, index = self.server.round, self.algorithm.exchanges.index(self.server.phase)
        arrivals: list[Arrival] = []
        services = self.host.serve_all(self._requests(number, index, arrivals))
        for service in self._caught_up(number, services):
            self._count(number, service)
            arrivals.append(self._arrival(number, index, service))
        if index == 0:
            due = [late for late in self._in_flight if late.due <= number]
            self._in_flight = [late for late in self._in_flight if late.due > number]
            arrivals += [Arrival(late.client, late.content) for late in due]
        outcome = self.server.aggregate(arrivals)
        for refusal in outcome.refused:
            if refusal.client is not None and refusal.client < self.algorithm.clients:
                self.ledger.refuse(number, refusal.client, refusal.reason)
        return outcome

    def settle(self, services: Sequence[Service]) -> None:
        """Count in the last round what came to light after it."""
        for service in services:
            self._count(max(self.rounds, 1), service)

    def state_dict(self) -> dict[str, Any]:
        """The whole federation between two rounds: tensors and plain values, ``torch.save`` ready."""
        return {
            "version": STATE_VERSION,
            "configuration": self.algorithm.configuration,
            "server": self.server.state_dict(),
            "clients": self.host.states(),
            "ledger": self.ledger.state_dict(),
            "history": [asdict(record) for record in self.history],
            "down": sorted(self._down),
            "in_flight": [[late.due, late.client, _as_tensor(late.content)] for late in self._in_flight],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict`` of the same configuration.

        Raises:
            ValueError: for another version or configuration; nothing has changed then.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}, accepted is {STATE_VERSION}")
        self.algorithm.check_configuration(state["configuration"], "the state")
        self.host.load_states(state["clients"])
        self.server.load_state_dict(state["server"])
        self.ledger.load_state_dict(state["ledger"])
        self.history = [_record(entry) for entry in state["history"]]
        self._down = set(state["down"])
        self._in_flight = [InFlight(due, c, content.numpy().tobytes()) for due, c, content in state["in_flight"]]

    def _requests(self, number: int, index: int, arrivals: list[Arrival]) -> list[Request]:
        """Send the broadcast: what reaches the clients, and an arrival for each that it does not reach."""
        shared = None if self.algorithm.personal else self._encoded(self.server.broadcast())
        requests = []
        absent = dict.fromkeys(self._down, "the client is down") | self.host.absent(self.server.participants)
        for client in self.server.participants:
            if client in absent:
                arrivals.append(Arrival(client, None, absent[client]))
                continue
            message, payload = shared or self._encoded(self.server.broadcast(client))
            self._count_down(number, client, message, payload)
            if self.faults.find("unreachable", number, index, client):
                arrivals.append(Arrival(client, None, "the client could not be reached"))
                continue
            crash = self.faults.find("crash", number, index, client)
            requests.append(Request(client, message, crash.after if crash else None))
        return requests

    def _caught_up(self, number: int, services: Sequence[Service]) -> list[Service]:
        """The services, of clients that were behind after they were caught up."""
        done: list[Service] = []
        for service in services:
            if service.position is None:
                done.append(service)
                continue
            self._count(number, service)
            try:
                catch_up, payload = self._encoded(self.server.catch_up(service.position))
            except MessageError as error:
                done.append(Service(service.client, reason=f"the position was refused: {error.reason}"))
                continue
            self._count_down(number, service.client, catch_up, payload)
            if reason := self.host.catch_up(service.client, catch_up):
                done.append(Service(service.client, reason=f"the client could not catch up: {reason}"))
                continue
            broadcast, payload = self._encoded(self.server.broadcast(service.client))
            self._count_down(number, service.client, broadcast, payload)
            (again,) = self.host.serve_all([Request(service.client, broadcast)])
            done.append(again)
        return done

    def _arrival(self, number: int, index: int, service: Service) -> Arrival:
        """What of a client's report reaches the server."""
        client, content = service.client, service.report
        if service.crashed:
            self._down.add(client)
        if content is None:
            return Arrival(client, None, service.reason)

        def fault(kind: str) -> Fault | None:
            return self.faults.find(kind, number, index, client)

        if fault("drop"):
            return Arrival(client, None, "the report was lost")
        if (found := fault("corrupt")) and isinstance(content, bytes):
            content = self.faults.corrupted(found, content)
        if found := fault("delay"):
            self._in_flight.append(InFlight(number + found.by, client, content))
            return Arrival(client, None, "the report is delayed")
        return Arrival(client, content)

    def _encoded(self, message: Broadcast) -> tuple[Broadcast | bytes, int]:
        return (encode(message) if self.codec else message), message.payload_bytes

    def _count_down(self, number: int, client: int, message: Broadcast | bytes, payload: int) -> None:
        size = len(message) if isinstance(message, bytes) else 0
        self.ledger.add(number, client, payload_down=payload, message_down=size)

    def _count(self, number: int, service: Service) -> None:
        sent = service.report if service.position is None else service.position
        counts: dict[str, Any] = {
            "queries": service.queries,
            "failures": service.failures,
            "gradients": service.gradients,
            "payload_up": service.payload,
            "message_up": len(sent) if isinstance(sent, bytes) else 0,
            "seconds": service.seconds,
        }
        self.ledger.add(number, service.client, **{**counts, **service.traffic})
        if service.note:
            self.ledger.refuse(number, service.client, service.note)

    def _value(self) -> float:
        return math.nan if self.fun is None else float(self.fun(self.server.x))


def _as_tensor(content: Report | bytes) -> Tensor:
    data = content if isinstance(content, bytes) else encode(content)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _record(entry: Mapping[str, Any]) -> RoundRecord:
    values = dict(entry)
    values["refused"] = tuple((c, phase, reason) for c, phase, reason in values["refused"])
    values |= {name: tuple(values[name]) for name in ("participants", "accepted")}
    return RoundRecord(**values)
