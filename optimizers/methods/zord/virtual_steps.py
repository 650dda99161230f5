"""Virtual steps: descent along a surrogate's mean gradient, between queries and without any (ZoRD, Sec. 3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from optimizers.first_order import FirstOrder
from optimizers.methods.zord.span_steps import steps_in_span
from surrogates.window.uncertainty import UncertaintyRule
from surrogates.window.window_surrogate import WindowSurrogate

Prox = Callable[[Tensor, Any], Tensor]


def virtual_steps(
    surrogate: WindowSurrogate,
    x: Tensor,
    rule: FirstOrder,
    prox: Prox,
    stop: UncertaintyRule,
    *,
    most: int,
    reselect: bool = True,
    margin: float | None = None,
) -> tuple[Tensor, int]:
    """The point after virtual steps from x, shape ``d``, and the number V of them (ZoRD, Alg. 2, lines 4 to 6).

    A step is z ← prox(rule(z, ∇μ(z))), ∇μ the mean gradient in f's units given the queries nearest to z. The first is
    always taken; then one as long as ``stop`` goes on at the point reached (Sec. 3.2), ``most`` at most. A step that
    would not be finite is not taken, and ends them. Steps of a plain ``torch.optim.SGD`` that no prox can touch are
    taken in coefficients of the queries, where these stay and are fewer than half of d: the same points up to
    rounding, at a cost that does not depend on d.

    Args:
        surrogate: the Gaussian process of the queries; its iteration begins at x.
        x: where the steps begin, shape ``d``, search coordinates.
        rule: the first-order rule, which keeps its state.
        prox: ``prox(z, step_size)``, after every step.
        stop: when they end.
        most: most steps, at least 1.
        reselect: condition on the queries nearest to z, anew at every step; else on those nearest to x.
        margin: the distance from x within which ``prox`` is the identity; None: unknown.
    """
    surrogate.begin(x)
    if margin is not None:
        in_span = steps_in_span(surrogate, x, rule.plain_step_size, stop, most=most, fixed=not reselect, margin=margin)
        if in_span is not None:
            return in_span
    kept = surrogate.keep() if stop.relative_to_start and most > 1 else None
    z, start = x, 0.0
    for taken in range(most):  # line 4
        known = surrogate.pass_at(z, reselect=reselect)  # eqs. 4 to 6
        if kept is not None:
            information = kept.information(surrogate.window, z, known)
            start = start if taken else information
            goes_on = stop.keeps(information, start)
        else:
            goes_on = taken == 0 or stop.goes_on(surrogate.posterior(surrogate.conditioning, z, known), len(x))
        if taken and not goes_on:
            return z, taken
        gradient = surrogate.mean_gradient(known)
        if not _finite(gradient):
            return z, taken
        stepped, step_size = rule.step(z, gradient)
        if not _finite(stepped):
            return z, taken
        z = prox(stepped, step_size)  # line 5
    return z, most


def _finite(x: Tensor) -> bool:
    """Whether every element is finite; a finite sum of squares proves it, an infinite one may be overflow."""
    return math.isfinite(float(x.dot(x))) or bool(torch.isfinite(x).all())
