"""Archives: nested mappings of tensors, arrays and plain values in one file, without pickling.

An archive is a zip file that ``numpy.load`` opens: a member ``NAME.npy`` for each tensor and array, named by the keys
that lead to it, and ``content.json`` for the rest. The same content gives the same bytes.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.optimize import OptimizeResult
from torch import Tensor

from optimizers.core.files import replacing

T = TypeVar("T")

VERSION = 1
CONTENT = "content.json"
NUMPY_KINDS = "biufcmMSU"
OF_THE_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def save_archive(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any]) -> None:
    """Writes an archive atomically: if it fails, an existing file is unchanged.

    Args:
        path: the file.
        kind: a name for the kind of content, which ``load_archive`` checks.
        content: tensors, arrays, numbers, strings, booleans and None, in mappings with string keys, lists and tuples.
            Tensors of dtypes that NumPy lacks are stored bitwise as integers.

    Raises:
        TypeError: for a value of any other type; the message has its place, such as ``history.x``.
    """
    arrays = dict[str, np.ndarray]()
    described = {"kind": kind, "version": VERSION, "content": _encoded(dict(content), "", arrays)}
    text = json.dumps(described, indent=1)
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(CONTENT), text)
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load_archive(path: str | os.PathLike[str], kind: str, made: Callable[[dict[str, Any]], T]) -> T:
    """Reads an archive and returns ``made(content)``, with tensors on the CPU and all types as they were saved.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not an archive, is damaged, holds another kind, or ``made`` rejects its content.
    """
    data = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"its member {damaged} is damaged")
            described = json.loads(archive.read(CONTENT))
            if described["kind"] != kind:
                raise ValueError(f"it holds a {described['kind']}")
            if described["version"] != VERSION:
                raise ValueError(f"its format has version {described['version']}, expected {VERSION}")
            content = _decoded(described["content"], archive)
            if not isinstance(content, dict):
                raise ValueError("its content is not a mapping")
            return made(content)
    except Exception as error:
        raise ValueError(f"{path} is not a saved {kind}: {error}".splitlines()[0]) from error


def _encoded(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value in JSON form; its arrays are added to ``arrays``."""
    if isinstance(value, Tensor):
        array, dtype = _bits(value, place), str(value.dtype).removeprefix("torch.")
        return {"type": "tensor", "dtype": dtype, "member": _add(array, place, arrays)}
    if isinstance(value, np.generic):
        return {"type": "scalar", "member": _add(np.asarray(value), place, arrays)}
    if type(value) is np.ndarray:
        return {"type": "array", "member": _add(value, place, arrays)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        entries = {name: _encoded(v, f"{place}.{name}" if place else name, arrays) for name, v in value.items()}
        return {"type": "OptimizeResult" if isinstance(value, OptimizeResult) else "dict", "entries": entries}
    if isinstance(value, list | tuple):
        items = [_encoded(v, f"{place}.{i}", arrays) for i, v in enumerate(value)]
        return items if isinstance(value, list) else {"type": "tuple", "items": items}
    raise TypeError(f"{place} is a {type(value).__name__}, which cannot be saved without pickling it")


def _decoded(value: Any, archive: zipfile.ZipFile) -> Any:
    if isinstance(value, list):
        return [_decoded(item, archive) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value["type"]
    if kind == "tuple":
        return tuple(_decoded(item, archive) for item in value["items"])
    if kind in ("dict", "OptimizeResult"):
        entries = {name: _decoded(v, archive) for name, v in value["entries"].items()}
        return entries if kind == "dict" else OptimizeResult(entries)
    with archive.open(value["member"]) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
    if kind == "tensor":
        tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        return tensor.view(getattr(torch, value["dtype"]))
    if kind not in ("array", "scalar"):
        raise ValueError(f"its content has an entry of unknown type {kind!r}")
    return array if kind == "array" else array[()]


def _bits(tensor: Tensor, place: str) -> np.ndarray:
    """A tensor as an array, or as integers of the same bits if NumPy lacks its dtype."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(
            f"{place} is a sparse, quantized or meta tensor ({tensor.layout}): pass a dense one with values"
        )
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return (plain if has_numpy_dtype(plain) else plain.view(OF_THE_WIDTH[plain.itemsize])).numpy()


def has_numpy_dtype(tensor: Tensor) -> bool:
    """Whether NumPy has the tensor's dtype; NumPy lacks bfloat16 and floating dtypes of 8 bits."""
    try:
        tensor.new_empty(0, device="cpu").numpy()
    except TypeError:
        return False
    return True


def _add(array: np.ndarray, place: str, arrays: dict[str, np.ndarray]) -> str:
    if array.dtype.kind not in NUMPY_KINDS:
        raise TypeError(f"{place} is an array of {array.dtype}, which cannot be saved without pickling it")
    name = f"{place}.npy"
    while name in arrays:
        name = f"{name.removesuffix('.npy')}_.npy"
    arrays[name] = array
    return name
