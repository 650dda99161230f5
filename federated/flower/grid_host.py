"""Clients beyond a Flower ``Grid``: the host that ``federated.Federation`` drives over SuperNodes."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from federated.core.algorithm import Algorithm
from federated.core.messages import Broadcast, MessageError, Report
from federated.engine.host import Request, Service
from federated.flower.accounts import Asked, ClientAccount, account_in
from federated.flower.records import HEADER, HELLO, message_in, records_of

logger = logging.getLogger(__name__)

UNAVAILABLE = 5
"""Flower's code of a node that has gone."""

UNABLE = (1, 2, 6, 7)
"""Flower's codes of a node that cannot run the app: it cannot load it, it raises, its mods or its policy refuse."""

POLL = 0.5
"""Seconds between two looks for replies."""

LOOK = 3.0
"""Seconds between two looks for new nodes."""


class NoClientError(RuntimeError):
    """Clients did not connect, or cannot take part; the message says which and why."""


class GridHost:
    """Carries phases to SuperNodes and their reports back.

    Which node is which client the nodes say: a new node is greeted, and from its answer on it is the client that
    it says it is. So a client may return on another node. A node that does not answer in time, is unavailable or
    whose process was killed costs its client's report of the phase.

    Args:
        algorithm: the options.
        grid: Flower's.
        timeout: seconds in which a client must reply.
        wait: seconds to wait for clients that are not connected.
        clock: seconds, for tests.
        sleep: what waits, for tests.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        grid: Grid,
        *,
        timeout: float = 600.0,
        wait: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.algorithm, self.grid, self.timeout, self.wait = algorithm, grid, timeout, wait
        self._clock, self._sleep = clock, sleep
        self._nodes: dict[int, int] = {}
        self._greeted: set[int] = set()
        self._asked: dict[str, Asked] = {}
        self._accounts = {c: ClientAccount() for c in range(algorithm.clients)}
        self._strict = False
        self._looked = -math.inf

    # What a server app calls.

    def connect(self) -> None:
        """Wait for all clients.

        Raises:
            NoClientError: if some have not connected in time, cannot take part, or two nodes are the same client.
        """
        wanted = set(range(self.algorithm.clients))
        self._strict = True
        self._wait_until(lambda: wanted <= set(self._nodes))
        self._strict = False
        if missing := sorted(wanted - set(self._nodes)):
            raise NoClientError(f"clients {missing} of {len(wanted)} have not connected in {self.wait:g} s")

    def accounts(self) -> list[Service]:
        """What connected clients spent since their last replies: asked at the end of a run."""
        contents = {client: RecordDict() for client in sorted(self._nodes)}
        asked = self._ask("query.account", contents, 0)
        return [self._accounts[client].service(client, contents[client], entry) for client, entry in asked.items()]

    # What ``Federation`` calls.

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """Clients among these that are not connected; waits for one at least.

        Raises:
            NoClientError: if none of them has been connected for ``wait`` seconds.
        """
        self._look()
        self._wait_until(lambda: not self._nodes.keys().isdisjoint(clients))
        if self._nodes.keys().isdisjoint(clients):
            raise NoClientError(f"none of the clients {list(clients)} has been connected for {self.wait:g} s")
        return {client: "the client is not connected" for client in clients if client not in self._nodes}

    def serve_all(self, requests: Sequence[Request]) -> list[Service]:
        """Carry a phase to clients; in the requests' order."""
        messages = {request.client: _broadcast(request.message) for request in requests}
        contents = {client: RecordDict(records_of(message)) for client, message in messages.items()}
        round_number = max((message.round for message in messages.values()), default=0)
        asked = self._ask("train.phase", contents, round_number)
        return [self._served(client, messages[client], contents[client], asked[client]) for client in messages]

    def catch_up(self, number: int, message: Broadcast | bytes) -> str:
        """Hand a client what the server sent for its position; why it was refused, or nothing."""
        message = _broadcast(message)
        content = RecordDict(records_of(message))
        entry = self._ask("train.catch_up", {number: content}, message.round)[number]
        service = self._accounts[number].service(number, content, entry)
        self._accounts[number].carry(service)
        return service.reason

    def restart(self, number: int) -> None:
        """Refused: fault plans are for clients in process."""
        raise RuntimeError(f"client {number} is on a node of its own, which alone can restart it")

    def states(self) -> dict[int, dict[str, Any]]:
        """None: clients keep their own."""
        return {}

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Nothing to load: clients keep their own.

        Raises:
            ValueError: for states of clients in process.
        """
        if states:
            raise ValueError(f"the state has clients {sorted(states)}: it is of a federation in process")

    def close(self) -> None:
        """Await nothing any more."""
        self._asked = {}

    # Parts.

    def _ask(self, kind: str, contents: Mapping[int, RecordDict], round_number: int) -> dict[int, Asked]:
        """Send each client its records and wait for the replies, or for the reasons why there are none."""
        asked = {}
        for client, content in contents.items():
            node = self._nodes.get(client)
            asked[client] = Asked(node or 0, client, reason="" if node else "the client has gone")
            if node:
                self._push(asked[client], kind, content, round_number)
        end = self._clock() + self.timeout
        while any(entry.open for entry in asked.values()) and self._clock() < end:
            self._poll()
        for entry in asked.values():
            if entry.open:
                entry.reason = f"no reply within {self.timeout:g} s"
        self._asked = {i: entry for i, entry in self._asked.items() if entry.open}
        return asked

    def _push(self, entry: Asked, kind: str, content: RecordDict, round_number: int) -> None:
        group = str(round_number) if round_number else ""
        message = Message(content, entry.node, kind, ttl=self.timeout, group_id=group)
        pushed = list(self.grid.push_messages([message]))
        if pushed and pushed[0]:
            self._asked[pushed[0]] = entry
        else:
            entry.reason = "Flower did not take the message: it is too large, or the node has gone"

    def _poll(self) -> None:
        """Take what replies there are, greet new nodes, and wait a little where there was nothing."""
        awaited = [i for i, entry in self._asked.items() if entry.open]
        replies = list(self.grid.pull_messages(awaited)) if awaited else []
        for reply in replies:
            entry = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if entry is not None:
                self._take(entry, reply)
        if self._clock() - self._looked >= LOOK:
            self._look()
        if not replies:
            self._sleep(POLL)

    def _take(self, entry: Asked, reply: Message) -> None:
        if not reply.has_error():
            entry.reply = reply
        else:
            entry.code = reply.error.code
            entry.reason = f"Flower's error {entry.code}: {reply.error.reason}"
            if entry.code == UNAVAILABLE:
                self._forget(entry.node)
        if entry.client is None:
            self._met(entry)

    def _look(self) -> None:
        """Greet nodes that are new, forget those that have gone."""
        self._looked = self._clock()
        present = set(self.grid.get_node_ids())
        for node in (self._greeted | set(self._nodes.values())) - present:
            self._forget(node)
        for node in sorted(present - self._greeted):
            self._greeted.add(node)
            text = json.dumps(self.algorithm.configuration)
            self._push(Asked(node), "query.hello", RecordDict({HELLO: ConfigRecord({"configuration": text})}), 0)

    def _met(self, entry: Asked) -> None:
        """A node says which client it is, or why it can be none."""
        given = {} if entry.reply is None else account_in(entry.reply.content)
        reason, client = entry.reason or str(given.get("reason", "")), given.get("client")
        if not reason and not (type(client) is int and 0 <= client < self.algorithm.clients):
            reason = f"it says that it is client {client!r:.40}"
        if reason:
            fatal = entry.reply is not None or entry.code in UNABLE
            self._refuse(f"node {entry.node} cannot take part: {reason}", fatal)
            return
        assert isinstance(client, int)
        before = self._nodes.get(client)
        if before is not None:
            self._refuse(f"nodes {before} and {entry.node} are both client {client}", True)
            for other in self._asked.values():
                if other.node == before:
                    other.reason = "the client came back on another node"
        self._nodes[client] = entry.node
        self._accounts[client].greet(given)
        logger.info("client %d is on node %d", client, entry.node)

    def _refuse(self, reason: str, fatal: bool) -> None:
        if self._strict and fatal:
            raise NoClientError(reason)
        logger.warning(reason)

    def _forget(self, node: int) -> None:
        self._greeted.discard(node)
        self._nodes = {client: n for client, n in self._nodes.items() if n != node}

    def _wait_until(self, done: Callable[[], bool]) -> None:
        end = self._clock() + self.wait
        while not done() and self._clock() < end:
            self._poll()

    def _served(self, client: int, sent: Broadcast, content: RecordDict, entry: Asked) -> Service:
        """What a client did for a phase, from its reply."""
        service = self._accounts[client].service(client, content, entry)
        if entry.reply is None or HEADER not in entry.reply.content:
            return service
        behind = account_in(entry.reply.content).get("behind") is True
        a = self.algorithm
        spec = a.reports("position") if behind else a.report_spec(sent.phase)
        try:
            report = message_in(entry.reply.content, spec.max_bytes)
            if not isinstance(report, Report):
                raise MessageError(f"a {report.kind} is no report")
        except MessageError as error:
            return replace(service, reason=error.reason)
        service = replace(service, payload=report.payload_bytes)
        return replace(service, position=report) if behind else replace(service, report=report)


def _broadcast(message: Broadcast | bytes) -> Broadcast:
    """The message itself: records are made of it here, so that a federation over a grid has ``codec=False``."""
    if not isinstance(message, Broadcast):
        raise TypeError("a federation over a grid passes messages as they are: codec=False")
    return message
