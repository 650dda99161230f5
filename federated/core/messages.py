"""Messages between server and clients, and the specifications that they are checked against."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

Plain = bool | int | float | str
"""Type of an entry of ``Message.values``."""

Layout = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape of a tensor."""


LONGEST_REASON = 400
"""Maximal number of characters of a reason."""


def plain(text: object, longest: int = LONGEST_REASON) -> str:
    """Makes text from another party fit for a log: one truncated line, with unprintable characters escaped."""
    text = str(text)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:longest])
    return shown if len(shown) <= longest and len(text) <= longest else f"{shown[: longest - 1]}…"


class MessageError(ValueError):
    """Raised if a message is refused; the text is the reason, which the server's ledger records."""

    def __init__(self, reason: object) -> None:
        super().__init__(plain(reason))


class BehindError(MessageError):
    """Raised if a client's state is older than a broadcast requires: the client must catch up first."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Message:
    """A message between server and client.

    Attributes:
        algorithm: name of the algorithm.
        fingerprint: SHA-256 of the federation's configuration (``Algorithm.fingerprint``).
        round: r, from 1.
        phase: name of the round's phase; ``"position"`` or ``"catch_up"`` in the two messages for catching up.
        tensors: the payload, tensors by name.
        values: numbers and strings by name, such as a digest of the model.
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
        """Number of bytes of the tensors, the communication cost that papers count."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    @property
    def layout(self) -> dict[str, Layout]:
        """Dtype and shape of each tensor, by name."""
        return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors.items()}

    def to(self, device: torch.device) -> Self:
        """Returns the message with its tensors on a device."""
        return dataclasses.replace(self, tensors={k: t.to(device) for k, t in self.tensors.items()})


@dataclass(frozen=True, eq=False, kw_only=True)
class Broadcast(Message):
    """A message from the server to clients."""

    kind: ClassVar[str] = "broadcast"


@dataclass(frozen=True, eq=False, kw_only=True)
class Report(Message):
    """A message from a client to the server.

    Attributes:
        client: the client's number.
        queries: queries of this phase, including failed ones.
        failures: failed queries of this phase.
        gradients: gradient evaluations of this phase.
        total_queries: all queries of the client so far, including those of lost reports.
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
    """Required shape and dtype of a tensor in a message; floating-point tensors must be finite.

    A None in the shape allows any length, up to ``largest`` elements in total.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    largest: int = 1 << 24

    @property
    def max_bytes(self) -> int:
        """Number of bytes of the largest allowed tensor."""
        lengths = [n for n in self.shape if n is not None]
        elements = math.prod(lengths) if len(lengths) == len(self.shape) else self.largest
        return elements * self.dtype.itemsize

    def check_layout(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raises ``MessageError`` if this dtype or shape is not allowed."""
        if dtype != self.dtype:
            raise MessageError(f"{name} has dtype {dtype}, expected {self.dtype}")
        fits = len(shape) == len(self.shape) and all(
            wanted is None or n == wanted for n, wanted in zip(shape, self.shape, strict=True)
        )
        if not fits or math.prod(shape) * dtype.itemsize > self.max_bytes:
            accepted = tuple("any" if n is None else n for n in self.shape)
            raise MessageError(f"{name} has shape {tuple(shape)}, expected {accepted}")

    def check(self, name: str, tensor: Tensor) -> None:
        """Raises ``MessageError`` if the tensor does not fit, or contains NaN or inf."""
        self.check_layout(name, tensor.dtype, tuple(tensor.shape))
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise MessageError(f"{name} contains NaN or inf")


@dataclass(frozen=True)
class MessageSpec:
    """Required tensors and values of a phase's message.

    Attributes:
        tensors: specification of each tensor, by name.
        values: type of each value, by name; floats must be finite.
        optional: names of tensors and values that may be missing.
    """

    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    values: Mapping[str, type] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()

    @property
    def max_bytes(self) -> int:
        """Number of bytes of the largest allowed payload."""
        return sum(spec.max_bytes for spec in self.tensors.values())

    def check(self, message: Message) -> None:
        """Raises ``MessageError`` for the first tensor or value that is missing, unknown or does not fit."""
        self.check_layout(message.layout, message.values)
        for name, tensor in message.tensors.items():
            self.tensors[name].check(name, tensor)

    def check_layout(self, tensors: Mapping[str, Layout], values: Mapping[str, Plain]) -> None:
        """Checks a message whose tensors are described by dtype and shape; their numbers are not checked."""
        self._check_names("tensors", tensors, self.tensors)
        self._check_names("values", values, self.values)
        for name, layout in tensors.items():
            self.tensors[name].check_layout(name, *layout)
        for name, value in values.items():
            if type(value) is not self.values[name]:
                kind = self.values[name].__name__
                raise MessageError(f"{name} has type {type(value).__name__}, expected {kind}")
            if isinstance(value, float) and not math.isfinite(value):
                raise MessageError(f"{name} is {value}, expected a finite number")

    def _check_names(self, what: str, given: Mapping[str, object], accepted: Mapping[str, object]) -> None:
        unknown, missing = given.keys() - accepted.keys(), accepted.keys() - given.keys() - self.optional
        if unknown or missing:
            raise MessageError(f"{what} are {sorted(given)}, expected {sorted(accepted)}")
