"""When virtual steps end: measures of a gradient's uncertainty, and the rule that compares one with its threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

Uncertainty = Literal["spectral_norm", "mean_variance", "relative", "descent", "kept_information"]


class GradientUncertainty(Protocol):
    """What measures read of a gradient's posterior at one point; a ``GradientPosterior`` of that point has it."""

    @property
    def trace(self) -> Tensor:
        """The trace of the posterior covariance, shape ``1``."""

    @property
    def prior_trace(self) -> Tensor:
        """The trace of the prior covariance, shape ``1``."""

    @property
    def spectral_norm(self) -> Tensor:
        """The largest eigenvalue of the posterior covariance, shape ``1``."""


MEASURES: dict[str, Callable[[Any, int], float]] = {
    "spectral_norm": lambda posterior, d: float(posterior.spectral_norm),
    "mean_variance": lambda posterior, d: float(posterior.trace) / d,
    "relative": lambda posterior, d: float(posterior.trace) / float(posterior.prior_trace),
    "descent": lambda posterior, d: 1.0 - float(posterior.descent_probability()),
}
"""Measures of one posterior in d dimensions, in standardised units of value per search unit."""

THRESHOLDS: dict[str, float] = {
    "spectral_norm": 0.35,
    "mean_variance": 0.35,
    "relative": 0.8,
    "descent": 0.05,
    "kept_information": 0.8,
}
"""The default threshold of each measure."""


def information(posterior: GradientUncertainty) -> float:
    """G = prior trace − posterior trace = ‖L⁻¹J‖²: how much of the gradient's variance the queries explain."""
    return float(posterior.prior_trace) - float(posterior.trace)


@dataclass(frozen=True)
class UncertaintyRule:
    """Whether virtual steps go on from the point z that they have reached (ZoRD, Sec. 3.2).

    - ``"spectral_norm"``: while ‖∂σ²(z)‖ ≤ c, the paper's rule with c = 0.35. Under an isotropic kernel, with fewer
      queries than dimensions, the norm is the prior's everywhere, and the steps end at once or at the cap.
    - ``"mean_variance"``: while trace ∂σ²(z)/d ≤ c.
    - ``"relative"``: while trace ∂σ²(z) over the prior's trace is at most c; with n queries it is at least 1 − n/d.
    - ``"descent"``: while 1 − P(−∇μ(z) is a descent direction) ≤ c.
    - ``"kept_information"``: while G(z) ≥ c G(x₀), G the prior's trace less the posterior's and x₀ where the steps
      began, both given the window at x₀; this always holds where G(x₀) = 0.

    Attributes:
        uncertainty: the measure's name.
        threshold: c.
    """

    uncertainty: str
    threshold: float

    @classmethod
    def of(cls, uncertainty: str, threshold: float | None = None) -> UncertaintyRule:
        """The rule of a measure, with its default threshold where none is given.

        Raises:
            TypeError: for a threshold that is no number.
            ValueError: for an unknown measure, or a threshold under 0.
        """
        if uncertainty not in THRESHOLDS:
            raise ValueError(f"uncertainty must be one of {', '.join(THRESHOLDS)}, got {uncertainty!r}")
        if threshold is None:
            threshold = THRESHOLDS[uncertainty]
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise TypeError(f"threshold must be a number, got {threshold!r}")
        if not threshold >= 0:
            raise ValueError(f"threshold must be at least 0, got {threshold}")
        return cls(uncertainty, float(threshold))

    @property
    def relative_to_start(self) -> bool:
        """Whether the rule compares a point with where the steps began."""
        return self.uncertainty == "kept_information"

    def goes_on(self, posterior: GradientUncertainty, d: int, start: float | None = None) -> bool:
        """Whether steps go on from a point.

        Args:
            posterior: the gradient's there; for ``"kept_information"`` given the window at x₀.
            d: dimension.
            start: G(x₀), for ``"kept_information"``.
        """
        if self.relative_to_start:
            assert start is not None
            return information(posterior) >= self.threshold * start
        return MEASURES[self.uncertainty](posterior, d) <= self.threshold
