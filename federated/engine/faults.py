"""Faults to put a federation to the test: a plan of what goes wrong, for whom and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from federated.core.codec import decode, encode
from federated.core.messages import Report

KINDS = ("unreachable", "drop", "delay", "corrupt", "crash", "rejoin")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    =================  ==================================================================================
    kind               what happens to the client in the round and phase
    =================  ==================================================================================
    ``"unreachable"``  the broadcast does not reach it: no queries, no report
    ``"drop"``         its report is lost: the queries are spent
    ``"delay"``        its report arrives ``by`` rounds later, with that round's first reports
    ``"corrupt"``      its report arrives altered, as ``how`` says (``CORRUPTIONS``)
    ``"crash"``        it loses its state after ``after`` batches, and is down until it rejoins
    ``"rejoin"``       it is back from this round on, as new
    =================  ==================================================================================

    Attributes:
        kind: one of ``KINDS``.
        round: r, from 1.
        client: its number.
        phase: number of the phase, from 0.
        by: rounds of a delay.
        how: the corruption.
        after: batches told before a crash.
    """

    kind: str
    round: int
    client: int
    phase: int = 0
    by: int = 1
    how: str = "flip"
    after: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a fault is one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.how not in CORRUPTIONS:
            raise ValueError(f"a corruption is one of {', '.join(CORRUPTIONS)}, got {self.how!r}")
        if min(self.round, self.by) < 1 or min(self.client, self.phase, self.after) < 0:
            raise ValueError(f"rounds and delays are from 1, clients, phases and batches from 0: {self}")


class FaultPlan:
    """Faults by round, phase and client; at most one of a kind for each.

    Args:
        faults: the faults.
        seed: of the bytes that corruptions draw.
    """

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self.faults = tuple(faults)
        self.seed = seed
        self._by_address = {(f.kind, f.round, f.phase, f.client): f for f in self.faults}

    def find(self, kind: str, round_number: int, phase: int, client: int) -> Fault | None:
        """The fault of a kind at an address, or None."""
        return self._by_address.get((kind, round_number, phase, client))

    def rejoining(self, round_number: int) -> list[int]:
        """Clients that are back from a round on."""
        return [f.client for f in self.faults if f.kind == "rejoin" and f.round == round_number]

    def corrupted(self, fault: Fault, report: bytes) -> bytes:
        """The report's bytes as they arrive, a pure function of seed and fault."""
        key = [self.seed, fault.round * 1_000_003 + fault.client]
        generator = np.random.Generator(np.random.Philox(key=key))
        return CORRUPTIONS[fault.how](report, generator)


def _flip(data: bytes, generator: np.random.Generator) -> bytes:
    altered = bytearray(data)
    altered[int(generator.integers(len(data)))] ^= 1 << int(generator.integers(8))
    return bytes(altered)


def _truncate(data: bytes, generator: np.random.Generator) -> bytes:
    return data[: int(generator.integers(len(data)))]


def _extend(data: bytes, generator: np.random.Generator) -> bytes:
    return data + generator.bytes(1 + int(generator.integers(64)))


def _oversize(data: bytes, generator: np.random.Generator) -> bytes:
    return data + bytes(1 << 18)


def _noise(data: bytes, generator: np.random.Generator) -> bytes:
    return generator.bytes(len(data))


def _altered(**changes: Any) -> Callable[[bytes, np.random.Generator], bytes]:
    """Well-formed bytes of the report with other fields."""

    def alter(data: bytes, generator: np.random.Generator) -> bytes:
        return encode(dataclasses.replace(decode(data), **changes))

    return alter


def _filled(value: float) -> Callable[[bytes, np.random.Generator], bytes]:
    """Well-formed bytes of the report with one number of each tensor replaced."""

    def fill(data: bytes, generator: np.random.Generator) -> bytes:
        report = decode(data)
        tensors = {name: tensor.clone() for name, tensor in report.tensors.items()}
        for tensor in tensors.values():
            if tensor.is_floating_point() and tensor.numel():
                tensor.view(-1)[int(generator.integers(tensor.numel()))] = value
        return encode(dataclasses.replace(report, tensors=tensors))

    return fill


def _reshaped(data: bytes, generator: np.random.Generator) -> bytes:
    report = decode(data)
    tensors = {k: torch.cat([t.reshape(-1), t.reshape(-1)[:1]]) for k, t in report.tensors.items()}
    return encode(dataclasses.replace(report, tensors=tensors))


def _retyped(data: bytes, generator: np.random.Generator) -> bytes:
    report = decode(data)
    tensors = {k: t.to(torch.float16) for k, t in report.tensors.items()}
    return encode(dataclasses.replace(report, tensors=tensors))


def _replayed(data: bytes, generator: np.random.Generator) -> bytes:
    report = decode(data)
    return encode(dataclasses.replace(report, round=max(report.round - 1, 0)))


def _impersonating(data: bytes, generator: np.random.Generator) -> bytes:
    report = decode(data)
    assert isinstance(report, Report)
    return encode(dataclasses.replace(report, client=report.client + 1))


CORRUPTIONS: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "flip": _flip,
    "truncate": _truncate,
    "extend": _extend,
    "oversize": _oversize,
    "noise": _noise,
    "nan": _filled(float("nan")),
    "inf": _filled(float("inf")),
    "reshape": _reshaped,
    "retype": _retyped,
    "replay": _replayed,
    "future": _altered(round=1 << 40),
    "phase": _altered(phase="another"),
    "fingerprint": _altered(fingerprint="0" * 64),
    "algorithm": _altered(algorithm="another"),
    "impersonate": _impersonating,
    "extra": _altered(values={"extra": 1.0}),
    "empty": _altered(tensors={}),
}
"""How a report can be altered, by name; each gives bytes that a server must refuse."""
