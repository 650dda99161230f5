"""Files that are written whole or not at all, states in them, and files that only grow."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import torch


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to under another name, ``<path>.partial``, which takes the path's place at the end of the block.

    At the end it is on the device, and so is its name. Where the block or the writing fails, an older file stays, and
    nothing of the new one.

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
        _sync_folder(target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise _named(error, target) from error
        raise


def _sync_folder(path: Path) -> None:
    """Brings the names in a file's folder to the device, without which a power cut may bring an older file back.

    Systems that open no folders, and file systems that do not synchronise them, are left alone.
    """
    with suppress(OSError):
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _named(error: OSError, path: Path) -> OSError:
    """The error of a device, which knows no path, with one."""
    return OSError(error.errno, os.strerror(error.errno or 0), str(path))


class GrowingFile:
    """A file that is appended to, and of which is known what it holds: so many bytes, with this SHA-256.

    What stands in it beyond these, such as the beginning of a line that could not be written whole, is cut off when
    more is appended, and is not read.

    Args:
        path: the file, which is made anew by what is appended first.

    Attributes:
        size: bytes that it holds.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.size, self._digest = Path(path), 0, hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of what it holds, in hexadecimal."""
        return self._digest.hexdigest()

    @property
    def there(self) -> bool:
        """Whether the file is where it was, and no shorter."""
        return self.path.is_file() and self.path.stat().st_size >= self.size

    def append(self, data: bytes) -> None:
        """Appends bytes, which are on the device at the end.

        Raises:
            OSError: if they cannot be written, with the path; the file then holds what it held.
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
        """The file as it was when it held so many bytes, to be appended to, and these bytes.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it does not begin with bytes of this SHA-256.
        """
        made = cls(path)
        with made.path.open("rb") as file:
            data = file.read(size)
        made.size = len(data)
        made._digest.update(data)
        if made.size != size or made.sha256 != sha256:
            raise ValueError(f"{made.path.name} does not begin with the {size} bytes that were written with it")
        return made, data


def save_tensors(value: Any, file: BinaryIO) -> str:
    """Writes what ``torch.save`` makes of a value; returns its SHA-256 in hexadecimal.

    Raises:
        OSError: if the file cannot be written. ``torch.save`` itself hides the error of the device, such as a full
            disk's, behind a ``RuntimeError`` about positions.
    """
    written = _Written(file)
    try:
        torch.save(value, cast(BinaryIO, written))
    except RuntimeError as error:
        if written.error is None:
            raise
        raise written.error from error
    return written.sha256


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any], form: int) -> None:
    """Writes a ``state_dict``: a line with its format and a SHA-256, and what ``torch.save`` makes of it.

    Raises:
        OSError: as ``replacing``.
    """
    with replacing(path) as file:
        file.write(f"checkpoint {form} {hashlib.sha256().hexdigest()}\n".encode())
        sha256 = save_tensors(dict(state), file)
        file.seek(0)
        file.write(f"checkpoint {form} {sha256}\n".encode())


class _Written(io.RawIOBase):
    """What is written to a file: its SHA-256, and the error of a write that failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.error: OSError | None = None

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: Any) -> int:
        self._digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


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
