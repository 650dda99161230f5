"""Rejected rules for FZooS's γ (``beyond-gamma``): the one-way rule, and least squares at several points."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from federated.methods.fzoos.client_surrogates import ClientSurrogates
from federated.methods.fzoos.gamma import Adaptive, SharedGamma, clipped, squared_corrections
from surrogates.window.window_surrogate import WindowSurrogate


@dataclass(frozen=True)
class AdaptiveAlong(Adaptive):
    """The adaptive γ with the disparity summed over points spaced evenly from x_r back to x_{r−1}.

    The clients' mean iterates of the round were near these points.

    Attributes:
        count: number of points, at least 2, including both ends.
    """

    count: int

    def points(self, x: Tensor, before: Tensor) -> list[Tensor]:
        """Returns x_r + (x_{r−1} − x_r) j/(count − 1) for j = 0 … count − 1."""
        return [x if j == 0 else x + (before - x) * (j / (self.count - 1)) for j in range(self.count)]


@dataclass(frozen=True)
class EmpiricalBayes(SharedGamma):
    """The one-way rule γ = 1 − v / Σ pᵢ ‖cᵢ‖² in [0, 1] at x_r, which needs no additional exchange of messages.

    The rule treats the errors εᵢ = ∇μ̂ᵢ − ∇fᵢ as uncorrelated, with mean square eᵢ = ‖∇μ̂ᵢ − mᵢ‖². Then cᵢ is ∇F − ∇fᵢ
    plus the noise ε̄ − εᵢ, where ε̄ = Σ pᵢ εᵢ. The noise's mean square over clients is v = Σ pᵢ E‖ε̄ − εᵢ‖² = Σ pᵢ (1 −
    pᵢ) eᵢ, which equals (1 − 1/N)(1/N)Σ eᵢ for equal pᵢ. γ is the share of Σ pᵢ ‖cᵢ‖² that is not noise. Shared
    features and overlapping trajectories correlate the errors, so γ is too small.

    Attributes:
        margin: whether to add to v the margin Σ pᵢ² tᵢ, the variance of Σ pᵢ mᵢ, which a full correction does not
            remove. Clients then report tᵢ (``gradient_variance``) as well as eᵢ.
    """

    margin: bool = False

    phase = "surrogate"
    measured = "statistics"

    @property
    def num_scalars(self) -> int:  # type: ignore[override]
        """Number of scalars that a client reports: eᵢ and, with the margin, tᵢ."""
        return 1 + self.margin

    def measure(self, models: ClientSurrogates, points: list[Tensor], own: Tensor, w: Tensor | None) -> list[float]:
        """Returns eᵢ and, with the margin, tᵢ."""
        (x,) = points
        error = models.features.gradient(x[None], own)[0] - models.gradient(x)
        scalars = [float(error.double().square().sum())]
        return [*scalars, gradient_variance(models.local, x)] if self.margin else scalars

    def estimate(self, scalars: Tensor, gradients: Tensor, shares: Tensor) -> float:
        """Returns 1 − v / Σ pᵢ ‖cᵢ‖² in [0, 1]; 0 if all corrections vanish."""
        squares = squared_corrections(gradients, shares)
        p = (shares / shares.sum()).double()
        noise = float((p * (1 - p) * scalars[:, 0].double()).sum())
        if self.margin:
            noise += float((p.square() * scalars[:, 1].double()).sum())
        return clipped(1.0 - noise / squares) if squares != 0.0 else 0.0


def gradient_variance(local: WindowSurrogate, x: Tensor) -> float:
    """Computes t = trace ∂σ²(x) · (y − m)ᵀA⁻¹(y − m)/n in f's squared units, with the outputscale implied by y."""
    local.begin(x)
    conditioning = local.conditioning
    trace = float(conditioning.trace(x[None]))
    y = local.window.y
    # 1ᵀα = 0, so that any shift of y serves.
    return trace * float((y - y.mean()) @ conditioning.alpha) / len(y) * local.scale
