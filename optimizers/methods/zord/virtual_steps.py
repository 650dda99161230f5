"""Virtual steps: descent along a surrogate's mean gradient, without queries (ZoRD, Sec. 3.2)."""

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
    """Makes virtual steps from x along the mean gradient ∇μ of a Gaussian process (ZoRD, Alg. 2, lines 4 to 6).

    A step is z ← prox(rule(z, ∇μ(z))), where ∇μ is conditioned on the queries nearest to z. The first step is always
    made. The steps end when ``stop`` forbids another one at the point reached (Sec. 3.2), after ``most`` steps, or at a
    step that is not finite. Steps of plain ``torch.optim.SGD`` take a time that does not depend on d, if no prox
    affects them and the window is fixed and small (``steps_in_span``).

    Args:
        surrogate: the Gaussian process of the queries.
        x: the start, shape ``d``, search coordinates.
        rule: the first-order rule, which keeps its state.
        prox: ``prox(z, step_size)``, applied after every step.
        stop: the rule that ends the steps.
        most: the largest number of steps, at least 1.
        reselect: whether the queries nearest to z are selected anew at every step, or only at x.
        margin: the distance from x within which ``prox`` is the identity; None: unknown.

    Returns:
        The point reached, shape ``d``, and the number V of steps.
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
            goes_on = taken == 0 or stop.goes_on(surrogate.posterior(z, known), len(x))
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
    """Whether all elements are finite; a finite sum of squares proves it, an infinite one may be overflow."""
    return math.isfinite(float(x.dot(x))) or bool(torch.isfinite(x).all())
