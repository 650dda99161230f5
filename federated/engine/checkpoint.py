"""Checkpoints of a federation: files that are written whole or not at all, and loaded whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from federated.core.messages import plain
from federated.engine.federation import Federation
from optimizers.core.files import read_state, write_state

FORMAT = 1


def save_checkpoint(federation: Federation, path: str | os.PathLike[str]) -> None:
    """Saves a federation between two rounds.

    Raises:
        OSError: if the file cannot be written, with its path; an older one stays then.
    """
    write_state(path, federation.state_dict(), FORMAT)


def load_checkpoint(federation: Federation, path: str | os.PathLike[str]) -> None:
    """Makes a federation go on from a checkpoint, of one in this process or over Flower.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is none of ``save_checkpoint``, is damaged, or does not fit the federation's options, with
            the path; the federation is then unchanged.
        TypeError: if the argument is no path.
    """
    check_path("resume", path)
    try:
        federation.load_state_dict(read_state(path, FORMAT))
    except ValueError as error:
        raise ValueError(f"{plain(path)} is no checkpoint of this federation: {error}") from error


def check_path(name: str, path: str | os.PathLike[str] | None) -> None:
    """Raises ``TypeError`` for what is no path, and ``FileNotFoundError`` for one in a folder that is not there."""
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file, got {path!r}")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{name} is {plain(path)}, whose folder is not there")
