"""Archives give back every bit, and refuse what they cannot give back."""

import math
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from scipy.optimize import OptimizeResult

from optimizers.core.archive import load_archive, save_archive

NANS = np.array([0x7FF8000000000001, 0xFFF8000000000123, 0x7FF0000000000000, 0x8000000000000000], dtype=np.uint64)


def bits(value):
    """A value with its types, to be compared by ==; NaN and the sign of zero by their bits."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.shape), bytes(value.contiguous().untyped_storage())
    if isinstance(value, np.ndarray | np.generic):
        raw = np.frombuffer(value.tobytes(), np.uint8)
        if value.dtype.char == "g" and np.finfo(value.dtype).nmant == 63:
            raw = raw.reshape(-1, 16)[:, :10]  # what pads the 80 bits of an x86 to 128 is anything
        return type(value), value.dtype.str, value.shape, raw.tobytes()
    if isinstance(value, dict):
        return type(value), {name: bits(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [bits(entry) for entry in value]
    return type(value), struct.pack("d", value) if isinstance(value, float) else value


def came_back(content, path):
    save_archive(path, "Thing", content)
    return load_archive(path, "Thing", dict)


TENSORS = [
    torch.from_numpy(NANS.view(np.float64)),
    torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1 / 3, 1e-45], dtype=torch.float32),
    torch.tensor([1.5, math.nan, -math.inf, 3e38], dtype=torch.bfloat16),
    torch.tensor([1.5, math.inf, 6e-8], dtype=torch.float16),
    torch.arange(-3, 3).to(torch.float8_e4m3fn).reshape(2, 3),
    torch.tensor(2**62 + 1),
    torch.tensor([True, False]),
    torch.zeros(0, 3, dtype=torch.bfloat16),
    torch.tensor(0.1, dtype=torch.bfloat16),
    torch.tensor([1 + 2j], dtype=torch.complex64),
    torch.tensor([2**64 - 1], dtype=torch.uint64),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_tensors_come_back(tensor, tmp_path):
    assert bits(came_back({"x": tensor}, tmp_path / "a")) == bits({"x": tensor})


def test_views_come_back_by_their_values(tmp_path):
    whole = torch.arange(12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    found = came_back({"rows": whole[:, 1], "conj": torch.tensor([1 + 2j]).conj()}, tmp_path / "a")
    assert found["rows"].tolist() == [1.0, 5.0, 9.0] and not found["rows"].requires_grad
    assert found["conj"].tolist() == [1 - 2j]


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f8", "i8", "u1", "?", "c16", "g", "U3", "S2", "M8[s]"])
def test_arrays_come_back(dtype, tmp_path):
    array = np.array([0, 1, 1]).astype(dtype).reshape(3, 1)
    floats = NANS.view(np.float64)
    content = {
        "a": array,
        "scalar": array[1, 0],
        "empty": array[:0],
        "f": floats,
        "fortran": np.asfortranarray([[1, 2], [3, 4]]),
    }
    assert bits(came_back(content, tmp_path / "a")) == bits(content)


def test_plain_values_and_nests_come_back(tmp_path):
    content = {
        "text": "Ziel erreicht – ξ ≤ 10⁻³ \ud800 \x00",
        "numbers": [0, -1, 10**30, 0.1, -0.0, 1e-320, True, None],
        "odd": [math.nan, math.inf, -math.inf],
        "nest": OptimizeResult(y=torch.ones(2), inner={"t": (1, [2.5], ()), "type": "tensor"}),
        "nest.y": np.float64(1.0),
    }
    assert bits(came_back(content, tmp_path / "a")) == bits(content)


def test_numpy_opens_it(tmp_path):
    save_archive(tmp_path / "r.npz", "Thing", {"h": {"y": torch.tensor([1.0, 2.0])}})
    with np.load(tmp_path / "r.npz", allow_pickle=False) as file:
        assert file["h.y"].tolist() == [1.0, 2.0]


def test_the_same_content_gives_the_same_bytes(tmp_path):
    for name in "ab":
        save_archive(tmp_path / name, "Thing", {"x": torch.ones(3), "m": "ü"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class Masked(np.ndarray):
    pass


@pytest.mark.parametrize(
    "value",
    [
        print,
        {1: 2},
        1j,
        b"x",
        {1},
        np.array([None]),
        np.ma.array([1.0], mask=[True]),
        np.zeros(2).view(Masked),
        np.zeros(1, dtype=[("a", "f8")]),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_saved_is_refused_by_its_place(value, tmp_path):
    save_archive(tmp_path / "a", "Thing", {"x": 1})
    with pytest.raises(TypeError, match=r"^outer\.inner\.1 is "):
        save_archive(tmp_path / "a", "Thing", {"outer": {"inner": [0, value]}})
    assert load_archive(tmp_path / "a", "Thing", dict) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_save_that_fails_leaves_the_older_file(tmp_path, monkeypatch):
    save_archive(tmp_path / "a", "Thing", {"x": 1})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space"):
        save_archive(tmp_path / "a", "Thing", {"x": torch.ones(3)})
    assert load_archive(tmp_path / "a", "Thing", dict) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def refused(path, match="is not a saved Thing: "):
    with pytest.raises(ValueError, match=match) as caught:
        load_archive(path, "Thing", dict)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_files_are_refused_or_read_exactly(tmp_path):
    content = {"x": torch.tensor([1.0, math.nan], dtype=torch.float64), "fun": 0.1, "message": "ja"}
    save_archive(tmp_path / "whole", "Thing", content)
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / "damaged"
    for end in range(0, len(whole), 5):
        path.write_bytes(whole[:end])
        refused(path)
    spared = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert bits(load_archive(path, "Thing", dict)) == bits(content)  # a byte of a date, or the like
            spared += 1
        except ValueError as error:
            assert str(path) in str(error)
    assert spared < len(whole) / 4


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "file"
    for data in (b"", b"text", pickle.dumps({"x": 1})):
        path.write_bytes(data)
        refused(path)
    torch.save({"x": 1}, path)
    refused(path)
    with path.open("wb") as file:
        np.savez(file, x=np.ones(2))
    refused(path)
    save_archive(path, "Other", {})
    refused(path, "it holds a Other")
    for content in ('{"kind": "Thing", "version": 2, "content": 0}', '{"kind": "Thing", "version": 1, "content": 0}'):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("content.json", content)
        refused(path)
    save_archive(path, "Thing", {"y": 1})
    with pytest.raises(ValueError, match="is not a saved Thing: 'x'"):
        load_archive(path, "Thing", lambda content: content["x"])
    with pytest.raises(FileNotFoundError):
        load_archive(tmp_path / "none", "Thing", dict)


def test_no_pickle_is_read(tmp_path):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    path = tmp_path / "file"
    save_archive(path, "Thing", {"x": np.ones(1)})
    with zipfile.ZipFile(path) as archive:
        content = archive.read("content.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("content.json", content)
        with archive.open("x.npy", "w") as member:
            np.lib.format.write_array(member, np.array([Bomb()], dtype=object), allow_pickle=True)
    refused(path)
