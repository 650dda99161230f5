"""The plans for the next batch of a trust-region run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Design:
    """Points about a center, ``q x d_free``.

    Attributes:
        begins: whether the first point is the center, at which a run begins.
        opposite: whether they are the opposite points of the previous design.
    """

    points: Tensor
    begins: bool = True
    opposite: bool = False


@dataclass(frozen=True)
class Restart:
    """One point, ``1 x d_free``, at which a new run begins."""

    points: Tensor


@dataclass(frozen=True)
class Repeat:
    """The center again, ``1 x d_free``: if its value differs, values are noisy."""

    points: Tensor


@dataclass(frozen=True)
class GeometryQuery:
    """A point that improves the model, ``1 x d_free``."""

    points: Tensor


@dataclass(frozen=True)
class Step:
    """A step to a low mean, ``1 x d_free``.

    Attributes:
        predicted: the decrease that the model predicts.
        exploration_std: the standard deviation of f there that is due to the unknown slope outside the subspace.
        constraints: the constraints expected there, shape ``m``, or None.
    """

    points: Tensor
    predicted: float = 0.0
    exploration_std: float = 0.0
    constraints: Tensor | None = None


Plan = Design | Restart | Repeat | GeometryQuery | Step
PLANS = {plan.__name__: plan for plan in (Design, Restart, Repeat, GeometryQuery, Step)}
