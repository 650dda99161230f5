"""What a descent on a trajectory begins with: lengths of the search, and queries that are known already."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain, search_width
from optimizers.core.values import parse_values


def search_lengths(domain: Domain | None, radius: float | None) -> tuple[float, float]:
    """The width of the search and the radius of local queries, search units.

    The width is the mean of the box's sides that have a length, and the radius 0.03 of it unless it is given. Where
    there is no finite box, the radius is 0.1 unless it is given, and the width ten radii.
    """
    width = search_width(domain)
    if width is not None:
        return width, radius or 0.03 * width
    return 10.0 * (radius or 0.1), radius or 0.1


def parse_history(history: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """The points, ``n x d`` in user units, and the values, ``n``, of queries that were made before.

    Args:
        history: a pair of points and values, tensors or arrays; NaN and infinite values are failed queries.
        like: a point, shape ``d``, whose dtype and device the points get.

    Raises:
        TypeError: for something else than a pair.
        ValueError: for points of another shape, points that are not finite, or another number of values.
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
