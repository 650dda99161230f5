"""The initial data of a descent on a trajectory: search widths and a history of queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain, search_width
from optimizers.core.values import parse_values


def search_lengths(domain: Domain | None, radius: float | None) -> tuple[float, float]:
    """The width of the search and the radius of local queries, in search units.

    With a finite box, the width is its mean nonzero side and the radius 0.03 of it by default. Otherwise the radius is
    0.1 by default, and the width ten radii.
    """
    width = search_width(domain)
    if width is not None:
        return width, radius or 0.03 * width
    return 10.0 * (radius or 0.1), radius or 0.1


def parse_history(history: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """The points, ``n x d`` in user units, and values, ``n``, of earlier queries.

    Args:
        history: a pair of points and values, tensors or arrays; NaN and infinite values are failed queries.
        like: a point, shape ``d``, with the dtype and device of the result.

    Raises:
        TypeError: if it is not a pair.
        ValueError: for points of another shape or not finite, or another number of values.
    """
    if not isinstance(history, tuple | list) or len(history) != 2:
        raise TypeError("history must be a pair of points, n x d, and values, n")
    given, d = history[0], like.numel()
    X = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given, dtype=np.float64))
    if X.ndim != 2 or X.shape[1] != d:
        raise ValueError(f"history's points must have shape (n, {d}), got {tuple(X.shape)}")
    X = X.to(like)
    if not bool(torch.isfinite(X).all()):
        raise ValueError("history's points must be finite")
    return X, parse_values(history[1], len(X)).to(X.device)
