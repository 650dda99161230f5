import hashlib
import json

import numpy as np
import pytest
import torch

from federated import Broadcast, MessageError, Report, decode, encode
from federated.core.codec import DIGEST, MAGIC, MAX_HEADER, PREFIX, VERSION

FRAME = {"algorithm": "fedzo", "fingerprint": "f" * 64, "round": 3, "phase": "local"}


def report(**tensors):
    return Report(**FRAME, client=2, queries=7, failures=1, gradients=4, total_queries=21, tensors=tensors)


def sealed(header, payload=b"", version=VERSION):
    """Bytes with any header and payload, and a right digest."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = MAGIC + bytes([version]) + len(text).to_bytes(4, "little") + text + payload
    return data + hashlib.sha256(data).digest()


def header(**changes):
    whole = {**FRAME, "kind": "broadcast", "values": {}, "tensors": []} | changes
    return {k: v for k, v in whole.items() if v is not ...}


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3), (2, 0, 4)])
def test_tensors_come_back_bitwise(dtype, shape):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 100).abs().to(dtype)
    sent = report(x=tensor, another=torch.arange(3))
    received = decode(encode(sent))
    assert received.tensors["x"].dtype == dtype and received.tensors["x"].shape == shape
    assert torch.equal(received.tensors["x"], tensor)
    assert torch.equal(received.tensors["another"], torch.arange(3))
    assert received.payload_bytes == sent.payload_bytes == tensor.nbytes + 24


def test_special_numbers_keep_their_bits():
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000, 1], dtype=np.uint64)
    tensor = torch.from_numpy(bits.view(np.float64))
    received = decode(encode(report(x=tensor))).tensors["x"].numpy().view(np.uint64)
    assert (received == bits).all()


def test_fields_and_values_come_back():
    values = {"digest": "ab" * 32, "rate": 0.1, "steps": 5, "last": True, "text": 'ä\u0000"\\'}
    message = Broadcast(**FRAME, tensors={"x": torch.ones(2)}, values=values)
    received = decode(encode(message))
    assert isinstance(received, Broadcast) and received.values == values
    assert all(getattr(received, name) == value for name, value in FRAME.items())
    got = decode(encode(report()))
    assert (got.client, got.queries, got.failures, got.gradients, got.total_queries) == (2, 7, 1, 4, 21)


def test_the_layout_is_little_endian_and_has_no_pickle():
    data = encode(report(x=torch.tensor([1.0], dtype=torch.float64)))
    assert data[:5] == b"GSFM\x01"
    assert data[-DIGEST - 8 : -DIGEST] == bytes.fromhex("000000000000f03f")
    assert json.loads(data[PREFIX : -DIGEST - 8])["client"] == 2
    assert data == encode(report(x=torch.tensor([1.0, 9.0], dtype=torch.float64)[:1]))


def test_strided_tensors_and_those_with_gradients_are_sent_as_they_read():
    base = torch.arange(12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    assert torch.equal(decode(encode(report(x=base.T))).tensors["x"], base.detach().T)


def test_received_tensors_own_their_memory():
    data = bytearray(encode(report(x=torch.ones(3))))
    received = decode(data).tensors["x"]
    data[:] = bytes(len(data))
    received += 1
    assert torch.equal(received, torch.full((3,), 2.0))


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_every_changed_byte_is_noticed(at):
    data = bytearray(encode(report(x=torch.ones(20, dtype=torch.float64))))
    data[at % len(data)] ^= 1
    with pytest.raises(MessageError):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "fewer"),
        (b"GSFM", "fewer"),
        (bytes(200), "do not begin with"),
        (encode(report())[:-1], "digest"),
        (encode(report()) + b"x", "digest"),
        (sealed(header(), version=9), "version 9"),
        (sealed(b"{"), "JSON"),
        (sealed(b"[" * 60_000), "JSON"),
        (sealed(b"\xff\xfe"), "JSON"),
        (sealed([]), "object"),
        (sealed(header(kind="pickle")), "kind"),
        (sealed(header(kind=["report"])), "kind"),
        (sealed(header(round=...)), "fields"),
        (sealed(header(extra=1)), "fields"),
        (sealed(header(round=-1)), "round"),
        (sealed(header(round=True)), "round"),
        (sealed(header(round=1.0)), "round"),
        (sealed(header(round=2**63)), "round"),
        (sealed(header(phase=1)), "phase"),
        (sealed(header(algorithm="a" * 200)), "algorithm"),
        (sealed(header(values=[1])), "values"),
        (sealed(header(values={"a": [1]})), "values"),
        (sealed(header(values={"A b": 1})), "values"),
        (sealed(json.dumps(header(values={"a": 1.0})).replace("1.0", "NaN").encode()), "JSON"),
        (
            sealed(json.dumps(header(values={"a": 1})).replace(": 1}", ": 1" + "0" * 5000 + "}").encode()),
            "JSON",
        ),
        (sealed(header(tensors={})), "no list of tensors"),
        (sealed(header(tensors=[["x", "float64"]])), "a name, a dtype and a shape"),
        (sealed(header(tensors=[["__x", "float64", [1]]]), bytes(8)), "name"),
        (sealed(header(tensors=[["x", "object", [1]]]), bytes(8)), "dtype"),
        (sealed(header(tensors=[["x", "float64", [-1]]])), "shape"),
        (sealed(header(tensors=[["x", "float64", [2**39, 2**39]]]), bytes(8)), "bytes"),
        (sealed(header(tensors=[["x", "float64", [2]]]), bytes(8)), "bytes"),
        (sealed(header(tensors=[["x", "float64", [1]]] * 2), bytes(16)), "name"),
        (sealed(header(tensors=[["x", "uint8", [1] * 9]]), bytes(1)), "shape"),
        (sealed(header(), b"left over"), "bytes"),
        (sealed({**header(), "values": {"a": "b" * (MAX_HEADER + 1)}}), "header"),
    ],
)
def test_malformed_messages_are_refused_with_the_reason(data, reason):
    with pytest.raises(MessageError, match=reason):
        decode(data)


def test_a_limit_is_kept_before_anything_is_read():
    data = encode(report(x=torch.ones(1000)))
    decode(data, limit=len(data))
    with pytest.raises(MessageError, match="at most 1000"):
        decode(data, limit=1000)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match="dtype"):
        encode(report(x=torch.ones(2, dtype=torch.complex128)))
    with pytest.raises(TypeError, match="dtype"):
        encode(report(x=torch.ones(2, dtype=torch.bool)))
    with pytest.raises(ValueError, match="names"):
        encode(report(X=torch.ones(2)))
    with pytest.raises(TypeError, match="value"):
        encode(Broadcast(**FRAME, values={"a": [1]}))
    with pytest.raises(ValueError, match="finite"):
        encode(Broadcast(**FRAME, values={"a": float("nan")}))
    with pytest.raises(ValueError, match="header"):
        encode(Broadcast(**FRAME, values={"a": "b" * (MAX_HEADER + 1)}))
    with pytest.raises(TypeError, match="bytes"):
        decode("text")
