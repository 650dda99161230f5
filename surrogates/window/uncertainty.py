"""When virtual steps end: measures of a gradient's uncertainty and the rule that compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Uncertainty = Literal["spectral_norm", "mean_variance", "relative", "descent", "kept_information"]


class Reading(Protocol):
    """What a measure reads at one point: a ``GradientPosterior`` of it, or what stands for one."""

    @property
    def trace(self) -> Tensor:
        """Trace of the gradient covariance, shape ``1``."""

    @property
    def prior_trace(self) -> Tensor:
        """Trace of the prior's, shape ``1``."""

    @property
    def spectral_norm(self) -> Tensor:
        """Its largest eigenvalue, shape ``1``."""

    def descent_probability(self) -> Tensor:
        """Probability that −∇μ is a descent direction, shape ``1``."""


MEASURES: dict[str, Callable[[Reading, int], float]] = {
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
"""Each measure's default threshold."""


def information(posterior: Reading) -> float:
    """G = prior trace − posterior trace = ‖L⁻¹J‖²: what the queries tell of the gradient."""
    return float(posterior.prior_trace) - float(posterior.trace)


@dataclass(frozen=True)
class UncertaintyRule:
    """Whether virtual steps go on from a point.

    - ``"spectral_norm"``: ‖∂σ²(x)‖ ≤ c, ZoRD's (Sec. 4.2, c = 0.35). With an isotropic kernel and fewer queries than
      dimensions it is the prior's 5o/3ℓ² everywhere, so that the steps end at once or at the cap.
    - ``"mean_variance"``: trace ∂σ²(x)/d ≤ c.
    - ``"relative"``: trace ∂σ²(x) over the prior's ≤ c; at least 1 − n/d.
    - ``"descent"``: 1 − P(−∇μ(x) is a descent direction) ≤ c.
    - ``"kept_information"``: G(x) ≥ c G(x₀), G the prior's trace less the posterior's, x₀ where the steps began, both
      with the window at x₀; it always holds where G(x₀) = 0.

    Args:
        uncertainty: the measure's name.
        threshold: c; None: the measure's default.

    Raises:
        ValueError: for another name, or a threshold that is not a number of at least 0.
    """

    uncertainty: str
    threshold: float

    @classmethod
    def of(cls, uncertainty: str, threshold: float | None = None) -> UncertaintyRule:
        """The rule with the measure's default threshold where none is given."""
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
        """Whether it compares a point with where the steps began."""
        return self.uncertainty == "kept_information"

    def goes_on(self, posterior: Reading, d: int, start: float | None = None) -> bool:
        """Whether steps go on from a point.

        Args:
            posterior: of the gradient there (``kept_information``: under the window at x₀).
            d: dimension.
            start: G(x₀), for ``kept_information``.
        """
        if self.relative_to_start:
            assert start is not None
            return information(posterior) >= self.threshold * start
        return MEASURES[self.uncertainty](posterior, d) <= self.threshold
