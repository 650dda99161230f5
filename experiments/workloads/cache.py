"""Stores trained models and starts between runs; a stored value equals the value that would be computed."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from optimizers.core.files import saved

logger = logging.getLogger(__name__)

FOLDER = "results/cache"
"""The default folder, which git ignores."""


def values_of(*settings: Any) -> str:
    """Formats the values of some dataclasses as part of a file name."""
    return ".".join(str(value) for one in settings for value in dataclasses.astuple(one))


def cached(folder: str, name: str, make: Callable[[], Any]) -> Any:
    """Returns the stored result of a deterministic ``make()``, or calls it and stores its tensors and plain values.

    The name must identify everything that the result depends on. An empty folder disables the cache. Files are written
    atomically, so several processes may write at once. An unreadable file is replaced; a failed write is logged.
    """
    if not folder:
        return make()
    path = Path(folder) / f"{re.sub('[^A-Za-z0-9._-]+', '-', name)}.pt"
    try:
        return torch.load(path, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
        made = make()
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(saved(made))
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        logger.warning("%s cannot be written (%s); its content will be computed again in later runs", path, error)
    return made
