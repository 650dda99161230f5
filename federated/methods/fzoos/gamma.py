"""How far clients' gradients are corrected: γ of FZooS's eq. 5, shared by the clients of a round.

**The problem.** With m_i = ∇μ_i(x) and c_i = ∇μ̂(x) − ∇μ̂_i(x), μ̂_i the Fourier surrogate of client i and μ̂ = Σ p_i μ̂_i,
client i descends along m_i + γ c_i. Proposition B.1 measures it by its disparity
‖m_i + γ c_i − ∇F‖². With one γ for all, their weighted sum is a parabola,

    D(γ) = Σ p_i ‖m_i + γ c_i − ∇F(x)‖²,    D'(γ)/2 = Σ p_i (m_i − ∇F)·c_i + γ Σ p_i ‖c_i‖².

**What is unknown drops out.** Σ p_i c_i = 0, as the p_i sum to 1, hence Σ p_i ∇F·c_i = 0 and the minimum is at

    γ = −Σ p_i m_i·c_i / Σ p_i ‖c_i‖²,

clipped to [0, 1], where D, a parabola, is then smallest. Nothing is estimated. A γ of its own for each client would
keep ∇F·c_i. Among some clients only, c_i about the mean of those gives Σ p_i c_i = 0 again, and the γ under which they
agree best: min over γ and g of Σ p_i ‖m_i + γ c_i − g‖².

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        eq. 5, Prop. B.1.
"""

from __future__ import annotations

import math

from torch import Tensor

NOTHING_TO_CORRECT = 1e-12
"""Share of the clients' squared gradients under which corrections are rounding errors."""


def common_points(x: Tensor, before: Tensor, count: int) -> list[Tensor]:
    """Points that server and clients know, evenly from x_r back to x_{r−1}: x_r alone, both, or those between too.

    Near the ones between lay the clients' mean iterates of the round. Products summed over points give the γ that
    makes the sum of D(γ) over them smallest.
    """
    return [x if j == 0 else x + (before - x) * (j / (count - 1)) for j in range(count)]


def corrections(gradients: Tensor, shares: Tensor) -> Tensor:
    """c_i = Σ_j p_j g_j − g_i of the clients' surrogate gradients g_i, ``... x N x d``.

    Args:
        gradients: g_i = ∇μ̂_i(x), ``... x N x d``.
        shares: p_i, ``N``, positive, of any sum.
    """
    p = (shares / shares.sum()).to(gradients)
    return (p[:, None] * gradients).sum(-2, keepdim=True) - gradients


def shared_gamma(products: Tensor, gradients: Tensor, shares: Tensor) -> float:
    """The γ that brings the clients' corrected gradients nearest to ∇F, in [0, 1] (module docstring).

    0 where Σ p_i ‖c_i‖² is under 1e-12 of Σ p_i ‖∇μ̂_i‖²: there is nothing to correct. Design and rounding ask for
    ‖c_i‖² against a gradient's; ∇μ̂_i is the one that the server knows, and whose rounding errors c_i carries.

    Args:
        products: m_i·c_i, ``N``, summed over the common points where there are several.
        gradients: ∇μ̂_i at the common points, ``N x d`` or ``points x N x d``.
        shares: p_i, ``N``.

    Returns:
        γ; NaN where it is not finite, before clipping.
    """
    p = (shares / shares.sum()).double()
    squares = _mean_square(corrections(gradients.double(), p), p)
    if squares <= NOTHING_TO_CORRECT * _mean_square(gradients.double(), p):
        return 0.0
    return clipped(-float((p * products.double()).sum()) / squares)


def empirical_bayes_gamma(
    errors: Tensor, gradients: Tensor, shares: Tensor, uncertainties: Tensor | None = None
) -> float:
    """The one-way rule γ = 1 − v / Σ p_i ‖c_i‖², in [0, 1], for comparison.

    It takes ∇μ̂_i − ∇f_i for uncorrelated errors of mean square e_i = ‖∇μ̂_i − m_i‖². Then c_i is ∇F − ∇f_i and noise of
    mean square Σ_i p_i E‖ē − e_i‖² = Σ p_i (1 − p_i) e_i = v, which is (1 − 1/N)(1/N)Σ e_i for equal p_i, and γ is the
    share of Σ p_i ‖c_i‖² that is not noise. Shared features and overlapping trajectories correlate the errors: γ then
    comes out too small (.04 where the best was .99 in prototypes).

    With the margin, Σ p_i² t_i is added to v ((1/N²)Σ t_i): the variance of Σ p_i m_i, which a full correction
    leaves. t_i = trace_i · (y − m)ᵀA⁻¹(y − m)/n is client i's, with the outputscale that its values suggest.

    Args:
        errors: e_i, ``N``.
        gradients: ∇μ̂_i at x, ``N x d``.
        shares: p_i, ``N``.
        uncertainties: t_i, ``N``, for the margin.

    Returns:
        γ; NaN where it is not finite, before clipping.
    """
    p = (shares / shares.sum()).double()
    squares = _mean_square(corrections(gradients.double(), p), p)
    if squares <= NOTHING_TO_CORRECT * _mean_square(gradients.double(), p):
        return 0.0
    noise = float((p * (1 - p) * errors.double()).sum())
    if uncertainties is not None:
        noise += float((p.square() * uncertainties.double()).sum())
    return clipped(1.0 - noise / squares)


def disparity(means: Tensor, gradients: Tensor, shares: Tensor, gamma: float, truth: Tensor) -> float:
    """D(γ) = Σ p_i ‖m_i + γ c_i − ∇F‖².

    Args:
        means: m_i, ``N x d``.
        gradients: ∇μ̂_i, ``N x d``.
        shares: p_i, ``N``.
        gamma: γ.
        truth: ∇F, ``d``.
    """
    p = (shares / shares.sum()).to(means)
    return _mean_square(means + gamma * corrections(gradients, p) - truth, p)


def clipped(gamma: float) -> float:
    """γ in [0, 1]; NaN where it is not finite."""
    return min(max(gamma, 0.0), 1.0) if math.isfinite(gamma) else math.nan


def _mean_square(vectors: Tensor, p: Tensor) -> float:
    """Σ p_i ‖v_i‖² of ``... x N x d``, over all leading points."""
    return float((vectors.square().sum(-1) * p.to(vectors)).sum())
