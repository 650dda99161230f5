"""The bound on one iteration of ZO-L-Katyusha that its parameters satisfy, and Theorem 1 from it."""

import math

from optimizers.methods.katyusha.parameters import KatyushaParameters


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
