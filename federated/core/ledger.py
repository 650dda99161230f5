"""What a federation cost: queries, bytes and seconds of each client and round."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass
class Entry:
    """One client's costs of one round, over all its phases.

    Attributes:
        round: r, from 1.
        client: its number.
        queries: function values, failed ones too; also those whose report was lost or refused.
        failures: failed queries.
        gradients: gradient evaluations.
        payload_up: bytes of the tensors that it sent: what papers count.
        payload_down: bytes of the tensors that were sent to it.
        message_up: bytes of its encoded messages: payload, names, digests.
        message_down: bytes of the encoded messages to it.
        wire_up: bytes on a wire, HTTP's with them, frames of TLS and TCP not; None where there is no wire.
        wire_down: the same towards it.
        seconds: wall time of its work.
        refused: why reports of it were refused or are missing; empty where all were accepted.
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
    """Entries by round and client, in the order in which they were made."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, round_number: int, client: int, **counts: Any) -> None:
        """Add to a client's costs of a round, under the names of ``Entry``.

        Raises:
            TypeError: for a name that is none of ``COUNTS``.
        """
        unknown = set(counts) - set(COUNTS)
        if unknown:
            raise TypeError(f"the ledger counts {', '.join(COUNTS)}; got {', '.join(sorted(unknown))}")
        entry = self._entry(round_number, client)
        for name, count in counts.items():
            if count is not None:
                setattr(entry, name, (getattr(entry, name) or 0) + count)

    def refuse(self, round_number: int, client: int, reason: str) -> None:
        """Note why a report of a client was refused or is missing."""
        entry = self._entry(round_number, client)
        entry.refused = f"{entry.refused}; {reason}" if entry.refused else reason

    def total(self, name: str, *, round: int | None = None, client: int | None = None) -> Any:
        """The sum of a count, of one round or client where given; None for wire bytes where there is no wire."""
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
        """One dictionary an entry, with the names of ``COLUMNS``, by round and client."""
        return [asdict(self._entries[key]) for key in sorted(self._entries)]

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV, written to a file too where a path is given; no wire is an empty cell."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_rows())
        if path is not None:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def state_dict(self) -> dict[str, Any]:
        """The entries as lists, one a column."""
        return {name: [getattr(e, name) for e in self._entries.values()] for name in COLUMNS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the entries of a ``state_dict``.

        Raises:
            ValueError: for other columns.
        """
        if set(state) != set(COLUMNS):
            raise ValueError(f"the ledger's columns are {list(COLUMNS)}, got {sorted(state)}")
        rows = zip(*(state[name] for name in COLUMNS), strict=True)
        entries = [Entry(**dict(zip(COLUMNS, row, strict=True))) for row in rows]
        self._entries = {(entry.round, entry.client): entry for entry in entries}

    def _entry(self, round_number: int, client: int) -> Entry:
        return self._entries.setdefault((round_number, client), Entry(round_number, client))
