"""Where clients live: it holds them with their objectives and carries them through a phase."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from federated.core.algorithm import Algorithm, Gradient, NoReportError
from federated.core.client import Client
from federated.core.codec import encode
from federated.core.messages import BehindError, Broadcast, MessageError, Report
from optimizers.batch import SMALL, Batch
from optimizers.evaluation import Evaluator


@dataclass(frozen=True)
class Request:
    """A phase that a client is asked to take part in.

    Attributes:
        client: its number.
        message: the broadcast or its bytes.
        crash_after: batches after which the client loses its state, for tests; None: it does not.
    """

    client: int
    message: Broadcast | bytes
    crash_after: int | None = None


@dataclass(frozen=True)
class Service:
    """What a client did for a request.

    Attributes:
        client: its number.
        report: the report, bytes where the request was bytes; None where there is none.
        payload: payload bytes of the report.
        reason: why there is no report.
        position: what the client says where it is behind, or None.
        queries: queries that it spent.
        failures: failed ones.
        gradients: gradient evaluations.
        seconds: wall time.
        crashed: whether its state is lost.
        traffic: further counts of the ledger, of messages and wire, where the host knows them.
        note: what the ledger should say beside them.
    """

    client: int
    report: Report | bytes | None = None
    payload: int = 0
    reason: str = ""
    position: Report | bytes | None = None
    queries: int = 0
    failures: int = 0
    gradients: int = 0
    seconds: float = 0.0
    crashed: bool = False
    traffic: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


@dataclass
class Host:
    """Clients of one process, made when first asked and kept.

    Attributes:
        algorithm: the options.
        evaluators: each client's objective.
        gradients: each client's gradient, where the algorithm needs one.
    """

    algorithm: Algorithm
    evaluators: Mapping[int, Evaluator]
    gradients: Mapping[int, Gradient] = field(default_factory=dict)
    _clients: dict[int, Client] = field(default_factory=dict)

    def client(self, number: int) -> Client:
        """A client, new where it has none."""
        if number not in self._clients:
            self._clients[number] = self.algorithm.client(number, self.gradients.get(number))
        return self._clients[number]

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """Clients among these that nothing can be sent to, with the reasons: none."""
        return {}

    def serve_all(self, requests: Sequence[Request]) -> list[Service]:
        """Serve requests in their order."""
        return [self.serve(request) for request in requests]

    def serve(self, request: Request) -> Service:
        """Receive, ask and tell to the end, report.

        What the objective raises under ``on_failure="raise"`` passes through.
        """
        client, began = self.client(request.client), time.perf_counter()
        before = (client.queries, client.failures, client.gradients)
        outcome: dict[str, Any]
        try:
            client.receive(request.message)
            if self._work(client, request.crash_after):
                report = client.report()
                outcome = {"report": _as(request.message, report), "payload": report.payload_bytes}
            else:
                del self._clients[request.client]
                outcome = {"reason": "the client crashed", "crashed": True}
        except BehindError as error:
            position = client.position()
            outcome = {"reason": error.reason, "position": _as(request.message, position)}
            outcome["payload"] = position.payload_bytes
        except MessageError as error:
            outcome = {"reason": f"the client refused the broadcast: {error.reason}"}
        except NoReportError as error:
            outcome = {"reason": str(error)}
        return Service(
            request.client,
            **outcome,
            queries=client.queries - before[0],
            failures=client.failures - before[1],
            gradients=client.gradients - before[2],
            seconds=time.perf_counter() - began,
        )

    def catch_up(self, number: int, message: Broadcast | bytes) -> str:
        """Hand a client what the server sent for its position; why it was refused, or nothing."""
        try:
            self.client(number).catch_up(message)
        except MessageError as error:
            return error.reason
        return ""

    def restart(self, number: int) -> None:
        """A client that lost its state comes back new."""
        self._clients.pop(number, None)

    def states(self) -> dict[int, dict[str, Any]]:
        """``state_dict`` of each client that was made."""
        return {number: self._clients[number].state_dict() for number in sorted(self._clients)}

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Take clients' states; the others are new."""
        loaded = {}
        for number, state in states.items():
            client = self.algorithm.client(number, self.gradients.get(number))
            client.load_state_dict(state)
            loaded[number] = client
        self._clients = loaded

    def close(self) -> None:
        """End the host."""
        self._clients = {}

    def _work(self, client: Client, crash_after: int | None) -> bool:
        """Ask and tell to the end; False where the client is to crash before."""
        evaluate, told = self.evaluators[client.number], 0
        while (batch := client.ask()) is not None:
            if told == crash_after:
                return False
            values, retries = evaluate(_made(batch, evaluate), client.remaining - len(batch))
            client.tell(batch, values, retries=retries)
            told += 1
        return crash_after is None


def _made(batch: Batch, evaluator: Evaluator) -> Batch:
    """The batch with its points made at once where they are small: the same bits, in fewer calls."""
    in_place = hasattr(evaluator.fun, "evaluate_at")
    if in_place or batch.explicit is not None or len(batch) * batch.dimension > SMALL:
        return batch
    return Batch(batch.id, batch.base, torch.zeros_like(batch.scales), explicit=batch.points())


def _as(like: Broadcast | bytes, report: Report) -> Report | bytes:
    return report if isinstance(like, Broadcast) else encode(report)
