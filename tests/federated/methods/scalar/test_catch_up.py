"""Clients that fall behind: a toy algorithm whose server sends displacements only."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from federated import Algorithm, BehindError, Client, MessageError, MessageSpec, Server
from federated.core.messages import TensorSpec
from federated.methods.local_descent import LocalDescent
from federated.testing import CHECKS, Fault, Promises, Quadratic, algorithm_factory, faulty
from optimizers import FiniteDifferences


@dataclass
class LogState:
    x: Tensor
    log: Tensor


@dataclass
class PositionState:
    x: Tensor
    moves: int = 0


class LogServer(Server):
    state: LogState

    def _start(self):
        x = self.algorithm.x0
        self.state = LogState(x, x.new_zeros(0, x.numel()))

    def _broadcast(self, phase, client):
        return {"moves": self.state.log[-1:]}

    def _broadcast_values(self, phase, client):
        return {"count": len(self.state.log), "for_client": -1 if client is None else client}

    def _aggregate(self, phase, reports):
        x = self.moved(self.state.x, self.combine("x", reports))
        self.state = LogState(x, torch.cat([self.state.log, (x - self.state.x)[None]]))

    def _catch_up(self, position):
        known = position.values["count"]
        if known > len(self.state.log):
            raise MessageError(f"position {known} is ahead of {len(self.state.log)}")
        return {"moves": self.state.log[known:]}, {
            "count": len(self.state.log),
            "for_client": position.client,
        }


class LogClient(Client):
    state: PositionState

    def _start(self):
        options = self.algorithm.common_options(self.number)
        self.optimizer = LocalDescent(
            self.algorithm.x0, estimator=FiniteDifferences(3, seed=options["seed"]), **options
        )
        self.state = PositionState(self.algorithm.x0)

    def _receive(self, phase, message):
        if message.values["for_client"] != self.number:
            raise MessageError("the broadcast is for another client")
        new = message.values["count"] - self.state.moves
        if new > 1:
            raise BehindError(f"{new - 1} moves are missing")
        if new == 1:
            self.state = PositionState(self.state.x + message.tensors["moves"][0], message.values["count"])
        a = self.algorithm
        self.optimizer.begin(self.state.x, address=message.round * a.local_steps, steps=a.local_steps)

    def _busy(self, phase):
        return self.optimizer.busy

    def _report(self, phase):
        return {"x": self.optimizer.x}

    def _position(self):
        return {}, {"count": self.state.moves}

    def _catch_up(self, message):
        x = self.state.x
        for move in message.tensors["moves"]:
            x = x + move
        self.state = replace(self.state, x=x, moves=message.values["count"])


class Log(Algorithm):
    name = "log"
    server_class, client_class = LogServer, LogClient
    personal = True

    def broadcasts(self, phase):
        moves = TensorSpec((None, self.dimension), self.x0.dtype)
        return MessageSpec({"moves": moves}, {"count": int, "for_client": int})

    def reports(self, phase):
        if phase == "position":
            return MessageSpec({}, {"count": int})
        return MessageSpec({"x": self.vector})


FACTORY = algorithm_factory(Log)
X0 = torch.zeros(5, dtype=torch.float64)


def federation(faults=(), **options):
    return faulty(FACTORY([Quadratic(i) for i in range(3)], X0, local_steps=2, **options), faults)


@pytest.mark.parametrize("codec", [True, False])
def test_absent_and_rebuilt_clients_are_caught_up_bitwise(codec):
    faults = [Fault("unreachable", r, 0) for r in (2, 3, 4)] + [Fault("crash", 2, 1), Fault("rejoin", 5, 1)]
    run = federation(faults, codec=codec)
    for _ in range(6):
        record = run.run_round()
    assert record.accepted == (0, 1, 2)
    for number in range(3):
        moved = run.host.client(number).state
        assert moved.moves == 5 and torch.equal(moved.x, _sum(run.server.state.log[:5]))
    rows = {(row["round"], row["client"]): row for row in run.ledger.to_rows()}
    step = 8 * 5
    assert rows[5, 2]["payload_down"] == step
    assert rows[5, 0]["payload_down"] == (1 + 4 + 1) * step
    assert rows[5, 1]["payload_down"] == (1 + 4 + 1) * step
    assert rows[5, 0]["payload_up"] == step
    if codec:
        assert rows[5, 0]["message_up"] > rows[5, 2]["message_up"]
    assert rows[5, 0]["queries"] == rows[5, 2]["queries"] == 2 * 4


def test_a_client_that_was_restarted_is_new():
    run = federation([Fault("rejoin", 4, 1)])
    for _ in range(4):
        record = run.run_round()
    rows = {(row["round"], row["client"]): row for row in run.ledger.to_rows()}
    assert record.accepted == (0, 1, 2)
    assert rows[4, 1]["payload_down"] == (1 + 3 + 1) * 8 * 5 > rows[4, 0]["payload_down"]


def test_a_refused_position_costs_the_round_of_one_client():
    run = federation()
    run.run_round()
    client = run.host.client(1)
    client.state = replace(client.state, moves=-5)
    run.server._catch_up = lambda position: (_ for _ in ()).throw(MessageError("no log so old"))
    record = run.run_round()
    assert record.accepted == (0, 2) and record.skipped is None
    assert record.refused == ((1, "local", "the position was refused: no log so old"),)


def test_a_refused_catch_up_costs_the_round_of_one_client():
    run = federation([Fault("unreachable", r, 1) for r in (2, 3)])
    for _ in range(3):
        run.run_round()

    def refuse(message):
        raise MessageError("the digest differs")

    run.host.client(1)._catch_up = refuse
    record = run.run_round()
    assert record.refused == ((1, "local", "the client could not catch up: the digest differs"),)
    assert record.accepted == (0, 2)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check):
    check(FACTORY, Promises())


def _sum(moves):
    x = torch.zeros(5, dtype=torch.float64)
    for move in moves:
        x = x + move
    return x
