"""Covertype: scikit-learn's ``fetch_covtype`` from a local folder, or a synthetic stand-in of the same shape."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import fetch_covtype, make_classification
from torch import Tensor

from experiments.workloads.images import DataError, reading

FEATURES, CLASSES = 54, 7
SIZE = 20_000
"""Number of points of the synthetic set; Covertype has 581,012."""

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


def load_points(data: str = "") -> Points:
    """Returns Covertype from the scikit-learn cache in ``data/covertype``, or the synthetic set if ``data`` is empty.

    Raises:
        DataError: if the data do not exist; nothing is downloaded.
    """
    return covertype(Path(data) / "covertype") if data else synthetic()


@lru_cache(maxsize=1)
def covertype(folder: Path) -> Points:
    """Reads Covertype as ``fetch_covtype`` stores it under ``data_home=folder``.

    Raises:
        DataError: if it does not exist or is not as expected.
    """
    asked = f"python -c \"from sklearn.datasets import fetch_covtype; fetch_covtype(data_home='{folder}')\""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; download Covertype into it with: {asked}")
    with reading(
        f"{folder} does not contain scikit-learn's copy of Covertype; download it with: {asked}; scikit-learn says"
    ):
        found = fetch_covtype(data_home=folder, download_if_missing=False)
    inputs, labels = np.asarray(found.data, dtype=np.float64), np.asarray(found.target, dtype=np.int64) - 1
    if inputs.ndim != 2 or inputs.shape[1] != FEATURES or set(np.unique(labels)) - set(range(CLASSES)):
        raise DataError(f"{folder} must have n x {FEATURES} features and classes 1 to {CLASSES}, got {inputs.shape}")
    return _standardised(inputs, labels)


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
