"""The queries about a trust region's centre as its model sees them: where, and how high."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FAR, NEAR = 30.0, 3.0
"""A query is too far for the window beyond 30 radii and three times the distance of the 2d-th one."""


@dataclass(frozen=True)
class LocalData:
    """Queries relative to a centre, and their values relative to the one there.

    Attributes:
        rows: s, ``n x d``.
        numbers: which queries they are, shape ``n``.
        heights: (f(x_b + s) − f(x_b))/unit, shape ``n``.
        unit: a power of two, at most the largest |f| of the window, and more than a half of it.
    """

    rows: Tensor
    numbers: Tensor
    heights: Tensor
    unit: float

    @classmethod
    def about(
        cls, points: Tensor, values: Tensor, center: int, size: int, delta: float, close: float | None
    ) -> LocalData:
        """The nearest queries to one of them.

        Args:
            points: all queries, ``N x d``.
            values: f at them, shape ``N``.
            center: the number of the one at the centre.
            size: the most queries of the window.
            delta: the radius; ``FAR`` is in its units.
            close: the distance from the centre up to which other queries are left out; None: all are data, as where
                values have noise.
        """
        rows = points - points[center]
        distances = torch.linalg.vector_norm(rows, dim=1)
        order = distances.argsort()
        order = order[order != center] if close is None else order[distances[order] > close]
        order = order[:size]
        if len(order):
            far = max(FAR * delta, NEAR * float(distances[order[min(2 * points.shape[1], len(order)) - 1]]))
            order = order[distances[order] <= far]
        # By a power of two division is exact.
        largest = max(float(values[order].abs().max()) if len(order) else 0.0, abs(float(values[center])))
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 1)
        return cls(rows[order], order, values[order] / unit - float(values[center]) / unit, unit)

    def __len__(self) -> int:
        return len(self.rows)

    def halved(self) -> LocalData:
        """Every second query; none of a single one."""
        kept = slice(None, None, 2) if len(self) > 1 else slice(0, 0)
        return LocalData(self.rows[kept], self.numbers[kept], self.heights[kept], self.unit)
