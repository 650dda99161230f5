"""The queries in clients' states, which only grow, as rows that a checkpoint appends to a file.

A ``Trajectory`` in a state is a mapping with ``X``, ``y`` and ``failed_X``, whose rows are those of the save before and
new ones. The file has a record for each client and save that brought rows: a line of JSON and the rows' bytes, ``X``,
``y`` and ``failed_X`` after each other. The state has the numbers of rows in their place.
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
TRAJECTORY = {"version", "d", "noise", *NAMES}
"""The names in the state of a ``surrogates.Trajectory``."""


@dataclass(frozen=True)
class GrowingRows:
    """What was written of the trajectories in a state: by their places the numbers of rows, and a mark of these."""

    written: Mapping[str, tuple[list[int], str]] = field(default_factory=dict)

    def still_stand(self, state: Any) -> bool:
        """Whether every trajectory begins with the rows that were written of it."""
        present = {place: trajectory for place, trajectory, _ in _found(state)}
        return all(
            place in present and _mark(present[place], counts) == mark for place, (counts, mark) in self.written.items()
        )

    def take(self, state: Any) -> tuple[Any, bytes, GrowingRows]:
        """The state with numbers of rows for rows, the records of those that are new, and what is then written."""
        data, written, without = bytearray(), {}, state
        for place, trajectory, path in _found(state):
            counts = [len(trajectory[name]) for name in NAMES]
            before, _ = self.written.get(place, ([0] * len(NAMES), ""))
            parts = [_bytes(trajectory[name][start:]) for name, start in zip(NAMES, before, strict=True)]
            if any(parts):
                head = {"place": place, "bytes": list(map(len, parts)), "dtype": str(trajectory["X"].dtype)[6:]}
                data += json.dumps(head).encode() + b"\n" + b"".join(parts)
            written[place] = counts, _mark(trajectory, counts)
            without = _with(without, path, {**trajectory, **dict(zip(NAMES, counts, strict=True))})
        return without, bytes(data), GrowingRows(written)


def put_back(state: Any, data: bytes) -> tuple[Any, GrowingRows]:
    """A state of ``GrowingRows.take`` with the rows of all records, and what is written.

    Raises:
        ValueError: where the records are not those of the state's rows.
    """
    held, dtypes = _records(data)
    written = {}
    for place, counts, path in _found(state):
        rows = {}
        for name, part in zip(NAMES, held.get(place, [b""] * len(NAMES)), strict=True):
            kind = "float64" if name == "y" else dtypes.get(place, "float64")
            array = np.frombuffer(bytes(part), dtype=kind).reshape((-1,) if name == "y" else (-1, counts["d"]))
            if len(array) != counts[name]:
                raise ValueError(f"{name} of {place} has {len(array)} rows, accepted are {counts[name]}")
            rows[name] = torch.from_numpy(array.copy())
        numbers = [len(rows[name]) for name in NAMES]
        written[place] = numbers, _mark(rows, numbers)
        state = _with(state, path, {**counts, **rows})
    return state, GrowingRows(written)


def _records(data: bytes) -> tuple[dict[str, list[bytes]], dict[str, str]]:
    """The bytes of all records by place, those of each name after each other, and the dtypes of X."""
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


def _found(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Mapping[str, Any], tuple[Any, ...]]]:
    """The trajectories in nested mappings, with their places as text and as paths."""
    if isinstance(state, Mapping):
        if state.keys() == TRAJECTORY:
            yield "/".join(map(str, path)), state, path
        else:
            for key, value in state.items():
                yield from _found(value, (*path, key))


def _with(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    return {**state, path[0]: _with(state[path[0]], path[1:], value)} if path else value


def _mark(trajectory: Mapping[str, Any], counts: list[int]) -> str:
    """What tells rows apart without a look at all of them: every value, the last point, and every failed point."""
    (n, _, failed), digest = counts, hashlib.sha256()
    for part in (trajectory["y"][:n], trajectory["X"][max(n - 1, 0) : n], trajectory["failed_X"][:failed]):
        digest.update(_bytes(part))
    return digest.hexdigest()


def _bytes(rows: Tensor) -> bytes:
    return rows.detach().cpu().contiguous().numpy().tobytes()
