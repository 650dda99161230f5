"""Gradient estimates from differences of function values, all through one call that counts its queries."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimizers.directions.directions import DISTRIBUTIONS, Directions
from optimizers.options import nonnegative, positive, positive_integer
from optimizers.values import parse_values

SCHEMES = ("forward", "central")
CENTERS = ("nearest", "mean")


class AllQueriesFailedError(ValueError):
    """No difference of two finite values is left to estimate a gradient from."""


@dataclass(frozen=True, eq=False)
class GradientEstimate:
    """An estimate of ∇f(x) and what it cost.

    Attributes:
        gradient: Shape ``d``.
        queries: Function values it was given, failed ones and that at x included.
        differences: Differences of values that it rests on.
    """

    gradient: Tensor
    queries: int
    differences: int


class GradientEstimator(ABC):
    """Chooses points around x and turns their values into an estimate of ∇f(x).

    ``estimator(fun, x, step)`` is ``estimate(x, points, values)`` with points = ``points(x, step)`` and
    values = fun at each: `queries_needed` queries, the one at x among them where the method makes one.
    A value that is NaN or infinite is a failed query: counted, and its difference left out.
    """

    @abstractmethod
    def queries_needed(self, d: int) -> int:
        """Number of points for one estimate in d dimensions."""

    @abstractmethod
    def _points(self, x: Tensor, step: int) -> Tensor: ...

    @abstractmethod
    def _estimate(self, x: Tensor, points: Tensor, values: Tensor) -> tuple[Tensor, int]: ...

    def points(self, x: Tensor, step: int = 0) -> Tensor:
        """The points to query.

        Args:
            x: Where the gradient is wanted, a finite floating tensor of shape ``d``.
            step: Address of the directions, an integer in [0, 2^56): another step, another draw.

        Returns:
            Tensor, ``queries_needed(d) x d``.

        Raises:
            TypeError: If x is not a floating tensor.
            ValueError: If x is not a finite vector or step is outside its range.
        """
        return self._points(_point(x), step)

    def estimate(self, x: Tensor, points: Tensor, values: Any) -> GradientEstimate:
        """The gradient's estimate from the values at the points.

        Args:
            x: Where the gradient is wanted, shape ``d``.
            points: What `points` returned for x, shape ``q x d``.
            values: The function's values there, in the same order, shape ``q``.

        Returns:
            The estimate, in x's dtype and on its device.

        Raises:
            TypeError: If x or points are not floating tensors or values not real.
            ValueError: If shapes differ from what is stated, or the points from x by nothing at all.
            AllQueriesFailedError: If no difference of finite values is left.
        """
        x = _point(x)
        points = points.detach() if isinstance(points, Tensor) else torch.as_tensor(points, dtype=x.dtype)
        if points.dim() != 2 or points.shape[1] != len(x) or len(points) == 0:
            raise ValueError(f"points have shape {tuple(points.shape)}; accepted: q x {len(x)}")
        values = parse_values(values, len(points)).to(x.device)
        gradient, differences = self._estimate(x, points.to(x), values)
        return GradientEstimate(gradient.to(x.dtype), len(points), differences)

    def __call__(
        self, fun: Callable[[Tensor], Any], x: Tensor, step: int = 0, *, batched: bool = False
    ) -> GradientEstimate:
        """Queries fun at `points` and estimates its gradient at x.

        Args:
            fun: Function of one point, shape ``d``; with ``batched``, of ``q x d`` points at once.
            x: Where the gradient is wanted, shape ``d``.
            step: Address of the directions.
            batched: Whether fun takes all points in one call.

        Returns:
            The estimate.

        Raises:
            TypeError: As `points` and `estimate`.
            ValueError: As `points` and `estimate`.
            AllQueriesFailedError: As `estimate`.
        """
        points = self.points(x, step)
        values = fun(points) if batched else [float(fun(point)) for point in points]
        return self.estimate(x, points, values)


class FiniteDifferences(GradientEstimator):
    """Averaged differences along random directions u_i at a smoothing radius λ (ZoRD eq. 2).

    Forward, n + 1 queries (x first): g = c/n Σ (f(x + λu_i) − f(x))/λ · u_i. Central, 2n queries (all
    x + λu_i, then all x − λu_i): g = c/n Σ (f(x + λu_i) − f(x − λu_i))/(2λ) · u_i. c is 1/E[u_j²]: 1 for
    normal and Rademacher directions, d for unit vectors. The paper prints the sum without c/n; with it
    E g = ∇f(x) + O(λ²), and exactly ∇f(x) for quadratic f. (Forward coordinate differences, whose
    directions have no random sign, are off by λ/2 ∂²f/∂x_j², as `CoordinateDifferences` are.)

    For linear f with gradient a, E‖g − a‖²/‖a‖² is (d + 1)/n for normal directions, (d − 1)/n for
    Rademacher, sphere and coordinate ones, and d/n − 1 for n <= d orthonormal ones.

    The displacement λu_i is read back from the points as they were rounded. With m failed differences
    n − m takes n's place, which is unbiased where failures do not depend on the direction.

    Args:
        num_directions: n.
        smoothing_radius: λ, in x's units.
        distribution: One of `Directions`'.
        scheme: ``"forward"`` or ``"central"``.
        seed: Of the directions.

    Raises:
        TypeError: For a number of directions or seed that is not an integer.
        ValueError: For an argument outside what is stated.
    """

    def __init__(
        self,
        num_directions: int,
        smoothing_radius: float = 0.01,
        distribution: str = "orthonormal",
        scheme: str = "forward",
        seed: int = 0,
    ) -> None:
        self.num_directions = positive_integer("num_directions", num_directions)
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        self.distribution = _choice("distribution", distribution, DISTRIBUTIONS)
        self.scheme = _choice("scheme", scheme, SCHEMES)
        self.seed = Directions(seed, 1).seed

    def queries_needed(self, d: int) -> int:
        """n + 1 forward, 2n central."""
        return self.num_directions + 1 if self.scheme == "forward" else 2 * self.num_directions

    def _points(self, x: Tensor, step: int) -> Tensor:
        directions = Directions(self.seed, len(x), self.distribution)
        u = directions.block(step, self.num_directions, x.dtype, x.device)
        return _around(x, self.smoothing_radius * u, self.scheme)

    def _estimate(self, x: Tensor, points: Tensor, values: Tensor) -> tuple[Tensor, int]:
        _expect(points, self.queries_needed(len(x)))
        displacements, differences = _differences(x, points, values, self.scheme)
        kept = differences.isfinite()
        n = _kept(kept)
        factor = 1.0 / (n * Directions(self.seed, len(x), self.distribution).second_moment)
        weights = torch.where(kept, differences, 0.0) * (factor / self.smoothing_radius**2)
        return weights.to(x.dtype) @ displacements, n


class CoordinateDifferences(GradientEstimator):
    """Differences along every coordinate: the whole gradient, no draw.

    Forward, d + 1 queries (x first): g_j = (f(x + λe_j) − f(x))/λ, exact for linear f, error λ/2 ∂²f/∂x_j²
    to first order. Central, 2d queries (all x + λe_j, then all x − λe_j): g_j = (f(x + λe_j) −
    f(x − λe_j))/(2λ), exact for quadratic f. A sample of coordinates is
    ``FiniteDifferences(n, distribution="coordinate")``.

    A coordinate whose difference failed has partial derivative 0; ``differences`` is then below d.

    Args:
        smoothing_radius: λ, in x's units.
        scheme: ``"forward"`` or ``"central"``.

    Raises:
        ValueError: For an argument outside what is stated.
    """

    def __init__(self, smoothing_radius: float = 1e-6, scheme: str = "forward") -> None:
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        self.scheme = _choice("scheme", scheme, SCHEMES)

    def queries_needed(self, d: int) -> int:
        """d + 1 forward, 2d central."""
        return d + 1 if self.scheme == "forward" else 2 * d

    def _points(self, x: Tensor, step: int) -> Tensor:
        identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
        return _around(x, self.smoothing_radius * identity, self.scheme)

    def _estimate(self, x: Tensor, points: Tensor, values: Tensor) -> tuple[Tensor, int]:
        _expect(points, self.queries_needed(len(x)))
        displacements, differences = _differences(x, points, values, self.scheme)
        kept = differences.isfinite()
        n = _kept(kept)
        return torch.where(kept, differences, 0.0).to(x.dtype) / displacements.diagonal(), n


class LeastSquaresDifferences(GradientEstimator):
    """The gradient of the linear function that fits the values best: y_i − y_0 ≈ g · (x_i − x_0).

    g minimises Σ (y_i − y_0 − g · (x_i − x_0))² + r s² ‖g‖², s the largest singular value of the
    displacements; with r = 0 the least-norm minimiser, so that with fewer points than dimensions g is
    ∇f's projection onto their span (for linear f). x_0 is the nearest point to x with a finite value, x
    itself where it was queried; with ``center="mean"`` it is the points' mean and y_0 their values' mean,
    which fits the intercept too.

    `points` gives x and n points x + λu_i, n + 1 queries. `estimate` takes any points and values, such as
    an optimizer's last queries.

    Args:
        num_directions: n.
        smoothing_radius: λ, in x's units.
        distribution: One of `Directions`'.
        ridge: r, at least 0, relative to s².
        center: ``"nearest"`` or ``"mean"``.
        seed: Of the directions.

    Raises:
        TypeError: For a number of directions or seed that is not an integer.
        ValueError: For an argument outside what is stated.
    """

    def __init__(
        self,
        num_directions: int,
        smoothing_radius: float = 0.01,
        distribution: str = "orthonormal",
        ridge: float = 0.0,
        center: str = "nearest",
        seed: int = 0,
    ) -> None:
        self._proposal = FiniteDifferences(num_directions, smoothing_radius, distribution, seed=seed)
        self.ridge = nonnegative("ridge", ridge)
        self.center = _choice("center", center, CENTERS)

    def queries_needed(self, d: int) -> int:
        """n + 1."""
        return self._proposal.queries_needed(d)

    def _points(self, x: Tensor, step: int) -> Tensor:
        return self._proposal._points(x, step)

    def _estimate(self, x: Tensor, points: Tensor, values: Tensor) -> tuple[Tensor, int]:
        kept = values.isfinite()
        points, values = points[kept], values[kept]
        if len(values) < 2:
            raise AllQueriesFailedError(f"{len(values)} of {len(kept)} values are finite; needed: at least 2")
        if self.center == "mean":
            displacements, differences = points - points.mean(0), values - values.mean()
        else:
            nearest = int((points - x).square().sum(-1).argmin())
            displacements, differences = points - points[nearest], values - values[nearest]
        return least_squares(displacements, differences, self.ridge), len(values) - 1


def least_squares(displacements: Tensor, differences: Tensor, ridge: float = 0.0) -> Tensor:
    """The g of least ‖D g − y‖² + ridge s² ‖g‖², s = ‖D‖₂; of those, the one of least norm.

    Through the singular values of D, those below ε max(n, d) s taken for zero: O(min(n, d) n d).

    Args:
        displacements: D, ``n x d``.
        differences: y, ``n``.
        ridge: At least 0.

    Returns:
        Tensor, ``d``, in D's dtype.

    Raises:
        ValueError: If D is zero.
    """
    left, s, right = torch.linalg.svd(displacements, full_matrices=False)
    if not s[0] > 0:
        raise ValueError("all points coincide; accepted: at least two that differ")
    kept = s > torch.finfo(s.dtype).eps * max(displacements.shape) * s[0]
    filtered = torch.where(kept, s / (s.square() + ridge * s[0].square()), 0.0)
    return right.mH @ (filtered * (left.mH @ differences.to(s.dtype)))


def _around(x: Tensor, displacements: Tensor, scheme: str) -> Tensor:
    if scheme == "forward":
        return torch.cat((x.unsqueeze(0), x + displacements))
    return torch.cat((x + displacements, x - displacements))


def _differences(x: Tensor, points: Tensor, values: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Displacements, ``n x d``, and the differences of values along them, ``n``; not finite where failed."""
    if scheme == "forward":
        displacements, differences = points[1:] - x, values[1:] - values[0]
    else:
        plus, minus = points.chunk(2)
        displacements, differences = (plus - minus) / 2, (values.chunk(2)[0] - values.chunk(2)[1]) / 2
    if (displacements == 0).all(-1).any():
        raise ValueError(f"a point does not differ from x in {x.dtype}; accepted: a larger smoothing radius")
    return displacements, differences


def _kept(kept: Tensor) -> int:
    n = int(kept.sum())
    if n == 0:
        raise AllQueriesFailedError(f"none of {len(kept)} differences is finite; needed: at least 1")
    return n


def _expect(points: Tensor, queries: int) -> None:
    if len(points) != queries:
        raise ValueError(f"{len(points)} points are given; accepted: the {queries} that `points` returns")


def _point(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x is given as {kind}; accepted: a floating torch.Tensor")
    if x.dim() != 1 or len(x) == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}; accepted: d, at least 1")
    if not x.isfinite().all():
        raise ValueError(f"{int((~x.isfinite()).sum())} entries of x are NaN or inf; accepted: finite numbers")
    return x.detach()


def _choice(name: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; accepted: {', '.join(accepted)}")
    return value
