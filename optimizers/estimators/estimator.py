"""A gradient estimator: points to query, values to a gradient, failed queries left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import positive, positive_integer
from optimizers.core.values import numeric, parse_point, parse_values
from optimizers.directions.directions import Directions


class AllQueriesFailedError(ValueError):
    """No difference of two finite values is left to estimate a gradient from."""


@dataclass(frozen=True, eq=False)
class GradientEstimate:
    """An estimate of ∇f(x) and what it cost.

    Attributes:
        gradient: Shape ``d``.
        queries: Function values it was given, failed ones and that at x included.
        differences: Differences of values that it rests on; n values make n − 1 of them.
    """

    gradient: Tensor
    queries: int
    differences: int


class GradientEstimator(ABC):
    """Chooses points around x and turns their values into an estimate of ∇f(x).

    An optimizer names its queries by ``batch(x, step)`` and takes the gradient of their values from
    ``from_values(batch, values)``. A user calls ``estimator(fun, x, step)``, which is ``estimate(x, points,
    values)`` with points = ``points(x, step)`` and values = fun at each.

    **Failed queries**, NaN or infinite, are counted. A difference with a failed value leaves the sum and the
    number that the sum is divided by; two opposite points leave together. Where no difference is left, which is so
    where all are taken to f(x) and that failed, or where the gradient would not be finite, there is no estimate:
    ``from_values`` returns None and ``estimate`` raises.

    A subclass says ``queries_needed``, ``batch``, the terms of its sum in ``_terms`` (NaN where failed), and what
    the gradient is, given those that are left, in ``_combine``. Constructors raise ``TypeError`` for a number of
    directions or a seed that is no integer, and ``ValueError`` for an argument outside what is stated.
    """

    fewest: ClassVar[int] = 1
    """Terms that an estimate needs: one difference, or two values."""

    any_points: ClassVar[bool] = False
    """Whether ``estimate`` takes other points than those of ``points``."""

    @abstractmethod
    def queries_needed(self, d: int) -> int:
        """Number of points for one estimate in d dimensions."""

    @abstractmethod
    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """The points to query around x, shape ``d``, in search coordinates where there is a domain.

        Args:
            x: Where the gradient is wanted.
            step: Address of the directions, an integer in [0, 2^56): another step, another draw.
            number: The batch's number in its run.
            domain: The run's box and change of coordinates.
        """

    @abstractmethod
    def _terms(self, batch: Batch, values: Tensor) -> Tensor: ...

    @abstractmethod
    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor: ...

    def from_values(self, batch: Batch, values: Tensor) -> GradientEstimate | None:
        """The gradient's estimate from the values of a batch; None where too many queries failed.

        Args:
            batch: What `batch` returned, perhaps with fewer directions; or explicit points around its base.
            values: float64, shape ``q``; NaN where a query failed.
        """
        terms = self._terms(batch, values)
        kept = terms.isfinite()
        n = int(kept.sum())
        if n < self.fewest:
            return None
        gradient = self._combine(batch, torch.where(kept, terms, 0.0), kept)
        return GradientEstimate(gradient, len(values), n + 1 - self.fewest) if gradient.isfinite().all() else None

    def points(self, x: Tensor, step: int = 0) -> Tensor:
        """The points of `batch`, dense, ``queries_needed(d) x d``.

        Raises:
            TypeError: If x or step is no number.
            ValueError: If x is not a finite vector or step is outside its range.
        """
        return self.batch(parse_point(x, "x"), step).points()

    def estimate(self, x: Tensor, points: Tensor, values: Any) -> GradientEstimate:
        """The gradient's estimate from the values at the points, whose displacements count as they were rounded.

        Args:
            x: Where the gradient is wanted, shape ``d``; the estimate has its dtype and device.
            points: What `points` returned for x, shape ``q x d``.
            values: The function's values there, in the same order, shape ``q``.

        Raises:
            TypeError: If x, points or values are not real.
            ValueError: If shapes differ from what is stated, or the points from x by nothing at all.
            AllQueriesFailedError: If no difference of finite values is left.
        """
        x, points = parse_point(x, "x"), numeric("points", points)
        if points.dim() != 2 or points.shape[1] != len(x) or len(points) == 0:
            raise ValueError(f"points have shape {tuple(points.shape)}; accepted: q x {len(x)}")
        if not self.any_points and len(points) != self.queries_needed(len(x)):
            raise ValueError(f"{len(points)} points are given; accepted: {self.queries_needed(len(x))}, as `points`")
        y = parse_values(values, len(points)).to(x.device)
        found = self.from_values(Batch(0, x, y.new_zeros(len(y), device="cpu"), explicit=points.to(x)), y)
        if found is None:
            failed = int(y.isnan().sum())
            raise AllQueriesFailedError(f"no finite difference is left of {len(y)} values, {failed} of which failed")
        return found

    def __call__(
        self, fun: Callable[[Tensor], Any], x: Tensor, step: int = 0, *, batched: bool = False
    ) -> GradientEstimate:
        """Queries fun, a function of one point or, ``batched``, of all ``q x d``, and estimates its gradient at x."""
        points = self.points(x, step)
        values = fun(points) if batched else [float(fun(point)) for point in points]
        return self.estimate(x, points, values)


def check_draw(directions: int, smoothing_radius: float, seed: int) -> None:
    """Raises for a number of random directions, a radius or a seed outside of their range."""
    positive_integer("directions", directions)
    positive("smoothing_radius", smoothing_radius)
    Directions(seed, 1)


def confined(points: Tensor, domain: Domain | None) -> Tensor:
    """Points in search coordinates, ``... x d``, projected onto the box that queries are confined to, if they are."""
    if domain is None or not domain.confine:
        return points
    return torch.clamp(points, domain.search_lower, domain.search_upper)


def room(x: Tensor, domain: Domain | None, reach: float) -> tuple[Tensor, Tensor] | None:
    """The distances of x to the lower and upper faces that queries are confined to, each float64 of shape ``d``.

    None where no query at most ``reach`` away in each coordinate leaves the box, or none is confined.
    """
    if domain is None or not domain.confine:
        return None
    below, above = x - domain.search_lower, domain.search_upper - x
    if bool((below >= reach).all() and (above >= reach).all()):
        return None
    return below.to(torch.float64).clamp(min=0.0), above.to(torch.float64).clamp(min=0.0)


def inward(x: Tensor, axes: Sequence[int], radius: float, domain: Domain | None) -> Tensor:
    """A sign for each axis, float64 on the CPU: −1 where +radius leaves the box and −radius has more room.

    x at its upper bound would otherwise never see the derivative that leads away from it.
    """
    signs = torch.ones(len(axes), dtype=torch.float64)
    if domain is not None and domain.confine:
        above, below = domain.search_upper[axes] - x[axes], x[axes] - domain.search_lower[axes]
        signs[((above < radius) & (below > above)).cpu()] = -1.0
    return signs


def check_moved(displacements: Tensor) -> Tensor:
    """The displacements, shape ``n x d``; ``ValueError`` where rounding left a point where x is."""
    if (displacements == 0).all(-1).any():
        kind = displacements.dtype
        raise ValueError(f"a point does not differ from x in {kind}; accepted: a larger smoothing radius")
    return displacements
