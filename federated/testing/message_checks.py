"""Checks of messages: which ones a server and a client accept, and that refused ones have no effect."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from federated.core.client import Client
from federated.core.codec import encode
from federated.core.messages import Broadcast, MessageError, MessageSpec
from federated.core.server import Arrival
from federated.testing.harness import Factory, Promises, make, problem, states_equal
from optimizers.testing.harness import raises


def check_idempotence(factory: Factory, promises: Promises) -> None:
    """Repeated messages are identical, and creating or checking them has no effect."""
    federation = make(factory, promises)
    server, client = federation.server, federation.algorithm.client(0, problem()[0].gradient)
    for _ in federation.algorithm.exchanges:
        before = server.state_dict()
        first = encode(server.broadcast(0))
        assert encode(server.broadcast(0)) == first and states_equal(server.state_dict(), before)
        client.receive(first)
        _work(client)
        report = encode(client.report())
        state = client.state_dict()
        assert encode(client.report()) == report and states_equal(client.state_dict(), state)
        server.check(report, 0)
        assert states_equal(server.state_dict(), before), "a checked report changed the server"
        server.aggregate([Arrival(0, report)])


def check_bad_broadcasts(factory: Factory, promises: Promises) -> None:
    """A client refuses broadcasts that do not fit, are out of order, or were already received."""
    federation = make(factory, promises)
    client, server = federation.algorithm.client(2, problem()[2].gradient), federation.server
    message = server.broadcast(2)
    before = client.state_dict()
    for bad in _variants(message, federation.algorithm.specification(Broadcast, message.phase)):
        raises(MessageError, lambda bad=bad: client.receive(bad))  # type: ignore[misc]
        assert states_equal(client.state_dict(), before), "a refused broadcast changed the client"
    for phase in federation.algorithm.exchanges[1:]:
        other = dataclasses.replace(message, phase=phase)
        raises(MessageError, lambda other=other: client.receive(other))  # type: ignore[misc]
    raises(RuntimeError, client.report)
    raises(RuntimeError, client.ask)
    client.receive(message)
    if client.ask() is not None:
        raises(RuntimeError, client.report)
    raises(MessageError, lambda: client.receive(message))


def check_fingerprints(factory: Factory, promises: Promises) -> None:
    """Servers and clients with different options refuse each other's messages and name the option."""
    ours, theirs = make(factory, promises), make(factory, promises, seed=7)
    server, stranger = ours.server, theirs.algorithm.client(0, problem()[0].gradient)
    stranger.receive(theirs.server.broadcast(0))
    _work(stranger)
    foreign = stranger.report()
    for receive in (lambda: stranger.receive(server.broadcast(0)), lambda: server.check(foreign, 0)):
        assert "fingerprint" in str(raises(MessageError, receive))
    error = raises(ValueError, lambda: ours.algorithm.check_configuration(theirs.algorithm.configuration))
    assert "seed" in str(error)


def _work(client: Client) -> None:
    objective = problem()[client.number]
    while (batch := client.ask()) is not None:
        client.tell(batch, [objective(x) for x in batch])


def _variants(message: Broadcast, spec: MessageSpec) -> list[Broadcast]:
    """Returns copies of a broadcast, each with one field that violates its specification."""

    def other(**changes: Any) -> Broadcast:
        return dataclasses.replace(message, **changes)

    bad = [
        other(algorithm="another"),
        other(fingerprint="0" * 64),
        other(phase="another"),
        other(tensors={}),
        other(tensors={**message.tensors, "extra": torch.zeros(1)}),
        other(values={**message.values, "extra": 1}),
    ]
    for name, tensor in message.tensors.items():
        changed = [tensor.to(torch.float16), tensor.unsqueeze(0)]
        if None not in spec.tensors[name].shape:
            changed.append(torch.cat([tensor, tensor]))
        if tensor.is_floating_point() and tensor.numel():
            changed += [torch.full_like(tensor, v) for v in (float("nan"), float("inf"))]
        bad += [other(tensors={**message.tensors, name: t}) for t in changed]
    return bad
