"""Kernels: their values, gradient blocks and distances, and the pass over the data that gradients are made of."""

from surrogates.kernels import closed_forms as _closed_forms  # noqa: F401  its import registers them
