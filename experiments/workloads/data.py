"""The papers' data sets in a folder that the user names: where they are, and how they are downloaded.

``--data DIR`` names the folder. ``DIR/NAME`` has data set NAME as its publisher or loader stores it, or compact files:

* ``mnist``: four IDX files, plain or ``.gz``, also in torchvision's ``MNIST/raw``; optionally a network ``cnn.pt``;
* ``cifar10``: the python version, also in its folder ``cifar-10-batches-py``, or ``train*.npz`` and ``test*.npz`` with
  ``X`` (bytes, ``n x 32 x 32 x 3``) and ``y``; optionally a trained network ``resnet20*.th``;
* ``covertype`` or ``covtype``: scikit-learn's cache, or ``natural*.npz`` and ``balanced*.npz`` with ``X`` and ``y``;
* ``sst2``, ``qqp``, ``squad``: the result of datasets' ``save_to_disk``, or ``train*`` and ``dev*`` as ``.tsv.gz``
  (SQuAD: its own JSON, ``.json.gz``).

Running an experiment downloads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

OTHER_NAMES = {"covertype": "covtype"}
NAMES = ("mnist", "cifar10", "covertype", "sst2", "qqp", "squad")


class DataError(ValueError):
    """Raised for data that do not exist or are not as the loader expects."""


@contextmanager
def reading(complaint: str) -> Iterator[None]:
    """Turns any exception of the block into a ``DataError`` with a message and the exception's first line."""
    try:
        yield
    except Exception as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"{complaint}: {said}") from error


def folder_of(data: str | Path, name: str) -> Path:
    """Returns ``data/name``, or the folder with the data set's other name if only this one exists."""
    folder = Path(data) / name
    other = Path(data) / OTHER_NAMES.get(name, name)
    return folder if folder.exists() else other if other.exists() else folder


def file_of(folder: Path, *patterns: str) -> Path | None:
    """Returns the first file of a folder that matches a pattern, or None."""
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)


def read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads the arrays ``X`` and ``y`` of a compact file.

    Raises:
        DataError: if the file does not have both arrays, or they differ in length.
    """
    with reading(f"{path} must be an .npz file with arrays X and y"), np.load(path) as found:
        inputs, labels = found["X"], found["y"].astype(np.int64)
    if labels.ndim != 1 or len(inputs) != len(labels):
        raise DataError(f"{path} must have one label per row of X, got shapes {inputs.shape} and {labels.shape}")
    return inputs, labels


def fetch(name: str, data: Path) -> Path:
    """Downloads a data set into its folder by the usual loader: torchvision, scikit-learn or datasets.

    Raises:
        DataError: if the loader is not installed or the download fails.
    """
    folder = folder_of(data, name)
    with reading(f"{name} cannot be downloaded"):
        if name == "covertype":
            from sklearn.datasets import fetch_covtype

            fetch_covtype(data_home=folder)
        elif name in ("mnist", "cifar10"):
            from torchvision import datasets as vision  # type: ignore[import-not-found, unused-ignore]

            {"mnist": vision.MNIST, "cifar10": vision.CIFAR10}[name](folder, download=True)
        else:
            from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]

            load_dataset(*(("rajpurkar/squad",) if name == "squad" else ("nyu-mll/glue", name))).save_to_disk(folder)
    return folder
