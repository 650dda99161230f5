"""Slice sampling of many densities at once, coordinate by coordinate.

References:
    R. M. Neal, Slice sampling, The Annals of Statistics 31(3), 2003: Secs. 4.1 and 4.2, Figs. 3 and 5.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LogDensity = Callable[[Tensor, Tensor], Tensor]

WIDTH = 4.0
"""The width of the first interval. It affects the number of evaluations, but not the distribution of the samples."""

MOST_WIDTHS = 16
"""The maximal length of an interval, in widths."""

MOST_SHRINKS = 200
"""The maximal number of times that an interval shrinks; it is then a point to working precision."""


def slice_sample(log_density: LogDensity, start: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Runs one slice-sampling chain per density and returns the last states.

    A step updates every coordinate once. It draws a level log p(x) − e, e ~ Exp(1), and extends an interval around x
    until log p is below the level at both ends or the interval has its maximal length. It then draws points in the
    interval until log p is above the level; each rejected point shrinks the interval towards x.

    Args:
        log_density: A function of points, ``m x p``, and the indices of their chains, ``m``, that returns log p up to a
            constant, ``m``. NaN counts as −∞.
        start: The first states of the k chains, ``k x p``, float64, with positive densities.
        steps: The number of steps.
        generator: A generator on the CPU, the only source of randomness.

    Returns:
        The last states, ``k x p``.
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
                """Returns the states of some chains with another value of the coordinate, and their densities."""
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
