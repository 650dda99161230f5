"""Slice sampling of many densities at once, one coordinate after another.

References:
    R. M. Neal, Slice sampling, The Annals of Statistics 31(3), 2003: Secs. 4.1 and 4.2, Figs. 3 and 5.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LogDensity = Callable[[Tensor, Tensor], Tensor]

WIDTH = 4.0
"""The width of the first interval. Too small or too large a one costs evaluations, and is right all the same."""

MOST_WIDTHS = 16
"""An interval has at most so many widths, so that sampling ends for every density."""

MOST_SHRINKS = 200
"""An interval that has shrunk so often is a point to working precision."""


def slice_sample(log_density: LogDensity, start: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """The last states of chains, each of which leaves its own density invariant.

    A step updates every coordinate once: with a level log p(x) − e, e ~ Exp(1), an interval about x is stepped out to
    where the density is below the level, or to its largest width, and points drawn in it shrink it to x until one is
    above the level. No step size is tuned and no proposal is lost.

    Args:
        log_density: Of ``m x p`` points and of the numbers of their chains, ``m``: log p up to a constant, ``m``. NaN
            stands for −∞.
        start: Where the chains begin, ``k x p``, float64. Their densities are positive.
        steps: The number of steps.
        generator: A generator on the CPU: the only source of randomness.

    Returns:
        The states, ``k x p``.
    """
    state, everyone = start.clone(), torch.arange(len(start), device=start.device)

    def density(points: Tensor, chains: Tensor) -> Tensor:
        return log_density(points, chains).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)

    def uniform() -> Tensor:
        return torch.rand(len(start), dtype=start.dtype, generator=generator).to(start.device)

    value = density(state, everyone)
    for _ in range(steps):
        for coordinate in range(start.shape[1]):
            level = value + torch.log1p(-uniform())

            def along(chains: Tensor, to: Tensor, coordinate: int = coordinate) -> tuple[Tensor, Tensor]:
                """The states of some chains with another coordinate, and their densities."""
                points = state[chains]
                points[:, coordinate] = to
                return points, density(points, chains)

            left = state[:, coordinate] - WIDTH * uniform()
            budget = (MOST_WIDTHS * uniform()).floor()
            right = _stepped_out(along, level, left + WIDTH, WIDTH, MOST_WIDTHS - 1 - budget)
            left = _stepped_out(along, level, left, -WIDTH, budget)
            here, chains = state[:, coordinate].clone(), everyone
            for _ in range(MOST_SHRINKS):
                drawn = left + (right - left) * uniform()
                points, found = along(chains, drawn[chains])
                inside = found > level[chains]
                state[chains[inside]], value[chains[inside]] = points[inside], found[inside]
                chains = chains[~inside]
                if not len(chains):
                    break
                below = drawn < here
                left, right = torch.where(below, drawn, left), torch.where(below, right, drawn)
    return state


def _stepped_out(
    along: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], level: Tensor, end: Tensor, width: float, budget: Tensor
) -> Tensor:
    """The end of every chain's interval, ``k``, moved by widths while the density there is above the level.

    Args:
        along: The points of some chains whose coordinate has other values, and their log densities.
        level: The log density that each chain's interval reaches down to, ``k``.
        end: Where each interval ends now, ``k``.
        width: One width, negative for the lower end.
        budget: The most widths that each end may move by, ``k``.
    """
    chains, end = torch.arange(len(end), device=end.device), end.clone()
    while len(chains):
        above = along(chains, end[chains])[1] > level[chains]
        chains = chains[above & (budget[chains] > 0)]
        end[chains] += width
        budget = budget - 1
    return end
