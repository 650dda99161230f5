"""How far clients' gradients are corrected: γ of FZooS's eq. 5, by rules behind one interface.

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

CLIENTS_AT_ONCE = 256
"""Clients whose gradients are worked on at once: what that takes is little beside the gradients themselves."""

NOTHING_TO_CORRECT = 1e-12
"""Share of the clients' squared gradients under which corrections are rounding errors."""


class GammaRule(ABC):
    """What says γ_t of every step: beforehand (``Schedule``), or from what the clients measure (``SharedGamma``).

    Attributes:
        phase: the phase whose reports bring what the clients measure; None where they measure nothing.
    """

    phase: Literal["surrogate", "gamma"] | None = None

    @abstractmethod
    def lengths(self, round_number: int, steps: int, shared: float | None) -> list[float]:
        """γ_t, t = 1 … T, of round r; ``shared`` is γ_r where the server found one, else None."""


@dataclass(frozen=True)
class Schedule(GammaRule):
    """γ_t that is known beforehand: a number, or a function of (r, t)."""

    gamma: float | Callable[[int, int], float]

    def lengths(self, round_number: int, steps: int, shared: float | None) -> list[float]:
        """γ(r, t), t = 1 … T.

        Raises:
            TypeError: where the function returns no number.
            ValueError: where it returns one that is negative or not finite.
        """
        gamma = self.gamma
        return [_checked(gamma(round_number, t) if callable(gamma) else gamma) for t in range(1, steps + 1)]


class SharedGamma(GammaRule):
    """One γ_r for all clients, which the server finds from what they measure in round r − 1; γ_1 = 0.

    With ``phase="surrogate"`` a client measures at x_r when it has fitted wᵢ, and reports both together. With
    ``phase="gamma"`` it measures at all ``points`` in a further exchange, which begins with the mean of the w of the
    clients that are present.

    Attributes:
        measured: name under which a client reports what it measured. The gate does not look at it: γ_r is in [0, 1].
        num_scalars: how many numbers that are.
        robust: whether there is a ``robust_estimate``, for an aggregation by another mean than Σ pᵢ.
    """

    measured: str
    num_scalars: int
    robust: bool = False

    def lengths(self, round_number: int, steps: int, shared: float | None) -> list[float]:
        """γ_r at every step."""
        assert shared is not None
        return [shared] * steps

    def points(self, x: Tensor, before: Tensor) -> list[Tensor]:
        """Points that server and clients know, made from x_r and x_{r−1}, all in user units: x_r alone."""
        return [x]

    @abstractmethod
    def measure(self, models: ClientSurrogates, points: list[Tensor], own: Tensor, w: Tensor | None) -> list[float]:
        """The numbers that a client reports.

        Args:
            models: the client's queries and surrogates.
            points: search coordinates, shape ``d`` each.
            own: wᵢ, shape ``M``.
            w: the mean of the present clients' weights, shape ``M``; None with ``phase="surrogate"``.
        """

    @abstractmethod
    def estimate(self, scalars: Tensor, gradients: Tensor, shares: Tensor) -> float:
        """γ_r; NaN where it is not finite.

        Args:
            scalars: what the clients that are present reported, ``N x num_scalars``.
            gradients: their ∇μ̂ᵢ at the points, ``points x N x d``.
            shares: their pᵢ, ``N``, of any sum.
        """

    def robust_estimate(self, scalars: Tensor, squares: Tensor, mean_of: Callable[[Tensor], float]) -> float:
        """γ_r by a robust mean; NaN where it is not finite.

        Args:
            scalars: as of ``estimate``.
            squares: ‖cᵢ‖² of the clients that are present, summed over the points, ``N``.
            mean_of: the robust mean of a number of each of them, ``N``.
        """
        raise NotImplementedError(f"{type(self).__name__} rests on the plain mean")


class Adaptive(SharedGamma):
    """The γ under which the clients' total disparity is smallest at x_r: Prop. B.1, summed over clients.

    With mᵢ = ∇μᵢ(x) and cᵢ = ∇μ̂(x) − ∇μ̂ᵢ(x), μ̂ᵢ the Fourier surrogate of client i and μ̂ = Σ pᵢ μ̂ᵢ, client i
    descends along mᵢ + γ cᵢ. Proposition B.1 measures it by its disparity ‖mᵢ + γ cᵢ − ∇F‖². The weighted sum of these
    is a parabola in a γ that all clients share,

        D(γ) = Σ pᵢ ‖mᵢ + γ cᵢ − ∇F(x)‖²,    D'(γ)/2 = Σ pᵢ (mᵢ − ∇F)·cᵢ + γ Σ pᵢ ‖cᵢ‖².

    The pᵢ sum to 1, so that Σ pᵢ cᵢ = 0 and the unknown ∇F drops out: the minimum is at

        γ = −Σ pᵢ mᵢ·cᵢ / Σ pᵢ ‖cᵢ‖²,

    clipped to [0, 1]. Nothing is estimated. (A γ of its own for each client, as Prop. B.1 has it, would keep ∇F·cᵢ.)
    Where some clients are absent, cᵢ is taken about the mean of those that are present, and γ is the one under which
    they agree best: the minimum over γ and g of Σ pᵢ ‖mᵢ + γ cᵢ − g‖². A client reports mᵢ·cᵢ, which is one number;
    the server knows the cᵢ.

    With a robust mean in the place of Σ pᵢ, μ̂ = φᵀw has the robust mean w of the wᵢ, and γ is minus the robust mean of
    the mᵢ·cᵢ over that of the ‖cᵢ‖². The cᵢ of the clients that the mean heeds then sum to 0 as nearly as they agree.
    """

    phase = "gamma"
    measured = "product"
    num_scalars = 1
    robust = True

    def measure(self, models: ClientSurrogates, points: list[Tensor], own: Tensor, w: Tensor | None) -> list[float]:
        """mᵢ·cᵢ, summed over the points."""
        assert w is not None
        difference, total = w - own, 0.0
        for x in points:
            correction = models.features.gradient(x[None], difference)[0]
            total += float(models.gradient(x).double() @ correction.double())
        return [total]

    def estimate(self, scalars: Tensor, gradients: Tensor, shares: Tensor) -> float:
        """−Σ pᵢ mᵢ·cᵢ / Σ pᵢ ‖cᵢ‖² in [0, 1], 0 where there is nothing to correct."""
        squares = squared_corrections(gradients, shares)
        p = (shares / shares.sum()).double()
        return clipped(-float((p * scalars[:, 0].double()).sum()) / squares) if squares != 0.0 else 0.0

    def robust_estimate(self, scalars: Tensor, squares: Tensor, mean_of: Callable[[Tensor], float]) -> float:
        """Minus the robust mean of the mᵢ·cᵢ over that of the ‖cᵢ‖², in [0, 1]; 0 where there is nothing to correct."""
        scale = mean_of(squares)
        return clipped(-mean_of(scalars[:, 0].double()) / scale) if scale > 0.0 else 0.0


def inverse(round_number: int, t: int) -> float:
    """γ_t = 1/t (Appx. E.3), which the paper's experiments use (Appx. G)."""
    return 1.0 / t


RULES: dict[str, GammaRule] = {"inverse": Schedule(inverse), "adaptive": Adaptive()}
"""The rules that have a name."""

Gamma = float | str | Callable[[int, int], float] | GammaRule


def gamma_rule(gamma: Gamma) -> GammaRule:
    """The rule that a user's γ stands for: a name in ``RULES``, a number, a function of (r, t), or a rule itself.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name, with the nearest one, or a number that is negative or not finite.
    """
    if isinstance(gamma, GammaRule):
        return gamma
    if isinstance(gamma, str):
        return RULES[check_choice("gamma", gamma, tuple(RULES))]
    return Schedule(gamma if callable(gamma) and not isinstance(gamma, type) else _checked(gamma))


def corrections(gradients: Tensor, shares: Tensor) -> Tensor:
    """cᵢ = Σⱼ pⱼ gⱼ − gᵢ, ``... x N x d``, of the clients' surrogate gradients gᵢ, ``... x N x d``.

    Args:
        gradients: gᵢ = ∇μ̂ᵢ(x).
        shares: pᵢ, ``N``, positive, of any sum.
    """
    p = (shares / shares.sum()).to(gradients)
    return (p[:, None] * gradients).sum(-2, keepdim=True) - gradients


def squared_corrections(gradients: Tensor, shares: Tensor) -> float:
    """Σ pᵢ ‖cᵢ‖², summed over the points; 0 where it is under 1e-12 of Σ pᵢ ‖∇μ̂ᵢ‖², that is of rounding errors.

    Args:
        gradients: ∇μ̂ᵢ at the points, ``N x d`` or ``points x N x d``.
        shares: pᵢ, ``N``.
    """
    p = (shares / shares.sum()).double()
    blocks = list(zip(gradients.split(CLIENTS_AT_ONCE, -2), p.split(CLIENTS_AT_ONCE), strict=True))
    mean = sum((part[:, None] * g).sum(-2, keepdim=True) for g, part in blocks)
    squares, scale = (
        sum(float(((g.double() - about).square().sum(-1) * part).sum()) for g, part in blocks) for about in (mean, 0.0)
    )
    return 0.0 if squares <= NOTHING_TO_CORRECT * scale else squares


def clipped(gamma: float) -> float:
    """γ in [0, 1]; NaN where it is not finite."""
    return min(max(gamma, 0.0), 1.0) if math.isfinite(gamma) else math.nan


def _checked(gamma: Any) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        names = ", ".join(map(repr, RULES))
        raise TypeError(f"gamma must be a number, {names}, a function of (r, t) or a GammaRule, got {gamma!r}")
    if not 0.0 <= gamma < math.inf:
        raise ValueError(f"gamma must be finite and at least 0, got {gamma}")
    return float(gamma)
