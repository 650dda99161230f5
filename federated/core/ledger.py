"""The ledger: each client's costs in each round, in queries, bytes and seconds."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args, get_type_hints

import numpy as np

from federated.core.messages import plain
from optimizers.core.display import import_pandas
from optimizers.core.files import replacing
from optimizers.core.options import check_integer

if TYPE_CHECKING:
    import pandas


class Spent(NamedTuple):
    """Numbers of queries (including failed ones), failed queries and gradient evaluations."""

    queries: int = 0
    failures: int = 0
    gradients: int = 0

    def since(self, before: Spent) -> Spent:
        """Returns the difference from earlier counts."""
        return Spent(*(count - earlier for count, earlier in zip(self, before, strict=True)))


@dataclass
class Entry:
    """Costs of one client in one round, over all phases.

    Attributes:
        round: r, from 1.
        client: the client's number.
        queries: function evaluations, including failed ones and those of lost or refused reports.
        failures: failed queries.
        gradients: gradient evaluations.
        payload_up: bytes of the tensors from the client, the communication cost that papers count.
        payload_down: bytes of the tensors to the client.
        message_up: bytes of the encoded messages from the client, including headers and digests.
        message_down: bytes of the encoded messages to the client.
        wire_up: bytes of the client's HTTP requests, without TLS and TCP framing; None in one process.
        wire_down: bytes of the HTTP responses to the client.
        seconds: wall time of the client's work.
        refused: reasons for refused or missing reports, separated by semicolons.
    """

    round: int
    client: int
    queries: int = 0
    failures: int = 0
    gradients: int = 0
    payload_up: int = 0
    payload_down: int = 0
    message_up: int = 0
    message_down: int = 0
    wire_up: int | None = None
    wire_down: int | None = None
    seconds: float = 0.0
    refused: str = ""


MAX_REASON = 2000
"""Maximal number of characters of an entry's reasons."""

COLUMNS = tuple(field.name for field in fields(Entry))
COUNTS = COLUMNS[2:-1]
WIRE = tuple(name for name in COLUMNS if name.startswith("wire"))
NONE = -1
"""Represents None in a column of integers."""
MOST = 2**63 - 1
"""The largest count of an entry."""


class Ledger:
    """The costs of all clients and rounds, in order of creation.

    Entries are stored in columns, about 100 bytes each, and totals are updated as costs are added: neither ``add`` nor
    ``total(name)`` reads earlier rounds. A writer that appends entries to a file calls ``mark_written``; ``is_written``
    then tells whether the entries in the file are still valid.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {name: array("d" if name == "seconds" else "q") for name in COLUMNS[:-1]}
        self._refused: dict[int, str] = {}
        self._totals: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        self._present, self._last, self._at = 0, 0, dict[int, int]()
        self._written_by: object = None
        self._oldest_change = 0

    def __len__(self) -> int:
        return len(self._columns["round"])

    def __repr__(self) -> str:
        spent = {name: self.total(name) for name in COUNTS}
        rounds, clients = (len(np.unique(self._column(name))) for name in ("round", "client"))
        lines = [f"Ledger of {rounds} rounds and {clients} clients, {spent['seconds']:.6g} s of work:"]
        lines.append(", ".join(f"{name}: {spent[name]}" for name in Spent._fields))
        lines += [f"{k} bytes: {spent[f'{k}_up']} up, {spent[f'{k}_down']} down" for k in ("payload", "message")]
        lines.append(f"reports refused or missing in {len(self._refused)} of {len(self)} entries")
        return "\n  ".join(lines)

    def add(self, round_number: int, client: int, **counts: int | float | None) -> None:
        """Adds counts, named as in ``Entry``, to a client's entry of a round, up to ``MOST``; None adds nothing.

        Raises:
            TypeError: if a name is not in ``COUNTS``, or a number has another type; nothing is then added.
            ValueError: if a number is negative, NaN or infinite; nothing is then added.
        """
        if unknown := set(counts) - set(COUNTS):
            raise TypeError(f"unknown counts {', '.join(sorted(unknown))}; the ledger has {', '.join(COUNTS)}")
        for name, count in counts.items():
            _check_count(name, count)
        row = self._row(round_number, client)
        for name, count in counts.items():
            if count is not None:
                column = self._columns[name]
                before = 0 if column[row] == NONE else column[row]
                column[row] = min(before + count, MOST)
                self._totals[name] = (self._totals[name] or 0) + column[row] - before

    def refuse(self, round_number: int, client: int, reason: str) -> None:
        """Records why a client's report of a round was refused or is missing, up to ``MAX_REASON`` characters."""
        row, reason = self._row(round_number, client), plain(reason)
        if noted := plain("; ".join(filter(None, (self._refused.get(row, ""), reason))), MAX_REASON):
            self._refused[row] = noted

    def total(self, name: str, *, round: int | None = None, client: int | None = None) -> Any:
        """Returns the sum of a count over all entries, a round or a client; None if no wire bytes were counted."""
        if name not in COUNTS:
            raise ValueError(f"unknown count {name!r}; the ledger has {', '.join(COUNTS)}")
        if round is None and client is None:
            return self._totals[name]
        wanted = np.ones(len(self), dtype=bool)
        for column, value in (("round", round), ("client", client)):
            if value is not None:
                wanted &= self._column(column) == value
        return _sum(name, self._column(name)[wanted])

    def mark_written(self, writer: object) -> None:
        """Marks all entries as written by a writer, which replaces an earlier writer."""
        self._written_by, self._oldest_change = writer, len(self)

    def is_written(self, writer: object, entries: int) -> bool:
        """Whether this writer was the last one, and the first ``entries`` entries have not changed since."""
        return self._written_by is writer and self._oldest_change >= entries

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns the entries as dictionaries with the keys ``COLUMNS``, sorted by round and client."""
        return [self._entry(row) for row in self._sorted()]

    def entries(self, start: int = 0) -> Iterator[dict[str, Any]]:
        """Iterates over entries from a position on, in order of creation, as dictionaries with the keys ``COLUMNS``."""
        return map(self._entry, range(start, len(self)))

    def to_dataframe(self) -> pandas.DataFrame:
        """Returns the entries with the columns ``COLUMNS``, sorted by round and client; None is ``pandas.NA``."""
        order = self._sorted()
        columns: dict[str, Any] = {name: self._column(name)[order] for name in self._columns}
        frame = import_pandas().DataFrame(columns | {"refused": [self._refused.get(row, "") for row in order.tolist()]})
        for name in WIRE:
            frame[name] = frame[name].astype("Int64").mask(frame[name] == NONE)
        return frame

    def to_csv(self, path: str | Path) -> None:
        """Writes the entries, sorted by round and client, to a CSV file; None is an empty cell."""
        write_csv(path, COLUMNS, (self._entry(row) for row in self._sorted()))

    def state_dict(self) -> dict[str, Any]:
        """Returns the entries as lists, one for each of ``COLUMNS``."""
        columns: dict[str, Any] = {name: column.tolist() for name, column in self._columns.items()}
        for name in WIRE:
            columns[name] = [None if count == NONE else count for count in columns[name]]
        return columns | {"refused": [self._refused.get(row, "") for row in range(len(self))]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the entries by those of a ``state_dict``.

        Raises:
            ValueError: if columns are missing, unknown or of different lengths, a value has another type or is
                negative, or a client and round occur twice; the ledger is then unchanged.
        """
        if set(state) != set(COLUMNS):
            raise ValueError(f"the ledger's columns are {sorted(state)}, expected {list(COLUMNS)}")
        for name, hint in get_type_hints(Entry).items():
            kinds = get_args(hint) or (hint,)
            if not isinstance(state[name], list) or not all(type(value) in kinds for value in state[name]):
                raise ValueError(f"the ledger's column {name} must be a list of {getattr(hint, '__name__', hint)}")
            if kinds != (str,) and any(not 0 <= value <= MOST for value in state[name] if value is not None):
                raise ValueError(f"the ledger's column {name} has a negative number, or a number over 2^63 - 1")
        if len({len(state[name]) for name in COLUMNS}) > 1:
            raise ValueError("the ledger's columns have different lengths")
        if len(set(zip(state["round"], state["client"], strict=True))) < len(state["round"]):
            raise ValueError("the ledger has two entries for the same client and round")
        for name, column in self._columns.items():
            self._columns[name] = array(column.typecode, [NONE if count is None else count for count in state[name]])
        self._refused = {row: reason for row, reason in enumerate(state["refused"]) if reason}
        self._totals = {name: _sum(name, self._column(name)) for name in COUNTS}
        self._oldest_change, self._last = 0, max(state["round"], default=0)
        self._index_round(self._last)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Creates a ledger from a ``state_dict``; raises ``ValueError`` as ``load_state_dict``."""
        ledger = cls()
        ledger.load_state_dict(state)
        return ledger

    def _row(self, round_number: int, client: int) -> int:
        """Returns the position of a client's entry of a round, which is created if it does not exist."""
        if round_number != self._present:
            self._index_round(check_integer("round", round_number, 0))
        row = self._at.get(client)
        if row is None:
            check_integer("client", client, 0)
            row = self._at[client] = len(self)
            for name, column in self._columns.items():
                column.append(NONE if name in WIRE else 0)
            self._columns["round"][row], self._columns["client"][row] = round_number, client
            for name in WIRE if row == 0 else ():
                self._totals[name] = None
        self._oldest_change = min(self._oldest_change, row)
        return row

    def _index_round(self, round_number: int) -> None:
        """Indexes the entries of a round; a round later than all others has none."""
        self._present, self._at = round_number, {}
        if round_number <= self._last:
            rows = np.flatnonzero(self._column("round") == round_number)
            self._at = dict(zip(self._column("client")[rows].tolist(), rows.tolist(), strict=True))
        self._last = max(self._last, round_number)

    def _column(self, name: str) -> np.ndarray:
        """Returns a copy of a column: a view would prevent it from growing."""
        column = self._columns[name]
        return np.array(column, dtype=column.typecode)

    def _sorted(self) -> np.ndarray:
        """Returns the positions of the entries, sorted by round and client."""
        return np.lexsort((self._column("client"), self._column("round")))

    def _entry(self, row: int) -> dict[str, Any]:
        entry: dict[str, Any] = {name: column[row] for name, column in self._columns.items()}
        entry |= {name: None for name in WIRE if entry[name] == NONE}
        return entry | {"refused": self._refused.get(int(row), "")}


def _sum(name: str, counts: np.ndarray) -> Any:
    """Returns the sum of a column's counts; None if there are entries but no known count."""
    known = counts[counts != NONE]
    if len(counts) and not len(known):
        return None
    return known.sum().item() if name == "seconds" else sum(known.tolist())  # NumPy's sum of integers may overflow


def _check_count(name: str, count: Any) -> None:
    whole = isinstance(count, int | np.integer) or count is None
    if not whole and not (name == "seconds" and isinstance(count, float | np.floating)):
        raise TypeError(f"{name} must be {'a number' if name == 'seconds' else 'an integer'}, got {count!r:.80}")
    if count is not None and not 0 <= count < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {count!r:.80}")


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows, dictionaries with the keys ``columns``, to a CSV file."""
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text.detach()
