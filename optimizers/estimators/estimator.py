"""The interface of gradient estimators: they choose points to query and turn the values into a gradient."""

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
    """Raised if no difference of two finite values is left for a gradient estimate."""


@dataclass(frozen=True, eq=False)
class GradientEstimate:
    """An estimate of ∇f(x) and its cost.

    Attributes:
        gradient: Shape ``d``.
        queries: Number of function values, including failed ones and the one at x.
        differences: Number of differences used; n − 1 if the estimate combines n values.
    """

    gradient: Tensor
    queries: int
    differences: int


class GradientEstimator(ABC):
    """Chooses points around x and turns their values into an estimate of ∇f(x).

    ``estimator(fun, x, step)`` evaluates fun and estimates its gradient. To evaluate fun yourself, get ``points(x,
    step)`` and pass the values to ``estimate(x, points, values)``. An optimizer queries ``batch(x, step)`` and gets the
    gradient from ``from_values(batch, values)``.

    **Failed queries**, NaN or infinite, are counted. A difference with a failed value is left out of the average, as is
    the value of an opposite point. If no difference is left, for example because f(x) failed, or the gradient is not
    finite, ``from_values`` returns None and ``estimate`` raises an error.

    A subclass defines ``queries_needed``, ``batch``, the terms of its sum in ``_terms`` (NaN if failed), and in
    ``_combine`` the gradient from the remaining terms. Constructors raise ``TypeError`` if the number of directions or
    the seed is not an integer, and ``ValueError`` for arguments out of range.
    """

    min_values: ClassVar[int] = 1
    """The number of terms that an estimate needs: one difference, or two values."""

    any_points: ClassVar[bool] = False
    """Whether ``estimate`` accepts points other than those of ``points``."""

    @abstractmethod
    def queries_needed(self, d: int) -> int:
        """The number of points for one estimate in d dimensions."""

    @abstractmethod
    def batch(self, x: Tensor, step: int = 0, *, number: int = 0, domain: Domain | None = None) -> Batch:
        """The points to query around x, shape ``d``, in search coordinates if there is a domain.

        Args:
            x: The point at which the gradient is estimated.
            step: Address of the directions, an integer in [0, 2^56); another step gives another draw.
            number: The batch's number in its run.
            domain: The run's box and search coordinates.
        """

    @abstractmethod
    def _terms(self, batch: Batch, values: Tensor) -> Tensor: ...

    @abstractmethod
    def _combine(self, batch: Batch, terms: Tensor, kept: Tensor) -> Tensor: ...

    def from_values(self, batch: Batch, values: Tensor) -> GradientEstimate | None:
        """The gradient estimate from the values of a batch; None if too many queries failed.

        Args:
            batch: The result of `batch`, perhaps with fewer directions; or explicit points around its base.
            values: float64, shape ``q``; NaN for failed queries.
        """
        terms = self._terms(batch, values)
        kept = terms.isfinite()
        n = int(kept.sum())
        if n < self.min_values:
            return None
        gradient = self._combine(batch, torch.where(kept, terms, 0.0), kept)
        return GradientEstimate(gradient, len(values), n + 1 - self.min_values) if gradient.isfinite().all() else None

    def points(self, x: Tensor, step: int = 0) -> Tensor:
        """The points of `batch`, dense, ``queries_needed(d) x d``.

        Raises:
            TypeError: If x or step is not a number.
            ValueError: If x is not a finite vector or step is out of range.
        """
        return self.batch(parse_point(x, "x"), step).points()

    def estimate(self, x: Tensor, points: Tensor, values: Any) -> GradientEstimate:
        """The gradient estimate from values at given points; their displacements from x are used as rounded.

        Args:
            x: The point at which the gradient is estimated, shape ``d``; the estimate has its dtype and device.
            points: The result of `points` for x, shape ``q x d``.
            values: The function's values at the points, in the same order, shape ``q``.

        Raises:
            TypeError: If x, points or values are not real.
            ValueError: If shapes are wrong, or no point differs from x.
            AllQueriesFailedError: If no difference of finite values is left.
        """
        x, points = parse_point(x, "x"), numeric("points", points)
        if points.dim() != 2 or points.shape[1] != len(x) or len(points) == 0:
            raise ValueError(f"points must have shape q x {len(x)}, got {tuple(points.shape)}")
        if not self.any_points and len(points) != self.queries_needed(len(x)):
            raise ValueError(f"estimate needs the {self.queries_needed(len(x))} points of `points`, got {len(points)}")
        y = parse_values(values, len(points)).to(x.device)
        found = self.from_values(Batch(0, x, y.new_zeros(len(y), device="cpu"), explicit=points.to(x)), y)
        if found is None:
            failed = int(y.isnan().sum())
            raise AllQueriesFailedError(f"no finite difference is left: {failed} of {len(y)} values failed")
        return found

    def __call__(
        self, fun: Callable[[Tensor], Any], x: Tensor, step: int = 0, *, batched: bool = False
    ) -> GradientEstimate:
        """Evaluates fun point by point or, if ``batched``, at all points at once, and estimates its gradient at x."""
        points = self.points(x, step)
        values = fun(points) if batched else [float(fun(point)) for point in points]
        return self.estimate(x, points, values)


def check_draw(directions: int, smoothing_radius: float, seed: int) -> None:
    """Raises an error for a number of random directions, a radius or a seed that is out of range."""
    positive_integer("directions", directions)
    positive("smoothing_radius", smoothing_radius)
    Directions(seed, 1)


def confined(points: Tensor, domain: Domain | None) -> Tensor:
    """Points in search coordinates, ``... x d``, projected onto the box if queries are confined to it."""
    if domain is None or not domain.confine:
        return points
    return torch.clamp(points, domain.search_lower, domain.search_upper)


def room(x: Tensor, domain: Domain | None, reach: float) -> tuple[Tensor, Tensor] | None:
    """The distances of x to the lower and upper bounds that confine queries, each float64 of shape ``d``.

    None if queries are not confined, or if all bounds are at least ``reach`` away.
    """
    if domain is None or not domain.confine:
        return None
    below, above = x - domain.search_lower, domain.search_upper - x
    if bool((below >= reach).all() and (above >= reach).all()):
        return None
    return below.to(torch.float64).clamp(min=0.0), above.to(torch.float64).clamp(min=0.0)


def inward(x: Tensor, axes: Sequence[int], radius: float, domain: Domain | None) -> Tensor:
    """A sign for each axis, float64, CPU: −1 if x + radius leaves the box and the other side has more room, else 1."""
    signs = torch.ones(len(axes), dtype=torch.float64)
    if domain is not None and domain.confine:
        above, below = domain.search_upper[axes] - x[axes], x[axes] - domain.search_lower[axes]
        signs[((above < radius) & (below > above)).cpu()] = -1.0
    return signs


def check_moved(displacements: Tensor) -> Tensor:
    """Returns the displacements, ``n x d``; raises ``ValueError`` if one of them is 0 after rounding."""
    if (displacements == 0).all(-1).any():
        kind = displacements.dtype
        raise ValueError(f"a point equals x after rounding to {kind}; use a larger smoothing_radius")
    return displacements
