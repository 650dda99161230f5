"""Parses lower and upper bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds
from torch import Tensor


def parse_pairs(bounds: Any, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Converts ``scipy.optimize.Bounds`` or d pairs to lower and upper bounds, shape ``d``; None means no bound.

    Raises:
        TypeError: if the bounds have another type.
        ValueError: for a wrong length, or an entry that is not a pair of numbers.
    """
    if isinstance(bounds, Bounds):
        sides = []
        for name, side in (("lb", bounds.lb), ("ub", bounds.ub)):
            array = np.asarray(side, dtype=np.float64)
            if array.size != 1 and array.shape != (d,):
                raise ValueError(f"bounds: Bounds.{name} has shape {array.shape}, x0 has {d} coordinates")
            sides.append(np.broadcast_to(array.reshape(-1), (d,)).copy())
        return sides[0], sides[1]
    if isinstance(bounds, Tensor):
        bounds = bounds.detach().cpu().numpy()
    if isinstance(bounds, str) or not isinstance(bounds, Sequence | np.ndarray):
        raise TypeError(
            f"bounds must be scipy.optimize.Bounds or {d} pairs (lower, upper), got {type(bounds).__name__}"
        )
    shape = np.shape(bounds) if isinstance(bounds, np.ndarray) else None
    if shape is not None and shape != (d, 2):
        hint = "; pass the transpose of BoTorch's 2 x d" if shape == (2, d) else ""
        raise ValueError(f"bounds must have shape ({d}, 2), a pair for each coordinate, got {shape}{hint}")
    if len(bounds) != d:
        raise ValueError(f"bounds must be {d} pairs (lower, upper), one for each coordinate, got {len(bounds)}")
    lower, upper = np.empty(d), np.empty(d)
    for j, pair in enumerate(bounds):
        try:
            low, high = pair
            lower[j] = -np.inf if low is None else float(low)
            upper[j] = np.inf if high is None else float(high)
        except (TypeError, ValueError) as error:
            raise ValueError(f"bounds: entry {j} must be a pair (lower, upper), got {pair!r}{_advice(pair)}") from error
    return lower, upper


def _advice(entry: Any) -> str:
    """Advice for an entry that describes categories or a condition; empty for others."""
    if isinstance(entry, Mapping) or callable(entry):
        return (
            "; conditional variables are not supported: run minimize once for each case, or let the function ignore "
            "the variable where it does not apply"
        )
    categories = isinstance(entry, list | tuple) and any(isinstance(part, str) for part in entry)
    return (
        "; categorical variables are not supported: run minimize once for each category or, if the categories are "
        "ordered, number them and set integrality=1"
        if categories
        else ""
    )
