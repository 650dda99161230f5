"""A file that keeps the finished units of a long computation, so that the computation can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optimizers.running.journal import Journal

FORMAT = 1
"""Version of the format; increased when earlier files can no longer be read."""


class FinishedUnits:
    """A journal that describes a computation in its first line and has a further line for each finished unit.

    The first line, ``[0, kind, FORMAT, description]``, is written with the first unit. Only one process uses the file.

    Args:
        path: the file, created if it does not exist; None: nothing is saved.
        kind: the kind of computation, such as "comparison".
        description: JSON values that determine the units.

    Attributes:
        read: the units in the file, each a list of the arguments of ``add``.
        journal: the journal; None without a path.

    Raises:
        ValueError: if the file is damaged or belongs to another computation.
        RuntimeError: if another process uses the file.
    """

    def __init__(self, path: Path | None, kind: str, description: Mapping[str, Any]) -> None:
        self._first = [kind, FORMAT, json.loads(json.dumps(description))]
        self.read: list[list[Any]] = []
        self.journal = None if path is None else Journal(path)
        try:
            if self.journal is not None and (events := self.journal.read()):
                self._check(self.journal.path, events[0])
                self.read = [event[1:] for event in events[1:]]
        except BaseException:
            self.close()
            raise

    def _check(self, path: Path, first: list[Any]) -> None:
        if first[:2] != self._first[:2]:
            raise ValueError(
                f"{path} begins with {first[:2]!r:.60}, not with {self._first[:2]}: another program or an "
                "earlier version wrote it; move it away, or choose another path"
            )
        if found := differences(first[2], self._first[2]):
            raise ValueError(f"{path} holds another {first[0]}, which differs in {'; '.join(found)}")

    def add(self, *unit: Any) -> None:
        """Appends a finished unit, flushed to the operating system."""
        if self.journal is not None:
            if not self.journal.count:
                self.journal.write(*self._first)
            self.journal.write("run", *unit)

    def close(self) -> None:
        """Flushes and closes the file."""
        if self.journal is not None:
            self.journal.close()


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The entries in which two descriptions differ, with both values; nested mappings are compared entry by entry."""
    theirs, ours = _flat(theirs), _flat(ours)
    return [
        f"{name} ({theirs.get(name)!r:.100} there, {ours.get(name)!r:.100} here)"
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    ]


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in description.items():
        nested = _flat(value) if isinstance(value, Mapping) else {}
        flat |= {f"{name} {key}": entry for key, entry in nested.items()} or {name: value}
    return flat
