"""Plain gradient steps in coefficients of the queries, at a cost that does not depend on the dimension.

As long as the window X₁ … Xₙ stays, gradient descent along ∇μ stays in x₀ + span(Xᵢ − x₀): x = x₀ + Σᵢ aᵢ (Xᵢ − x₀).
With the Gram matrix G of Xᵢ − x₀, ‖x − Xᵢ‖² = aᵀGa − 2(Ga)ᵢ + Gᵢᵢ. With w = c∘α the gradient is v Σᵢ wᵢ (x − Xᵢ), so
that a step is a ← a − η v ((Σw) a − w): O(n²). G comes from the window's distances; only the first and the last point
are computed in R^d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surrogates.kernels.one_pass import Pass, weighted_differences
from surrogates.window.uncertainty import UncertaintyRule
from surrogates.window.window_surrogate import WindowSurrogate

SPAN_PAYS = 2
"""Steps are taken in coefficients if d is at least this many times the number of queries in the window."""


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
    """The result of ``virtual_steps``, or None if the steps must be taken in R^d.

    That is necessary if the rule is not plain gradient descent, the window would move, coefficients are not cheaper
    than coordinates, ``stop`` needs a covariance in R^d, or a step leaves the margin.

    Args:
        surrogate: the surrogate, begun at x.
        x: x₀, shape ``d``.
        step_size: η of plain gradient descent; None for another rule.
        stop: the rule that ends the steps.
        most: the largest number of steps.
        fixed: whether the window stays at x; it also stays if it has all queries.
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
            goes_on = taken == 0 or stop.goes_on(surrogate.posterior(conditioning, x, known), len(x))
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
