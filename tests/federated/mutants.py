"""Mutants of messages and states, as Hypothesis strategies, and the moments of a run at which they are sent.

Most mutants of a message keep a right digest, so that they reach what lies behind it: names, numbers and shapes of the
header are replaced by others, by those of other messages and by what is on the edges of types, and numbers of tensors
by NaN, infinities and the largest.
"""

import copy
import hashlib
import json
import struct
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federated.core.codec import DIGEST, PREFIX, encode
from federated.core.messages import LONGEST_REASON, BehindError, MessageError
from federated.core.server import Arrival, Server
from federated.testing.harness import problem

EDGES = (
    *(None, True, 0, -1, 1, 2, 2**31, 2**39, 2**53, 2**56, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, "", "x", "x" * 5000, "\x00\n\x1b[2J", "\u202e", "float32", "report"),
    *([], {}, [2**39, 2**39, 0], [0, 2**39], [["x", "float64", [2**39, 2**39, 0]]], {"x": 1}, "1-9", "-", "0" * 64),
)
NUMBERS = torch.tensor(
    [float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e-320, 0, 3e38, -1], dtype=torch.float64
)
GONE = object()
BRISK = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


def leaves(state, path=()):
    """The places of all plain values and tensors of a state."""
    if isinstance(state, dict | list | tuple) and state:
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return [leaf for key, value in items for leaf in leaves(value, (*path, key))]
    return [path]


def at(state, path):
    for key in path:
        state = state[key]
    return state


def changed(state, path, value):
    """A copy of a state with another value at a place, or with none."""
    if not path:
        return value
    parts = dict(state) if isinstance(state, dict) else list(state)
    if value is GONE and len(path) == 1:
        del parts[path[0]]
    else:
        parts[path[0]] = changed(parts[path[0]], path[1:], value)
    return tuple(parts) if isinstance(state, tuple) else parts


def edited(value):
    """Values that are nearly a value."""
    if isinstance(value, torch.Tensor):
        filled = NUMBERS if value.is_floating_point() and value.dim() and len(value) else ()
        first = torch.tensor(0)
        number = [value.clone().index_fill_(0, first, n.to(value)) for n in filled]
        shorter = value[..., :-1] if value.dim() else value[None]
        casts = [value.to(dtype) for dtype in (torch.float16, torch.int64, torch.bool)]
        return [*number, shorter, torch.cat([value.reshape(-1)] * 2), value.unsqueeze(0), value.tolist(), *casts]
    if isinstance(value, dict):
        return [value | {"extra": 1}, {f"{key}_": part for key, part in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value)([*value, *value[-1:]]), value[::-1]]
    return [value - 1, value + 1, value + 2**31] if type(value) is int else [value]


def trees(tree, donor):
    """Nested values with one or two parts of them replaced, taken away or added."""
    places = sorted({path[:depth] for path in leaves(tree) for depth in range(len(path) + 1)}, key=repr)
    foreign = st.sampled_from([at(donor, path) for path in leaves(donor)])

    def mutants(place):
        near = st.sampled_from([*edited(at(tree, place)), *[GONE] * bool(place)])
        return (st.sampled_from(EDGES).map(copy.deepcopy) | foreign | near).map(partial(changed, tree, place))

    return st.sampled_from(places).flatmap(mutants)


def spliced(data, others):
    """Bytes with some flipped, written over, cut off, put in, or exchanged for the end of another's."""
    ends = st.sampled_from(others).flatmap(lambda o: st.integers(0, len(o)).map(lambda i: o[i:]))
    left_out = st.integers(0, 16) | st.just(len(data))
    where = st.integers(0, len(data))
    return st.builds(lambda i, k, new: data[:i] + new + data[i + k :], where, left_out, st.binary(max_size=16) | ends)


def numbers(payload):
    """Numbers of tensors replaced by those on the edges."""

    def replaced(kind, place, number):
        width = struct.calcsize(kind)
        if len(payload) < width:
            return payload
        i = width * (place % (len(payload) // width))
        return payload[:i] + number.to(KINDS[kind]).numpy().tobytes() + payload[i + width :]

    return st.builds(replaced, st.sampled_from("df"), st.integers(0, 1 << 20), st.sampled_from(list(NUMBERS)))


KINDS = {"d": torch.float64, "f": torch.float32}


def headers(header, others):
    """Mutants of a header, perhaps with parts of another message's."""
    once = st.sampled_from([json_of(other) for other in others]).flatmap(partial(trees, header))
    twice = once.flatmap(lambda tree: trees(tree, header) if isinstance(tree, dict) else st.just(tree))
    return (once | twice).map(lambda tree: json.dumps(tree).encode())


def messages(data, others):
    """Mutants of an encoded message; ``others`` are messages of which parts are taken."""
    end = PREFIX + int.from_bytes(data[5:PREFIX], "little")
    text, payload = data[PREFIX:end], data[end:-DIGEST]
    bodies = (spliced(payload, others) | numbers(payload)).map(partial(sealed, text))
    heads = (headers(json_of(data), others) | spliced(text, others)).map(lambda header: sealed(header, payload))
    return spliced(data, others) | bodies | heads


def sealed(header, payload=b""):
    """A message of any header and payload, with a right digest."""
    data = b"GSFM\x01" + len(header).to_bytes(4, "little") + header + payload
    return data + hashlib.sha256(data).digest()


def json_of(data):
    """The header of an encoded message."""
    return json.loads(data[PREFIX : PREFIX + int.from_bytes(data[5:PREFIX], "little")])


def fuzz(mutants, send, count):
    """Sends mutants; returns how many were ``made`` and, by what ``send`` returns, how many ``taken``."""
    tally = Counter()

    @settings(BRISK, max_examples=count)
    @given(mutants)
    def each(mutant):
        tally["made"] += 1
        tally["taken"] += bool(send(mutant))

    each()
    return tally


@dataclass
class Stage:
    """A moment of a run: a server before it has a report, a client's state before it has the broadcast, and both."""

    server: Server
    client: dict[str, Any]
    broadcast: bytes
    report: bytes


def stages(federation, number=1):
    """The stages of a federation's next round, seen by a client that takes part; the round goes on meanwhile."""
    objectives, ended = problem(), False
    while not ended:
        server, arrivals, found = federation.server, [], None
        for each in server.participants:
            client = federation.host.client(each)
            before, broadcast = client.state_dict(), encode(server.broadcast(each))
            try:
                client.receive(broadcast)
            except BehindError:
                client.catch_up(server.catch_up(client.position(), each))
                client.receive(broadcast)
            work(client, objectives[each])
            arrivals.append(Arrival(each, encode(client.report())))
            if each == number:
                found = Stage(copy.deepcopy(server), before, broadcast, arrivals[-1].content)
        assert found is not None, f"client {number} takes no part"
        yield found
        ended = server.aggregate(arrivals).ended


def work(client, objective):
    """Asks a client and tells it its objective's values until it has no more to ask."""
    while (batch := client.ask()) is not None:
        client.tell(batch, [float(objective.value(x)) for x in batch.points()])


def restored(federation, state):
    """A client with a state."""
    client = federation.algorithm.client(state["number"], problem()[state["number"]].gradient)
    client.load_state_dict(state)
    return client


def refused(receive, *content, behind=False):
    """Whether a message is refused, with a short reason; nothing but a refusal may be raised.

    ``BehindError``, which asks for help and may leave a client with another model, is raised again where ``behind``.
    """
    try:
        receive(*content)
    except MessageError as error:
        if behind and isinstance(error, BehindError):
            raise
        bounded(str(error))
        return True
    return False


def bounded(reason):
    """Asserts that a reason is short and printable, and not that there was no memory."""
    assert 0 < len(reason) <= LONGEST_REASON and reason.isprintable(), reason
    assert "MemoryError" not in reason and "allocate memory" not in reason, reason
