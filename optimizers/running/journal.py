"""The journal of a run: a file with a checksummed line for each event."""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

FSYNC_EVERY = 1.0
"""The least number of seconds between flushes to the device."""

Event = list[Any]


@dataclass(frozen=True)
class End:
    """The end of a journal, in one object so that an interrupt cannot leave it half changed.

    Attributes:
        good: the number of bytes of complete lines in the file.
        waiting: the lines to be written next.
        count: the number of events, including waiting ones.
    """

    good: int
    waiting: bytes = b""
    count: int = 0


class Journal:
    """A file of events, lines ``[number, kind, ...] <tab> CRC-32``, appended and flushed one by one.

    Each event reaches the operating system at once and the device within a second. If the file cannot be written (a
    full disk), events are kept in memory and written with the next one. One process uses a journal; forks close it.

    Args:
        path: the file, created if it does not exist.

    Raises:
        RuntimeError: if another process uses the file.
        OSError: if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                raise RuntimeError(f"{path} is in use: another process runs with this checkpoint") from None
        _open.add(self)
        self._end = End(self._file.seek(0, os.SEEK_END))
        self._synced = time.monotonic()
        self.error: OSError | None = None

    @property
    def count(self) -> int:
        """The number of events."""
        return self._end.count

    def read(self, after: int = 0) -> list[Event]:
        """Returns the list of all events, with [] for damaged ones, and cuts off an incomplete last line.

        Args:
            after: events before this number may be damaged.

        Raises:
            ValueError: if a later event is damaged, or the file is not a journal.
        """
        content = self.path.read_bytes()
        lines = content.split(b"\n")
        tail = lines.pop()
        if lines and _parsed(lines[-1]) is None:
            tail = lines.pop() + b"\n" + tail
        parsed = [_parsed(line) for line in lines]
        found = {event[0]: event[1:] for event in parsed if event is not None}
        if not found and not b'[0,"'.startswith(content[:4]):
            raise ValueError(f"{self.path} is not a journal of a run; move it away, or choose another path")
        count = max(found, default=-1) + 1
        lost = next((n for n in range(after, count) if n not in found), None)
        if lost is None and len(lines) > after and parsed[-1] is None:
            lost = len(lines) - 1
        if lost is not None:
            raise ValueError(
                f"line {lost + 1} of {self.path} is damaged, and more lines follow: restore the file, or cut it before "
                "this line to continue from there"
            )
        good = self._end.good - len(tail)
        if tail:
            logger.warning("%s: the last line is incomplete and was cut off", self.path)
            self._file.truncate(good)
        self._end = End(good, b"", count)
        return [found.get(n, []) for n in range(count)]

    def write(self, *event: Any) -> None:
        """Appends an event."""
        end = self._end
        text = json.dumps([end.count, *event], separators=(",", ":")).encode()
        self._end = End(end.good, end.waiting + text + b"\t%08x\n" % zlib.crc32(text), end.count + 1)
        self._flush()

    def clear(self) -> None:
        """Discards all events."""
        self._file.truncate(0)
        self._end = End(0)

    def close(self) -> None:
        """Writes waiting events and closes the file."""
        try:
            self._flush(sync=True)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Closes the file without writing waiting events."""
        _open.discard(self)
        try:
            self._file.close()
        except OSError as error:
            self._failed(error)

    def _flush(self, sync: bool = False) -> None:
        end, written = self._end, 0
        try:
            if os.fstat(self._file.fileno()).st_size > end.good:  # the rest of a failed write
                self._file.truncate(end.good)
            while written < len(end.waiting):
                written += self._file.write(end.waiting[written:])
            self._end = End(end.good + written, b"", end.count)
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
                "%s cannot be written (%s): the run continues and tries again with each value", self.path, error
            )
        self.error = error


_open: weakref.WeakSet[Journal] = weakref.WeakSet()


def _give_up_all() -> None:
    """Closes journals in a forked process, because a lock lasts as long as any process has the file open."""
    for journal in list(_open):
        journal.give_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_all)


def _parsed(line: bytes) -> Event | None:
    """The event of a line; None for a damaged line."""
    text, _, checksum = line.rpartition(b"\t")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    event = json.loads(text)
    return event if isinstance(event, list) and len(event) > 1 and isinstance(event[0], int) else None


def each(events: list[Event], *kinds: str) -> Iterator[Event]:
    """Yields the events of these kinds."""
    return (event for event in events if event and event[0] in kinds)
