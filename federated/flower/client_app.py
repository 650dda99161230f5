"""The ``ClientApp``: one client of a federation.

Flower starts a process for every message. Between messages ``Context.state`` contains the client's state, and a file on
the node its number of queries (``NodeLedger``). A reply contains the client's account, the reason for a missing report,
and

===================  ==============================================================================================
``query.hello``      the client's number, after checking without queries that it has the server's configuration and
                     can import its objective
``train.phase``      the client's report on the broadcast of a phase or, if the client is behind, its position
``train.catch_up``   nothing else; the message brings the server's answer to the client's position
``query.account``    nothing else
===================  ==============================================================================================
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federated.core.algorithm import Algorithm
from federated.core.codec import Frame
from federated.core.messages import Report, plain
from federated.engine.host import Host, Request
from federated.flower import wire
from federated.flower.configuration import NodeConfig, RunConfig
from federated.flower.node_ledger import CountedEvaluator, CountedGradient, NodeLedger
from federated.flower.records import ACCOUNT, HELLO, METRICS, frame_in, load_state, records_of, save_state

logger = logging.getLogger(__name__)

app = ClientApp()


def answering(handle: Callable[[Message, Context], dict[str, Any]]) -> Callable[[Message, Context], Message]:
    """Creates a message handler from a function that returns the reply's records.

    The handler adds the client's account; if the function raises an error, the reply is the reason and the client.
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
    """Returns the client's costs in this run, and the bytes between its node and the SuperLink."""
    ledger = _ledger(context, NodeConfig.of(context.node_config))
    totals = {"book": ledger.book, **ledger.spent()._asdict()}
    if (meter := wire.reading()) is not None:
        totals |= {"wire": meter.name, "wire-up": meter.up, "wire-down": meter.down}
    return totals


@app.query("hello")
@answering
def hello(message: Message, context: Context) -> dict[str, Any]:
    """Replies with the client's number."""
    algorithm, node = _read(context)
    theirs = json.loads(str(message.content.config_records[HELLO]["configuration"]))
    algorithm.check_configuration(theirs, "the server")
    node.prepared(algorithm)
    if node.client >= algorithm.clients:
        raise ValueError(f"the node config has client={node.client}, expected at most {algorithm.clients - 1}")
    return {ACCOUNT: ConfigRecord({"reason": "", "client": node.client})}


@app.train("phase")
@answering
def phase(message: Message, context: Context) -> dict[str, Any]:
    """Takes part in a phase."""
    host, client, broadcast = _opened(message, context)
    service = host.serve(Request(client, broadcast))
    save_state(context.state, host.states()[client])
    said: Any = {"reason": service.reason, "behind": service.position is not None}
    said |= {"seconds": service.seconds, "now": service.spent.queries}
    records: dict[str, Any] = {ACCOUNT: ConfigRecord(said)}
    if (sent := service.report or service.position) is not None:
        assert isinstance(sent, Report)
        # For Flower's strategies, which weigh and average them.
        weight = host.algorithm.weights[client]
        metrics = MetricRecord({"num-examples": weight, "queries": sent.queries, "failures": sent.failures})
        records |= records_of(sent) | {METRICS: metrics}
    return records


@app.train("catch_up")
@answering
def catch_up(message: Message, context: Context) -> dict[str, Any]:
    """Catches up by the server's answer to the client's position."""
    host, client, answer = _opened(message, context)
    reason = host.catch_up(client, answer)
    save_state(context.state, host.states()[client])
    return {ACCOUNT: ConfigRecord({"reason": reason})}


@app.query("account")
@answering
def settle(message: Message, context: Context) -> dict[str, Any]:
    """Replies with the client's costs, which every reply contains."""
    return {}


def _read(context: Context) -> tuple[Algorithm, NodeConfig]:
    return RunConfig.of(context.run_config).make_algorithm(), NodeConfig.of(context.node_config)


def _opened(message: Message, context: Context) -> tuple[Host, int, Frame]:
    """Returns a host of the client after its last message, which records queries, the client, and the message."""
    (algorithm, node), frame = _read(context), frame_in(message.content)
    evaluators, gradients = node.prepared(algorithm)
    write = partial(_ledger(context, node).write, frame.header.round, frame.header.phase)
    counted: dict[int, Any] = {client: CountedEvaluator(e, write) for client, e in evaluators.items()}
    host = Host(algorithm, counted, {client: CountedGradient(g, write) for client, g in gradients.items()})
    host.client(node.client)
    if (state := load_state(context.state)) is not None:
        host.load_states({node.client: state})
    return host, node.client, frame


def _ledger(context: Context, node: NodeConfig) -> NodeLedger:
    return NodeLedger(node.ledger_folder(), context.run_id, node.client)
