"""Mutants of every message and state of every algorithm; ``MUTANTS=30000`` makes so many of each, for an hour or so."""

import hashlib
import io
import json
import os
import resource
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federated import ALGORITHMS, MessageError, decode, encode
from federated.core.codec import opened
from federated.core.messages import LONGEST_REASON
from federated.testing import Promises, algorithm_factory
from federated.testing.harness import make, run, states_equal
from federated.testing.mutants import Mutator, attack, bounded, json_of, sealed, stages
from optimizers.core.files import read_state, write_state
from tests.faults.harness import forked

COUNT = int(os.environ.get("MUTANTS", "16"))
FZOOS = {"num_features": 32, "initial_queries": 3, "active_queries": 2, "candidates": 8}
CASES = {name: (name, FZOOS if name == "fzoos" else {}) for name in ALGORITHMS} | {
    "fedzo-monotone": ("fedzo", {"accept": "monotone"}),
    "fedadam-bounds": ("fedadam", {"accept": "monotone", "bounds": [(0.0, 1.0)] * 5}),
    "fzoos-round": ("fzoos", FZOOS | {"active": "round", "gamma": "inverse", "accept": "monotone"}),
    "fzoos-settling": ("fzoos", FZOOS | {"rate": "settling"}),
    "scaffold1-settling": ("scaffold1", {"rate": "settling"}),
    "hiso-groups": ("hiso", {"curvature": {"name": "group_probe", "groups": 2}, "log_rounds": 2}),
    "hiso-momentum": ("hiso", {"momentum": 0.9, "scalar_dtype": "float64"}),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
ABOUT = st.dictionaries(st.sampled_from(["round", "phase", "client", "values", "tensors", "x"]), JSON, min_size=1)
BRISK = settings(max_examples=max(25, COUNT), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def federation(case):
    name, options = CASES[case]
    made = make(algorithm_factory(name, **options), Promises(local_steps=2))
    run(made, 2)
    return made


def peak():
    """Bytes of memory that the process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.timeout(36_000 if COUNT > 1000 else 300)
@pytest.mark.parametrize("case", CASES)
def test_a_mutant_is_refused_with_no_change_or_taken_and_used(case, capsys):
    made, before = federation(case), peak()
    tally = attack(made, Mutator(list(CASES).index(case)), COUNT, states=COUNT // 16)
    assert tally.made >= 2 * COUNT and 0 < tally.taken < tally.made
    assert peak() - before < 200 << 20, "mutants took memory"
    if COUNT > 1000:
        with capsys.disabled():
            sys.stdout.write(f" {case}: {tally.made} mutants, {tally.taken} taken\n")


def test_mutants_need_no_memory():
    """In a process that may have 256 MB more than it has, where what is out of memory is no refusal."""

    def attempt():
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
        attack(made, Mutator(99), 3 * COUNT)

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("the limit is set from Linux's /proc")
    made = federation("fzoos")
    assert forked(attempt) == 0


@pytest.fixture(scope="module")
def stage():
    return next(stages(federation("scaffold2")))


@settings(BRISK, max_examples=max(25, COUNT))
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
    path, mutator = tmp_path / "f.pt", Mutator(5)
    made = federation("fedzo")
    buffer = io.BytesIO()
    torch.save(made.state_dict(), buffer)
    whole, before = buffer.getvalue(), made.state_dict()
    for _ in range(2 * COUNT):
        write_state(path, {}, 1)
        data = mutator.damaged(whole, [whole])
        path.write_bytes(b"checkpoint 1 " + hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        try:
            made.load_state_dict(read_state(path, 1))
        except ValueError:
            assert states_equal(made.state_dict(), before)
        else:
            made.load_state_dict(before)
