"""A folder like MNIST's, with few images of noise."""

import gzip
import struct

import numpy as np

from experiments.workloads.images import IDX_FILES


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, counts=(6, 4), side=28):
    """Images plain and labels compressed, as many of each split."""
    generator = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for (pictures, labels), n in zip(IDX_FILES.values(), counts, strict=True):
        (folder / pictures).write_bytes(idx(generator.integers(256, size=(n, side, side), dtype=np.uint8)))
        content = idx(generator.integers(10, size=n, dtype=np.uint8))
        (folder / f"{labels}.gz").write_bytes(gzip.compress(content))
    return folder
