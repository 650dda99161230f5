"""The ledger: what each client cost in each round, in queries, bytes and seconds."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple


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


COLUMNS = tuple(field.name for field in fields(Entry))
COUNTS = COLUMNS[2:-1]


class Ledger:
    """The entries of all clients and rounds, in the order in which they were begun."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], Entry] = {}

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
        """Notes in a client's entry of a round why a report was refused or is missing."""
        entry = self._entry(round_number, client)
        entry.refused = f"{entry.refused}; {reason}" if entry.refused else reason

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

    def to_csv(self, path: str | Path) -> None:
        """Writes the rows to a CSV file, in which None is an empty cell."""
        write_csv(path, COLUMNS, self.to_rows())

    def state_dict(self) -> dict[str, Any]:
        """The entries in lists, one for each of ``COLUMNS``."""
        return {name: [getattr(e, name) for e in self._entries.values()] for name in COLUMNS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the entries of a ``state_dict``.

        Raises:
            ValueError: if it has other columns.
        """
        if set(state) != set(COLUMNS):
            raise ValueError(f"the ledger's columns are {list(COLUMNS)}, got {sorted(state)}")
        entries = [Entry(*row) for row in zip(*(state[name] for name in COLUMNS), strict=True)]
        self._entries = {(entry.round, entry.client): entry for entry in entries}

    def _entry(self, round_number: int, client: int) -> Entry:
        return self._entries.setdefault((round_number, client), Entry(round_number, client))


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows, as dictionaries with the keys of ``columns``, to a CSV file."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
