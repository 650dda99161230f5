"""Messages between server and clients: what they are, and what a receiver demands of one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

Plain = bool | int | float | str
"""What a message's ``values`` hold beside its tensors."""


class MessageError(ValueError):
    """A message that is refused; ``reason`` says why, and goes to the ledger."""

    @property
    def reason(self) -> str:
        """Why it is refused."""
        return str(self)


class BehindError(MessageError):
    """A client cannot follow a broadcast until it has been caught up (see ``Client.position``)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Message:
    """What server and clients exchange.

    Attributes:
        algorithm: name of the algorithm.
        fingerprint: of the federation's configuration (``Algorithm.fingerprint``).
        round: r, from 1.
        phase: name of the round's phase, or ``"catch_up"`` and ``"position"`` between rounds.
        tensors: what is sent, by name.
        values: plain numbers and strings that go with it, such as a digest of the model.
    """

    kind: ClassVar[str]
    algorithm: str
    fingerprint: str
    round: int
    phase: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Plain] = field(default_factory=dict)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors: what papers count. Names, round and fingerprint are the message's frame."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    def to(self, device: torch.device) -> Message:
        """The message with its tensors on a device."""
        if all(t.device == device for t in self.tensors.values()):
            return self
        return dataclasses.replace(self, tensors={k: t.to(device) for k, t in self.tensors.items()})


@dataclass(frozen=True, eq=False, kw_only=True)
class Broadcast(Message):
    """From the server to clients."""

    kind: ClassVar[str] = "broadcast"


@dataclass(frozen=True, eq=False, kw_only=True)
class Report(Message):
    """From a client to the server.

    Attributes:
        client: number of the client.
        queries: queries of this phase, failed ones too.
        failures: failed queries of this phase.
        gradients: gradient evaluations of this phase (first-order baselines).
        total_queries: queries of the client since it began, from which a server sees what lost reports cost.
    """

    kind: ClassVar[str] = "report"
    client: int
    queries: int = 0
    failures: int = 0
    gradients: int = 0
    total_queries: int = 0


KINDS: dict[str, type[Message]] = {cls.kind: cls for cls in (Broadcast, Report)}


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor of a message must be.

    Attributes:
        shape: its shape; None where any length is accepted.
        dtype: its dtype.
        largest: most elements that are accepted, where the shape leaves a length open.
        finite: whether NaN and inf are refused.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    largest: int = 1 << 24
    finite: bool = True

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest tensor that is accepted."""
        lengths = [n for n in self.shape if n is not None]
        elements = math.prod(lengths) if len(lengths) == len(self.shape) else self.largest
        return elements * self.dtype.itemsize

    def check(self, name: str, tensor: Tensor) -> None:
        """Raises ``MessageError`` unless the tensor is accepted."""
        if tensor.dtype != self.dtype:
            raise MessageError(f"{name} has dtype {tensor.dtype}, accepted is {self.dtype}")
        fits = tensor.ndim == len(self.shape) and all(
            wanted is None or n == wanted for n, wanted in zip(tensor.shape, self.shape, strict=True)
        )
        if not fits or tensor.numel() * tensor.element_size() > self.max_bytes:
            accepted = tuple("any" if n is None else n for n in self.shape)
            raise MessageError(f"{name} has shape {tuple(tensor.shape)}, accepted is {accepted}")
        if self.finite and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise MessageError(f"{name} holds NaN or inf")


@dataclass(frozen=True)
class MessageSpec:
    """What the tensors and values of a phase's message must be.

    Attributes:
        tensors: each tensor's specification, by name.
        values: each value's type, by name.
        optional: names among them that may be absent.
    """

    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    values: Mapping[str, type] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest payload that is accepted."""
        return sum(spec.max_bytes for spec in self.tensors.values())

    def check(self, message: Message) -> None:
        """Raises ``MessageError`` with what is missing, unknown or unlike its specification."""
        _check_names("tensors", message.tensors, self.tensors, self.optional)
        _check_names("values", message.values, self.values, self.optional)
        for name, tensor in message.tensors.items():
            self.tensors[name].check(name, tensor)
        for name, value in message.values.items():
            if type(value) is not self.values[name]:
                kind = self.values[name].__name__
                raise MessageError(f"{name} is a {type(value).__name__}, accepted is {kind}")
            if isinstance(value, float) and not math.isfinite(value):
                raise MessageError(f"{name} is {value}, accepted is a finite number")


def _check_names(
    what: str, given: Mapping[str, object], accepted: Mapping[str, object], optional: frozenset[str]
) -> None:
    unknown, missing = set(given) - set(accepted), set(accepted) - set(given) - optional
    if unknown or missing:
        raise MessageError(f"{what} are {sorted(given)}, accepted are {sorted(accepted)}")
