"""The ledger: what each client cost in each round, in queries, bytes and seconds."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args, get_type_hints

from federated.core.messages import plain
from optimizers.core.archive import load_archive, save_archive
from optimizers.core.display import axes_or_new, import_pandas, mark_failures
from optimizers.core.files import replacing

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


class Ledger:
    """The entries of all clients and rounds, in the order in which they were begun."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], Entry] = {}

    def __repr__(self) -> str:
        spent = {name: self.total(name) for name in COUNTS}
        rounds, clients = ({key[i] for key in self._entries} for i in (0, 1))
        refused = sum(bool(entry.refused) for entry in self._entries.values())
        return "\n".join(
            [
                f"Ledger of {len(rounds)} rounds and {len(clients)} clients, {spent['seconds']:.6g} s of work:",
                "  " + ", ".join(f"{name}: {spent[name]}" for name in ("queries", "failures", "gradients")),
                f"  payload bytes: {spent['payload_up']} up, {spent['payload_down']} down",
                f"  message bytes: {spent['message_up']} up, {spent['message_down']} down",
                f"  reports refused or missing in {refused} of {len(self._entries)} entries",
            ]
        )

    def add(self, round_number: int, client: int, **counts: int | float | None) -> None:
        """Adds counts, named as in ``Entry``, to a client's entry of a round; None adds nothing.

        Raises:
            TypeError: if a name is none of ``COUNTS``.
        """
        unknown = set(counts) - set(COUNTS)
        if unknown:
            raise TypeError(f"the ledger counts {', '.join(COUNTS)}; got {', '.join(sorted(unknown))}")
        entry = self._entry(round_number, client)
        for name, count in counts.items():
            if count is not None:
                setattr(entry, name, (getattr(entry, name) or 0) + count)

    def refuse(self, round_number: int, client: int, reason: str) -> None:
        """Notes in a client's entry of a round why a report was refused or is missing.

        Reasons may be another party's words: of all that an entry has, the first ``MOST_NOTED`` letters are kept.
        """
        entry, reason = self._entry(round_number, client), plain(reason)
        entry.refused = plain(f"{entry.refused}; {reason}" if entry.refused else reason, MOST_NOTED)

    def total(self, name: str, *, round: int | None = None, client: int | None = None) -> Any:
        """The sum of a count over all entries, or those of a round or client; None for wire bytes without a wire.

        Raises:
            ValueError: if the name is none of ``COUNTS``.
        """
        if name not in COUNTS:
            raise ValueError(f"the ledger counts {', '.join(COUNTS)}; got {name!r}")
        found = [
            getattr(entry, name)
            for entry in self._entries.values()
            if round in (None, entry.round) and client in (None, entry.client)
        ]
        known = [count for count in found if count is not None]
        return sum(known) if known or not found or not name.startswith("wire") else None

    def to_rows(self) -> list[dict[str, Any]]:
        """The entries as dictionaries with the keys of ``COLUMNS``, sorted by round and client."""
        return [asdict(self._entries[key]) for key in sorted(self._entries)]

    def to_dataframe(self) -> pandas.DataFrame:
        """The entries, with the columns of ``COLUMNS``, sorted by round and client; None is ``pandas.NA``.

        Raises:
            ImportError: if pandas is not installed.
        """
        frame = import_pandas().DataFrame(self.to_rows(), columns=list(COLUMNS))
        return frame.astype({name: "Int64" for name in COLUMNS if name.startswith("wire")})

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
        spent = {"rounds": [0], "queries": [0], "bytes": [0]}
        failed = []
        for number in sorted({entry.round for entry in self._entries.values()}):
            entries = [entry for entry in self._entries.values() if entry.round == number]
            spent["rounds"].append(number)
            spent["queries"].append(spent["queries"][-1] + sum(e.queries for e in entries))
            spent["bytes"].append(spent["bytes"][-1] + sum(e.payload_up + e.payload_down for e in entries))
            if any(e.failures or e.refused for e in entries):
                failed.append(spent[against][-1])
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
        write_csv(path, COLUMNS, self.to_rows())

    def state_dict(self) -> dict[str, Any]:
        """The entries in lists, one for each of ``COLUMNS``."""
        return {name: [getattr(e, name) for e in self._entries.values()] for name in COLUMNS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the entries of a ``state_dict``.

        Raises:
            ValueError: if it has other columns, one of another length, or values of other types; nothing is taken then.
        """
        if set(state) != set(COLUMNS):
            raise ValueError(f"the ledger's columns are {list(COLUMNS)}, got {sorted(state)}")
        for name, hint in get_type_hints(Entry).items():
            kinds = get_args(hint) or (hint,)
            if not isinstance(state[name], list) or not all(type(value) in kinds for value in state[name]):
                raise ValueError(f"the ledger's column {name} is no list of {getattr(hint, '__name__', hint)}")
        entries = [Entry(*row) for row in zip(*(state[name] for name in COLUMNS), strict=True)]
        self._entries = {(entry.round, entry.client): entry for entry in entries}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """A ledger of the entries of a ``state_dict``; raises ``ValueError`` as ``load_state_dict``."""
        ledger = cls()
        ledger.load_state_dict(state)
        return ledger

    def _entry(self, round_number: int, client: int) -> Entry:
        return self._entries.setdefault((round_number, client), Entry(round_number, client))


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
