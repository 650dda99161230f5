"""Computes the parameters of ZO-L-Katyusha, by Theorem 1, its corollaries, or rules that are not in the paper.

Reference: Zhang and Tang, Zeroth-order Katyusha, 2024, Sec. 4. Everywhere, μ = μ_f + μ_ψ and η = 1/(3θ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from optimizers.core.options import check_integer, positive

Option = Literal["I", "II"]
Rule = Literal["theorem_1", "corollary", "balanced", "without_reference"]


@dataclass(frozen=True)
class KatyushaParameters:
    """The parameters of Alg. 1, whose lines ``ZOLKatyusha`` describes.

    Attributes:
        M: a multiple of L that determines the step η/M of line 5.
        theta: θ, the weight of z in line 2, in (0, 1/2]. The paper allows (0, 1), but above 1/2 line 2 is not a convex
            combination, and y leaves the domain of ψ.
        probability: the probability p with which the reference point w is renewed (line 7).
        reference_weight: the weight of w in line 2; 1/2 in the paper.

    Raises:
        ValueError: for numbers out of range.
    """

    M: float
    theta: float
    probability: float
    reference_weight: float = 0.5

    def __post_init__(self) -> None:
        positive("M", self.M)
        if not 0.0 < self.theta <= 0.5:
            raise ValueError(f"theta must be in (0, 1/2], got {self.theta}")
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(f"probability must be in (0, 1], got {self.probability}")
        if not 0.0 <= self.reference_weight <= 1.0 - self.theta:
            raise ValueError(f"reference_weight must be from 0 to 1 - theta, got {self.reference_weight}")

    @property
    def eta(self) -> float:
        """The step η = 1/(3θ) (Alg. 1, initialization)."""
        return 1.0 / (3.0 * self.theta)


def variance_constant(option: Option, d: int, size: int) -> float:
    """Computes Theorem 1's A: max{4d(d − |S|)/((d − 1)|S|), 1} for option I, 4d/|S| for option II; |S| is ``size``.

    A bounds the variance of the gradient estimate g: E‖g − ∇f(x)‖² ≤ A L (f(w) − f(x) − ∇f(x)·(w − x)), up to terms of
    order β² (Lemmas 1 and 2).
    """
    check_integer("d", d, 1)
    check_integer("size", size, 1)
    if size > d:
        raise ValueError(f"size must be at most d = {d}, got {size}")
    if option == "II":
        return 4.0 * d / size
    return max(4.0 * d * (d - size) / ((d - 1.0) * size), 1.0) if size < d else 1.0


def theorem_1(option: Option, L: float, mu: float, d: int, size: int) -> KatyushaParameters:
    """Computes M = (A + 1)L/3 by Theorem 1, and θ = min{√(μ/(Mp)), 1/2} as in the corollaries, for every |S| ≤ d.

    p = 1/d, or 1 if option I draws all d coordinates. This equals Corollaries 1 and 3 where they hold, and Corollary 2
    with its missing factor 1/3. L is the Lipschitz constant of ∇f.
    """
    return _with_momentum(_curvature(option, L, d, size), mu, 1.0 if option == "I" and size == d else 1.0 / d)


def corollary_1(L: float, mu: float, d: int, size: int) -> KatyushaParameters:
    """Computes Corollary 1 (option I): M = 4d(d − |S|)L/(3(d − 1)|S|) + L/3, θ = min{√(dμ/M), 1/2}, p = 1/d.

    Raises:
        ValueError: for a batch size |S| > √d, which the corollary does not cover, and for d = 1.
    """
    _check_small(size, d)
    if d == 1:
        raise ValueError("Corollary 1 needs at least 2 variables, got 1: use corollary_3")
    return _with_momentum(4.0 * d * (d - size) * positive("L", L) / (3.0 * (d - 1.0) * size) + L / 3.0, mu, 1.0 / d)


def corollary_2(L: float, mu: float, d: int, size: int) -> KatyushaParameters:
    """Computes Corollary 2 (option II) as printed: M = 4dL/|S| + L/3, θ = min{√(dμ/M), 1/2}, p = 1/d.

    Theorem 1 gives M = 4dL/(3|S|) + L/3 instead (``theorem_1``). Because the corollary lacks the 3, its steps are about
    a third as long as the theorem allows.

    Raises:
        ValueError: for a batch size |S| > √d, which the corollary does not cover.
    """
    _check_small(size, d)
    return _with_momentum(4.0 * d * positive("L", L) / size + L / 3.0, mu, 1.0 / d)


def corollary_3(L: float, mu: float) -> KatyushaParameters:
    """Computes Corollary 3 (option I with all d coordinates): M = 2L/3, θ = min{√(μ/M), 1/2}, p = 1."""
    return theorem_1("I", L, mu, 1, 1)


def by_rule(rule: Rule, option: Option, L: float, mu: float, d: int, size: int) -> KatyushaParameters:
    """Computes the parameters by the rule of the given name.

    * ``"theorem_1"``: Theorem 1's M, with the corollaries' θ and p.
    * ``"corollary"``: the corollary for this option and |S|.
    * ``"balanced"`` (ours): Theorem 1's M with p = |S|/d and θ = min{√(μ/(Mp)), 1/2}, so that references cost as many
      queries as steps. Theorem 1 holds for every p.
    * ``"without_reference"`` (ours), for the full batch: Corollary 3's M and θ, with no weight on w in line 2, because
      the full batch has no variance to reduce. This is Nesterov's method with the gradient of eq. 6; the proof of
      Theorem 1 holds for it without the terms in w.

    Raises:
        ValueError: for μ = 0, for ``"corollary"`` with √d < |S| < d, and for ``"without_reference"`` with |S| < d.
    """
    full = option == "I" and size == d
    match rule:
        case "theorem_1":
            return theorem_1(option, L, mu, d, size)
        case "balanced":
            return _with_momentum(_curvature(option, L, d, size), mu, size / d)
        case "without_reference":
            if not full:
                raise ValueError('parameters="without_reference" needs batch_size="full" and option="I"')
            return replace(corollary_3(L, mu), reference_weight=0.0)
        case "corollary":
            if full:
                return corollary_3(L, mu)
            return (corollary_1 if option == "I" else corollary_2)(L, mu, d, size)


def general_convex(
    option: Option, L: float, d: int, size: int, epoch: int, curvature: float = 0.0
) -> KatyushaParameters:
    """Computes parameters for unknown strong convexity: θ = max{2/(epoch + 4), min{½√(c/(Mp)), 1/2}}, p = |S|/d.

    This rule is ours; the paper assumes μ > 0. The first term in θ is the schedule of Katyusha^ns (Allen-Zhu 2017),
    with which y converges no faster than 1/k². The second term, with the least curvature c measured so far, removes
    this limit. M is half of Theorem 1's, which covers the worst case. For the full batch, M is Theorem 1's, and w has
    no weight in line 2.

    Args:
        option: how the directions S are drawn, ``"I"`` or ``"II"``.
        L: the Lipschitz constant of ∇f, or an estimate of it.
        d: dimension.
        size: |S|, 1 to d.
        epoch: the number of references (full batch: of iterations) since the last restart.
        curvature: c ≥ 0.
    """
    full = option == "I" and size == d
    M, p = _curvature(option, L, d, size) * (1.0 if full else 0.5), size / d
    theta = max(2.0 / (epoch + 4), min(0.5 * math.sqrt(curvature / (M * p)), 0.5))
    return KatyushaParameters(M, theta, p, 0.0 if full else 0.5)


def _curvature(option: Option, L: float, d: int, size: int) -> float:
    """Theorem 1's M."""
    return (variance_constant(option, d, size) + 1.0) * positive("L", L) / 3.0


def _with_momentum(M: float, mu: float, p: float) -> KatyushaParameters:
    """θ = min{√(μ/(Mp)), 1/2}, as in all corollaries, whose p is 1/d or 1."""
    return KatyushaParameters(M, min(math.sqrt(positive("mu", mu) / (M * p)), 0.5), p)


def _check_small(size: int, d: int) -> None:
    check_integer("d", d, 1)
    check_integer("size", size, 1)
    if size > math.sqrt(d):
        raise ValueError(f'Corollaries 1 and 2 need |S| <= √d, got {size} for d = {d}: use parameters="theorem_1"')
