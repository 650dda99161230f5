"""Rules for γ of FZooS's eq. 5, the factor of the gradient correction.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        eq. 5, Prop. B.1, Appx. E.3 and G.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from federated.methods.fzoos.client_surrogates import ClientSurrogates
from optimizers.core.options import check_choice

CLIENT_BLOCK = 256
"""Number of clients whose gradients are processed together, which bounds the temporary memory."""

NEGLIGIBLE = 1e-12
"""Corrections are rounding errors if their mean square is at most this fraction of the gradients' mean square."""


class GammaRule(ABC):
    """Determines γ_t of every step: in advance (``Schedule``) or from clients' measurements (``SharedGamma``).

    Attributes:
        phase: the phase that reports the measurements; None if there are none.
    """

    phase: Literal["surrogate", "gamma"] | None = None

    @abstractmethod
    def lengths(self, round_number: int, steps: int, shared: float | None) -> list[float]:
        """Returns γ_t, t = 1 … T, of round r; ``shared`` is the server's γ_r, or None."""


@dataclass(frozen=True)
class Schedule(GammaRule):
    """γ_t known in advance: a number, or a function of (r, t)."""

    gamma: float | Callable[[int, int], float]

    def lengths(self, round_number: int, steps: int, shared: float | None) -> list[float]:
        """Returns γ(r, t), t = 1 … T; raises ``TypeError`` or ``ValueError`` if it is not a finite number ≥ 0."""
        gamma = self.gamma
        return [_checked(gamma(round_number, t) if callable(gamma) else gamma) for t in range(1, steps + 1)]


class SharedGamma(GammaRule):
    """One γ_r for all clients, computed by the server from measurements in round r − 1; γ_1 = 0.

    With ``phase="surrogate"`` a client measures at x_r and reports its measurements with wᵢ. With ``phase="gamma"`` it
    receives the mean of the present clients' w in an additional exchange and measures at all ``points``.

    Attributes:
        measured: name of the measurements in a report; the gate ignores them, because γ_r is in [0, 1].
        num_scalars: number of measurements.
        robust: whether ``robust_estimate`` is implemented, for an aggregation other than the mean.
    """

    measured: str
    num_scalars: int
    robust: bool = False

    def lengths(self, round_number: int, steps: int, shared: float | None) -> list[float]:
        """Returns γ_r for every step."""
        assert shared is not None
        return [shared] * steps

    def points(self, x: Tensor, before: Tensor) -> list[Tensor]:
        """Returns the points at which clients measure, in user units: by default only x_r.

        The points may depend only on x_r and x_{r−1} (``before``), which the server and the clients know.
        """
        return [x]

    @abstractmethod
    def measure(self, models: ClientSurrogates, points: list[Tensor], own: Tensor, w: Tensor | None) -> list[float]:
        """Returns the numbers that a client reports.

        Args:
            models: the client's queries and surrogates.
            points: search coordinates, shape ``d`` each.
            own: wᵢ, shape ``M``.
            w: the mean of the present clients' weights, shape ``M``; None with ``phase="surrogate"``.
        """

    @abstractmethod
    def estimate(self, scalars: Tensor, gradients: Tensor, shares: Tensor) -> float:
        """Returns γ_r; NaN if it is not finite.

        Args:
            scalars: measurements of the present clients, ``N x num_scalars``.
            gradients: these clients' ∇μ̂ᵢ at the points, ``points x N x d``.
            shares: these clients' pᵢ, ``N``, not necessarily normalized.
        """

    def robust_estimate(self, scalars: Tensor, squares: Tensor, mean_of: Callable[[Tensor], float]) -> float:
        """Returns γ_r, computed with ``mean_of``, a robust mean of one number per client; NaN if it is not finite.

        ``scalars`` are as in ``estimate``; ``squares`` are ‖cᵢ‖² of the present clients, summed over the points, ``N``.
        """
        raise NotImplementedError(f"{type(self).__name__} requires aggregation='mean'")


class Adaptive(SharedGamma):
    """The γ that minimizes the clients' total disparity at x_r: Prop. B.1, summed over clients.

    Client i descends along mᵢ + γ cᵢ with mᵢ = ∇μᵢ(x) and cᵢ = ∇μ̂(x) − ∇μ̂ᵢ(x), where μ̂ᵢ is its Fourier surrogate and
    μ̂ = Σ pᵢ μ̂ᵢ. The weighted sum of the disparities of Prop. B.1 is a parabola in the common γ,

        D(γ) = Σ pᵢ ‖mᵢ + γ cᵢ − ∇F(x)‖²,    D'(γ)/2 = Σ pᵢ (mᵢ − ∇F)·cᵢ + γ Σ pᵢ ‖cᵢ‖².

    As the pᵢ sum to 1, Σ pᵢ cᵢ = 0 and the unknown ∇F drops out. The minimum is at

        γ = −Σ pᵢ mᵢ·cᵢ / Σ pᵢ ‖cᵢ‖²,

    clipped to [0, 1]. (A different γ for each client, as in Prop. B.1, would depend on ∇F·cᵢ.) If clients are absent,
    cᵢ is relative to the mean of the present ones, and (γ, g) minimize Σ pᵢ ‖mᵢ + γ cᵢ − g‖². A client reports one
    number, mᵢ·cᵢ; the server knows the cᵢ.

    With a robust mean instead of Σ pᵢ, μ̂ = φᵀw uses the robust mean w of the wᵢ, and γ is minus the robust mean of the
    mᵢ·cᵢ divided by the robust mean of the ‖cᵢ‖².
    """

    phase = "gamma"
    measured = "product"
    num_scalars = 1
    robust = True

    def measure(self, models: ClientSurrogates, points: list[Tensor], own: Tensor, w: Tensor | None) -> list[float]:
        """Returns mᵢ·cᵢ, summed over the points."""
        assert w is not None
        difference, total = w - own, 0.0
        for x in points:
            correction = models.features.gradient(x[None], difference)[0]
            total += float(models.gradient(x).double() @ correction.double())
        return [total]

    def estimate(self, scalars: Tensor, gradients: Tensor, shares: Tensor) -> float:
        """Returns −Σ pᵢ mᵢ·cᵢ / Σ pᵢ ‖cᵢ‖² clipped to [0, 1]; 0 if there is nothing to correct."""
        squares = squared_corrections(gradients, shares)
        p = (shares / shares.sum()).double().to(gradients.device)
        return clipped(-float((p * scalars[:, 0].double()).sum()) / squares) if squares != 0.0 else 0.0

    def robust_estimate(self, scalars: Tensor, squares: Tensor, mean_of: Callable[[Tensor], float]) -> float:
        """Returns −(robust mean of mᵢ·cᵢ)/(robust mean of ‖cᵢ‖²), clipped to [0, 1]; 0 without corrections."""
        scale = mean_of(squares)
        return clipped(-mean_of(scalars[:, 0].double()) / scale) if scale > 0.0 else 0.0


def inverse(round_number: int, t: int) -> float:
    """Returns γ_t = 1/t (Appx. E.3), used in the paper's experiments (Appx. G)."""
    return 1.0 / t


RULES: dict[str, GammaRule] = {"inverse": Schedule(inverse), "adaptive": Adaptive()}
"""Rules by name."""

Gamma = float | str | Callable[[int, int], float] | GammaRule


def gamma_rule(gamma: Gamma) -> GammaRule:
    """Returns the rule for an option γ: a name in ``RULES``, a number, a function of (r, t), or a rule itself.

    Raises:
        TypeError, ValueError: for anything else, an unknown name, or a number that is negative or not finite.
    """
    if isinstance(gamma, GammaRule):
        return gamma
    if isinstance(gamma, str):
        return RULES[check_choice("gamma", gamma, tuple(RULES))]
    return Schedule(gamma if callable(gamma) and not isinstance(gamma, type) else _checked(gamma))


def squared_corrections(gradients: Tensor, shares: Tensor) -> float:
    """Returns Σ pᵢ ‖cᵢ‖², summed over the points; 0 if it is below 1e-12 Σ pᵢ ‖∇μ̂ᵢ‖² (rounding errors).

    The gradients ∇μ̂ᵢ are ``N x d`` or ``points x N x d``; the shares pᵢ need not sum to 1.
    """
    p = (shares / shares.sum()).double().to(gradients.device)
    blocks = list(zip(gradients.split(CLIENT_BLOCK, -2), p.split(CLIENT_BLOCK), strict=True))
    mean = sum((part[:, None] * g).sum(-2, keepdim=True) for g, part in blocks)
    squares, scale = (
        sum(float(((g.double() - about).square().sum(-1) * part).sum()) for g, part in blocks) for about in (mean, 0.0)
    )
    return 0.0 if squares <= NEGLIGIBLE * scale else squares


def clipped(gamma: float) -> float:
    """Returns γ clipped to [0, 1]; NaN if it is not finite."""
    return min(max(gamma, 0.0), 1.0) if math.isfinite(gamma) else math.nan


def _checked(gamma: Any) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        names = ", ".join(map(repr, RULES))
        raise TypeError(f"gamma must be a number, {names}, a function of (r, t) or a GammaRule, got {gamma!r}")
    if not 0.0 <= gamma < math.inf:
        raise ValueError(f"gamma must be finite and at least 0, got {gamma}")
    return float(gamma)
