"""The kinds of batches that a trust-region run plans."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Design:
    """A plan to evaluate points around a center.

    Attributes:
        points: the points, ``q x d_free``.
        begins: whether a new run begins, at the first point.
        opposite: whether the points are on the opposite sides of those in the previous design.
    """

    points: Tensor
    begins: bool = True
    opposite: bool = False


@dataclass(frozen=True)
class Restart:
    """A plan to begin a new run at a point, ``1 x d_free``."""

    points: Tensor


@dataclass(frozen=True)
class Repeat:
    """A plan to evaluate the center, ``1 x d_free``, a second time; if its value differs, f is noisy."""

    points: Tensor


@dataclass(frozen=True)
class GeometryQuery:
    """A plan to evaluate a point, ``1 x d_free``, that improves the model."""

    points: Tensor


@dataclass(frozen=True)
class Step:
    """A plan to evaluate the end of a step to a low posterior mean.

    Attributes:
        points: the end of the step, ``1 x d_free``.
        predicted: the decrease that the model predicts.
        exploration_std: the standard deviation of f at the end that is due to the unknown slope outside the subspace.
        constraints: the constraints predicted at the end, shape ``m``, or None.
    """

    points: Tensor
    predicted: float = 0.0
    exploration_std: float = 0.0
    constraints: Tensor | None = None


@dataclass(frozen=True)
class Sample:
    """A plan to evaluate the minimizers of posterior samples in a wide region, ``q x d_free``."""

    points: Tensor


Plan = Design | Restart | Repeat | GeometryQuery | Step | Sample
PLANS = {plan.__name__: plan for plan in (Design, Restart, Repeat, GeometryQuery, Step, Sample)}
