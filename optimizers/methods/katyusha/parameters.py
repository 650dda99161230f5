"""Parameters of ZO-L-Katyusha from smoothness and strong convexity, and the bound that they satisfy.

Whose numbers these are: that M grows with d/|S|, p = |S|/d and the two options are the paper's corollaries 1 to 3;
θ₂ = 1/2, η = θ₂/((1 + θ₂)θ₁), θ₁ in proportion to √(μ/(Mp)) and the Lyapunov function are loopless Katyusha's
(Kovalev, Horváth and Richtárik 2020; Qian, Qu and Richtárik 2019) in these units. Constants are derived here, in
``one_step_bound``, and tested against it: Theorem 1's and the corollaries' as printed may differ by factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from optimizers.options import check_integer, positive


@dataclass(frozen=True)
class KatyushaParameters:
    """Parameters of Katyusha, Alg. 1.

    Attributes:
        theta1: θ₁, weight of z in the coupling; in (0, 1/2].
        theta2: θ₂, weight of the reference point w; 0 without a reference (full batch).
        eta: η; the z-step's length is η/M.
        M: curvature that the steps are made for, in units of L.
        probability: p of renewing the reference; 1 for the full batch.
        mu_f: μ_f, strong convexity of f.
        mu_psi: μ_ψ, strong convexity of ψ.

    Raises:
        ValueError: for numbers out of these ranges.
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


def single_coordinate(L: float, mu_f: float, mu_psi: float, d: int) -> KatyushaParameters:
    """Corollary 1: one random coordinate an iteration; ``coordinate_batch`` at |S| = 1."""
    return coordinate_batch(L, mu_f, mu_psi, d, 1)


def coordinate_batch(L: float, mu_f: float, mu_psi: float, d: int, size: int) -> KatyushaParameters:
    """Corollary 2: |S| random coordinates an iteration.

    M = 4dL/(3|S|) + L/3 (the paper prints 4dL/3, without |S|), p = |S|/d, θ₂ = 1/2,
    θ₁ = min{√(μ/(Mp)), 1/2}, η = 1/(3θ₁), μ = μ_f + μ_ψ. This M is the least that ``one_step_bound`` allows.

    Args:
        L: Lipschitz constant of ∇f.
        mu_f: strong convexity of f.
        mu_psi: strong convexity of ψ; μ_f + μ_ψ > 0.
        d: dimension.
        size: |S|, 1 to d.

    Raises:
        ValueError: for numbers out of range.
    """
    M, p = _curvature(L, d, size), size / d
    theta1 = _momentum(_strong_convexity(mu_f, mu_psi), M, p)
    return KatyushaParameters(theta1, 0.5, 1.0 / (3.0 * theta1), M, p, mu_f, mu_psi)


def full_batch(L: float, mu_f: float, mu_psi: float) -> KatyushaParameters:
    """Corollary 3: all coordinates, p = 1, hence no variance and no reference point.

    M = 4L/3, θ₂ = 0, θ₁ = min{√(μ/M), 1/2}, η = 1/(3θ₁). (With p = 1 the reference point is the last y and
    θ₂ only splits y's weight: θ₂ = 0 gives the same iterates.) M is our reading: ``one_step_bound`` allows any
    above L/3, and 4L/3 keeps what the smoothing bias costs, ε²/(2(3M − L)θ₁), at a sixth of ε²/(Lθ₁).

    Raises:
        ValueError: for numbers out of range.
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


def smoothing_bias(L: float, d: int, smoothing_radius: float) -> float:
    """ε = Lβ√d/2, which bounds ‖Σ_i (f(x + βe_i) − f(x))/β e_i − ∇f(x)‖."""
    return L * smoothing_radius * math.sqrt(d) / 2.0


def lyapunov(parameters: KatyushaParameters, squared_distance: float, y_gap: float, w_gap: float = 0.0) -> float:
    """Theorem 1's Ψ = (M/η + μ)/2 ‖z − x*‖² + (F(y) − F*)/θ₁ + θ₂(1 + θ₁)/(pθ₁) (F(w) − F*).

    Works on tensors too. This is loopless Katyusha's, whose L is M here and σ is μ/M.
    """
    q = parameters
    weight = q.theta2 * (1.0 + q.theta1) / (q.probability * q.theta1)
    return (q.M / q.eta + q.mu) / 2.0 * squared_distance + y_gap / q.theta1 + weight * w_gap


def one_step_bound(
    parameters: KatyushaParameters,
    squared_distance: float,
    y_gap: float,
    w_gap: float,
    *,
    L: float,
    d: int,
    size: int,
    smoothing_radius: float,
    share: float = 0.5,
) -> float:
    """What E Ψ after one iteration is at most, given z, y and w.

    With c = share · μ and ε the smoothing bias,

        E Ψ⁺ ≤ (M/η + c)/2 ‖z − x*‖² + (1 − θ₁(1 − θ₂)) (F(y) − F*)/θ₁ + (1 − pθ₁/(1 + θ₁)) W + e,
        e = ε²/(2c) + v ε²/(M/η − Lθ₁),   v = 4d/|S|, and 1/2 for the full batch,

    for options I and II, whenever a = M/η − Lθ₁ ≥ 2dLθ₁/(|S|θ₂) (full batch: a > 0). Derivation, ours, with
    D = f(w) − f(x) − ∇f(x)·(w − x) and W = θ₂(1 + θ₁)/(pθ₁) (F(w) − F*):

    1. z⁺ minimizes an (M/η + μ)-strongly convex function: compare its value with that at x*.
    2. f(y⁺) ≤ f(x) + ∇f(x)·(y⁺ − x) + L/2 ‖y⁺ − x‖² at option I's y⁺, divided by θ₁; Young's inequality with
       weight a leaves ‖g − ∇f(x)‖²/(2a). Option II's y⁺ minimizes a bound that is no larger at option I's.
    3. θ₁(z − x) = θ₂(x − w) + (1 − θ₁ − θ₂)(x − y) and convexity turn ∇f(x)·(x* − z) into the gaps at w and y,
       less θ₂D/θ₁ and μ_f/2 ‖x − x*‖².
    4. E‖g − ∇f(x)‖² ≤ (4dL/|S|) D + (8d/|S|) ε², by co-coercivity: θ₂D/θ₁ pays for D's part under the
       condition on a, which is M ≥ 4dL/(3|S|) + L/3 at θ₂ = 1/2 and η = 1/(3θ₁).
    5. The bias costs at most ε²/(2c) + c/2 ‖z − x*‖²; w⁺ is y with probability p.

    Raises:
        ValueError: if the parameters do not meet the condition or share is not in (0, 1).
    """
    q = parameters
    a, needed = q.M / q.eta - L * q.theta1, 2.0 * d * L / size * q.theta1 / q.theta2 if q.theta2 else 0.0
    if not (0.0 < share < 1.0) or q.mu == 0.0:
        raise ValueError(f"the bound needs 0 < share < 1 and mu > 0, got {share} and {q.mu}")
    if a <= 0.0 or a < needed * (1.0 - 1e-12):
        raise ValueError(f"the bound needs M/eta - L theta1 >= {needed:.6g} and > 0, got {a:.6g}")
    c, bias = share * q.mu, smoothing_bias(L, d, smoothing_radius) ** 2
    error = bias / (2.0 * c) + (4.0 * d / size if q.theta2 else 0.5) * bias / a
    weight = q.theta2 * (1.0 + q.theta1) / (q.probability * q.theta1)
    return (
        (q.M / q.eta + c) / 2.0 * squared_distance
        + (1.0 - q.theta1 * (1.0 - q.theta2)) * y_gap / q.theta1
        + (1.0 - q.probability * q.theta1 / (1.0 + q.theta1)) * weight * w_gap
        + error
    )


def contraction(parameters: KatyushaParameters, share: float = 0.5) -> float:
    """The factor of Ψ in an iteration: the largest of ``one_step_bound``'s three, without e."""
    q = parameters
    factors = [(q.M / q.eta + share * q.mu) / (q.M / q.eta + q.mu), 1.0 - q.theta1 * (1.0 - q.theta2)]
    if q.theta2:
        factors.append(1.0 - q.probability * q.theta1 / (1.0 + q.theta1))
    return max(factors)


def theorem_bound(
    parameters: KatyushaParameters,
    initial: float,
    iterations: int,
    *,
    L: float,
    d: int,
    size: int,
    smoothing_radius: float,
    share: float = 0.5,
) -> float:
    """Theorem 1: E Ψᵏ ≤ ρᵏ Ψ⁰ + e (1 − ρᵏ)/(1 − ρ), ρ the contraction and e the smoothing error a step, both ours."""
    rho = contraction(parameters, share)
    error = one_step_bound(
        parameters, 0.0, 0.0, 0.0, L=L, d=d, size=size, smoothing_radius=smoothing_radius, share=share
    )
    decayed = rho**iterations
    return decayed * initial + error * (1.0 - decayed) / (1.0 - rho)


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
