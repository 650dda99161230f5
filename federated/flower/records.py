"""Our messages and clients' states as Flower's records, without pickle.

A message is an ``ArrayRecord`` of its tensors, in NumPy's format and under their own names, so that Flower's
strategies and mods can work on them, and a ``ConfigRecord`` with the JSON header of ``federated.core.codec``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from federated.core.codec import MAX_HEADER, Entry, header_of, message_of, read_header, tensor_bytes, tensor_of
from federated.core.messages import Message, MessageError

ARRAYS = "arrays"
HEADER = "header"
ACCOUNT = "account"
HELLO = "hello"
METRICS = "metrics"
STATE = "client"
NUMPY = "numpy.ndarray"

Record: TypeAlias = ArrayRecord | MetricRecord | ConfigRecord


def records_of(message: Message) -> dict[str, Record]:
    """The records of a message, by name."""
    text = header_of(message)
    _, layout = read_header(text)
    arrays = ArrayRecord({entry.name: _array(message.tensors[entry.name], entry) for entry in layout})
    return {ARRAYS: arrays, HEADER: ConfigRecord({"header": text})}


def message_in(content: RecordDict, limit: int) -> Message:
    """The message of its records; tensors are new, on the CPU.

    Sizes are checked before anything is copied. Integrity is Flower's: it addresses records by their SHA-256.

    Args:
        content: the records; others than a message's are left alone.
        limit: payload bytes accepted at most.

    Raises:
        MessageError: for anything that is not such records, with the reason.
    """
    header, arrays = content.get(HEADER), content.get(ARRAYS)
    if not isinstance(header, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MessageError(f"the records are {sorted(content)!r:.200}, a message has {ARRAYS!r} and {HEADER!r}")
    text = header.get("header")
    if not isinstance(text, bytes) or len(text) > MAX_HEADER:
        raise MessageError(f"the header is no bytes, or more than {MAX_HEADER}")
    fields, layout = read_header(text)
    if [entry.name for entry in layout] != list(arrays):
        raise MessageError(f"the arrays are {list(arrays)!r:.200}, the header lists {[e.name for e in layout]}")
    size = sum(entry.nbytes for entry in layout)
    if size > limit:
        raise MessageError(f"the tensors take {size} bytes, accepted are at most {limit}")
    return message_of(fields, {entry.name: _tensor(arrays[entry.name], entry) for entry in layout})


def size_of(content: RecordDict) -> int:
    """Bytes of records: their arrays and configurations, names and headers with them."""
    arrays = sum(len(k) + len(a.data) for record in content.array_records.values() for k, a in record.items())
    configs = sum(_size(record) for record in content.config_records.values())
    return arrays + configs + sum(_size(record) for record in content.metric_records.values())


def save_state(records: RecordDict, state: Mapping[str, Any]) -> None:
    """Keep a client's ``state_dict`` in a node's state: the tree as JSON, tensors as arrays."""
    tensors: list[Tensor] = []
    tree = json.dumps(_plain(state, tensors), separators=(",", ":"))
    records[STATE] = ConfigRecord({"tree": tree})
    records[f"{STATE}-arrays"] = ArrayRecord({str(i): _raw(t) for i, t in enumerate(tensors)})


def load_state(records: RecordDict) -> dict[str, Any] | None:
    """The ``state_dict`` that ``save_state`` kept, or None."""
    if STATE not in records:
        return None
    arrays = records.array_records[f"{STATE}-arrays"]
    loaded = _restored(json.loads(str(records.config_records[STATE]["tree"])), arrays)
    assert isinstance(loaded, dict)
    return loaded


def _array(tensor: Tensor, entry: Entry) -> Array:
    data = _npy_header(entry) + bytes(tensor_bytes(tensor))
    return Array(dtype=entry.dtype, shape=entry.shape, stype=NUMPY, data=data)


def _tensor(array: Array, entry: Entry) -> Tensor:
    """The tensor of an array that is exactly what ``_array`` makes for the entry."""
    start = _npy_header(entry)
    if (array.stype, array.dtype, tuple(array.shape)) != (NUMPY, entry.dtype, entry.shape):
        raise MessageError(
            f"array {entry.name} is {array.stype} of {array.dtype} {tuple(array.shape)}, "
            f"the header lists {entry.dtype} {entry.shape}"
        )
    if len(array.data) != len(start) + entry.nbytes or not array.data.startswith(start):
        raise MessageError(f"array {entry.name} is not in NumPy's format with {entry.nbytes} bytes of numbers")
    return tensor_of(memoryview(array.data)[len(start) :], entry)


def _npy_header(entry: Entry) -> bytes:
    """What an NPY file of such an array begins with; bfloat16, which NumPy lacks, as its bits."""
    out = io.BytesIO()
    described = {"descr": entry.stored, "fortran_order": False, "shape": entry.shape}
    np.lib.format.write_array_header_1_0(out, described)
    return out.getvalue()


def _raw(tensor: Tensor) -> Array:
    """A state's tensor; bool, which messages do not have, as 0 and 1."""
    tensor = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
    name = str(tensor.dtype).removeprefix("torch.")
    return _array(tensor, Entry(name, name, tuple(tensor.shape)))


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """A state as JSON: tensors by number, tuples and dictionaries marked; other values as they are."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1, "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, Mapping):
        return {"dict": [[_plain(k, tensors), _plain(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(v, tensors) for v in value]}
    if isinstance(value, list):
        return [_plain(v, tensors) for v in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a state holds tensors and plain values, got {type(value).__name__}")


def _restored(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_restored(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        name, array = value["dtype"], arrays[str(value["tensor"])]
        tensor = _tensor(array, Entry(name, array.dtype, tuple(array.shape)))
        return tensor.to(torch.bool) if name == "bool" else tensor
    if "tuple" in value:
        return tuple(_restored(v, arrays) for v in value["tuple"])
    return {_restored(k, arrays): _restored(v, arrays) for k, v in value["dict"]}


def _size(record: Mapping[str, Any]) -> int:
    return sum(len(k) + (len(v) if isinstance(v, bytes | str) else 8) for k, v in record.items())
