"""Accounts of clients: each query and byte is booked in the server's ledger once, even if replies are lost."""

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

WIRE_TOTALS = ("wire-up", "wire-down")
"""Names of a byte meter's totals in an account."""

MAX_REMARKS = 4
"""Maximal number of remarks on a client between two services."""


@dataclass
class PendingMessage:
    """A message to a node and its reply.

    Attributes:
        node: Flower's number of the node.
        client: the node's client; None if the message asks for its number.
        reply: the reply, once received.
        reason: why there will be no reply.
        code: Flower's error code, if an error is the reason.
    """

    node: int
    client: int | None = None
    reply: Message | None = None
    reason: str = ""
    code: int = 0

    @property
    def open(self) -> bool:
        """Whether a reply is still expected."""
        return self.reply is None and not self.reason


class ClientAccount:
    """The totals that a client has reported; ``service`` books the increase since the client's last reply.

    A reply contains the totals of the client's own ledger (``NodeLedger``) and of its node's byte meter
    (``wire.Meter``). Queries of a lost report are therefore booked with the client's next reply, with a note of their
    number. A reply's bytes are booked with the next reply, because the meter counts them after the reply was sent.

    Ledgers and meters have names. If the ledger's name is new (the client moved to another machine), its whole total is
    booked. If the meter's name is new (the SuperNode restarted), its increase since ``greet`` is booked.

    Args:
        longest: maximal seconds that a client can claim for one message.
        most: maximal number of queries that a client can claim for each message since its last reply.
    """

    def __init__(self, longest: float, most: float = math.inf) -> None:
        self.longest, self._most, self._messages = longest, most, 0
        self._booked: dict[tuple[str, str], int] = {}
        self._carried: list[Service] = []
        self._remarks: list[str] = []

    def greet(self, given: Mapping[str, Any]) -> None:
        """Records a new node's meter, so that bytes before this run are not booked."""
        for name in WIRE_TOTALS:
            self._added(str(given.get("wire", "")), name, given)

    def carry(self, service: Service) -> None:
        """Adds a service's costs to those of the next service."""
        self._carried.append(service)

    def remark(self, text: str) -> None:
        """Adds a remark for the ledger to the next service; remarks after the first ``MAX_REMARKS`` are dropped."""
        self._remarks = [*self._remarks, text][:MAX_REMARKS]

    def service(self, client: int, sent: RecordDict, entry: PendingMessage) -> Service:
        """Returns the costs of a message (records ``sent``) and its reply, and the reason for a missing report."""
        traffic = Counter(message_down=size_of(sent) if entry.node else 0)
        spent, note, seconds, reason = Counter[str](), "", 0.0, entry.reason
        self._messages += bool(entry.node)
        if entry.reply is not None:
            given = account_in(entry.reply.content)
            traffic["message_up"] = size_of(entry.reply.content)
            if (meter := str(given.get("wire", ""))) != "":
                traffic["wire_up"], traffic["wire_down"] = (self._added(meter, name, given) for name in WIRE_TOTALS)
            spent = Counter({name: self._added(str(given.get("book", "")), name, given) for name in Spent._fields})
            possible, claimed, self._messages = self._most * self._messages, max(spent.values()), 0
            lost = spent["queries"] - _count(given, "now")
            note = f"{lost} queries belong to lost reports" if lost > 0 else ""
            if claimed > possible:
                note = f"{claimed} queries are claimed, the maximum of {possible:g} is booked"
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
        """Returns the increase of a total since it was last booked, and books it."""
        total, before = _count(given, name), self._booked.get((whose, name), 0)
        self._booked[whose, name] = max(total, before)
        return max(total - before, 0)


def account_in(content: RecordDict) -> Mapping[str, Any]:
    """Returns the account in a reply's records, empty if there is none."""
    found = content.get(ACCOUNT)
    return found if isinstance(found, ConfigRecord) else {}


def _count(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name, 0)
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _seconds(given: Mapping[str, Any]) -> float:
    value = given.get("seconds", 0.0)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0.0 else 0.0
