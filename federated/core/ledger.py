"""The ledger: what each client cost in each round, in queries, bytes and seconds."""

from __future__ import annotations

import csv
import io
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args, get_type_hints

import numpy as np

from federated.core.messages import plain
from optimizers.core.archive import load_archive, save_archive
from optimizers.core.display import axes_or_new, import_pandas, mark_failures
from optimizers.core.files import replacing
from optimizers.core.options import check_integer

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

AGAINST = {"rounds": "rounds", "queries": "queries", "bytes": "payload bytes, up and down"}
"""The names and the labels of what costs and values are drawn against."""


class Spent(NamedTuple):
    """Counts of queries (failed ones included), of failed queries, and of gradient evaluations."""

    queries: int = 0
    failures: int = 0
    gradients: int = 0

    def since(self, before: Spent) -> Spent:
        """The difference to earlier counts."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass
class Entry:
    """The costs of one client in one round, over all phases.

    Attributes:
        round: r, from 1.
        client: the client's number.
        queries: function values, failed ones and those of lost or refused reports included.
        failures: failed queries.
        gradients: gradient evaluations.
        payload_up: bytes of the tensors that the client sent, the communication that papers count.
        payload_down: bytes of the tensors that the server sent to it.
        message_up: bytes of the client's encoded messages, which have a header and a digest beside the payload.
        message_down: bytes of the encoded messages to it.
        wire_up: bytes of the client's HTTP requests, without the frames of TLS and TCP; None in one process.
        wire_down: bytes of the HTTP responses to it.
        seconds: wall time of the client's work.
        refused: the reasons why its reports were refused or are missing, joined by semicolons.
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


MOST_NOTED = 2000
"""Letters of all reasons of an entry at most."""

COLUMNS = tuple(field.name for field in fields(Entry))
COUNTS = COLUMNS[2:-1]
WIRE = tuple(name for name in COLUMNS if name.startswith("wire"))
NONE = -1
"""What stands for None in a column of integers."""
MOST = 2**63 - 1
"""The largest count of an entry."""


class Ledger:
    """The entries of all clients and rounds, in the order in which they were begun.

    Entries are held in columns, some 100 bytes each, and totals of all of them are added up as the counts come: neither
    adding nor ``total(name)`` looks at the entries of earlier rounds.

    Who writes entries to a file as they come marks them by ``mark_written``, and sees by ``is_written`` whether those
    that were written still stand.
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
        return "\n".join(
            [
                f"Ledger of {rounds} rounds and {clients} clients, {spent['seconds']:.6g} s of work:",
                "  " + ", ".join(f"{name}: {spent[name]}" for name in ("queries", "failures", "gradients")),
                f"  payload bytes: {spent['payload_up']} up, {spent['payload_down']} down",
                f"  message bytes: {spent['message_up']} up, {spent['message_down']} down",
                f"  reports refused or missing in {len(self._refused)} of {len(self)} entries",
            ]
        )

    def add(self, round_number: int, client: int, **counts: int | float | None) -> None:
        """Adds counts, named as in ``Entry``, to a client's entry of a round; None adds nothing.

        Counts may be another party's words: of an entry they end at ``MOST``.

        Raises:
            TypeError: if a name is none of ``COUNTS``, or a number has another type; nothing is added then.
            ValueError: if a number is negative, NaN or infinite; nothing is added then.
        """
        unknown = set(counts) - set(COUNTS)
        if unknown:
            raise TypeError(f"the ledger counts {', '.join(COUNTS)}; got {', '.join(sorted(unknown))}")
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
        """Notes in a client's entry of a round why a report was refused or is missing.

        Reasons may be another party's words: of all that an entry has, the first ``MOST_NOTED`` letters are kept.
        """
        row, reason = self._row(round_number, client), plain(reason)
        if noted := plain("; ".join(filter(None, (self._refused.get(row, ""), reason))), MOST_NOTED):
            self._refused[row] = noted

    def total(self, name: str, *, round: int | None = None, client: int | None = None) -> Any:
        """The sum of a count over all entries, or those of a round or client; None for wire bytes without a wire.

        Raises:
            ValueError: if the name is none of ``COUNTS``.
        """
        if name not in COUNTS:
            raise ValueError(f"the ledger counts {', '.join(COUNTS)}; got {name!r}")
        if round is None and client is None:
            return self._totals[name]
        wanted = np.ones(len(self), dtype=bool)
        for column, value in (("round", round), ("client", client)):
            if value is not None:
                wanted &= self._column(column) == value
        return _sum(name, self._column(name)[wanted])

    def mark_written(self, writer: object) -> None:
        """Takes all entries as written by a writer, in the place of any other."""
        self._written_by, self._oldest_change = writer, len(self)

    def is_written(self, writer: object, entries: int) -> bool:
        """Whether this writer was the last to write, and the first so many entries are as they were then."""
        return self._written_by is writer and self._oldest_change >= entries

    def to_rows(self) -> list[dict[str, Any]]:
        """The entries as dictionaries with the keys of ``COLUMNS``, sorted by round and client."""
        return [self._entry(row) for row in self._sorted()]

    def entries(self, start: int = 0) -> Iterator[dict[str, Any]]:
        """Those from a number on, in the order in which they were begun, with the keys of ``COLUMNS``."""
        return map(self._entry, range(start, len(self)))

    def to_dataframe(self) -> pandas.DataFrame:
        """The entries, with the columns of ``COLUMNS``, sorted by round and client; None is ``pandas.NA``.

        Raises:
            ImportError: if pandas is not installed.
        """
        order = self._sorted()
        columns: dict[str, Any] = {name: self._column(name)[order] for name in self._columns}
        frame = import_pandas().DataFrame(columns | {"refused": [self._refused.get(row, "") for row in order.tolist()]})
        for name in WIRE:
            frame[name] = frame[name].astype("Int64").mask(frame[name] == NONE)
        return frame

    def plot(self, ax: Axes | None = None, against: str = "rounds") -> Axes:
        """Draws what all clients had spent after each round, and marks rounds with failures.

        Payload bytes, up and down, are drawn against rounds or queries, and queries against bytes. Marked on the
        horizontal axis are rounds in which queries failed, or reports were refused or missing.

        Args:
            ax: the axes to draw on. None makes a figure, which pyplot shows; pyplot's current figure, where there is
                one, stays so.
            against: ``"rounds"``, ``"queries"`` or ``"bytes"``.

        Raises:
            ValueError: if ``against`` is none of these.
        """
        check_against(against)
        rounds, of_round = np.unique(self._column("round"), return_inverse=True)
        queries, *payload = (self._sums(name, of_round) for name in ("queries", "payload_up", "payload_down"))
        costs = {"queries": queries, "bytes": np.sum(payload, axis=0)}
        spent = {name: [0, *cost.cumsum().tolist()] for name, cost in costs.items()} | {"rounds": [0, *rounds.tolist()]}
        failing = self._column("failures") > 0
        failing[list(self._refused)] = True
        failed = [spent[against][1 + i] for i in np.unique(of_round[failing])]
        drawn, ax = "queries" if against == "bytes" else "bytes", axes_or_new(ax)
        ax.plot(spent[against], spent[drawn], label=AGAINST[drawn])
        mark_failures(ax, failed, "rounds with failures")
        ax.set_xlabel(AGAINST[against])
        ax.set_ylabel(AGAINST[drawn])
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the entries to a file, exactly and without pickling; ``load`` reads it."""
        save_archive(path, "Ledger", self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The ledger in a file of ``save``.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is none of ``save`` or damaged.
        """
        return load_archive(path, "Ledger", cls.from_state_dict)

    def to_csv(self, path: str | Path) -> None:
        """Writes the rows to a CSV file, in which None is an empty cell."""
        write_csv(path, COLUMNS, (self._entry(row) for row in self._sorted()))

    def state_dict(self) -> dict[str, Any]:
        """The entries in lists, one for each of ``COLUMNS``."""
        columns: dict[str, Any] = {name: column.tolist() for name, column in self._columns.items()}
        for name in WIRE:
            columns[name] = [None if count == NONE else count for count in columns[name]]
        return columns | {"refused": [self._refused.get(row, "") for row in range(len(self))]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the entries of a ``state_dict``.

        Raises:
            ValueError: if it has other columns, one of another length, values of other types or under 0, or an entry
                twice; nothing is taken then.
        """
        if set(state) != set(COLUMNS):
            raise ValueError(f"the ledger's columns are {list(COLUMNS)}, got {sorted(state)}")
        for name, hint in get_type_hints(Entry).items():
            kinds = get_args(hint) or (hint,)
            if not isinstance(state[name], list) or not all(type(value) in kinds for value in state[name]):
                raise ValueError(f"the ledger's column {name} is no list of {getattr(hint, '__name__', hint)}")
            if kinds != (str,) and any(not 0 <= value <= MOST for value in state[name] if value is not None):
                raise ValueError(f"the ledger's column {name} has a number that is no count")
        if len({len(state[name]) for name in COLUMNS}) > 1:
            raise ValueError("the ledger's columns are of different lengths")
        if len(set(zip(state["round"], state["client"], strict=True))) < len(state["round"]):
            raise ValueError("the ledger has two entries of one client and round")
        for name, column in self._columns.items():
            self._columns[name] = array(column.typecode, [NONE if count is None else count for count in state[name]])
        self._refused = {row: reason for row, reason in enumerate(state["refused"]) if reason}
        self._totals = {name: _sum(name, self._column(name)) for name in COUNTS}
        self._oldest_change, self._last = 0, max(state["round"], default=0)
        self._go_to(self._last)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """A ledger of the entries of a ``state_dict``; raises ``ValueError`` as ``load_state_dict``."""
        ledger = cls()
        ledger.load_state_dict(state)
        return ledger

    def _row(self, round_number: int, client: int) -> int:
        """The number of a client's entry of a round, which is begun where there is none."""
        if round_number != self._present:
            self._go_to(check_integer("round", round_number, 0))
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

    def _go_to(self, round_number: int) -> None:
        """Finds the entries of a round; one that is later than all before has none."""
        self._present, self._at = round_number, {}
        if round_number <= self._last:
            rows = np.flatnonzero(self._column("round") == round_number)
            self._at = dict(zip(self._column("client")[rows].tolist(), rows.tolist(), strict=True))
        self._last = max(self._last, round_number)

    def _column(self, name: str) -> np.ndarray:
        """A copy of a column: a view would keep it from growing."""
        column = self._columns[name]
        return np.array(column, dtype=column.typecode)

    def _sums(self, name: str, groups: np.ndarray) -> np.ndarray:
        """The sums of a count in each group of entries, which are numbered from 0."""
        sums = np.zeros(groups.max(initial=-1) + 1, dtype=np.int64)
        np.add.at(sums, groups, self._column(name))
        return sums

    def _sorted(self) -> np.ndarray:
        """The numbers of the entries, by round and client."""
        return np.lexsort((self._column("client"), self._column("round")))

    def _entry(self, row: int) -> dict[str, Any]:
        entry: dict[str, Any] = {name: column[row] for name, column in self._columns.items()}
        return (
            entry | {name: None for name in WIRE if entry[name] == NONE} | {"refused": self._refused.get(int(row), "")}
        )


def _sum(name: str, counts: np.ndarray) -> Any:
    """The sum of a column's counts; None where there are some and none is known."""
    known = counts[counts != NONE]
    if len(counts) and not len(known):
        return None
    if name == "seconds":
        return known.sum().item()
    return ((known >> 32).sum().item() << 32) + (known & 0xFFFFFFFF).sum().item()  # whose sums do not overflow


def _check_count(name: str, count: Any) -> None:
    whole = isinstance(count, int | np.integer) or count is None
    if not whole and not (name == "seconds" and isinstance(count, float | np.floating)):
        raise TypeError(f"{name} must be {'a number' if name == 'seconds' else 'an integer'}, got {count!r:.80}")
    if count is not None and not 0 <= count < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {count!r:.80}")


def check_against(against: str) -> None:
    """Raises ``ValueError`` for what nothing is drawn against."""
    if against not in AGAINST:
        raise ValueError(f"against must be one of {', '.join(map(repr, AGAINST))}, got {against!r}")


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows, as dictionaries with the keys of ``columns``, to a CSV file."""
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text.detach()
