"""Images for the attacks: MNIST and CIFAR-10 from a folder, or scikit-learn's digits as a stand-in.

``experiments.workloads.data`` describes the files. CIFAR-10's batches are pickles; their contents are not executed.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import pickle
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from experiments.workloads.data import DataError, file_of, folder_of, read_npz, reading

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR_FILES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
CIFAR_FOLDER = "cifar-10-batches-py"
DIGITS_TEST = 360
"""The last 360 of the 1,797 digits are reserved for attacks; as in MNIST, other people wrote them."""

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
"""Names of the data sets."""


@dataclasses.dataclass(frozen=True)
class Images:
    """A classification task.

    Attributes:
        name: name of the data set.
        train: pixels in [0, 1], float32 as they are loaded, ``n x c x h x w``.
        train_labels: classes from 0 to 9, shape ``n``.
        test: pixels of the images that are attacked.
        test_labels: their classes.
    """

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        c, h, w = self.train.shape[1:]
        return c, h, w


def load_images(name: str, data: str = "", side: int = 8) -> Images:
    """Reads a data set from ``data/name``, or returns its stand-in if ``data`` is empty.

    Args:
        name: ``"mnist"`` or ``"cifar10"``.
        data: folder that contains the data sets' folders; empty: digits.
        side: pixels per side of the stand-in's images; the digits have 8.

    Raises:
        ValueError: for another name.
        DataError: if the folder is not as the loader expects.
    """
    if name not in TITLES:
        raise ValueError(f"unknown data set {name!r}; choose from {', '.join(TITLES)}")
    if not data:
        return digits(side)
    return (mnist if name == "mnist" else cifar10)(folder_of(data, name))


def stand_in(names: Sequence[str], data: str, side: int) -> str:
    """Names the stand-in for some data sets; an empty string if the real data are used."""
    if data:
        return ""
    title = " and ".join(TITLES[name] for name in names)
    enlarged = "" if side == 8 else f", enlarged to {side} x {side},"
    return f"scikit-learn's 8 x 8 digits{enlarged} for {title}"


@lru_cache(maxsize=4)
def digits(side: int = 8) -> Images:
    """Returns scikit-learn's 8 x 8 digits, enlarged bilinearly to ``side``: 1,437 to train on, 360 to attack."""
    found = load_digits()
    pixels = torch.from_numpy(found.images / 16.0).float().unsqueeze(1)
    if side != pixels.shape[-1]:
        size = (side, side)
        pixels = torch.nn.functional.interpolate(pixels, size, mode="bilinear", align_corners=False)
    labels = torch.from_numpy(found.target).long()
    cut = len(labels) - DIGITS_TEST
    return Images("digits", pixels[:cut], labels[:cut], pixels[cut:], labels[cut:])


@lru_cache(maxsize=1)
def mnist(folder: Path) -> Images:
    """Reads MNIST from its IDX files.

    Raises:
        DataError: if a file is missing or invalid.
    """
    read = {}
    for split, (images, labels) in IDX_FILES.items():
        pixels, classes = (read_idx(_idx_path(folder, name)) for name in (images, labels))
        if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes) or classes.max() > 9:
            raise DataError(
                f"{folder}: {images} and {labels} must hold n images and n digits, "
                f"got shapes {pixels.shape} and {classes.shape}"
            )
        read[split] = (torch.from_numpy(pixels).float()[:, None] / 255.0, torch.from_numpy(classes).long())
    return Images("MNIST", *read["train"], *read["test"])


def _idx_path(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; it must contain MNIST's four IDX files")
    if path := file_of(folder, name, f"{name}.gz", f"MNIST/raw/{name}", f"MNIST/raw/{name}.gz"):
        return path
    raise DataError(f"{folder} has neither {name} nor {name}.gz; MNIST needs {', '.join(sum(IDX_FILES.values(), ()))}")


def read_idx(path: Path) -> np.ndarray:
    """Reads the array of unsigned bytes in an IDX file, plain or ``.gz``.

    Raises:
        DataError: if the magic number, element type or length is wrong.
    """
    with reading(f"{path} cannot be read"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an IDX file of unsigned bytes: it begins with {content[:4]!r}")
    rank = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content[4 : 4 + 4 * rank], dtype=">u4"))
    body = content[4 + 4 * rank :]
    if len(shape) != rank or len(body) != int(np.prod(shape)):
        raise DataError(f"{path} must have an array of shape {shape}, got {len(body)} bytes")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape).copy()


_PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""The only constructors that may run when CIFAR-10's pickled arrays are read."""
_RECONSTRUCT = np.empty(0).__reduce__()[0]
"""The constructor of a pickled array in this version of NumPy."""


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays of bytes and plain containers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(f"a CIFAR-10 batch must not contain {module}.{name}")
        return _RECONSTRUCT if name == "_reconstruct" else super().find_class(module, name)


@lru_cache(maxsize=1)
def cifar10(folder: Path) -> Images:
    """Reads CIFAR-10 from compact files, or from its python batches in ``folder`` or in its ``cifar-10-batches-py``.

    Raises:
        DataError: if a file is missing or invalid.
    """
    inner = folder / CIFAR_FOLDER
    inner, read = inner if inner.is_dir() else folder, {}
    for split, names in CIFAR_FILES.items():
        if path := file_of(folder, f"{split}*.npz"):
            pixels, labels = read_npz(path)
            batches = [_cifar_images(path, np.moveaxis(pixels, -1, 1), labels)]
        else:
            batches = [_cifar_batch(inner / name) for name in names]
        read[split] = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    return Images("CIFAR-10", *read["train"], *read["test"])


def _cifar_batch(path: Path) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise DataError(f"{path} is missing; CIFAR-10's python version has {', '.join(sum(CIFAR_FILES.values(), ()))}")
    with reading(f"{path} is not a batch of CIFAR-10's python version"):
        found = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = np.asarray(found[b"data"]), np.asarray(found[b"labels"], dtype=np.int64)
    return _cifar_images(path, pixels, labels)


def _cifar_images(path: Path, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """Returns pixels in [0, 1] and classes from bytes with the channels first."""
    if pixels.dtype != np.uint8 or pixels.size != 3 * 32 * 32 * len(labels) or not set(labels) <= set(range(10)):
        raise DataError(f"{path} must have n x 3072 bytes and n classes, got {pixels.dtype} {pixels.shape}")
    return torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()).float() / 255.0, torch.from_numpy(labels)
