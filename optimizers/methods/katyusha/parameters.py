"""Parameters of ZO-L-Katyusha from smoothness and strong convexity.

Whose numbers these are: θ₂ = 1/2 (Alg. 1, line 2), η = 1/(3θ₁) and M in proportion to d/|S| are the paper's. p = |S|/d,
where Corollaries 1 and 2 have 1/d, θ₁ = min{√(μ/(Mp)), 1/2} with that p, and the full batch's M and θ₂ are ours;
``tests/optimizers/methods/katyusha/bounds.py`` derives the bound on one step that they satisfy. ``tests/papers`` has
Theorem 1's and the corollaries' numbers as printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from optimizers.core.options import check_integer, positive


@dataclass(frozen=True)
class KatyushaParameters:
    """Parameters of Katyusha, Alg. 1; ``ValueError`` for numbers out of range.

    Attributes:
        theta1: θ₁, weight of z in the coupling; in (0, 1/2].
        theta2: θ₂, weight of the reference point w; 0 without a reference (full batch).
        eta: η; the z-step's length is η/M.
        M: curvature that the steps are made for, in units of L.
        probability: p of renewing the reference; 1 for the full batch.
        mu_f: μ_f, strong convexity of f.
        mu_psi: μ_ψ, strong convexity of ψ.
    """

    theta1: float
    theta2: float
    eta: float
    M: float
    probability: float
    mu_f: float = 0.0
    mu_psi: float = 0.0

    def __post_init__(self) -> None:
        for name in ("eta", "M"):
            positive(name, getattr(self, name))
        if not 0.0 < self.theta1 <= 0.5:
            raise ValueError(f"theta1 must be in (0, 1/2], or x is no convex combination; got {self.theta1}")
        if not 0.0 <= self.theta2 <= 1.0 - self.theta1:
            raise ValueError(f"theta2 must be in [0, 1 - theta1], got {self.theta2}")
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(f"probability must be in (0, 1], got {self.probability}")
        if not (0.0 <= self.mu_f < math.inf and 0.0 <= self.mu_psi < math.inf):
            raise ValueError(f"mu_f and mu_psi must be at least 0, got {self.mu_f} and {self.mu_psi}")

    @property
    def mu(self) -> float:
        """μ_f + μ_ψ."""
        return self.mu_f + self.mu_psi

    def scaled(self, factor: float) -> KatyushaParameters:
        """The same rules at factor · M: θ₁ = min{√(μ/(Mp)), 1/2} and η = 1/(3θ₁) anew; what is tuned."""
        M = factor * self.M
        theta1 = _momentum(self.mu, M, self.probability) if self.mu else self.theta1
        return replace(self, M=M, theta1=theta1, eta=1.0 / (3.0 * theta1))


def coordinate_batch(L: float, mu_f: float, mu_psi: float, d: int, size: int) -> KatyushaParameters:
    """One or |S| random coordinates an iteration, in the place of Corollary 1.

    M = 4dL/(3|S|) + L/3, p = |S|/d, θ₂ = 1/2, θ₁ = min{√(μ/(Mp)), 1/2}, η = 1/(3θ₁), μ = μ_f + μ_ψ. The paper has this
    M for draws from the sphere: it is Theorem 1's for option II, where Corollary 2 prints 4dL/|S| + L/3. For
    coordinates Corollary 1's first term is smaller by (d − |S|)/(d − 1), and its p is 1/d.

    Args:
        L: Lipschitz constant of ∇f.
        mu_f: strong convexity of f.
        mu_psi: strong convexity of ψ; μ_f + μ_ψ > 0.
        d: dimension.
        size: |S|, 1 to d.
    """
    M, p = _curvature(L, d, size), size / d
    theta1 = _momentum(_strong_convexity(mu_f, mu_psi), M, p)
    return KatyushaParameters(theta1, 0.5, 1.0 / (3.0 * theta1), M, p, mu_f, mu_psi)


def full_batch(L: float, mu_f: float, mu_psi: float) -> KatyushaParameters:
    """All coordinates, p = 1, hence no variance and no reference point, in the place of Corollary 3.

    M = 4L/3, θ₂ = 0, θ₁ = min{√(μ/M), 1/2}, η = 1/(3θ₁). Corollary 3 has M = 2L/3 and, by Alg. 1, line 2, the weight
    1/2 on w^k = y^{k−1}: its iterates are others. The bound on one step allows any M above L/3, and 4L/3 keeps what the
    smoothing bias costs, ε²/(2(3M − L)θ₁), at a sixth of ε²/(Lθ₁).
    """
    M = 4.0 * positive("L", L) / 3.0
    theta1 = _momentum(_strong_convexity(mu_f, mu_psi), M, 1.0)
    return KatyushaParameters(theta1, 0.0, 1.0 / (3.0 * theta1), M, 1.0, mu_f, mu_psi)


def general_convex(L: float, d: int, size: int, epoch: int, curvature: float = 0.0) -> KatyushaParameters:
    """Where no strong convexity is known: θ₁ = max{2/(epoch + 4), min{½√(c/(Mp)), 1/2}}.

    The first is Katyusha^ns's (Allen-Zhu 2017); y, an average of the z's, then comes no faster than 1/k²
    however soon z is there, which the second amends: c is the least curvature met on the way. M is half of
    the corollaries', which the worst case needs; θ₂, p and η = 1/(3θ₁) are theirs.

    Args:
        L: smoothness, perhaps an estimate.
        d: dimension.
        size: |S|; d is the full batch, without reference.
        epoch: references renewed (full batch: iterations) since the last restart.
        curvature: c, at least 0.
    """
    full = size == d
    M, p = (2.0 * positive("L", L) / 3.0 if full else _curvature(L, d, size) / 2.0), size / d
    theta1 = max(2.0 / (epoch + 4), _momentum(curvature / 4.0, M, p))
    return KatyushaParameters(theta1, 0.0 if full else 0.5, 1.0 / (3.0 * theta1), M, p)


def _curvature(L: float, d: int, size: int) -> float:
    check_integer("d", d, 1)
    check_integer("size", size, 1)
    if size > d:
        raise ValueError(f"size must be at most d = {d}, got {size}")
    return 4.0 * d * positive("L", L) / (3.0 * size) + L / 3.0


def _momentum(mu: float, M: float, p: float) -> float:
    return min(math.sqrt(mu / (M * p)), 0.5)


def _strong_convexity(mu_f: float, mu_psi: float) -> float:
    if not (mu_f >= 0.0 and mu_psi >= 0.0 and 0.0 < mu_f + mu_psi < math.inf):
        raise ValueError(f"mu_f and mu_psi must be at least 0 and not both 0, got {mu_f} and {mu_psi}")
    return mu_f + mu_psi
