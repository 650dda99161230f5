"""Mutants of every message and state of every algorithm; ``MUTANTS=5000`` makes so many of each, for an hour or so."""

import copy
import hashlib
import io
import json
import os
import resource
import sys
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated import ALGORITHMS, MessageError, decode, encode
from federated.core.algorithm import NoReportError
from federated.core.codec import opened
from federated.core.messages import LONGEST_REASON, BehindError
from federated.core.server import Arrival
from federated.testing import Promises, algorithm_factory, problem
from federated.testing.harness import make, quiet, run, states_equal
from optimizers.core.files import read_state
from tests.faults.harness import forked
from tests.federated.mutants import (
    BRISK,
    bounded,
    fuzz,
    json_of,
    messages,
    refused,
    restored,
    sealed,
    spliced,
    stages,
    trees,
    work,
)

COUNT = int(os.environ.get("MUTANTS", "12"))
FZOOS = {"num_features": 32, "initial_queries": 3, "active_queries": 2, "candidates": 8}
CASES = {name: (name, FZOOS if name == "fzoos" else {}) for name in ALGORITHMS} | {
    "fedzo-monotone": ("fedzo", {"accept": "monotone"}),
    "fedadam-bounds": ("fedadam", {"accept": "monotone", "bounds": [(0.0, 1.0)] * 5}),
    "fzoos-round": ("fzoos", FZOOS | {"active": "round", "gamma": "inverse", "accept": "monotone"}),
    "fzoos-settling": ("fzoos", FZOOS | {"rate_schedule": "settling"}),
    "scaffold1-settling": ("scaffold1", {"rate_schedule": "settling"}),
    "hiso-groups": ("hiso", {"curvature": {"name": "group_probe", "groups": 2}, "log_rounds": 2}),
    "hiso-momentum": ("hiso", {"momentum": 0.9, "scalar_dtype": "float64"}),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
ABOUT = st.dictionaries(st.sampled_from(["round", "phase", "client", "values", "tensors", "x"]), JSON, min_size=1)
BRISK = settings(BRISK, max_examples=max(25, COUNT))


def federation(case):
    name, options = CASES[case]
    made = make(algorithm_factory(name, **options), Promises(local_steps=2))
    run(made, 2)
    return made


def peak():
    """Bytes of memory that the process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def to_server(stage, data):
    """A server that refuses a report has not changed, and one that takes it can use it."""
    number, before = json_of(stage.report)["client"], stage.server.state_dict()
    taken = not refused(stage.server.check, data, number)
    assert states_equal(stage.server.state_dict(), before), "a report that was checked changed the server"
    if taken:
        taking = copy.deepcopy(stage.server)
        with quiet():
            taking.aggregate([Arrival(number, data)])
        taking.broadcast(number) if bool(torch.isfinite(taking.x).all()) else None
    return taken


def to_client(made, stage, data):
    """A client that refuses a broadcast has not changed, and one that takes it answers."""
    client = restored(made, stage.client)
    try:
        if refused(client.receive, data, behind=True):
            assert states_equal(client.state_dict(), stage.client), "a refused broadcast changed the client"
            return False
    except BehindError:
        assert client.round == stage.client["round"]
        return False
    try:
        work(client, problem()[client.number])
        client.report()
    except NoReportError:
        pass
    return True


def to_one_who_is_behind(made, state, data):
    """A new client that refuses the answer to its position has not changed."""
    fresh = restored(made, state)
    try:
        if refused(fresh.catch_up, data, behind=True):
            assert states_equal(fresh.state_dict(), state), "a refused answer changed the client"
            return False
    except BehindError:
        pass
    return True


def attack(made, count):
    """Sends mutants of every message of a federation's next round; how many were made and taken."""
    server, fresh, tally = made.server, made.algorithm.client(1, problem()[1].gradient), Counter()
    with suppress(MessageError):  # the algorithm has nothing to catch up with
        position, state = encode(fresh.position()), fresh.state_dict()
        both, before = [position, encode(server.catch_up(position, 1))], server.state_dict()
        tally += fuzz(messages(position, both), lambda data: not refused(server.catch_up, data, 1), count)
        tally += fuzz(messages(both[1], both), partial(to_one_who_is_behind, made, state), count)
        assert states_equal(server.state_dict(), before), "a position changed the server"
    found = list(stages(made))
    others = [data for stage in found for data in (stage.broadcast, stage.report)]
    for stage in found:
        tally += fuzz(messages(stage.report, others), partial(to_server, stage), count)
        tally += fuzz(messages(stage.broadcast, others), partial(to_client, made, stage), count)
    return tally


@pytest.mark.timeout(36_000 if COUNT > 1000 else 300)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case == "fzoos-settling" else ()) for case in CASES]
)
def test_a_mutant_is_refused_with_no_change_or_taken_and_used(case):
    made, before = federation(case), peak()
    tally = attack(made, COUNT)
    assert 0 < tally["taken"] < tally["made"]
    assert peak() - before < 200 << 20, "mutants took memory"


@pytest.mark.parametrize("case", CASES)
def test_a_mutant_of_a_state_is_refused_with_no_change_or_taken(case):
    made = federation(case)
    state = made.state_dict()

    def load(mutant):
        try:
            made.load_state_dict(mutant)
        except ValueError as error:
            bounded(str(error))
            assert states_equal(made.state_dict(), state), "a refused state changed the federation"
            return False
        made.load_state_dict(state)
        return True

    fuzz(trees(state, state), load, COUNT // 4)


def test_mutants_need_no_memory():
    """In a process that may have 256 MB more than it has, where what is out of memory is no refusal."""

    def attempt():
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
        attack(made, COUNT)

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("the limit is set from Linux's /proc")
    made = federation("fzoos")
    assert forked(attempt) == 0


@pytest.fixture(scope="module")
def stage():
    return next(stages(federation("scaffold2")))


@BRISK
@given(changes=ABOUT)
def test_any_header_is_refused_or_read(stage, changes):
    text = json.dumps(json_of(stage.report) | changes).encode()
    before = stage.server.state_dict()
    for data in (sealed(text), sealed(text, bytes(80)), sealed(json.dumps(changes).encode())):
        try:
            stage.server.check(data, 1)
        except MessageError as error:
            bounded(str(error))
    assert states_equal(stage.server.state_dict(), before)


@BRISK
@given(data=st.binary(max_size=400))
def test_any_bytes_are_refused_or_come_back(data):
    for content in (data, sealed(data), sealed(data[:200], data[200:])):
        try:
            message = decode(content)
        except MessageError as error:
            assert len(str(error)) <= LONGEST_REASON
        else:
            assert encode(decode(encode(message))) == encode(message)


@BRISK
@given(shape=st.lists(st.integers(0, 2**40 - 1), max_size=8), dtype=st.sampled_from(["float64", "uint8", "bfloat16"]))
def test_any_shape_is_refused_or_made(stage, shape, dtype):
    """A shape of no bytes and of an overflowing number of elements is the case that was found."""
    header = json_of(stage.report) | {"tensors": [["x", dtype, shape]]}
    try:
        frame = opened(sealed(json.dumps(header).encode()))
    except MessageError:
        return
    assert frame.payload_bytes == 0 and frame.message().tensors["x"].shape == torch.Size(shape)


def test_any_file_of_a_state_is_refused_or_read(tmp_path):
    """Also one whose digest is right: what ``torch.save`` wrote is then no state, or another one."""
    path, buffer, made = tmp_path / "f.pt", io.BytesIO(), federation("fedzo")
    before = made.state_dict()
    torch.save(before, buffer)

    def load(data):
        path.write_bytes(b"checkpoint 1 " + hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        try:
            made.load_state_dict(read_state(path, 1))
        except ValueError:
            assert states_equal(made.state_dict(), before)
        else:
            made.load_state_dict(before)

    fuzz(spliced(buffer.getvalue(), [buffer.getvalue()]), load, 2 * COUNT)
