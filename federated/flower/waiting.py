"""Time limits of a server that waits for nodes, and its progress messages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

REPORT_INTERVAL = 30.0
"""Seconds between progress messages."""

SLACK, MOST = 3.0, 10.0
"""A limit is ``SLACK`` medians of the last replies' durations, and at most ``MOST`` configured timeouts."""


class Patience:
    """Time limits that adapt to the durations of earlier phases.

    The limit of a kind of message is three times the median duration of the last replies of this kind, but at least the
    configured ``timeout`` in seconds and at most ten times as much. A missing reply counts with the limit that it
    exceeded. A slow machine is therefore not considered dead, and a few slow clients have no effect.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._took: dict[str, float] = {}

    def limit(self, kind: str) -> float:
        """Returns the seconds to wait for replies to messages of a kind."""
        return min(MOST * self.timeout, max(self.timeout, SLACK * self._took.get(kind, 0.0)))

    def learn(self, kind: str, seconds: Sequence[float]) -> None:
        """Records the durations of replies to messages of a kind, in seconds."""
        if seconds:
            self._took[kind] = statistics.median(seconds)


class Waiting:
    """Reports every 30 s by ``say`` which clients are awaited, as in "waiting for client 1 to connect, 60 of 600 s".

    ``awaited`` returns the clients, ``limit`` is the time limit in seconds, ``then`` a suffix such as " to connect".
    """

    def __init__(
        self, awaited: Callable[[], Sequence[int]], limit: float, say: Callable[[str], object], then: str = ""
    ) -> None:
        self._awaited, self._limit, self._say, self._then = awaited, limit, say, then
        self._next = REPORT_INTERVAL

    def passed(self, seconds: float) -> None:
        """Makes a report if one is due after this many seconds of waiting."""
        if seconds >= self._next:
            self._next = seconds - seconds % REPORT_INTERVAL + REPORT_INTERVAL
            clients = self._awaited()
            shown = ", ".join(map(str, clients[:10])) + (f" and {len(clients) - 10} more" if len(clients) > 10 else "")
            noun = "client" if len(clients) == 1 else "clients"
            self._say(f"waiting for {noun} {shown}{self._then}, {seconds:.0f} of {self._limit:g} s")
