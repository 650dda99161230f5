"""Stores the queries in clients' states as rows that a checkpoint appends to a file.

A ``Trajectory`` in a state is a mapping with ``X``, ``y`` and ``failed_X``, which only grow. In the saved state each is
replaced by its number of rows. If a save finds new rows of a client, it adds a record to the file: a line of JSON,
followed by the bytes of the new rows of ``X``, ``y`` and ``failed_X``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAMES = ("X", "y", "failed_X")
TRAJECTORY = {"version", "d", *NAMES}
"""Names in the state of a ``Trajectory``; older states also have ``noise``, which is None."""


@dataclass(frozen=True)
class GrowingRows:
    """The rows written so far: their numbers and a digest, by a trajectory's place in the state."""

    written: Mapping[str, tuple[list[int], str]] = field(default_factory=dict)

    def begins(self, state: Any) -> bool:
        """Whether every trajectory still begins with the rows that were written."""
        present, written = {place: trajectory for place, trajectory, _ in _trajectories(state)}, self.written.items()
        return all(place in present and _digest_of(present[place], n) == mark for place, (n, mark) in written)

    def take(self, state: Any) -> tuple[Any, bytes, GrowingRows]:
        """Returns the state with numbers of rows instead of rows, the new records, and the new ``GrowingRows``."""
        data, written, without = bytearray(), {}, state
        for place, trajectory, path in _trajectories(state):
            counts = [len(trajectory[name]) for name in NAMES]
            before, _ = self.written.get(place, ([0] * len(NAMES), ""))
            parts = [_bytes(trajectory[name][start:]) for name, start in zip(NAMES, before, strict=True)]
            if any(parts):
                head = {"place": place, "bytes": list(map(len, parts)), "dtype": str(trajectory["X"].dtype)[6:]}
                data += json.dumps(head).encode() + b"\n" + b"".join(parts)
            written[place] = counts, _digest_of(trajectory, counts)
            without = _replaced_at(without, path, {**trajectory, **dict(zip(NAMES, counts, strict=True))})
        return without, bytes(data), GrowingRows(written)


def restore_rows(state: Any, data: bytes) -> tuple[Any, GrowingRows]:
    """Returns a state of ``GrowingRows.take`` with its rows restored from the records, and its ``GrowingRows``.

    Raises:
        ValueError: if the records do not match the state.
    """
    held, dtypes = _records(data)
    written = {}
    for place, counts, path in _trajectories(state):
        rows = {}
        for name, part in zip(NAMES, held.get(place, [b""] * len(NAMES)), strict=True):
            kind = "float64" if name == "y" else dtypes.get(place, "float64")
            array = np.frombuffer(bytes(part), dtype=kind).reshape((-1,) if name == "y" else (-1, counts["d"]))
            if len(array) != counts[name]:
                raise ValueError(f"{name} of {place} has {len(array)} rows, expected {counts[name]}")
            rows[name] = torch.from_numpy(array.copy())
        numbers = [len(rows[name]) for name in NAMES]
        written[place] = numbers, _digest_of(rows, numbers)
        state = _replaced_at(state, path, {**counts, **rows})
    return state, GrowingRows(written)


def _records(data: bytes) -> tuple[dict[str, list[bytes]], dict[str, str]]:
    """Returns the concatenated bytes of each array, by place, and the dtypes of X."""
    parts: dict[str, list[list[bytes]]] = {}
    dtypes, at = {}, 0
    while at < len(data):
        end = data.index(b"\n", at)
        head, at = json.loads(data[at:end]), end + 1
        dtypes[head["place"]] = head["dtype"]
        held = parts.setdefault(head["place"], [[] for _ in NAMES])
        for pieces, size in zip(held, head["bytes"], strict=True):
            pieces.append(data[at : at + size])
            at += size
    return {place: [b"".join(pieces) for pieces in held] for place, held in parts.items()}, dtypes


def _trajectories(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Mapping[str, Any], tuple[Any, ...]]]:
    """Yields the trajectories in nested mappings, with their places as text and as paths."""
    if isinstance(state, Mapping):
        if state.keys() - {"noise"} == TRAJECTORY:
            yield "/".join(map(str, path)), state, path
        else:
            for key, value in state.items():
                yield from _trajectories(value, (*path, key))


def _replaced_at(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    return {**state, path[0]: _replaced_at(state[path[0]], path[1:], value)} if path else value


def _digest_of(trajectory: Mapping[str, Any], counts: list[int]) -> str:
    """Returns a digest of all values, the last point and all failed points, which identifies the rows."""
    (n, _, failed), digest = counts, hashlib.sha256()
    for part in (trajectory["y"][:n], trajectory["X"][max(n - 1, 0) : n], trajectory["failed_X"][:failed]):
        digest.update(_bytes(part))
    return digest.hexdigest()


def _bytes(rows: Tensor) -> bytes:
    return rows.detach().cpu().contiguous().numpy().tobytes()
