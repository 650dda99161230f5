"""A bounded log of rounds for replay by clients: scalars, and the digest of the model before each round."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from federated.core.messages import MessageError, TensorSpec
from federated.core.restoring import check_integers, check_saved


@dataclass(frozen=True)
class LoggedRound:
    """A round that moved the model: its number, the scalars of its move, and the digest of the model before it."""

    round: int
    scalars: Tensor
    digest: str


class ScalarLog:
    """The last ``capacity`` rounds that moved the model; skipped rounds have no entry.

    Attributes:
        first: the earliest round from whose start a model can be updated by replay.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.first = 1
        self._entries: list[LoggedRound] = []

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: LoggedRound) -> None:
        """Adds a round, later than all others."""
        self._entries.append(entry)
        if len(self._entries) > self.capacity:
            self.first = self._entries.pop(0).round + 1

    def between(self, start: int, stop: int) -> list[LoggedRound]:
        """Returns the rounds start … stop − 1 that moved the model; the log is complete from ``first`` on."""
        low, high = (bisect.bisect_left(self._entries, at, key=lambda e: e.round) for at in (start, stop))
        return self._entries[low:high]

    def rounds(self, start: int, stop: int) -> str:
        """Returns the numbers of the rounds of ``between``, formatted by ``ranges``."""
        return ranges([entry.round for entry in self.between(start, stop)])

    def digest_at(self, number: int, present: str) -> str | None:
        """Returns the digest at the start of a round; ``present`` after the last round, None before ``first``."""
        if number < self.first:
            return None
        i = bisect.bisect_left(self._entries, number, key=lambda e: e.round)
        return self._entries[i].digest if i < len(self._entries) else present

    def check(self, present: int, scalars: Callable[[int], TensorSpec]) -> None:
        """Raises ``MessageError`` unless the entries' rounds ascend, are before ``present``, and have valid scalars."""
        check_integers("the log's first round", [self.first], present + 1, 1)
        after = self.first
        for entry in self._entries:
            check_integers("rounds of the log", [entry.round], present, after)
            scalars(entry.round).check("scalars", entry.scalars)
            check_saved("digest", "", entry.digest, {})
            after = entry.round + 1
        if len(self) > self.capacity:
            raise MessageError(f"the log has {len(self)} rounds, expected at most {self.capacity}")

    def state_dict(self) -> dict[str, Any]:
        """Returns the entries as plain values and tensors."""
        return {"first": self.first, "entries": [[e.round, e.scalars.clone(), e.digest] for e in self._entries]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the entries of a ``state_dict``."""
        self.first, self._entries = state["first"], [LoggedRound(*entry) for entry in state["entries"]]


def ranges(rounds: Sequence[int]) -> str:
    """Formats ascending round numbers compactly, as in ``"1-7,9"``."""
    parts: list[list[int]] = []
    for number in rounds:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)


def parse_ranges(text: str, start: int, stop: int, most: int) -> list[int]:
    """Parses the output of ``ranges``.

    Raises:
        MessageError: unless there are at most ``most`` ascending numbers from ``start`` to ``stop`` − 1.
    """
    rounds: list[int] = []
    for part in text.split(",") if text else []:
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() and len(end) < 20 for end in ends):
            raise MessageError(f"rounds are {text!r:.80}, expected numbers and ranges such as '1-7,9'")
        a, b = int(ends[0]), int(ends[-1])
        if not max(start, rounds[-1] + 1 if rounds else start) <= a <= b < stop:
            raise MessageError(f"rounds are {text!r:.80}, expected ascending numbers from {start} to {stop - 1}")
        if len(rounds) + b + 1 - a > most:
            raise MessageError(f"rounds are {text!r:.80}, expected at most {most} rounds")
        rounds += range(a, b + 1)
    return rounds
