"""Encodes messages as bytes: a JSON header, raw little-endian tensors and a digest, without pickle.

A message consists of ``b"GSFM"``, the format version (1 byte), the header's length (4 bytes, little-endian), the header
(JSON in UTF-8), the tensors' bytes in the header's order, and the SHA-256 of everything before it (32 bytes).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federated.core.messages import KINDS, Layout, Message, MessageError, Plain

MAGIC = b"GSFM"
VERSION = 1
PREFIX = len(MAGIC) + 1 + 4
DIGEST = 32
MAX_HEADER = 1 << 16
"""The largest header, in bytes."""

MAX_MESSAGE = 1 << 33
"""Default limit on the size of a message, in bytes."""

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*_FLOATS, torch.int64, torch.int32, torch.uint8)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TEXTS = ("algorithm", "fingerprint", "phase")


@dataclass(frozen=True)
class Entry:
    """Name, dtype and shape of a tensor, as listed in the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        """Dtype and shape of the tensor."""
        return _DTYPES[self.dtype], self.shape

    @property
    def stored(self) -> str:
        """NumPy's name of the stored dtype, such as ``"<f8"``; bfloat16, which NumPy lacks, is stored as int16."""
        return np.dtype("int16" if self.dtype == "bfloat16" else self.dtype).newbyteorder("<").str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


@dataclass(frozen=True, eq=False)
class Frame:
    """A message whose tensors have not been built: its ``header``, and an entry and the bytes of each tensor."""

    header: Message
    entries: Sequence[Entry]
    data: Sequence[bytes | memoryview]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(entry.nbytes for entry in self.entries)

    def message(self) -> Message:
        """Builds the message, with new tensors on the CPU."""
        pairs = zip(self.entries, self.data, strict=True)
        return dataclasses.replace(self.header, tensors={entry.name: _tensor(data, entry) for entry, data in pairs})


def header_of(message: Message) -> bytes:
    """Returns a message's JSON header: its fields, and the names, dtypes and shapes of its tensors.

    Raises:
        TypeError: if a tensor's dtype is not supported, or a value is not a number or string.
        ValueError: if a name has characters other than a-z, 0-9 and _, a value is not finite, or the header is too
            long.
    """
    for name in (*message.values, *message.tensors):
        if not _NAME.fullmatch(name):
            raise ValueError(f"names in messages must consist of a-z, 0-9 and _, got {name!r}")
    for name, value in message.values.items():
        if not isinstance(value, Plain):
            raise TypeError(f"value {name} must be a number or a string, got {type(value).__name__}")
    for name, tensor in message.tensors.items():
        if tensor.dtype not in _NAMES:
            raise TypeError(f"tensor {name} has dtype {tensor.dtype}, expected one of {sorted(_DTYPES)}")
    header: dict[str, Any] = {name: getattr(message, name) for name in _fields(type(message))}
    header["values"] = dict(message.values)
    header["tensors"] = [[k, _NAMES[t.dtype], list(t.shape)] for k, t in message.tensors.items()]
    try:
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(f"values of a message must be finite: {error}") from None
    if len(text) > MAX_HEADER:
        raise ValueError(f"the header has {len(text)} bytes, but at most {MAX_HEADER} are allowed")
    return text


def encode(message: Message) -> bytes:
    """Returns the message as bytes, which are identical on every machine.

    Raises:
        TypeError, ValueError: as ``header_of``.
    """
    text = header_of(message)
    parts: list[bytes | memoryview] = [MAGIC, bytes([VERSION]), len(text).to_bytes(4, "little"), text]
    parts += [tensor_bytes(t) for t in message.tensors.values()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def decode(data: bytes | bytearray | memoryview, limit: int = MAX_MESSAGE) -> Message:
    """Returns the message encoded in bytes, with new tensors on the CPU.

    Raises:
        MessageError, TypeError: as ``opened``.
    """
    return opened(data, limit).message()


def opened(data: bytes | bytearray | memoryview, limit: int = MAX_MESSAGE) -> Frame:
    """Checks the length (at most ``limit``), format, digest and header of a message, without building its tensors.

    Raises:
        MessageError: with the reason, if the bytes are not the output of ``encode``.
        TypeError: if the data are not bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data must be bytes, got {type(data).__name__}")
    view = memoryview(data)
    if len(view) > limit:
        raise MessageError(f"the message has {len(view)} bytes, but at most {limit} are allowed")
    if len(view) < PREFIX + DIGEST:
        raise MessageError(f"the message has {len(view)} bytes, fewer than any message")
    if bytes(view[:4]) != MAGIC:
        raise MessageError("the bytes are not a message: they do not begin with b'GSFM'")
    if view[4] != VERSION:
        raise MessageError(f"the message has format version {view[4]}, expected {VERSION}")
    if hashlib.sha256(view[:-DIGEST]).digest() != bytes(view[-DIGEST:]):
        raise MessageError("the digest differs: the message is truncated or damaged")
    length = int.from_bytes(view[5:PREFIX], "little")
    if length > min(MAX_HEADER, len(view) - PREFIX - DIGEST):
        raise MessageError(f"the header's stated length of {length} bytes exceeds the message or the limit")
    header, entries = read_header(bytes(view[PREFIX : PREFIX + length]))
    payload = view[PREFIX + length : -DIGEST]
    stops = list(accumulate((entry.nbytes for entry in entries), initial=0))
    if stops[-1] != len(payload):
        raise MessageError(f"the listed tensors have {stops[-1]} bytes, but the message has {len(payload)}")
    return Frame(header, entries, [payload[start:stop] for start, stop in pairwise(stops)])


def frame_limit(payload: int) -> int:
    """Returns the largest size of a message with ``payload`` bytes of tensors."""
    return PREFIX + MAX_HEADER + payload + DIGEST


def read_header(text: bytes) -> tuple[Message, list[Entry]]:
    """Parses a header; returns the message without its tensors, and the tensors' entries.

    Raises:
        MessageError: with the reason, if the header is not the output of ``header_of``.
    """
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise MessageError("the header is not a JSON object")
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise MessageError(f"the message is of kind {kind!r:.40}, expected one of {sorted(KINDS)}")
    wanted = _fields(KINDS[kind])
    if set(header) != wanted:
        raise MessageError(f"the header has fields {sorted(header)!r:.300}, expected {sorted(wanted)}")
    for name in _TEXTS:
        if not isinstance(header[name], str) or len(header[name]) > 128:
            raise MessageError(f"{name} must be a string of at most 128 characters")
    for name in sorted(wanted - {"kind", "values", "tensors", *_TEXTS}):
        number = header[name]
        if type(number) is not int or not 0 <= number < 2**63:
            raise MessageError(f"{name} is {number!r:.40}, expected a nonnegative integer")
    values = header["values"]
    if not isinstance(values, dict) or not all(_NAME.fullmatch(k) and _is_plain(v) for k, v in values.items()):
        raise MessageError("values must be numbers of at most 64 bits or strings, by name")
    entries = _entries(header.pop("tensors"))
    return KINDS[header.pop("kind")](**header), entries


def _is_plain(value: Any) -> bool:
    return abs(value) < 2**63 if type(value) is int else isinstance(value, Plain)


def _entries(listed: Any) -> list[Entry]:
    if not isinstance(listed, list):
        raise MessageError("the header has no list of tensors")
    entries: dict[str, Entry] = {}
    for entry in listed:
        if not (isinstance(entry, list) and len(entry) == 3):
            raise MessageError("a listed tensor must have a name, a dtype and a shape")
        name, dtype, shape = entry
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or name in entries:
            raise MessageError(f"the tensor name {name!r:.80} is invalid or occurs twice")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise MessageError(f"tensor {name} has dtype {dtype!r:.40}, expected one of {sorted(_DTYPES)}")
        if not (isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and 0 <= n < 2**40 for n in shape)):
            raise MessageError(f"tensor {name} has the invalid shape {shape!r:.80}")
        if math.prod(n for n in shape if n) > MAX_MESSAGE:  # torch also multiplies lengths after a length of 0
            raise MessageError(f"tensor {name} of shape {shape} has more bytes than any message may have")
        entries[name] = Entry(name, dtype, tuple(shape))
    return list(entries.values())


def _tensor(data: bytes | memoryview, entry: Entry) -> Tensor:
    """Decodes the output of ``tensor_bytes`` into a new tensor on the CPU."""
    array = np.frombuffer(data, dtype=entry.stored)
    tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
    return tensor.view(_DTYPES[entry.dtype]).reshape(entry.shape)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Returns a tensor's numbers as little-endian bytes in row-major order."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    array = flat.numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).data.cast("B") if len(flat) else memoryview(b"")


def _fields(kind: type[Message]) -> set[str]:
    """Returns the header's field names for a kind of message."""
    return {"kind", *(field.name for field in dataclasses.fields(kind))}


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")
