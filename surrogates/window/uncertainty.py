"""When virtual steps end: measures of the gradient's uncertainty, and the rule that compares them with a threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from surrogates.checks import check_choice, nonnegative
from surrogates.gradient_posterior import GradientPosterior

Uncertainty = Literal["spectral_norm", "mean_variance", "relative", "descent", "kept_information"]

MEASURES: dict[str, Callable[[GradientPosterior, int], float]] = {
    "spectral_norm": lambda posterior, d: float(posterior.spectral_norm),
    "mean_variance": lambda posterior, d: float(posterior.trace) / d,
    "relative": lambda posterior, d: float(posterior.trace) / float(posterior.prior_trace),
    "descent": lambda posterior, d: 1.0 - float(posterior.descent_probability()),
}
"""The measures by name, as functions of a ``GradientPosterior`` at one point and of d."""

THRESHOLDS = {"spectral_norm": 0.35, "mean_variance": 0.35, "relative": 0.8, "descent": 0.05, "kept_information": 0.8}
"""The default threshold of each measure."""


@dataclass(frozen=True)
class UncertaintyRule:
    """Decides whether virtual steps continue from the point z that they have reached (ZoRD, Sec. 3.2).

    - ``"spectral_norm"``: if ‖∂σ²(z)‖ ≤ c, the paper's rule with c = 0.35. Under an isotropic kernel, with fewer
      queries than dimensions, the norm is the prior's everywhere, and the steps end at once or at the cap.
    - ``"mean_variance"``: if trace ∂σ²(z)/d ≤ c.
    - ``"relative"``: if trace ∂σ²(z) over the prior trace is at most c; with n queries this ratio is at least 1 − n/d.
    - ``"descent"``: if 1 − P(−∇μ(z) is a descent direction) ≤ c.
    - ``"kept_information"``: if G(z) ≥ c G(x₀), where the steps began at x₀, and G is the prior trace minus the
      posterior trace given the window at x₀ (``KeptWindow.information``); always if G(x₀) = 0.

    Args:
        uncertainty: the name of the measure.
        threshold: c, finite and at least 0; None: the default of the measure in ``THRESHOLDS``.

    Raises:
        TypeError: if the threshold is not a number.
        ValueError: if the measure is unknown, or the threshold is negative or not finite.
    """

    uncertainty: str
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_choice("uncertainty", self.uncertainty, THRESHOLDS)
        given = THRESHOLDS[self.uncertainty] if self.threshold is None else self.threshold
        object.__setattr__(self, "threshold", nonnegative("threshold", given))

    @property
    def relative_to_start(self) -> bool:
        """Whether the rule is ``"kept_information"``, which compares z with the start of the steps."""
        return self.uncertainty == "kept_information"

    def goes_on(self, posterior: GradientPosterior, d: int) -> bool:
        """Whether steps continue from z, given the posterior of ∇f(z), ``1 x d``; not for ``"kept_information"``."""
        assert self.threshold is not None
        return MEASURES[self.uncertainty](posterior, d) <= self.threshold

    def keeps(self, information: float, start: float) -> bool:
        """Whether steps continue by ``"kept_information"``, given ``information``, G(z), and ``start``, G(x₀)."""
        assert self.threshold is not None
        return information >= self.threshold * start
