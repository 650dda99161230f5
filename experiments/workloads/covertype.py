"""Covertype from a folder, or a synthetic stand-in of the same shape."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import fetch_covtype, make_classification
from torch import Tensor

from experiments.workloads.data import DataError, file_of, folder_of, read_npz, reading

FEATURES, CLASSES, ROWS = 54, 7, 581_012
SIZE = 20_000
"""Number of points of the synthetic set."""

STAND_IN = "synthetic 54-feature set for Covertype"


@dataclasses.dataclass(frozen=True)
class Points:
    """A classification task.

    Attributes:
        inputs: standardized features, float64, ``n x 54``.
        labels: classes from 0 to 6, shape ``n``.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Number of points n."""
        return len(self.labels)

    def sample(self, count: int, seed: int, classes: tuple[int, ...] = ()) -> Points:
        """Draws ``count`` points of some classes (empty: all) without replacement.

        Raises:
            ValueError: if there are fewer.
        """
        rows = torch.arange(len(self))
        if classes:
            rows = rows[torch.isin(self.labels, torch.tensor(classes))]
        if len(rows) < count:
            raise ValueError(f"count must be at most the {len(rows)} points of classes {classes or 'all'}, got {count}")
        picked = rows[torch.from_numpy(np.random.default_rng([seed, 2]).permutation(len(rows))[:count])]
        return Points(self.inputs[picked], self.labels[picked])

    def after(self, count: int) -> Points:
        """Returns all points after the first ``count``."""
        return Points(self.inputs[count:], self.labels[count:])


def load_points(data: str = "", every_class: bool = False) -> Points:
    """Returns Covertype from ``data/covertype`` or ``data/covtype``, or the synthetic set if ``data`` is empty.

    Args:
        data: folder of the data sets.
        every_class: whether to add the class-balanced sample to the natural sample if the folder has only these, so
            that every class has 2,000 rows.

    Raises:
        DataError: if the data do not exist; nothing is downloaded.
    """
    return covertype(folder_of(data, "covertype"), every_class) if data else synthetic()


@lru_cache(maxsize=2)
def covertype(folder: Path, every_class: bool = False) -> Points:
    """Reads Covertype: compact files, or what ``fetch_covtype`` stores under ``data_home=folder``.

    Raises:
        DataError: if it does not exist or is not as expected.
    """
    asked = "python -m experiments data covertype --data DIR"
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; download Covertype into it with: {asked}")
    files = [file_of(folder, f"{kind}*.npz") for kind in ("natural", "balanced")[: 1 + every_class]]
    if parts := [read_npz(path) for path in files if path is not None]:
        inputs, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        _, first = np.unique(inputs, axis=0, return_index=True)
        inputs, labels = inputs[np.sort(first)], labels[np.sort(first)]
    else:
        with reading(f"{folder} does not contain Covertype; download it with: {asked}; scikit-learn says"):
            found = fetch_covtype(data_home=folder, download_if_missing=False)
        inputs, labels = np.asarray(found.data), np.asarray(found.target, dtype=np.int64)
    if inputs.ndim != 2 or inputs.shape[1] != FEATURES or set(np.unique(labels)) - set(range(1, CLASSES + 1)):
        raise DataError(f"{folder} must have n x {FEATURES} features and classes 1 to {CLASSES}, got {inputs.shape}")
    return _standardised(inputs.astype(np.float64), labels - 1)


def differs(points: Points, trained_on: int) -> str:
    """Describes how the data and the training of a run differ from the papers'."""
    return f"{len(points):,} of Covertype's {ROWS:,} rows, a network trained by Adam on {trained_on:,} of them"


@lru_cache(maxsize=1)
def synthetic() -> Points:
    """Returns scikit-learn's ``make_classification``: two clusters per class, a tenth of the labels redrawn."""
    inputs, labels = make_classification(
        SIZE,
        FEATURES,
        n_informative=20,
        n_redundant=10,
        n_classes=CLASSES,
        n_clusters_per_class=2,
        weights=[0.3, 0.25, 0.15, 0.1, 0.1, 0.05, 0.05],
        flip_y=0.1,
        random_state=0,
    )
    return _standardised(inputs, labels)


def _standardised(inputs: np.ndarray, labels: np.ndarray) -> Points:
    scale = inputs.std(0)
    inputs = (inputs - inputs.mean(0)) / np.where(scale > 0, scale, 1.0)
    return Points(torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64)))
