"""What clients say they have spent, and what of it the server's ledger has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from federated.engine.host import Service
from federated.flower.records import ACCOUNT, size_of

SPENT = ("queries", "failures", "gradients")
PASSED = ("wire-up", "wire-down")


@dataclass
class Asked:
    """A message that awaits its reply.

    Attributes:
        node: Flower's number of the node.
        client: whose it is; None: the node is asked which client it is.
        reply: the reply, once there.
        reason: why there is none and none is awaited any more.
        code: Flower's error, where that is why.
    """

    node: int
    client: int | None = None
    reply: Message | None = None
    reason: str = ""
    code: int = 0

    @property
    def open(self) -> bool:
        """Whether the reply is still awaited."""
        return self.reply is None and not self.reason


class ClientAccount:
    """A client's totals, of which each is booked once.

    A reply brings the totals of the client's own ledger and of its node's byte meter; booked is what has been added
    since the last reply. Queries whose report was lost are hence booked with the client's next reply, and a note
    says how many they are. Bytes of a reply itself are on the meter when the next one is made.

    A ledger begun anew (on another machine) and a meter begun anew (by a SuperNode that was restarted) are known by
    their names: the ledger's totals then count from 0, the meter's from the node's greeting.
    """

    def __init__(self) -> None:
        self._booked: dict[tuple[str, str], int] = {}
        self._carried: list[Service] = []

    def greet(self, given: Mapping[str, Any]) -> None:
        """Take the meter of a node that is new: what passed before was not for this run."""
        for name in PASSED:
            self._added(str(given.get("wire", "")), name, given)

    def carry(self, service: Service) -> None:
        """Book a service with the next one."""
        self._carried.append(service)

    def service(self, client: int, sent: RecordDict, entry: Asked) -> Service:
        """The costs of an exchange, and the reason that its reply gives for having no report.

        Args:
            client: its number.
            sent: what went down.
            entry: what came back.
        """
        traffic = Counter(message_down=size_of(sent) if entry.node else 0)
        spent, note, seconds, reason = Counter[str](), "", 0.0, entry.reason
        if entry.reply is not None:
            given = account_in(entry.reply.content)
            traffic["message_up"] = size_of(entry.reply.content)
            if (meter := str(given.get("wire", ""))) != "":
                traffic["wire_up"], traffic["wire_down"] = (self._added(meter, name, given) for name in PASSED)
            spent = Counter({name: self._added(str(given.get("book", "")), name, given) for name in SPENT})
            lost = spent["queries"] - _count(given, "now")
            note = f"{lost} queries are of work whose report was lost" if lost > 0 else ""
            seconds, reason = _seconds(given), str(given.get("reason", ""))
        for earlier in self._carried:
            spent.update({name: getattr(earlier, name) for name in SPENT})
            traffic.update(earlier.traffic)
            note, seconds = "; ".join(filter(None, (earlier.note, note))), seconds + earlier.seconds
        self._carried = []
        return Service(
            client,
            reason=reason,
            queries=spent["queries"],
            failures=spent["failures"],
            gradients=spent["gradients"],
            seconds=seconds,
            traffic=traffic,
            note=note,
        )

    def _added(self, whose: str, name: str, given: Mapping[str, Any]) -> int:
        """What a total has grown by since it was last read."""
        total, before = _count(given, name), self._booked.get((whose, name), 0)
        self._booked[whose, name] = max(total, before)
        return max(total - before, 0)


def account_in(content: RecordDict) -> Mapping[str, Any]:
    """The account that a reply brings; empty where it has none."""
    found = content.get(ACCOUNT)
    return found if isinstance(found, ConfigRecord) else {}


def _count(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name, 0)
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _seconds(given: Mapping[str, Any]) -> float:
    value = given.get("seconds", 0.0)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0.0 else 0.0
