"""Chooses the scales of the variables from x0 and from the values of a design."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimizers.core.values import numeric
from optimizers.methods.trust_region.box import FreeBox


def parse_scale(name: str, scale: Any) -> Tensor:
    """Returns a positive number, or one for each variable, as a float64 tensor on the CPU.

    Raises:
        TypeError: for anything but real numbers.
        ValueError: for a number that is not positive and finite.
    """
    numbers = numeric(name, scale).to("cpu", torch.float64)
    if numbers.ndim > 1 or not bool((torch.isfinite(numbers) & (numbers > 0.0)).all()):
        raise ValueError(f"{name} must be a positive, finite number or one for each variable, got {scale!r:.80}")
    return numbers


def power_of_two(scale: Tensor) -> Tensor:
    """Rounds positive numbers to the nearest powers of two."""
    return torch.exp2(scale.log2().round())


@dataclass(frozen=True)
class Parabolas:
    """The parabolas through the values of a design along each of its k directions.

    Attributes:
        slopes: the slopes at the center, shape ``k``.
        curvatures: the second derivatives, shape ``k``.
    """

    slopes: Tensor
    curvatures: Tensor

    @classmethod
    def of(cls, rows: Tensor, heights: Tensor) -> Parabolas:
        """Fits a parabola to the center and two points along each of k directions.

        Args:
            rows: the points minus the center, ``2k x d``: first one point for each direction, then the others.
            heights: the values at the points minus the value at the center, shape ``2k``.
        """
        first, second = rows.tensor_split(2)
        a = torch.linalg.vector_norm(first, dim=1)
        b = (first * second).sum(1) / a
        rise_a, rise_b = heights[: len(a)] / a, heights[len(a) :] / b
        curvatures = 2.0 * (rise_a - rise_b) / (a - b)
        return cls(rise_a - 0.5 * curvatures * a, curvatures)


@dataclass(frozen=True)
class ScaleRule:
    """Chooses scales for the variables without two finite bounds, and corrects scales and radius after a design.

    Attributes:
        chance: a variable's own magnitude in x0 is its scale if it differs from the geometric mean of all magnitudes
            by a factor above ``chance`` · d.
        unlike: a scale changes if the design suggests a scale that differs by more than this factor.
        narrow: the design is too wide if all its parabolas have their minima within this fraction of its radius.
    """

    chance: float = 10.0
    unlike: float = 128.0
    narrow: float = 0.125

    def first(self, box: FreeBox, x0: Tensor) -> Tensor:
        """Chooses the scales from x0, shape ``d_free``; 1 for variables with two finite bounds, or if x0 is 0.

        A scale is the geometric mean of all magnitudes in x0 that are not 0, or the variable's own magnitude if that
        differs too much from the mean (``chance``).
        """
        sizes, infinite = x0.abs(), ~torch.isfinite(box.sides)
        known = infinite & (sizes > 0.0)
        if not bool(known.any()):
            return torch.ones_like(x0)
        mean, factor = sizes[known].log().mean().exp(), self.chance * len(x0)
        unlike = known & ((sizes > factor * mean) | (sizes * factor < mean))
        return torch.where(infinite, power_of_two(torch.where(unlike, sizes, mean)), 1.0)

    def factors(self, box: FreeBox, found: Parabolas, delta: float) -> Tensor:
        """Computes the factors, shape ``d_free``, by which scales change after a design of radius ``delta``.

        Let F be the decrease that all convex parabolas predict together. A parabola of curvature c rises by F over the
        distance √(2F/c) from its minimum. With the new scale, this distance is ``delta``. Factors are powers of two,
        and 1 for scales that do not change.
        """
        convex = (found.curvatures > 0.0) & ~torch.isfinite(box.sides)
        c = torch.where(found.curvatures > 0.0, found.curvatures, math.inf)
        reach = ((found.slopes.square() / c).sum() / c).sqrt() / delta
        changes = convex & torch.isfinite(reach) & ((reach > self.unlike) | (reach * self.unlike < 1.0)) & (reach > 0.0)
        return torch.where(changes, power_of_two(torch.where(changes, reach, 1.0)), 1.0)

    def narrowed(self, found: Parabolas, delta: float) -> float | None:
        """Returns the distance from the center to the farthest minimum of a parabola if the design is too wide."""
        if not bool((found.curvatures > 0.0).all()):
            return None
        reach = float((found.slopes / found.curvatures).abs().max())
        return reach if 0.0 < reach < self.narrow * delta else None
