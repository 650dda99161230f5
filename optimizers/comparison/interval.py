"""Bootstrap intervals of a mean over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 9999


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% bootstrap interval of a mean (bias-corrected and accelerated; Efron 1987), deterministic.

    Means that differ only in their last digits count as equal, so that rounding does not change the interval.

    Args:
        values: one number per seed (for a paired comparison: the difference within the seed).

    Raises:
        ValueError: for fewer than two values, or values that are not finite.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"an interval needs at least two finite values, one per seed, got {values}")
    if np.ptp(values) <= 1e-15 * np.abs(values).max():
        return float(values[0]), float(values[0])
    from scipy import stats

    scale = np.abs(values).max()

    def mean(sample: np.ndarray, axis: int) -> np.ndarray:
        # With few seeds many samples are permutations of each other: BCa counts ties, which rounding would break.
        return scale * np.round(np.mean(sample / scale, axis=axis), 12)

    shared = {"n_resamples": RESAMPLES, "confidence_level": CONFIDENCE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        for method in ("BCa", "percentile"):  # BCa is not defined for some samples
            generator = np.random.default_rng(0)
            low, high = stats.bootstrap((values,), mean, method=method, rng=generator, **shared).confidence_interval
            if np.isfinite([low, high]).all():
                break
    return float(low), float(high)


def with_interval(values: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """The mean of one number per seed with its 95% bootstrap interval, such as ``0.93 (0.9 to 0.95)``."""
    values = np.asarray(values, dtype=float)
    low, high = bootstrap_interval(values)
    return f"{values.mean():.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"
