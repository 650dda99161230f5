"""The host of clients on SuperNodes, which a ``Federation`` reaches through Flower's ``Grid``."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from federated.core.algorithm import Algorithm
from federated.core.messages import Message, MessageError, plain
from federated.core.reception import Content
from federated.engine.host import Request, Service, drained
from federated.flower.accounts import ClientAccount, PendingMessage, account_in
from federated.flower.keys import client_of
from federated.flower.records import HEADER, HELLO, frame_in, records_of
from federated.flower.waiting import Patience, Waiting

logger = logging.getLogger(__name__)

UNAVAILABLE = 5
"""Flower's error code for a node that has disconnected."""

UNABLE = (1, 2, 6, 7)
"""Flower's error codes for a node that cannot run the app: it failed to load, raised an error, or was refused."""

POLL = 0.5
"""Seconds between requests for replies."""

LOOK = 3.0
"""Seconds between requests for the list of nodes."""


class NoClientError(RuntimeError):
    """Raised if clients did not connect or cannot take part; the text states which ones and why."""


class GridHost:
    """A ``ClientHost`` that sends broadcasts to SuperNodes and gets reports in the replies; it needs ``codec=False``.

    A new node is asked for its client. With ``keys`` a node can only be the client listed for its key, which Flower has
    verified (``--enable-supernode-auth``). While a client's node is connected, other nodes that claim the client are
    refused; the log and the client's next ledger entry record this. Refused nodes are asked again after the first node
    has disconnected, so that a client can move to another node.

    Args:
        algorithm: the options.
        grid: Flower's grid.
        timeout: seconds within which a client must reply, extended if replies took longer (``waiting.Patience``).
        wait: seconds without a new connection after which waiting for clients ends with an error.
        keys: the clients by their nodes' keys (``read_keys``); None trusts the nodes' own claims.
        say: receives a message about awaited clients every 30 s.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        grid: Grid,
        *,
        timeout: float = 600.0,
        wait: float = 120.0,
        keys: Mapping[bytes, int] | None = None,
        say: Callable[[str], object] = logger.info,
    ) -> None:
        self.algorithm, self.grid, self.wait, self.keys, self._say = algorithm, grid, wait, keys, say
        self._patience = Patience(timeout)
        self._nodes: dict[int, int] = {}
        self._greeted: set[int] = set()
        self._owners: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._pending: dict[str, PendingMessage] = {}
        self._accounts = {c: ClientAccount(timeout, algorithm.max_client_queries) for c in range(algorithm.clients)}
        self._strict = False
        self._refreshed_at = -math.inf

    def connect(self) -> None:
        """Waits for all clients.

        Raises:
            NoClientError: if a client does not connect in time or cannot take part, or two nodes claim one client.
        """
        wanted = set(range(self.algorithm.clients))
        self._strict = True
        self._wait_for(wanted, lambda: wanted <= set(self._nodes))
        self._strict = False
        if missing := sorted(wanted - set(self._nodes)):
            raise NoClientError(f"clients {missing} of {len(wanted)} have not connected within {self.wait:g} s")

    def accounts(self) -> list[Service]:
        """Asks connected clients for their costs since their last replies."""
        contents = {client: RecordDict() for client in sorted(self._nodes)}
        asked = self._ask("query.account", contents, 0)
        return [self._accounts[client].service(client, contents[client], entry) for client, entry in asked.items()]

    def absent(self, clients: Sequence[int]) -> dict[int, str]:
        """See ``ClientHost.absent``; waits until a client is connected.

        Raises:
            NoClientError: if no client is connected after ``wait`` seconds.
        """
        self._refresh_nodes()
        self._wait_for(set(clients), lambda: not self._nodes.keys().isdisjoint(clients))
        if self._nodes.keys().isdisjoint(clients):
            raise NoClientError(f"none of the clients {list(clients)} has been connected for {self.wait:g} s")
        return {client: "the client is not connected" for client in clients if client not in self._nodes}

    def serve_all(self, requests: Sequence[Request]) -> Iterator[Service]:
        """See ``ClientHost.serve_all``; the clients work concurrently."""
        contents, round_number = {}, 0
        for request in requests:
            message = _broadcast(request.message)
            contents[request.client], round_number = RecordDict(records_of(message)), message.round
        asked = self._ask("train.phase", contents, round_number)
        return drained(self._served(client, contents[client], asked.pop(client)) for client in contents)

    def catch_up(self, number: int, message: Content) -> str:
        """See ``ClientHost.catch_up``."""
        message = _broadcast(message)
        content = RecordDict(records_of(message))
        entry = self._ask("train.catch_up", {number: content}, message.round)[number]
        service = self._accounts[number].service(number, content, entry)
        self._accounts[number].carry(service)
        return service.reason

    def states(self) -> dict[int, dict[str, Any]]:
        """See ``ClientHost.states``; empty, as the nodes store their clients' states."""
        return {}

    def load_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """See ``ClientHost.load_states``.

        Raises:
            ValueError: if there are states, which belong to clients on one machine.
        """
        if states:
            raise ValueError(f"the state has clients {sorted(states)}: it belongs to a federation in one process")

    def close(self) -> None:
        """See ``ClientHost.close``; pending replies are dropped."""
        self._pending = {}

    def _ask(self, kind: str, contents: Mapping[int, RecordDict], round_number: int) -> dict[int, PendingMessage]:
        """Sends each client its records, and waits for replies or reasons for missing ones."""
        asked, limit = {}, self._patience.limit(kind)
        for client, content in contents.items():
            node = self._nodes.get(client)
            asked[client] = PendingMessage(node or 0, client, reason="" if node else "the client has disconnected")
            self._accounts[client].longest = limit
            if node:
                self._push(asked[client], kind, content, round_number, limit)
        waiting = Waiting(lambda: [client for client, entry in asked.items() if entry.open], limit, self._say)
        start, took, seconds = time.monotonic(), dict[int, float](), 0.0
        while any(entry.open for entry in asked.values()) and seconds < limit:
            self._poll()
            seconds = time.monotonic() - start
            took |= {c: min(seconds, limit) for c, entry in asked.items() if entry.reply is not None and c not in took}
            waiting.passed(seconds)
        self._patience.learn(kind, [*took.values(), *(limit for entry in asked.values() if entry.open)])
        for entry in asked.values():
            if entry.open:
                entry.reason = f"no reply within {limit:g} s"
        self._pending = {i: entry for i, entry in self._pending.items() if entry.open}
        return asked

    def _push(self, entry: PendingMessage, kind: str, content: RecordDict, round_number: int, limit: float) -> None:
        group = str(round_number) if round_number else ""
        message = FlowerMessage(content, entry.node, kind, ttl=limit, group_id=group)
        pushed = list(self.grid.push_messages([message]))
        if pushed and pushed[0]:
            self._pending[pushed[0]] = entry
        else:
            entry.reason = "Flower did not accept the message: it is too large, or the node has disconnected"

    def _poll(self) -> None:
        """Receives replies, looks for new nodes from time to time, and sleeps if there was no reply."""
        awaited = [i for i, entry in self._pending.items() if entry.open]
        replies = list(self.grid.pull_messages(awaited)) if awaited else []
        for reply in replies:
            entry = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if entry is not None:
                self._take(entry, reply)
        if time.monotonic() - self._refreshed_at >= LOOK:
            self._refresh_nodes()
        if not replies:
            time.sleep(POLL)

    def _take(self, entry: PendingMessage, reply: FlowerMessage) -> None:
        if not reply.has_error():
            entry.reply = reply
        else:
            entry.code = reply.error.code
            entry.reason = f"Flower's error {entry.code}: {plain(reply.error.reason)}"
            if entry.code == UNAVAILABLE:
                self._forget(entry.node)
        if entry.client is None:
            self._identify(entry)

    def _refresh_nodes(self) -> None:
        """Asks new nodes for their clients, and forgets disconnected ones."""
        self._refreshed_at = time.monotonic()
        present = {info.node_id: info.public_key for info in self.grid.get_nodes()}
        for node in (self._greeted | set(self._nodes.values())) - set(present):
            self._forget(node)
        for node in sorted(set(present) - self._greeted):
            self._greeted.add(node)
            if self.keys is not None:
                if (owner := client_of(self.keys, present[node])) is None:
                    self._refuse(f"node {node} cannot take part: its key is not in the list", False)
                    continue
                self._owners[node] = owner
            hello = RecordDict({HELLO: ConfigRecord({"configuration": json.dumps(self.algorithm.configuration)})})
            self._push(PendingMessage(node), "query.hello", hello, 0, self._patience.timeout)

    def _identify(self, entry: PendingMessage) -> None:
        """Processes a new node's answer: its client, or why it cannot be one."""
        given = {} if entry.reply is None else account_in(entry.reply.content)
        reason, client = entry.reason or plain(given.get("reason", "")), given.get("client")
        if not reason and not (type(client) is int and 0 <= client < self.algorithm.clients):
            reason = f"it claims to be client {client!r:.40}"
        if reason:
            fatal = entry.reply is not None or entry.code in UNABLE
            known = self._owners.get(entry.node, client)
            who = f"client {known} (node {entry.node})" if type(known) is int else f"node {entry.node}"
            self._refuse(f"{who} cannot take part: {reason}", fatal)
            return
        assert isinstance(client, int)
        before, owner = self._nodes.get(client), self._owners.get(entry.node, client)
        if owner != client:
            reason = f"node {entry.node} claims to be client {client}, its key belongs to client {owner}"
            self._refuse(reason, False, client)
        elif before is not None:
            self._claims[entry.node] = client
            reason = f"nodes {before} and {entry.node} both claim to be client {client}: the first one is used"
            self._refuse(reason, True, client)
        else:
            self._nodes[client] = entry.node
            self._accounts[client].greet(given)
            logger.info("client %d is on node %d", client, entry.node)

    def _refuse(self, reason: str, fatal: bool, claimed: int | None = None) -> None:
        """Refuses a node, with a remark in the ledger entry of the client that it claims to be."""
        if self._strict and fatal:
            raise NoClientError(reason)
        logger.warning(reason)
        if claimed is not None:
            self._accounts[claimed].remark(reason)

    def _forget(self, node: int) -> None:
        self._greeted.discard(node)
        freed = {client for client, n in self._nodes.items() if n == node}
        self._nodes = {client: n for client, n in self._nodes.items() if n != node}
        self._claims.pop(node, None)
        again = {n for n, client in self._claims.items() if client in freed}
        self._claims = {n: client for n, client in self._claims.items() if n not in again}
        self._greeted -= again

    def _wait_for(self, clients: set[int], done: Callable[[], bool]) -> None:
        """Polls until ``done``, or no client has connected for ``wait`` seconds."""
        start, connected, seconds = time.monotonic(), set(self._nodes), 0.0
        waiting = Waiting(lambda: sorted(clients - set(self._nodes)), self.wait, self._say, " to connect")
        while not done() and seconds < self.wait:
            self._poll()
            if new := set(self._nodes) - connected:
                start, connected = time.monotonic(), connected | new
            seconds = time.monotonic() - start
            waiting.passed(seconds)

    def _served(self, client: int, content: RecordDict, entry: PendingMessage) -> Service:
        """Returns a client's service from its reply to a phase's broadcast."""
        service = self._accounts[client].service(client, content, entry)
        if entry.reply is None or HEADER not in entry.reply.content:
            return service
        behind = account_in(entry.reply.content).get("behind") is True
        try:
            report = frame_in(entry.reply.content)
        except MessageError as error:
            return replace(service, reason=str(error))
        service = replace(service, payload=report.payload_bytes)
        return replace(service, position=report) if behind else replace(service, report=report)


def _broadcast(message: Content) -> Message:
    """Returns the message; raises ``TypeError`` for bytes, as this host makes records of messages."""
    if not isinstance(message, Message):
        raise TypeError("a federation over a grid needs codec=False, as messages become Flower records")
    return message
