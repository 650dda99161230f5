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
"""The width of the first interval. It affects the number of evaluations, not the distribution sampled."""

MOST_WIDTHS = 16
"""The maximal number of widths in an interval, which bounds the stepping out for every density."""

MOST_SHRINKS = 200
"""The maximal number of times that an interval shrinks, after which it is a point to working precision."""


def slice_sample(log_density: LogDensity, start: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Runs one slice-sampling chain per density and returns the last states.

    A step updates every coordinate once. It draws a level log p(x) − e, e ~ Exp(1), and steps an interval about x out
    until the density at its ends is below the level or its largest width is reached. It then draws points in the
    interval, shrinking it towards x, until one is above the level. No step size is tuned.

    Args:
        log_density: A function of points, ``m x p``, and the indices of their chains, ``m``, that returns log p up to a
            constant, ``m``. NaN counts as −∞.
        start: The first states, ``k x p``, float64, with positive densities.
        steps: The number of steps.
        generator: A generator on the CPU, the only source of randomness.

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
