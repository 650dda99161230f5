"""The bounded log of rounds that clients replay: scalars, and the digest of the model before each."""

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
    """A round that moved the model.

    Attributes:
        round: r.
        scalars: what moved it, all that Alg. 1 has to send.
        digest: of the model before, at the start of round r.
    """

    round: int
    scalars: Tensor
    digest: str


class ScalarLog:
    """The last rounds that moved the model; skipped rounds take no entry.

    Args:
        capacity: entries at most; the oldest goes first.

    Attributes:
        first: the earliest round at whose start a model can be brought to the present by replay.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.first = 1
        self._entries: list[LoggedRound] = []

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: LoggedRound) -> None:
        """Keep a round, later than all before."""
        self._entries.append(entry)
        if len(self._entries) > self.capacity:
            self.first = self._entries.pop(0).round + 1

    def between(self, start: int, stop: int) -> list[LoggedRound]:
        """The rounds start … stop − 1 that moved the model; those from ``first`` on are complete."""
        low, high = (bisect.bisect_left(self._entries, at, key=lambda e: e.round) for at in (start, stop))
        return self._entries[low:high]

    def rounds(self, start: int, stop: int) -> str:
        """The numbers of those rounds, as ``ranges``."""
        return ranges([entry.round for entry in self.between(start, stop)])

    def digest_at(self, number: int, present: str) -> str | None:
        """Digest of the model at the start of a round: ``present`` after the last one; None before ``first``."""
        if number < self.first:
            return None
        i = bisect.bisect_left(self._entries, number, key=lambda e: e.round)
        return self._entries[i].digest if i < len(self._entries) else present

    def check(self, present: int, scalars: Callable[[int], TensorSpec]) -> None:
        """Raises ``MessageError`` unless the entries are of ascending rounds before the present one.

        Args:
            present: the present round.
            scalars: specification of a round's scalars.
        """
        check_integers("the log's first round", [self.first], present + 1, 1)
        after = self.first
        for entry in self._entries:
            check_integers("rounds of the log", [entry.round], present, after)
            scalars(entry.round).check("scalars", entry.scalars)
            check_saved("digest", "", entry.digest, {})
            after = entry.round + 1
        if len(self) > self.capacity:
            raise MessageError(f"the log has {len(self)} rounds, accepted are {self.capacity}")

    def state_dict(self) -> dict[str, Any]:
        """The entries as plain values and tensors."""
        return {"first": self.first, "entries": [[e.round, e.scalars.clone(), e.digest] for e in self._entries]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the entries of a ``state_dict``."""
        self.first, self._entries = state["first"], [LoggedRound(*entry) for entry in state["entries"]]


def ranges(rounds: Sequence[int]) -> str:
    """Ascending round numbers in few letters: ``"1-7,9"``."""
    parts: list[list[int]] = []
    for number in rounds:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)


def parse_ranges(text: str, start: int, stop: int, most: int) -> list[int]:
    """The round numbers that ``ranges`` wrote.

    Raises:
        MessageError: unless they are ascending numbers from ``start`` to under ``stop``, ``most`` of them at most.
    """
    rounds: list[int] = []
    for part in text.split(",") if text else []:
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() and len(end) < 20 for end in ends):
            raise MessageError(f"rounds are {text!r:.80}, accepted are numbers and ranges such as '1-7,9'")
        a, b = int(ends[0]), int(ends[-1])
        if not max(start, rounds[-1] + 1 if rounds else start) <= a <= b < stop:
            raise MessageError(f"rounds are {text!r:.80}, accepted are ascending ones from {start} to {stop - 1}")
        if len(rounds) + b + 1 - a > most:
            raise MessageError(f"rounds are {text!r:.80}, accepted are at most {most}")
        rounds += range(a, b + 1)
    return rounds
