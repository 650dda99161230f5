"""Initial designs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from optimizers.directions.directions import Directions
from surrogates.checks import positive, positive_integer

Seed = int | np.random.Generator
"""A seed: an integer, or a NumPy generator that draws it."""

RESOLUTION = 2**32
"""Positions within a stratum are multiples of 1/RESOLUTION, so that no position is rounded into the next stratum."""


def latin_hypercube(num_points: int, dimension: int, seed: Seed) -> Tensor:
    """A Latin hypercube sample of the unit cube (McKay, Beckman and Conover, 1979), float64 in [0, 1), ``n x d``.

    x[i, j] = (π_j(i) + u_ij)/n with random permutations π_j and u_ij uniform on [0, 1), so that in each coordinate
    every interval [k/n, (k+1)/n) contains one point.

    Args:
        num_points: n.
        dimension: d.
        seed: a seed or a generator.

    Raises:
        ValueError: if n or d is less than 1.
    """
    n, d = positive_integer("num_points", num_points), positive_integer("dimension", dimension)
    generator = np.random.default_rng(seed)
    strata = generator.permuted(np.tile(np.arange(n)[:, None], (1, d)), axis=0)
    within = generator.integers(0, RESOLUTION, size=(n, d)) / RESOLUTION
    return torch.from_numpy((strata + within) / n)


def sobol(num_points: int, dimension: int, seed: Seed) -> Tensor:
    """The first points of a scrambled Sobol' sequence, float64 in [0, 1], ``n x d``.

    Args:
        num_points: n.
        dimension: d, at most 21,201 (torch's table of direction numbers).
        seed: seed of the scrambling, or a generator that draws this seed.

    Raises:
        ValueError: if n or d is less than 1, or d exceeds 21,201.
    """
    n, d = positive_integer("num_points", num_points), positive_integer("dimension", dimension)
    if d > torch.quasirandom.SobolEngine.MAXDIM:
        raise ValueError(f"a Sobol' sequence has at most 21201 dimensions, got {d}: use latin_hypercube")
    if isinstance(seed, np.random.Generator):
        seed = int(seed.integers(2**63))
    engine = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed)
    # torch rounds the first point, and it alone, to the global default dtype.
    first = engine.quasi.double() / 2**engine.MAXBIT
    points = engine.draw(n, dtype=torch.float64)
    points[0] = first
    return points


def local_cloud(
    center: Tensor, num_points: int, radius: float, seed: int, *, distribution: str = "sphere", step: int = 0
) -> Tensor:
    """Points in random directions from a center, at the distance ``radius``, ``n x d``.

    Args:
        center: the center, shape ``d``; the points have its dtype and device.
        num_points: n.
        radius: the distance from the center (its root mean square for ``"normal"``).
        seed: seed of the directions u.
        distribution: the distribution of the directions, see ``Directions``. With ``"orthonormal"`` the directions of
            points 0 to d − 1, d to 2d − 1, … are orthogonal.
        step: ``step`` in ``Directions``; another step gives other points.

    Raises:
        ValueError: for a center that is not a vector, a radius or n that is not positive, or an unknown distribution.
    """
    if center.ndim != 1:
        raise ValueError(f"center must have shape (d,), got {tuple(center.shape)}")
    n, radius = positive_integer("num_points", num_points), positive("radius", radius)
    directions = Directions(seed, center.numel(), distribution)
    scale = radius / math.sqrt(directions.second_moment * center.numel())
    return center + scale * directions.block(step, n, dtype=center.dtype, device=center.device)
