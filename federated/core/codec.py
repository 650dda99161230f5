"""Messages as bytes: a JSON header, raw little-endian tensors, a digest. No pickle.

Layout: ``b"GSFM"``, format version (1 byte), length of the header (4 bytes, little-endian), header (JSON, UTF-8),
the tensors' bytes in the header's order, SHA-256 of all before (32 bytes).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federated.core.messages import KINDS, Message, MessageError, Plain, Report

MAGIC = b"GSFM"
VERSION = 1
PREFIX = len(MAGIC) + 1 + 4
DIGEST = 32
MAX_HEADER = 1 << 16
"""Bytes of a header at most."""

MAX_MESSAGE = 1 << 33
"""Bytes of a message at most, where the receiver knows no smaller limit."""

_DTYPES: dict[str, tuple[torch.dtype, str]] = {
    "float64": (torch.float64, "<f8"),
    "float32": (torch.float32, "<f4"),
    "float16": (torch.float16, "<f2"),
    "bfloat16": (torch.bfloat16, "<i2"),
    "int64": (torch.int64, "<i8"),
    "int32": (torch.int32, "<i4"),
    "uint8": (torch.uint8, "|u1"),
}
_NAMES = {dtype: name for name, (dtype, _) in _DTYPES.items()}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_COUNTS = ("client", "queries", "failures", "gradients", "total_queries")
_FIELDS = {"kind", "algorithm", "fingerprint", "round", "phase", "values", "tensors"}


@dataclass(frozen=True)
class Entry:
    """A tensor as a header lists it: name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored(self) -> str:
        """NumPy's name of the dtype that its bytes are stored in."""
        return _DTYPES[self.dtype][1]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * _DTYPES[self.dtype][0].itemsize


def header_of(message: Message) -> bytes:
    """The JSON header of a message: all of it but its tensors' numbers.

    Raises:
        TypeError: for a tensor of another dtype than ``_DTYPES`` has, or a value that is not plain.
        ValueError: for a name that is not lower-case letters, digits and underscores, or a header too long.
    """
    header: dict[str, Any] = {
        "kind": message.kind,
        "algorithm": message.algorithm,
        "fingerprint": message.fingerprint,
        "round": message.round,
        "phase": message.phase,
        "values": _plain(message.values),
        "tensors": [[_name(k), _dtype_name(k, t), list(t.shape)] for k, t in message.tensors.items()],
    }
    if isinstance(message, Report):
        header |= {name: getattr(message, name) for name in _COUNTS}
    try:
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(f"values of a message must be finite: {error}") from None
    if len(text) > MAX_HEADER:
        raise ValueError(f"the header has {len(text)} bytes, accepted are {MAX_HEADER}")
    return text


def encode(message: Message) -> bytes:
    """The message as bytes, the same bytes for the same message everywhere.

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
    """The message that ``encode`` made the bytes of; tensors are new, on the CPU.

    Length, format, digest and header are checked in this order and before anything is allocated.

    Args:
        data: the bytes.
        limit: bytes accepted at most.

    Raises:
        MessageError: for anything that is not such bytes, with the reason.
        TypeError: if data are not bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data must be bytes, got {type(data).__name__}")
    view = memoryview(data)
    if len(view) > limit:
        raise MessageError(f"the message has {len(view)} bytes, accepted are at most {limit}")
    if len(view) < PREFIX + DIGEST:
        raise MessageError(f"the message has {len(view)} bytes, fewer than any message")
    if bytes(view[:4]) != MAGIC:
        raise MessageError("the bytes are no message: they begin otherwise")
    if view[4] != VERSION:
        raise MessageError(f"the message has format version {view[4]}, accepted is {VERSION}")
    if hashlib.sha256(view[:-DIGEST]).digest() != bytes(view[-DIGEST:]):
        raise MessageError("the digest differs: the message is truncated or damaged")
    length = int.from_bytes(view[5:PREFIX], "little")
    if length > min(MAX_HEADER, len(view) - PREFIX - DIGEST):
        raise MessageError(f"the header's length is given as {length} bytes")
    header, layout = read_header(bytes(view[PREFIX : PREFIX + length]))
    payload = view[PREFIX + length : -DIGEST]
    total = sum(entry.nbytes for entry in layout)
    if total != len(payload):
        raise MessageError(f"the tensors take {total} bytes, the message holds {len(payload)}")
    tensors, start = {}, 0
    for entry in layout:
        tensors[entry.name] = tensor_of(payload[start : start + entry.nbytes], entry)
        start += entry.nbytes
    return message_of(header, tensors)


def message_of(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Message:
    """The message of a header that ``read_header`` gave, and of the tensors in its layout."""
    fields = {name: value for name, value in header.items() if name not in ("kind", "tensors")}
    return KINDS[header["kind"]](**fields, tensors=tensors)


def frame_limit(payload: int) -> int:
    """Bytes at most of a message with so many payload bytes."""
    return PREFIX + MAX_HEADER + payload + DIGEST


def read_header(text: bytes) -> tuple[dict[str, Any], list[Entry]]:
    """The fields that ``header_of`` wrote, checked, and the tensors' layout.

    Raises:
        MessageError: for anything that is not such a header.
    """
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise MessageError("the header is no JSON object")
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise MessageError(f"the message is of kind {kind!r:.40}, accepted are {sorted(KINDS)}")
    wanted = _FIELDS | (set(_COUNTS) if kind == Report.kind else set())
    if set(header) != wanted:
        raise MessageError(f"the header has fields {sorted(header)!r:.300}, accepted are {sorted(wanted)}")
    for name in ("algorithm", "fingerprint", "phase"):
        if not isinstance(header[name], str) or len(header[name]) > 128:
            raise MessageError(f"{name} is no string of at most 128 characters")
    for name in ("round", *(_COUNTS if kind == Report.kind else ())):
        number = header[name]
        if type(number) is not int or not 0 <= number < 2**63:
            raise MessageError(f"{name} is {number!r:.40}, accepted are integers from 0")
    values = header["values"]
    if not isinstance(values, dict) or not all(
        _NAME.fullmatch(k) and isinstance(v, bool | int | float | str) for k, v in values.items()
    ):
        raise MessageError("values are no plain numbers and strings by name")
    return header, _layout(header["tensors"])


def _layout(entries: Any) -> list[Entry]:
    if not isinstance(entries, list):
        raise MessageError("the header lists no tensors")
    layout: list[Entry] = []
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 3):
            raise MessageError("a tensor is not given as name, dtype and shape")
        name, dtype, shape = entry
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or any(name == e.name for e in layout):
            raise MessageError(f"a tensor's name is {name!r:.80}")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise MessageError(f"tensor {name} has dtype {dtype!r:.40}, accepted are {sorted(_DTYPES)}")
        if not (isinstance(shape, list) and len(shape) <= 8 and all(_length(n) for n in shape)):
            raise MessageError(f"tensor {name} has shape {shape!r:.80}")
        layout.append(Entry(name, dtype, tuple(shape)))
    return layout


def tensor_of(data: bytes | memoryview, entry: Entry) -> Tensor:
    """A new tensor of the little-endian bytes that ``tensor_bytes`` made."""
    array = np.frombuffer(data, dtype=entry.stored)
    tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
    return tensor.view(_DTYPES[entry.dtype][0]).reshape(entry.shape)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A tensor's numbers, little-endian, in the order of its indices."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    stored = _DTYPES[_NAMES[tensor.dtype]][1]
    return flat.numpy().astype(stored, copy=False).data.cast("B") if len(flat) else memoryview(b"")


def _length(n: Any) -> bool:
    return type(n) is int and 0 <= n < 2**40


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"names in messages are lower-case letters, digits and underscores, got {name!r}")
    return name


def _dtype_name(name: str, tensor: Tensor) -> str:
    if tensor.dtype not in _NAMES:
        raise TypeError(f"tensor {name} has dtype {tensor.dtype}, accepted are {sorted(_DTYPES)}")
    return _NAMES[tensor.dtype]


def _plain(values: Mapping[str, Plain]) -> dict[str, Plain]:
    for name, value in values.items():
        _name(name)
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"value {name} must be a number or a string, got {type(value).__name__}")
    return dict(values)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")
