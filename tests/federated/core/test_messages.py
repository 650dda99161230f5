import pytest
import torch

from federated import Broadcast, MessageError, MessageSpec, TensorSpec

FRAME = {"algorithm": "a", "fingerprint": "", "round": 1, "phase": "local"}
SPEC = MessageSpec(
    {"x": TensorSpec((3,), torch.float64), "log": TensorSpec((None, 2), torch.float32, largest=8)},
    {"steps": int, "rate": float},
    optional=frozenset({"log", "rate"}),
)


def message(values=None, **tensors):
    given = {"x": torch.ones(3, dtype=torch.float64)} | tensors
    return Broadcast(**FRAME, tensors=given, values={"steps": 2} if values is None else values)


def test_what_is_specified_is_accepted():
    SPEC.check(message())
    SPEC.check(message({"steps": 1, "rate": 0.5}, log=torch.ones(4, 2)))
    assert SPEC.max_bytes == 3 * 8 + 8 * 4
    assert message().payload_bytes == 24


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (message(x=torch.ones(4, dtype=torch.float64)), "shape"),
        (message(x=torch.ones(3)), "dtype"),
        (message(x=torch.ones(1, 3, dtype=torch.float64)), "shape"),
        (message(x=torch.tensor([1.0, float("nan"), 0.0], dtype=torch.float64)), "NaN"),
        (message(x=torch.tensor([1.0, float("-inf"), 0.0], dtype=torch.float64)), "NaN or inf"),
        (message(log=torch.ones(5, 2)), "shape"),
        (message(log=torch.ones(2, 3)), "shape"),
        (message(other=torch.ones(1)), "tensors"),
        (message({}), "values"),
        (message({"steps": 1, "more": 2}), "values"),
        (message({"steps": True}), "bool"),
        (message({"steps": 1.0}), "float"),
        (message({"steps": 1, "rate": float("inf")}), "finite"),
    ],
)
def test_what_is_not_is_refused(bad, reason):
    with pytest.raises(MessageError, match=reason):
        SPEC.check(bad)
