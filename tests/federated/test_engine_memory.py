"""What an engine holds of a round's messages: one broadcast for all who get the same, and no report that was taken."""

import gc
import weakref

import pytest
import torch

from federated import make_federation
from federated.core.server import Server
from federated.engine import federation as engine
from federated.testing import Quadratic

X0 = torch.linspace(0.2, 0.8, 5, dtype=torch.float64)
OPTIONS = {"local_steps": 1, "num_features": 32, "initial_queries": 2, "active_queries": 1, "candidates": 2}


def test_broadcasts_that_are_the_same_are_encoded_once(monkeypatch):
    encoded = []
    monkeypatch.setattr(
        engine, "encode", lambda message, encode=engine.encode: encoded.append(message) or encode(message)
    )
    made = make_federation("fzoos", [Quadratic(i) for i in range(6)], X0, **OPTIONS)
    for _ in range(3):
        made.run_round()
    assert len(encoded) == 3 * 3, "one broadcast a phase"
    made.host.restart(4)
    encoded.clear()
    made.run_round()
    assert made.history[-1].accepted == tuple(range(6)) and len(encoded) == 3 + 2, "and what brings one up to date"
    part = make_federation("fzoos", [Quadratic(i) for i in range(6)], X0, participation=3, seed=1, **OPTIONS)
    sent = []
    serve = part.host.serve_all
    part.host.serve_all = lambda requests: sent.extend((r.client, r.message) for r in requests) or serve(requests)
    for _ in range(4):
        held = {c: part.server.broadcast(c) for c in part.server.participants}
        part.run_round()
        for client, message in sent[:3]:
            assert message == engine.encode(held[client]), "each client gets its own"
        sent.clear()


@pytest.mark.slow
def test_a_report_is_dropped_when_it_was_taken(monkeypatch):
    made = make_federation("fedzo", [Quadratic(i) for i in range(8)], X0, local_steps=1, directions=2)
    services, alive = [], []
    serve, check = made.host.serve_all, Server.check

    def kept(requests):
        for service in serve(requests):
            services.append(weakref.ref(service))
            yield service
            del service

    def looking(self, content, sender):
        gc.collect()
        alive.append(sum(service() is not None for service in services))
        return check(self, content, sender)

    made.host.serve_all = kept
    monkeypatch.setattr(Server, "check", looking)
    made.run_round()
    assert alive == [1] * 8 and len(services) == 8


def test_a_round_of_all_clients_adds_no_numbers_of_clients_to_the_history():
    """They are one tuple: of 10,000 clients each other would be 360 KB a round, and as much of those accepted."""
    made = make_federation(
        "fedzo", [Quadratic(i) for i in range(3)], X0, local_steps=1, directions=1, accept="monotone"
    )
    first, second = made.run_round(), made.run_round()
    assert first.participants == (0, 1, 2) and first.skipped is None
    assert first.participants is first.accepted is second.participants is second.accepted
