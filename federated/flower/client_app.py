"""The ``ClientApp``: one client of a federation, which Flower starts anew for every message.

What the client remembers between messages is in ``Context.state``, its queries also in its own ledger. It answers

===================  ===============================================================================
``query.hello``      which client it is, after making sure that it can take part: its configuration is the
                     server's and its objective can be imported; no query is spent
``train.phase``      a phase's broadcast: receive, ask and tell to the end, report, or its position if it is behind
``train.catch_up``   what the server sent for a position
``query.account``    what it has spent, nothing else
===================  ===============================================================================
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
from federated.core.messages import Broadcast, MessageError, Report
from federated.engine.host import Host, Request
from federated.flower import wire
from federated.flower.configuration import NodeConfig, RunConfig
from federated.flower.node_ledger import CountedEvaluator, CountedGradient, NodeLedger
from federated.flower.records import ACCOUNT, HELLO, METRICS, load_state, message_in, records_of, save_state

logger = logging.getLogger(__name__)

Handler = Callable[[Message, Context], dict[str, Any]]

app = ClientApp()


def answering(handle: Handler) -> Callable[[Message, Context], Message]:
    """Reply with a handler's records and the client's account; with the reason where it raises."""

    @wraps(handle)
    def answer(message: Message, context: Context) -> Message:
        try:
            records = handle(message, context)
            records.setdefault(ACCOUNT, ConfigRecord({"reason": ""})).update(account(context))
        except Exception as error:
            logger.exception("the client could not answer %s", message.metadata.message_type)
            records = {ACCOUNT: ConfigRecord({"reason": f"{type(error).__name__}: {error}"})}
            with suppress(ValueError, TypeError, OSError):
                records[ACCOUNT].update(account(context))
        return Message(RecordDict(records), reply_to=message)

    return answer


def account(context: Context) -> dict[str, Any]:
    """What the client has spent in this run, and the bytes that passed between its node and the SuperLink."""
    ledger = _ledger(context, NodeConfig.of(context.node_config))
    spent = ledger.spent()
    totals = {"book": ledger.book, "queries": spent.queries, "failures": spent.failures, "gradients": spent.gradients}
    if (meter := wire.reading()) is not None:
        totals |= {"wire": meter.name, "wire-up": meter.up, "wire-down": meter.down}
    return totals


@app.query("hello")
@answering
def hello(message: Message, context: Context) -> dict[str, Any]:
    """Say which client this is."""
    algorithm, node = _read(context)
    theirs = json.loads(str(message.content.config_records[HELLO]["configuration"]))
    algorithm.check_configuration(theirs, "the server")
    node.gradients(algorithm, node.evaluator(algorithm.dimension))
    if node.client >= algorithm.clients:
        raise ValueError(f"client {node.client} is configured, there are {algorithm.clients}")
    return {ACCOUNT: ConfigRecord({"reason": "", "client": node.client})}


@app.train("phase")
@answering
def phase(message: Message, context: Context) -> dict[str, Any]:
    """Take part in a phase."""
    algorithm, node = _read(context)
    try:
        broadcast = _broadcast(message, algorithm, algorithm.exchanges)
    except MessageError as error:
        return {ACCOUNT: ConfigRecord({"reason": f"the client refused the broadcast: {error.reason}"})}
    host = _host(context, algorithm, node, broadcast)
    service = host.serve(Request(node.client, broadcast))
    save_state(context.state, host.states()[node.client])
    sent = service.report or service.position
    records: dict[str, Any] = {
        ACCOUNT: ConfigRecord(
            {
                "reason": service.reason,
                "behind": service.position is not None,
                "seconds": service.seconds,
                "now": service.queries,
            }
        )
    }
    if sent is not None:
        assert isinstance(sent, Report)
        # What Flower's strategies weigh and average.
        metrics: Any = {
            "num-examples": algorithm.weights[node.client],
            "queries": sent.queries,
            "failures": sent.failures,
        }
        records |= records_of(sent) | {METRICS: MetricRecord(metrics)}
    return records


@app.train("catch_up")
@answering
def catch_up(message: Message, context: Context) -> dict[str, Any]:
    """Take what the server sent for the client's position."""
    algorithm, node = _read(context)
    try:
        broadcast = _broadcast(message, algorithm, ("catch_up",))
    except MessageError as error:
        return {ACCOUNT: ConfigRecord({"reason": error.reason})}
    host = _host(context, algorithm, node, broadcast)
    reason = host.catch_up(node.client, broadcast)
    save_state(context.state, host.states()[node.client])
    return {ACCOUNT: ConfigRecord({"reason": reason})}


@app.query("account")
@answering
def settle(message: Message, context: Context) -> dict[str, Any]:
    """Say what was spent."""
    return {}


def _read(context: Context) -> tuple[Algorithm, NodeConfig]:
    return RunConfig.of(context.run_config).make_algorithm(), NodeConfig.of(context.node_config)


def _broadcast(message: Message, algorithm: Algorithm, phases: tuple[str, ...]) -> Broadcast:
    limit = max(algorithm.broadcast_spec(p).max_bytes for p in phases)
    found = message_in(message.content, limit)
    if not isinstance(found, Broadcast):
        raise MessageError(f"a {found.kind} is no broadcast")
    return found


def _host(context: Context, algorithm: Algorithm, node: NodeConfig, broadcast: Broadcast) -> Host:
    """The client as it was after its last message."""
    ledger, evaluator = _ledger(context, node), node.evaluator(algorithm.dimension)
    at = (ledger, broadcast.round, broadcast.phase)
    gradients = {c: CountedGradient(g, *at) for c, g in node.gradients(algorithm, evaluator).items()}
    evaluators: dict[int, Any] = {node.client: CountedEvaluator(evaluator, *at)}
    host = Host(algorithm, evaluators, gradients)
    host.client(node.client)
    if (state := load_state(context.state)) is not None:
        host.load_states({node.client: state})
    return host


def _ledger(context: Context, node: NodeConfig) -> NodeLedger:
    return NodeLedger(node.ledger_folder(), context.run_id, node.client)
