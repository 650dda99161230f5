"""Writes files atomically, saves states in files, and appends to files."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch


def check_path(name: str, path: Any) -> Path:
    """Returns the path of a file that exists or can be created.

    Raises:
        TypeError: for anything but a path.
        OSError: for a folder, or a file in a folder that does not exist.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file, got {path!r}")
    file = Path(path)
    if not file.absolute().parent.is_dir():
        raise FileNotFoundError(f"{name} is {str(file)!r}, whose folder does not exist")
    if file.is_dir():
        raise IsADirectoryError(f"{name} is {str(path)!r}, which is a folder, not a file")
    return file


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens ``<path>.partial`` for writing and renames it to ``path`` at the end of the block.

    The file and its directory entry are flushed to the disk. If the block fails, an existing file is unchanged.

    Raises:
        OSError: if the file cannot be written; the error contains its path.
    """
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
        _sync_folder(target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise _named(error, target) from error
        raise


def _sync_folder(path: Path) -> None:
    """Flushes a file's folder to the disk, where the system can, so that a renaming survives a power cut."""
    with suppress(OSError):
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _named(error: OSError, path: Path) -> OSError:
    """Adds the path to a device's error."""
    return OSError(error.errno, os.strerror(error.errno or 0), str(path))


class GrowingFile:
    """An append-only file that knows the size and SHA-256 of its content.

    Bytes beyond that size, as left by an interrupted append, are ignored on reading and cut off by the next append.

    Args:
        path: the file; the first append creates or overwrites it.

    Attributes:
        size: the number of bytes appended.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.size, self._digest = Path(path), 0, hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the appended bytes, in hexadecimal."""
        return self._digest.hexdigest()

    @property
    def there(self) -> bool:
        """Whether the file exists and has at least ``size`` bytes."""
        return self.path.is_file() and self.path.stat().st_size >= self.size

    def append(self, data: bytes) -> None:
        """Appends bytes and flushes them to the device.

        Raises:
            OSError: if the bytes cannot be written; the message has the path, and the content does not change.
        """
        try:
            with self.path.open("r+b" if self.size else "wb") as file:
                file.seek(self.size)
                file.truncate()
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not self.size:
                _sync_folder(self.path)
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self.size)
            raise (error if error.errno is None else _named(error, self.path)) from error
        self.size += len(data)
        self._digest.update(data)

    @classmethod
    def opened(cls, path: str | os.PathLike[str], size: int, sha256: str) -> tuple[Self, bytes]:
        """Opens an existing file and returns it with its content, the first ``size`` bytes.

        Raises:
            OSError: if it cannot be read.
            ValueError: if its first ``size`` bytes have another SHA-256.
        """
        made = cls(path)
        with made.path.open("rb") as file:
            data = file.read(size)
        made.size = len(data)
        made._digest.update(data)
        if made.size != size or made.sha256 != sha256:
            raise ValueError(f"{made.path.name} no longer begins with the {size} bytes that were written to it")
        return made, data


def saved(value: Any) -> memoryview:
    """The output of ``torch.save`` in memory, so that a failed write of it is an ``OSError``."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getbuffer()


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any], form: int) -> None:
    """Writes a ``state_dict`` atomically: a line with the format and a SHA-256, then the output of ``torch.save``.

    Raises:
        OSError: as ``replacing``.
    """
    data = saved(dict(state))
    with replacing(path) as file:
        file.write(f"checkpoint {form} {hashlib.sha256(data).hexdigest()}\n".encode())
        file.write(data)


def read_state(path: str | os.PathLike[str], form: int) -> dict[str, Any]:
    """Reads the state in a file of ``write_state``; tensors are on the CPU.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is damaged or has another format.
    """
    with Path(path).open("rb") as file:
        mark, given, sha256 = [*file.readline(200).split(), b"", b"", b""][:3]
        data = file.read()
    if mark != b"checkpoint" or sha256 != hashlib.sha256(data).hexdigest().encode():
        raise ValueError("it is not a checkpoint, or its digest is wrong")
    if given != str(form).encode():
        raise ValueError(f"its format is {given.decode(errors='replace')}, not {form}")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"it cannot be loaded: {error}".splitlines()[0]) from error
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not a dict")
    return state
