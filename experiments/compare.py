"""Deprecated: ``compare`` and ``Comparison`` are in ``optimizers``."""

import warnings

from optimizers import Comparison, compare

__all__ = ["Comparison", "compare"]

warnings.warn(
    "experiments.compare is deprecated and will be removed: from optimizers import compare, Comparison",
    DeprecationWarning,
    stacklevel=2,
)
