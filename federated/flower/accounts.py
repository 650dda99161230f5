"""What clients have spent, by their own accounts, so that the server's ledger books each query and byte once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from federated.core.ledger import Spent
from federated.core.messages import plain
from federated.engine.host import Service
from federated.flower.records import ACCOUNT, size_of

PASSED = ("wire-up", "wire-down")
"""Names of the totals of a node's byte meter in an account."""

MOST_REMARKS = 4
"""Remarks on a client that are kept until its next service."""


@dataclass
class Asked:
    """A message to a node and what became of it.

    Attributes:
        node: Flower's number of the node.
        client: the node's client; None if the message asks which client it is.
        reply: the reply, once it has arrived.
        reason: why there is no reply and none is awaited.
        code: the code of Flower's error, if one is the reason.
    """

    node: int
    client: int | None = None
    reply: Message | None = None
    reason: str = ""
    code: int = 0

    @property
    def open(self) -> bool:
        """Whether the reply is awaited."""
        return self.reply is None and not self.reason


class ClientAccount:
    """The totals that a client has reported, of which each reply books the increase.

    A reply brings the totals of the client's own ledger (``NodeLedger``) and of its node's byte meter
    (``wire.Meter``). Queries whose report was lost are therefore booked with the client's next reply, and a note gives
    their number. The meter counts the bytes of a reply only after it was sent, so that the next reply brings them.

    Ledgers and meters have names. A ledger with a new name (the client is on another machine) counts from 0, a meter
    with a new name (the SuperNode was restarted) from its value when the node was greeted.

    Args:
        longest: seconds that a client's work on one message may take, which bound what it says that it took.
        most: queries of one message at most; more than that for each message since the last reply are not booked.
    """

    def __init__(self, longest: float, most: float = math.inf) -> None:
        self.longest, self._most, self._messages = longest, most, 0
        self._booked: dict[tuple[str, str], int] = {}
        self._carried: list[Service] = []
        self._remarks: list[str] = []

    def greet(self, given: Mapping[str, Any]) -> None:
        """Takes a new node's meter as it stands: bytes that passed before were not this run's."""
        for name in PASSED:
            self._added(str(given.get("wire", "")), name, given)

    def carry(self, service: Service) -> None:
        """Keeps the costs of a service, to be added to those of the next."""
        self._carried.append(service)

    def remark(self, text: str) -> None:
        """Keeps a remark for the ledger, to be added to those of the next service; of many the first."""
        self._remarks = [*self._remarks, text][:MOST_REMARKS]

    def service(self, client: int, sent: RecordDict, entry: Asked) -> Service:
        """The costs of a message and its reply, with the reason if the reply has no report.

        Args:
            client: the client's number.
            sent: the message's records.
            entry: the message's state, with the reply if there is one.
        """
        traffic = Counter(message_down=size_of(sent) if entry.node else 0)
        spent, note, seconds, reason = Counter[str](), "", 0.0, entry.reason
        self._messages += bool(entry.node)
        if entry.reply is not None:
            given = account_in(entry.reply.content)
            traffic["message_up"] = size_of(entry.reply.content)
            if (meter := str(given.get("wire", ""))) != "":
                traffic["wire_up"], traffic["wire_down"] = (self._added(meter, name, given) for name in PASSED)
            spent = Counter({name: self._added(str(given.get("book", "")), name, given) for name in Spent._fields})
            possible, claimed, self._messages = self._most * self._messages, max(spent.values()), 0
            lost = spent["queries"] - _count(given, "now")
            note = f"{lost} queries are of work whose report was lost" if lost > 0 else ""
            if claimed > possible:
                note = f"{claimed} queries are claimed, {possible:g} at most are possible and booked"
                spent = Counter({name: min(count, int(possible)) for name, count in spent.items()})
            seconds, reason = min(_seconds(given), self.longest), plain(given.get("reason", ""))
        for earlier in self._carried:
            spent.update(earlier.spent._asdict())
            traffic.update(earlier.traffic)
            note, seconds = "; ".join(filter(None, (earlier.note, note))), seconds + earlier.seconds
        note = "; ".join(filter(None, (*self._remarks, note)))
        self._carried, self._remarks = [], []
        costs = Spent(*(spent[name] for name in Spent._fields))
        return Service(client, reason=reason, spent=costs, seconds=seconds, traffic=traffic, note=note)

    def _added(self, whose: str, name: str, given: Mapping[str, Any]) -> int:
        """The increase of a total since it was last booked, which books it."""
        total, before = _count(given, name), self._booked.get((whose, name), 0)
        self._booked[whose, name] = max(total, before)
        return max(total - before, 0)


def account_in(content: RecordDict) -> Mapping[str, Any]:
    """The account in a reply's records; empty if there is none."""
    found = content.get(ACCOUNT)
    return found if isinstance(found, ConfigRecord) else {}


def _count(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name, 0)
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _seconds(given: Mapping[str, Any]) -> float:
    value = given.get("seconds", 0.0)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0.0 else 0.0
