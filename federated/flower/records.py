"""Messages and clients' states as Flower records.

A message has two records. An ``ArrayRecord`` contains the tensors by name, in NumPy's format, so that Flower's
strategies and mods can process them; a ``ConfigRecord`` contains the JSON header of ``federated.core.codec``. A
client's state never leaves its node and has the format of ``torch.save``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from federated.core.codec import MAX_HEADER, Entry, Frame, header_of, read_header, tensor_bytes
from federated.core.messages import Message, MessageError
from federated.core.reception import refusing
from optimizers.core.files import saved

ARRAYS = "arrays"
HEADER = "header"
ACCOUNT = "account"
HELLO = "hello"
METRICS = "metrics"
STATE = "client"
NUMPY = "numpy.ndarray"

Record: TypeAlias = ArrayRecord | MetricRecord | ConfigRecord


def records_of(message: Message) -> dict[str, Record]:
    """Returns a message's records, by record name."""
    text = header_of(message)
    _, entries = read_header(text)
    arrays = ArrayRecord({entry.name: _array(message.tensors[entry.name], entry) for entry in entries})
    return {ARRAYS: arrays, HEADER: ConfigRecord({"header": text})}


def frame_in(content: RecordDict) -> Frame:
    """Opens records made by ``records_of``, possibly among others, without building tensors.

    Flower detects damaged records by their SHA-256.

    Raises:
        MessageError: with the reason, if the records are not the output of ``records_of``.
    """
    with refusing():
        described, arrays = content.get(HEADER), content.get(ARRAYS)
        if not isinstance(described, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            raise MessageError(f"the records are {sorted(content)!r:.200}, expected {ARRAYS!r} and {HEADER!r}")
        text = described.get("header")
        if not isinstance(text, bytes) or len(text) > MAX_HEADER:
            raise MessageError(f"the header must be at most {MAX_HEADER} bytes")
        header, entries = read_header(text)
        if [entry.name for entry in entries] != list(arrays):
            raise MessageError(f"the arrays are {list(arrays)!r:.200}, expected {[e.name for e in entries]}")
        return Frame(header, entries, [_numbers(arrays[entry.name], entry) for entry in entries])


def size_of(content: RecordDict) -> int:
    """Returns the size of records in bytes: arrays, configurations and metrics with their names."""
    arrays = sum(len(k) + len(a.data) for record in content.array_records.values() for k, a in record.items())
    others: list[Mapping[str, Any]] = [*content.config_records.values(), *content.metric_records.values()]
    items = [item for record in others for item in record.items()]
    return arrays + sum(len(k) + (len(v) if isinstance(v, bytes | str) else 8) for k, v in items)


def save_state(records: RecordDict, state: Mapping[str, Any]) -> None:
    """Stores a client's ``state_dict`` in a node's state."""
    records[STATE] = ConfigRecord({"state": bytes(saved(dict(state)))})


def load_state(records: RecordDict) -> dict[str, Any] | None:
    """Returns the ``state_dict`` stored by ``save_state``, or None."""
    if STATE not in records:
        return None
    data = records.config_records[STATE]["state"]
    assert isinstance(data, bytes)
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def _array(tensor: Tensor, entry: Entry) -> Array:
    data = _npy_header(entry) + bytes(tensor_bytes(tensor))
    return Array(dtype=entry.dtype, shape=entry.shape, stype=NUMPY, data=data)


def _numbers(array: Array, entry: Entry) -> memoryview:
    """Returns the bytes of an array's numbers; raises ``MessageError`` unless it matches ``_array`` of the entry."""
    start = _npy_header(entry)
    if (array.stype, array.dtype, tuple(array.shape)) != (NUMPY, entry.dtype, entry.shape):
        found, expected = f"{array.stype} of {array.dtype} {tuple(array.shape)}", f"{entry.dtype} {entry.shape}"
        raise MessageError(f"array {entry.name} is {found}, expected {expected}")
    if len(array.data) != len(start) + entry.nbytes or not array.data.startswith(start):
        raise MessageError(f"array {entry.name} must be in NumPy's format with {entry.nbytes} bytes of numbers")
    return memoryview(array.data)[len(start) :]


def _npy_header(entry: Entry) -> bytes:
    """Returns the header of an NPY file with the entry's array."""
    out = io.BytesIO()
    described = {"descr": entry.stored, "fortran_order": False, "shape": entry.shape}
    np.lib.format.write_array_header_1_0(out, described)
    return out.getvalue()
