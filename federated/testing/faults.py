"""Fault injection for tests: a plan of faults, and a host that applies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federated.core.codec import decode, encode
from federated.core.messages import Report
from federated.core.reception import Content
from federated.engine.federation import Federation
from federated.engine.host import CRASHED, Request, Service
from optimizers.core.options import check_choice

KINDS = ("unreachable", "drop", "delay", "corrupt", "crash", "rejoin")


@dataclass(frozen=True)
class Fault:
    """One fault of one client.

    =================  ==================================================================================
    kind               effect on the client in the round and phase
    =================  ==================================================================================
    ``"unreachable"``  it does not receive the broadcast: it neither queries nor reports
    ``"drop"``         its report is lost after the queries were made
    ``"delay"``        its report arrives ``by`` rounds later, with that round's first reports
    ``"corrupt"``      its report is altered as specified by ``how``
    ``"crash"``        it loses its state after ``after`` batches, and is down until it rejoins
    ``"rejoin"``       it returns in this round, without its state
    =================  ==================================================================================

    Attributes:
        kind: one of ``KINDS``.
        round: r, from 1.
        client: the client's number.
        phase: the phase's index in the round, from 0.
        by: the delay in rounds.
        how: the corruption, one of ``CORRUPTIONS``.
        after: number of batches before the crash.
    """

    kind: str
    round: int
    client: int
    phase: int = 0
    by: int = 1
    how: str = "flip"
    after: int = 1

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("how", self.how, CORRUPTIONS)
        if min(self.round, self.by) < 1 or min(self.client, self.phase, self.after) < 0:
            raise ValueError(f"round and by must be at least 1, client, phase and after at least 0, got {self}")


class FaultPlan:
    """The faults of a run, at most one of each kind for a client, round and phase.

    Args:
        faults: the faults.
        seed: seed of random corruptions.
    """

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self.faults = tuple(faults)
        self.seed = seed
        self._by_address = {(f.kind, f.round, f.phase, f.client): f for f in self.faults}

    def find(self, kind: str, round_number: int, phase: int, client: int) -> Fault | None:
        """Returns a client's fault of a kind in a round and phase, or None."""
        return self._by_address.get((kind, round_number, phase, client))

    def rejoining(self, round_number: int) -> list[int]:
        """Returns the clients that rejoin in a round."""
        return [f.client for f in self.faults if f.kind == "rejoin" and f.round == round_number]

    def corrupted(self, fault: Fault, report: bytes) -> bytes:
        """Returns a report's altered bytes, a pure function of the report, the fault and the seed."""
        bits = np.random.Philox(key=[self.seed, fault.round * 1_000_003 + fault.client])
        return CORRUPTIONS[fault.how](report, np.random.Generator(bits))


class FaultyHost:
    """A wrapper of a host that applies a plan's faults to its clients.

    Costs equal the wrapped host's, except that a late report costs nothing when it arrives.

    Args:
        federation: a federation with a ``Host`` or ``WorkerPool``, which is wrapped.
        plan: the faults.

    Attributes:
        down: clients that crashed and have not rejoined.
        late: delayed reports: the round of arrival, the client and the report.
    """

    def __init__(self, federation: Federation, plan: FaultPlan) -> None:
        self._federation, self._host, self.plan = federation, federation.host, plan
        self.down: set[int] = set()
        self.late: list[tuple[int, int, Content]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._host, name)

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """See ``ClientHost.absent``; clients rejoin before a round's first phase."""
        number, phase = self._now()
        for client in self.plan.rejoining(number) if phase == 0 else ():
            self._host.restart(client)  # type: ignore[attr-defined]
            self.down.discard(client)
        return dict.fromkeys(self.down, "the client is down") | self._host.absent(clients)

    def serve_all(self, requests: Sequence[Request]) -> Iterator[Service]:
        """See ``ClientHost.serve_all``; late reports follow those of a round's first phase."""
        number, phase = self._now()
        due = [late for late in self.late if late[0] <= number] if phase == 0 else []
        self.late = [late for late in self.late if late not in due]
        reached = [r for r in requests if not self.plan.find("unreachable", number, phase, r.client)]
        crashes = {r.client: self.plan.find("crash", number, phase, r.client) for r in reached}
        sent = [dataclasses.replace(r, crash_after=f.after) if (f := crashes[r.client]) else r for r in reached]
        services = self._host.serve_all(sent)
        for request in requests:
            if request.client not in crashes:
                yield Service(request.client, reason="the client could not be reached")
            else:
                yield self._altered(next(services), number, phase)
        yield from (Service(client, content, traffic={"message_up": 0}) for _, client, content in due)

    def _now(self) -> tuple[int, int]:
        server = self._federation.server
        return server.round, server.algorithm.exchanges.index(server.phase)

    def _altered(self, service: Service, number: int, phase: int) -> Service:
        """Returns a client's service after its faults; the bytes of its report always count as sent."""
        client, content = service.client, service.report
        if service.reason == CRASHED:
            self.down.add(client)
        if content is None:
            return service
        sent = len(content) if isinstance(content, bytes) else 0
        service = dataclasses.replace(service, traffic={"message_up": sent, **service.traffic})
        if self.plan.find("drop", number, phase, client):
            return dataclasses.replace(service, report=None, reason="the report was lost")
        if (found := self.plan.find("corrupt", number, phase, client)) and isinstance(content, bytes):
            content = self.plan.corrupted(found, content)
        if found := self.plan.find("delay", number, phase, client):
            self.late.append((number + found.by, client, content))
            return dataclasses.replace(service, report=None, reason="the report is delayed")
        return dataclasses.replace(service, report=content)


def faulty(federation: Federation, faults: FaultPlan | Iterable[Fault]) -> Federation:
    """Wraps a federation's host in a ``FaultyHost``, and returns the federation.

    Raises:
        ValueError: if a fault alters bytes, but messages are passed as objects.
    """
    plan = faults if isinstance(faults, FaultPlan) else FaultPlan(faults)
    if not federation.codec and any(f.kind == "corrupt" for f in plan.faults):
        raise ValueError("corrupt faults alter bytes: they need codec=True")
    federation.host = FaultyHost(federation, plan)
    return federation


Corruption = Callable[[bytes, np.random.Generator], bytes]


def _flip(data: bytes, generator: np.random.Generator) -> bytes:
    altered = bytearray(data)
    altered[int(generator.integers(len(data)))] ^= 1 << int(generator.integers(8))
    return bytes(altered)


def _replaced(changes: Callable[[Report, np.random.Generator], dict[str, Any]]) -> Corruption:
    """Returns a corruption that replaces fields of the report and encodes it again."""

    def alter(data: bytes, generator: np.random.Generator) -> bytes:
        report = decode(data)
        assert isinstance(report, Report)
        return encode(dataclasses.replace(report, **changes(report, generator)))

    return alter


def _filled(value: float) -> Corruption:
    """Returns a corruption that replaces one number in each floating-point tensor."""

    def fill(report: Report, generator: np.random.Generator) -> dict[str, Any]:
        tensors = {name: tensor.clone() for name, tensor in report.tensors.items()}
        for tensor in tensors.values():
            if tensor.is_floating_point() and tensor.numel():
                tensor.view(-1)[int(generator.integers(tensor.numel()))] = value
        return {"tensors": tensors}

    return _replaced(fill)


def _each_tensor(change: Callable[[Tensor], Tensor]) -> Corruption:
    return _replaced(lambda report, _: {"tensors": {name: change(t) for name, t in report.tensors.items()}})


CORRUPTIONS: dict[str, Corruption] = {
    "flip": _flip,
    "truncate": lambda data, generator: data[: int(generator.integers(len(data)))],
    "extend": lambda data, generator: data + generator.bytes(1 + int(generator.integers(64))),
    "oversize": lambda data, _: data + bytes(1 << 18),
    "noise": lambda data, generator: generator.bytes(len(data)),
    "nan": _filled(float("nan")),
    "inf": _filled(float("inf")),
    "reshape": _each_tensor(lambda t: torch.cat([t.reshape(-1), t.reshape(-1)[:1]])),
    "retype": _each_tensor(lambda t: t.to(torch.float16)),
    "replay": _replaced(lambda report, _: {"round": max(report.round - 1, 0)}),
    "future": _replaced(lambda *_: {"round": 1 << 40}),
    "phase": _replaced(lambda *_: {"phase": "another"}),
    "fingerprint": _replaced(lambda *_: {"fingerprint": "0" * 64}),
    "algorithm": _replaced(lambda *_: {"algorithm": "another"}),
    "impersonate": _replaced(lambda report, _: {"client": report.client + 1}),
    "extra": _replaced(lambda *_: {"values": {"extra": 1.0}}),
    "empty": _replaced(lambda *_: {"tensors": {}}),
}
"""Corruptions of a report's bytes, by name; a server must refuse each result."""
