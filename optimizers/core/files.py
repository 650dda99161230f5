"""Files that are written whole or not at all, and states in them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to under another name, ``<path>.partial``, which takes the path's place at the end of the block.

    By then it is on the device. Where the block or the writing fails, an older file stays, and nothing of the new one.

    Raises:
        OSError: if the file cannot be written, with its path.
    """
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise type(error)(error.errno, os.strerror(error.errno), str(target)) from error
        raise


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any], form: int) -> None:
    """Writes a ``state_dict``: a line with its format and a SHA-256, and what ``torch.save`` makes of it.

    Raises:
        OSError: as ``replacing``.
    """
    payload = io.BytesIO()
    torch.save(dict(state), payload)
    data = payload.getbuffer()
    with replacing(path) as file:
        file.write(f"checkpoint {form} {hashlib.sha256(data).hexdigest()}\n".encode())
        file.write(data)


def read_state(path: str | os.PathLike[str], form: int) -> dict[str, Any]:
    """The state in a file of ``write_state``, on the CPU.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is damaged, or of another format.
    """
    with Path(path).open("rb") as file:
        mark, given, sha256 = [*file.readline(200).split(), b"", b"", b""][:3]
        data = file.read()
    if mark != b"checkpoint" or sha256 != hashlib.sha256(data).hexdigest().encode():
        raise ValueError("it is no checkpoint, or its digest is wrong")
    if given != str(form).encode():
        raise ValueError(f"its format is {given.decode(errors='replace')}, not {form}")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"it holds no state: {error}".splitlines()[0]) from error
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not a state")
    return state
