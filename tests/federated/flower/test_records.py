import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from federated import Broadcast, MessageError, Report, encode
from federated.flower.records import frame_in, load_state, records_of, save_state, size_of
from federated.testing.harness import states_equal
from tests.federated.flower.fake import FakeGrid, passed

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
FRAME = {"algorithm": "fedzo", "fingerprint": "f" * 64, "round": 3, "phase": "local"}


def report(**changes):
    tensors = {f"t{i}": torch.arange(-3, 3).to(dtype).reshape(2, 3) for i, dtype in enumerate(DTYPES)}
    tensors |= {"none": torch.empty(0, 4), "one": torch.tensor(-0.0), "odd": torch.tensor([float("nan"), 1e-320])}
    values = {"whole": 2**62, "real": 0.1, "text": "ö", "yes": True, "nothing": ""}
    return (
        Report(**FRAME, tensors=tensors, values=values, client=1, queries=5, failures=2, total_queries=9)
        if not (changes)
        else dataclasses.replace(report(), **changes)
    )


def arrived(content):
    FakeGrid()
    return passed(Message(content, dst_node_id=3, message_type="train.phase")).content


@pytest.mark.parametrize(
    "message",
    [report(), Broadcast(**FRAME), Broadcast(**FRAME, tensors={"x": torch.ones(3)})],
    ids=["report", "empty", "x"],
)
def test_messages_survive_flowers_encoding_bit_by_bit(message):
    content = arrived(RecordDict(records_of(message)))
    again = frame_in(content).message()
    assert type(again) is type(message) and encode(again) == encode(message)
    assert size_of(content) >= message.payload_bytes


def test_arrays_are_what_flower_reads_itself():
    message = report()
    arrays = records_of(message)["arrays"]
    for name, tensor in message.tensors.items():
        if tensor.dtype == torch.bfloat16:
            assert np.array_equal(arrays[name].numpy(), tensor.view(torch.int16).numpy())
        else:
            assert np.array_equal(arrays[name].numpy(), tensor.numpy(), equal_nan=tensor.is_floating_point())
            assert arrays[name].numpy().dtype == tensor.numpy().dtype
    theirs = Array(torch.ones(2, 3))
    ours = records_of(Broadcast(**FRAME, tensors={"x": torch.ones(2, 3)}))["arrays"]["x"]
    assert (ours.dtype, ours.shape, ours.stype, ours.data) == (theirs.dtype, theirs.shape, theirs.stype, theirs.data)


def altered(**changes):
    """The records of a broadcast of two numbers, with parts replaced; None takes a part away."""
    records = records_of(Broadcast(**FRAME, tensors={"x": torch.ones(2)}))
    array = records["arrays"]["x"]
    parts = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    taken = {name: changes.pop(name) for name in list(changes) if name in parts}
    if taken:
        records["arrays"] = ArrayRecord({"x": Array(**(parts | taken))})
    return RecordDict({k: v for k, v in (records | changes).items() if v is not None})


DATA = records_of(Broadcast(**FRAME, tensors={"x": torch.ones(2)}))["arrays"]["x"].data
BAD = {
    "no header": ({"header": None}, "the records are"),
    "no arrays": ({"arrays": None}, "the records are"),
    "header of another kind": ({"header": ConfigRecord({"header": "text"})}, "must be at most"),
    "long header": ({"header": ConfigRecord({"header": b"x" * 70_000})}, "must be at most"),
    "random header": ({"header": ConfigRecord({"header": b"\xff{"})}, "not valid JSON"),
    "another array": ({"arrays": ArrayRecord({"y": Array(np.ones(2))})}, "the arrays are"),
    "no array": ({"arrays": ArrayRecord({})}, "the arrays are"),
    "dtype": ({"dtype": "float64"}, "float64"),
    "shape": ({"shape": (3,)}, r"\(3,\)"),
    "type": ({"stype": "pickle"}, "pickle"),
    "short": ({"data": DATA[:-1]}, "NumPy's format"),
    "long": ({"data": DATA + b"x"}, "NumPy's format"),
    "empty": ({"data": b""}, "NumPy's format"),
    "other start": ({"data": b"\x00" + DATA[1:]}, "NumPy's format"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_is_refused(name):
    changes, reason = BAD[name]
    with pytest.raises(MessageError, match=reason):
        frame_in(altered(**changes))


def test_records_become_frames_and_no_tensors(monkeypatch):
    content = altered()
    monkeypatch.setattr(torch, "from_numpy", lambda array: pytest.fail("a tensor was made"))
    frame = frame_in(content)
    assert frame.payload_bytes == 8 and frame.header.tensors == {}
    assert [(entry.name, entry.layout) for entry in frame.entries] == [("x", (torch.float32, (2,)))]


def test_random_records_never_pass():
    generator = np.random.default_rng(0)
    for _ in range(300):
        text = bytearray(records_of(Broadcast(**FRAME, tensors={"x": torch.ones(2)}))["header"]["header"])
        for _ in range(1 + generator.integers(4)):
            text[generator.integers(len(text))] = generator.integers(256)
        changed = altered(header=ConfigRecord({"header": bytes(text)}))
        try:
            found = frame_in(changed).message()
        except MessageError:
            continue
        # What is still a message has its tensors as they were: names, rounds and values are the server's to judge.
        assert torch.equal(found.tensors["x"], torch.ones(2))


def test_states_survive():
    state = {
        "tensors": [
            torch.arange(3),
            torch.tensor([True, False]),
            torch.empty(0, 2),
            torch.ones(2, dtype=torch.bfloat16),
        ],
        "nested": {"rule": {0: {"step": torch.tensor(3.0)}, "a": (1, 2.5, None)}, "empty": {}, "text": "ü"},
        "numbers": [float("inf"), -0.0, 2**70, True],
        "list": [],
    }
    records = RecordDict()
    assert load_state(records) is None
    save_state(records, state)
    again = load_state(arrived(records))
    assert states_equal(again, state) and repr(again) == repr(state)
    assert type(again["nested"]["rule"]["a"]) is tuple and 0 in again["nested"]["rule"]
    save_state(records, {"small": 1})
    assert load_state(arrived(records)) == {"small": 1}
