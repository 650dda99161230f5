"""Mutants of messages and states, and what a federation must do with them: refuse them unchanged, or take them whole.

A mutant is a pure function of a seed and what it is made of. Most keep a right digest, so that they reach what lies
behind it: names, numbers and shapes of the header are replaced by others, by those of other messages and by what is on
the edges of types, and numbers of tensors by NaN, infinities and the largest.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federated.core.algorithm import NoReportError
from federated.core.client import Client
from federated.core.codec import DIGEST, PREFIX, encode
from federated.core.messages import LONGEST_REASON, BehindError, MessageError
from federated.core.server import Arrival, Server
from federated.engine.federation import Federation
from federated.testing.harness import Quadratic, problem, quiet, states_equal

EDGES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 2**31, 2**39, 2**53, 2**56, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, "", "x", "x" * 5000, "\x00\n\x1b[2J", "\u202e", "float32", "report"),
    *([], {}, [2**39, 2**39, 0], [0, 2**39], [["x", "float64", [2**39, 2**39, 0]]], {"x": 1}, "1-9", "-", "0" * 64),
)
NUMBERS = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-320, 0.0, 3e38, -1.0)
EVERY, ANSWERED = 64, 4
"""Mutants after which a receiver's state is compared with what it was; and those taken of which one is worked on."""


class Mutator:
    """Makes mutants.

    Args:
        seed: seed of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def message(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """A mutant of an encoded message; ``others`` are messages of which parts are taken."""
        how = self.below(8)
        if how == 0:
            return self.damaged(data, others)
        text, payload = data[PREFIX : (end := PREFIX + int.from_bytes(data[5:PREFIX], "little"))], data[end:-DIGEST]
        if how == 1:
            text = self.damaged(text, others)
        elif how == 2:
            payload = self.damaged(payload, others)
        elif how == 3:
            payload = self.numbers(payload)
        else:
            text = self.header(text, others)
        return sealed(text, payload)

    def header(self, text: bytes, others: Sequence[bytes]) -> bytes:
        """A mutant of a header, perhaps with parts of another message's."""
        other = others[self.below(len(others))]
        donor = json.loads(other[PREFIX : PREFIX + int.from_bytes(other[5:PREFIX], "little")])
        tree = json.loads(text)
        for _ in range(1 + self.below(2)):
            tree = self.tree(tree, donor)
        return json.dumps(tree).encode()

    def damaged(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """Bytes with some flipped, written over, cut off, put in, or exchanged for those of another."""
        at, how, found = self.below(len(data) + 1), self.below(5), bytearray(data)
        some = self.generator.bytes(1 + self.below(16))
        if how == 0 and data:
            found[self.below(len(data))] ^= 1 << self.below(8)
        elif how == 1:
            found[at : at + len(some)] = some
        elif how == 2:
            del found[at:]
        elif how == 3:
            found[at:at] = some
        else:
            other = others[self.below(len(others))]
            found[at:] = other[self.below(len(other)) :]
        return bytes(found)

    def numbers(self, payload: bytes) -> bytes:
        """Numbers of tensors replaced by those on the edges."""
        width, found = (8, 4)[self.below(2)], bytearray(payload)
        if len(payload) < width:
            return payload
        at = width * self.below(len(payload) // width)
        with np.errstate(over="ignore"):
            found[at : at + width] = np.array(NUMBERS[self.below(len(NUMBERS))], dtype=f"<f{width}").tobytes()
        return bytes(found)

    def tree(self, tree: Any, donor: Any) -> Any:
        """A copy of nested values with one replaced, taken away or added."""
        if not isinstance(tree, dict | list | tuple) or not tree or self.below(12) == 0:
            return self.leaf(tree, donor)
        parts: Any = dict(tree) if isinstance(tree, dict) else list(tree)
        key = list(parts)[self.below(len(parts))] if isinstance(parts, dict) else self.below(len(parts))
        how = self.below(10)
        if how == 0:
            del parts[key]
        elif how == 1 and isinstance(parts, dict):
            parts[("extra", key if isinstance(key, int) else f"{key}_")[self.below(2)]] = self.leaf(None, donor)
        elif how == 1:
            parts.append(parts[key])
        else:
            parts[key] = self.tree(parts[key], donor)
        return tuple(parts) if isinstance(tree, tuple) else parts

    def leaf(self, value: Any, donor: Any) -> Any:
        """Something in a value's place."""
        if isinstance(value, Tensor) and self.below(4):
            return self._tensor(value)
        if type(value) is int and self.below(2):
            return value + (-1, 1, 2**31)[self.below(3)]
        if self.below(3) == 0:
            while isinstance(donor, dict | list | tuple) and donor:
                donor = list(donor.values() if isinstance(donor, dict) else donor)[self.below(len(donor))]
            return donor
        return copy.deepcopy(EDGES[self.below(len(EDGES))])

    def below(self, stop: int) -> int:
        """A number from 0 to under ``stop``."""
        return int(self.generator.integers(max(stop, 1)))

    def _tensor(self, value: Tensor) -> Any:
        how = self.below(6)
        if how == 0 and value.is_floating_point() and value.numel():
            found = value.clone()
            found.view(-1)[self.below(value.numel())] = NUMBERS[self.below(len(NUMBERS))]
            return found
        made: list[Callable[[], Any]] = [
            lambda: value[..., :-1] if value.ndim else value[None],
            lambda: torch.cat([value.reshape(-1)] * 2),
            lambda: value.to((torch.float16, torch.int64, torch.bool)[self.below(3)]),
            lambda: value.unsqueeze(0),
            value.tolist,
        ]
        return made[how - 1]()


def sealed(header: bytes, payload: bytes = b"") -> bytes:
    """A message of any header and payload, with a right digest."""
    data = b"GSFM\x01" + len(header).to_bytes(4, "little") + header + payload
    return data + hashlib.sha256(data).digest()


@dataclass
class Stage:
    """A moment of a run: a server, a client, and the messages that they send each other.

    Attributes:
        server: the server, before it has the report.
        client: the client's state, before it has the broadcast.
        broadcast: the phase's broadcast.
        report: the client's report of the phase.
    """

    server: Server
    client: dict[str, Any]
    broadcast: bytes
    report: bytes


def stages(federation: Federation, number: int = 1) -> Iterator[Stage]:
    """The stages of a federation's next round, seen by a client that takes part; the round goes on meanwhile."""
    objectives, ended = problem(), False
    while not ended:
        server, arrivals, found = federation.server, [], None
        for each in server.participants:
            client: Client = federation.host.client(each)  # type: ignore[attr-defined]
            before, broadcast = client.state_dict(), encode(server.broadcast(each))
            try:
                client.receive(broadcast)
            except BehindError:
                client.catch_up(server.catch_up(client.position(), each))
                client.receive(broadcast)
            work(client, objectives[each])
            arrivals.append(Arrival(each, encode(client.report())))
            if each == number:
                found = Stage(copy.deepcopy(server), before, broadcast, bytes(arrivals[-1].content))  # type: ignore[arg-type]
        assert found is not None, f"client {number} takes no part"
        yield found
        ended = server.aggregate(arrivals).ended


def work(client: Client, objective: Quadratic) -> None:
    """Asks a client and tells it its objective's values until it has no more to ask."""
    while (batch := client.ask()) is not None:
        client.tell(batch, [float(objective.value(x)) for x in batch.points()])


@dataclass
class Tally:
    """What became of mutants: how many were made, and how many were taken."""

    made: int = 0
    taken: int = 0


def attack_server(stage: Stage, mutator: Mutator, count: int, others: Sequence[bytes], tally: Tally) -> None:
    """Sends a server mutants of a report: those that it refuses change nothing, and one that it takes it can use."""
    server, number = stage.server, json_of(stage.report)["client"]
    before = server.state_dict()
    for i in range(count):
        data = mutator.message(stage.report, others)
        tally.made += 1
        if refused(server.check, data, number):
            continue
        tally.taken += 1
        if tally.taken % ANSWERED == 0:
            taking = copy.deepcopy(server)
            with quiet():
                taking.aggregate([Arrival(number, data)])
            taking.broadcast(number) if bool(torch.isfinite(taking.x).all()) else None
        if i % EVERY == 0:
            assert states_equal(server.state_dict(), before), "a report that was checked changed the server"
    assert states_equal(server.state_dict(), before), "a report that was checked changed the server"


def attack_client(
    stage: Stage, federation: Federation, mutator: Mutator, count: int, others: Sequence[bytes], tally: Tally
) -> None:
    """Sends a client mutants of a broadcast: those that it refuses change nothing, and one that it takes it answers."""
    client = restored(federation, stage.client)
    for i in range(count):
        data = mutator.message(stage.broadcast, others)
        tally.made += 1
        try:
            if refused(client.receive, data, behind=True):
                if i % EVERY == 0:
                    assert states_equal(client.state_dict(), stage.client), "a refused broadcast changed the client"
                continue
        except BehindError:
            assert client.round == stage.client["round"]
        else:
            tally.taken += 1
            if tally.taken % ANSWERED == 0:
                answer(client)
        client = restored(federation, stage.client)
    assert states_equal(client.state_dict(), stage.client), "a refused broadcast changed the client"


def attack_catch_up(federation: Federation, mutator: Mutator, count: int, tally: Tally, number: int = 1) -> None:
    """The same of a position, sent to the server, and of the answer, sent to a new client."""
    server, fresh = federation.server, federation.algorithm.client(number, problem()[number].gradient)
    try:
        position = encode(fresh.position())
        reply = encode(server.catch_up(position, number))
    except MessageError:
        return  # the algorithm has nothing to catch up with
    state, before = fresh.state_dict(), server.state_dict()
    for _ in range(count):
        data = mutator.message(position, [position, reply])
        tally.taken += not refused(server.catch_up, data, number)
        data = mutator.message(reply, [position, reply])
        tally.made += 2
        try:
            if refused(fresh.catch_up, data, behind=True):
                continue
        except BehindError:
            pass
        fresh = restored(federation, state)
    assert states_equal(server.state_dict(), before), "a position changed the server"
    assert states_equal(fresh.state_dict(), state), "a refused answer changed the client"


def attack_states(federation: Federation, mutator: Mutator, count: int, tally: Tally) -> None:
    """Loads mutants of a federation's state, of which one that is refused changes nothing."""
    state = federation.state_dict()
    made = Federation(federation.algorithm, copy.copy(federation.host), codec=False)
    made.load_state_dict(state)
    for i in range(count):
        mutant = mutator.tree(state, state)
        tally.made += 1
        try:
            made.load_state_dict(mutant)
        except ValueError as error:
            bounded(str(error))
            if i % 16 == 0:
                assert states_equal(made.state_dict(), state), "a refused state changed the federation"
            continue
        tally.taken += 1
        made.load_state_dict(state)
    assert states_equal(made.state_dict(), state), "a refused state changed the federation"


def restored(federation: Federation, state: Mapping[str, Any]) -> Client:
    """A client with a state."""
    client: Client = federation.algorithm.client(state["number"], problem()[state["number"]].gradient)
    client.load_state_dict(state)
    return client


def answer(client: Client) -> None:
    """Lets a client work and report, or say why it has nothing to report."""
    try:
        work(client, problem()[client.number])
        client.report()
    except NoReportError:
        return


def refused(receive: Callable[..., object], *content: object, behind: bool = False) -> bool:
    """Whether a message is refused, with a short reason; nothing but a refusal may be raised.

    Args:
        receive: takes the content.
        *content: the message, and who sent it.
        behind: whether ``BehindError``, which asks for help and may leave a client with another model, is raised again.
    """
    try:
        receive(*content)
    except BehindError:
        if behind:
            raise
        return True
    except MessageError as error:
        bounded(str(error))
        return True
    return False


def bounded(reason: str) -> None:
    """Asserts that a reason is short and printable, and not that there was no memory."""
    assert 0 < len(reason) <= LONGEST_REASON and reason.isprintable(), reason
    assert "MemoryError" not in reason and "allocate memory" not in reason, reason


def json_of(data: bytes) -> dict[str, Any]:
    """The header of an encoded message."""
    found: dict[str, Any] = json.loads(data[PREFIX : PREFIX + int.from_bytes(data[5:PREFIX], "little")])
    return found


def attack(federation: Federation, mutator: Mutator, count: int, states: int = 0) -> Tally:
    """Attacks a federation in its next round, in every phase, with so many mutants of each message.

    Mutants that are taken, one in ``ANSWERED``, are worked on: reports are aggregated, broadcasts answered.

    Args:
        federation: one over ``problem``, between two rounds.
        mutator: makes the mutants.
        count: mutants of each message.
        states: mutants of the federation's state.

    Raises:
        AssertionError: if a mutant was refused with a change, or a reason that is long or not printable.
    """
    tally = Tally()
    if states:
        attack_states(federation, mutator, states, tally)
    attack_catch_up(federation, mutator, count, tally)
    found = list(stages(federation))
    others = [data for stage in found for data in (stage.broadcast, stage.report)]
    for stage in found:
        attack_server(stage, mutator, count, others, tally)
        attack_client(stage, federation, mutator, count, others, tally)
    return tally
