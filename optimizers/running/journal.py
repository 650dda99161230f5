"""The journal of a run: each value is written as it arrives, a line for each event, with a checksum."""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

FSYNC_EVERY = 1.0
"""Least seconds between two flushes to the device."""

Event = list[Any]


class Journal:
    """Events of a run in a file of lines ``JSON <tab> CRC-32``, appended and flushed one by one.

    The device has each within a second, and the operating system at once. A file that cannot be written (a full disk)
    loses nothing that is in memory: the events wait, and are written with the next. One process at a time has the
    journal.

    Args:
        path: the file, which is made if there is none.

    Raises:
        RuntimeError: if another process has it.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._file.close()
                raise RuntimeError(f"{path} is in use: another process runs with this checkpoint") from error
        self._good = self._file.seek(0, os.SEEK_END)
        self._waiting: list[bytes] = []
        self._synced = time.monotonic()
        self.error: OSError | None = None
        self.count = 0

    def read(self, after: int = 0) -> list[Event]:
        """All whole events; what a kill has left of a last line is cut off.

        Args:
            after: events before this one may be damaged, as they are not needed.

        Raises:
            ValueError: for a damaged line of a later event.
        """
        lines = self.path.read_bytes().split(b"\n")
        tail = lines.pop()
        events: list[Event] = []
        for i, line in enumerate(lines):
            event = _parsed(line)
            if event is None and i == len(lines) - 1 and i >= after:
                tail = line + b"\n" + tail
                break
            if event is None and i >= after:
                raise ValueError(
                    f"line {i + 1} of {self.path} is damaged, and {len(lines) - i - 1} lines follow it: restore the "
                    "file, or cut it before this line to go on from there"
                )
            events.append(event or [])
        if tail:
            logger.warning("%s: the last line was not written whole, and is cut off", self.path)
            self._good -= len(tail)
            os.truncate(self.path, self._good)
            self._file.seek(0, os.SEEK_END)
        self.count = len(events)
        return events

    def write(self, *event: Any) -> None:
        """Appends an event, flushed; on the device within a second."""
        text = json.dumps(event, separators=(",", ":")).encode()
        self._waiting.append(text + b"\t%08x\n" % zlib.crc32(text))
        self.count += 1
        self._flush()

    def close(self) -> None:
        """Writes what waits, and gives the file up."""
        self._flush(sync=True)
        try:
            self._file.close()
        except OSError as error:
            self._failed(error)

    def _flush(self, sync: bool = False) -> None:
        data = b"".join(self._waiting)
        try:
            if self.error is not None:
                os.truncate(self.path, self._good)
            if data:
                self._file.write(data)
            self._file.flush()
            self._good += len(data)
            self._waiting.clear()
            if sync or time.monotonic() - self._synced >= FSYNC_EVERY:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            self._failed(error)
            return
        self.error = None

    def _failed(self, error: OSError) -> None:
        if self.error is None:
            logger.error(
                "%s cannot be written (%s): the run goes on, and tries again with each value", self.path, error
            )
        self.error = error


def _parsed(line: bytes) -> Event | None:
    text, _, checksum = line.rpartition(b"\t")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        event = json.loads(text)
    except ValueError:
        return None
    return event if isinstance(event, list) and event else None


def each(events: list[Event], *kinds: str) -> Iterator[Event]:
    """The events of some kinds."""
    return (event for event in events if event and event[0] in kinds)
