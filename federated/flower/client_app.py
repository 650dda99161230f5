"""The ``ClientApp``: one client of a federation.

Flower starts a process for every message. ``Context.state`` holds the client's state between messages, and a file of
the node its count of queries (``NodeLedger``). A reply brings the client's account, the reason if there is no report,
and

===================  ==============================================================================================
``query.hello``      the client's number, after a check that it has the server's configuration and that its
                     objective can be imported, for which no query is made
``train.phase``      the report of a phase, given its broadcast; or the position of a client that is behind
``train.catch_up``   nothing else: the message is the server's answer to a position
``query.account``    nothing else
===================  ==============================================================================================
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federated.core.algorithm import Algorithm
from federated.core.messages import Report, plain
from federated.engine.host import Host, Request
from federated.flower import wire
from federated.flower.configuration import NodeConfig, RunConfig
from federated.flower.node_ledger import CountedEvaluator, CountedGradient, NodeLedger
from federated.flower.records import ACCOUNT, HELLO, METRICS, frame_in, load_state, records_of, save_state

logger = logging.getLogger(__name__)

app = ClientApp()


def answering(handle: Callable[[Message, Context], dict[str, Any]]) -> Callable[[Message, Context], Message]:
    """Makes a handler of messages from a function that returns the reply's records.

    The handler adds the client's account, and replies with the reason, and whose it is, if the function raises.
    """

    @wraps(handle)
    def answer(message: Message, context: Context) -> Message:
        try:
            records = handle(message, context)
            records.setdefault(ACCOUNT, ConfigRecord({"reason": ""})).update(account(context))
        except Exception as error:
            reason, client = plain(f"{type(error).__name__}: {error}"), context.node_config.get("client")
            logger.exception("client %s could not answer %s: %s", client, message.metadata.message_type, reason)
            records = {ACCOUNT: ConfigRecord({"reason": reason})}
            if type(client) is int and client >= 0:
                records[ACCOUNT]["client"] = client
            with suppress(ValueError, TypeError, OSError):
                records[ACCOUNT].update(account(context))
        return Message(RecordDict(records), reply_to=message)

    return answer


def account(context: Context) -> dict[str, Any]:
    """What the client has spent in this run, and the bytes that passed between its node and the SuperLink."""
    ledger = _ledger(context, NodeConfig.of(context.node_config))
    totals = {"book": ledger.book, **ledger.spent()._asdict()}
    if (meter := wire.reading()) is not None:
        totals |= {"wire": meter.name, "wire-up": meter.up, "wire-down": meter.down}
    return totals


@app.query("hello")
@answering
def hello(message: Message, context: Context) -> dict[str, Any]:
    """Answers which client this is."""
    algorithm, node = _read(context)
    theirs = json.loads(str(message.content.config_records[HELLO]["configuration"]))
    algorithm.check_configuration(theirs, "the server")
    node.prepared(algorithm)
    if node.client >= algorithm.clients:
        raise ValueError(f"client {node.client} is configured, there are {algorithm.clients}")
    return {ACCOUNT: ConfigRecord({"reason": "", "client": node.client})}


@app.train("phase")
@answering
def phase(message: Message, context: Context) -> dict[str, Any]:
    """Takes part in a phase."""
    algorithm, node = _read(context)
    broadcast = frame_in(message.content)
    host = _host(context, algorithm, node, broadcast.header.round, broadcast.header.phase)
    service = host.serve(Request(node.client, broadcast))
    save_state(context.state, host.states()[node.client])
    sent = service.report or service.position
    said: Any = {
        "reason": service.reason,
        "behind": service.position is not None,
        "seconds": service.seconds,
        "now": service.spent.queries,
    }
    records: dict[str, Any] = {ACCOUNT: ConfigRecord(said)}
    if sent is not None:
        assert isinstance(sent, Report)
        # What Flower's strategies weigh and average.
        weight = algorithm.weights[node.client]
        metrics = MetricRecord({"num-examples": weight, "queries": sent.queries, "failures": sent.failures})
        records |= records_of(sent) | {METRICS: metrics}
    return records


@app.train("catch_up")
@answering
def catch_up(message: Message, context: Context) -> dict[str, Any]:
    """Catches up by the server's answer to the client's position."""
    algorithm, node = _read(context)
    answer = frame_in(message.content)
    host = _host(context, algorithm, node, answer.header.round, answer.header.phase)
    reason = host.catch_up(node.client, answer)
    save_state(context.state, host.states()[node.client])
    return {ACCOUNT: ConfigRecord({"reason": reason})}


@app.query("account")
@answering
def settle(message: Message, context: Context) -> dict[str, Any]:
    """Answers what was spent, which every reply says."""
    return {}


def _read(context: Context) -> tuple[Algorithm, NodeConfig]:
    return RunConfig.of(context.run_config).make_algorithm(), NodeConfig.of(context.node_config)


def _host(context: Context, algorithm: Algorithm, node: NodeConfig, *address: Any) -> Host:
    """A host of the client as after its last message; its queries are counted at an address, (round, phase)."""
    evaluators, gradients = node.prepared(algorithm)
    at = (_ledger(context, node), *address)
    counted: dict[int, Any] = {client: CountedEvaluator(e, *at) for client, e in evaluators.items()}
    host = Host(algorithm, counted, {client: CountedGradient(g, *at) for client, g in gradients.items()})
    host.client(node.client)
    if (state := load_state(context.state)) is not None:
        host.load_states({node.client: state})
    return host


def _ledger(context: Context, node: NodeConfig) -> NodeLedger:
    return NodeLedger(node.ledger_folder(), context.run_id, node.client)
