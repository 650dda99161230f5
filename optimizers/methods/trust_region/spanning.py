"""What a trust region does where its window spans less than the variables: its window, its radius and its design."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

WHOLE = 60
"""The most variables of which all are modelled, whatever the budget."""

NEEDED = 6
"""The least budget with which all variables are modelled, in units of their number."""

SPANNED_WINDOW = 100
"""The most queries of a window where there are more variables than ``WHOLE``."""

DIRECTIONS = 8
"""The random directions of a design."""

ALIKE = 20
"""The number of variables up to which the first radius is the same; it grows with the root of the number."""


def is_spanning(d: int, budget: int) -> bool:
    """Whether the model is of the span of its rows, and not of all d variables."""
    return d > WHOLE or budget < NEEDED * d


def widened(d: int) -> float:
    """The first radius of d variables in units of that of few: distances in a box grow with √d."""
    return max(1.0, math.sqrt(d / ALIKE))


def random_design(center: Tensor, delta: float, generator: np.random.Generator) -> Tensor:
    """A center, shape ``d``, and points at δ from it along orthonormal random directions, ``1 + min(8, d) x d``."""
    normal = torch.from_numpy(generator.standard_normal((len(center), min(DIRECTIONS, len(center)))))
    return torch.cat([center[None], center + delta * torch.linalg.qr(normal).Q.mT])


def nearest(points: Tensor, center: int, count: int) -> Tensor:
    """The numbers, in order, of a point, of the count that are nearest to it, and of those as near as the last one."""
    distances = torch.linalg.vector_norm(points - points[center], dim=1)
    return (distances <= distances.sort().values[min(count, len(points) - 1)]).nonzero().flatten()
