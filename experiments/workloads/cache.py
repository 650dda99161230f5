"""Trained models and starts kept between runs: what is read is what would be made again."""

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

from optimizers.core.files import save_tensors

logger = logging.getLogger(__name__)

FOLDER = "results/cache"
"""The default folder; git ignores it."""


def values_of(*settings: Any) -> str:
    """The values of some dataclasses, as a part of a name."""
    return ".".join(str(value) for one in settings for value in dataclasses.astuple(one))


def cached(folder: str, name: str, make: Callable[[], Any]) -> Any:
    """What a deterministic ``make()`` gave when it was first called under this name: tensors and plain values.

    The name says all that the result depends on. Its file in the folder (empty: none, ``make`` runs at every call) is
    complete or is not there, so that several processes may make the same one at once; one that cannot be read is made
    again, and one that cannot be written is logged.
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
        with beside.open("wb") as file:
            save_tensors(made, file)
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        logger.warning("%s cannot be written (%s): what it is to hold is made again the next time", path, error)
    return made
