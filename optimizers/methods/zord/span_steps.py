"""Virtual steps of gradient descent in coefficients of the queries, at a cost that does not depend on the dimension.

While the window X₁ … Xₙ does not change, descent along ∇μ from x₀ stays in the span of the queries: x = x₀ + Σᵢ aᵢ (Xᵢ
− x₀). With the Gram matrix G of the Xᵢ − x₀, ‖x − Xᵢ‖² = aᵀGa − 2(Ga)ᵢ + Gᵢᵢ. The gradient is ∇μ = v Σᵢ wᵢ (x − Xᵢ)
with weights w from the kernel, so that a step of size η is a ← a − η v ((Σw) a − w), in O(n²) time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surrogates.kernels.one_pass import Pass, weighted_differences
from surrogates.window.uncertainty import UncertaintyRule
from surrogates.window.window_surrogate import WindowSurrogate

SPAN_PAYS = 2
"""Steps are made in coefficients if d is at least this many times the number of queries in the window."""


def steps_in_span(
    surrogate: WindowSurrogate,
    x: Tensor,
    step_size: float | None,
    stop: UncertaintyRule,
    *,
    most: int,
    fixed: bool,
    margin: float,
) -> tuple[Tensor, int] | None:
    """Makes virtual steps in coefficients of the queries; see ``virtual_steps`` for the result.

    Returns None if the steps must be made in R^d: if the rule is not plain gradient descent, the window would change,
    d is small, ``stop`` needs a covariance in R^d, or a step leaves ``margin``.

    Args:
        surrogate: the Gaussian process of the queries, begun at x.
        x: the start x₀, shape ``d``.
        step_size: η of plain gradient descent; None for another first-order rule.
        stop: the rule that ends the steps.
        most: the largest number of steps.
        fixed: whether the window remains that of x; a window of all queries cannot change.
        margin: the distance from x₀ within which the prox is the identity.
    """
    fixed = fixed or len(surrogate) <= surrogate.size
    if step_size is None or not fixed or SPAN_PAYS * len(surrogate.window) > len(x) or stop.uncertainty == "descent":
        return None
    conditioning = surrogate.conditioning
    kernel, v = conditioning.stationary, float(conditioning.stationary.column_scales)
    amplitude = surrogate.scale * surrogate.hyperparameters.outputscale**0.5
    unknown = x.new_full((1, 1), math.nan).expand(1, len(x))
    r2 = conditioning.pass_over_data(x[None]).r2[0]
    square = r2 / v
    G = 0.5 * (square[:, None] + square - surrogate.window.squared_distances / v)
    G.diagonal().copy_(square)
    a, taken, start = torch.zeros_like(square), 0, 0.0
    while taken < most:
        c = kernel.row_scales(r2).reshape(-1)
        known = Pass(unknown, r2[None], v * r2[None], c[None])
        if stop.relative_to_start and most > 1:
            information = float(conditioning.explained_trace(known))
            start = start if taken else information
            goes_on = stop.keeps(information, start)
        else:
            goes_on = taken == 0 or stop.goes_on(surrogate.posterior(x, known), len(x))
        if taken and not goes_on:
            break
        w = c * conditioning.alpha
        moved = a - step_size * amplitude * v * (w.sum() * a - w)
        along = G @ moved
        length = float(moved @ along)
        if not length < math.inf:
            break
        if not length**0.5 < margin:
            return None
        a, taken = moved, taken + 1
        r2 = ((length - 2 * along + G.diagonal()) * v).clamp_min(0.0)
    displaced = weighted_differences(kernel, conditioning.inputs, x[None], a[None])[0]
    return x - displaced / v, taken
