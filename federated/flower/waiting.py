"""How long a server waits for its nodes, and what it says meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

SAYS = 30.0
"""Seconds between two lines that say what is waited for."""

SLACK, MOST = 3.0, 10.0
"""A limit is so many times as long as replies took, and at most so many times the one that was given."""


class Patience:
    """Time limits that follow what phases took.

    The limit of a kind of message is the one given, or three times the median of what the last replies of that kind
    took, those that did not come in time counted as the limit of then, where that is more; at most ten times the one
    given. So a machine with other load is not taken for a dead one, and a few clients that dawdle move nothing.

    Args:
        timeout: the limit that is given, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._took: dict[str, float] = {}

    def limit(self, kind: str) -> float:
        """Seconds to wait for replies to messages of a kind."""
        return min(MOST * self.timeout, max(self.timeout, SLACK * self._took.get(kind, 0.0)))

    def learn(self, kind: str, seconds: Sequence[float]) -> None:
        """Takes what the replies to messages of a kind took, in seconds."""
        if seconds:
            self._took[kind] = statistics.median(seconds)


class Waiting:
    """Says every 30 s what is waited for, as in "waiting for client 1, 60 of 600 s".

    Args:
        awaited: the clients that are waited for.
        limit: how long, in seconds.
        say: takes a line.
        then: what they are to do, as in " to connect".
    """

    def __init__(
        self, awaited: Callable[[], Sequence[int]], limit: float, say: Callable[[str], object], then: str = ""
    ) -> None:
        self._awaited, self._limit, self._say, self._then = awaited, limit, say, then
        self._next = SAYS

    def passed(self, seconds: float) -> None:
        """Says a line if it is time, after so many seconds."""
        if seconds >= self._next:
            self._next = seconds - seconds % SAYS + SAYS
            clients = self._awaited()
            shown = ", ".join(map(str, clients[:10])) + (f" and {len(clients) - 10} more" if len(clients) > 10 else "")
            noun = "client" if len(clients) == 1 else "clients"
            self._say(f"waiting for {noun} {shown}{self._then}, {seconds:.0f} of {self._limit:g} s")
