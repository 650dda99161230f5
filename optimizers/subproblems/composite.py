"""Steps to a low value of a smooth function plus ψ, where ψ is known by its values and its prox.

A quadratic model of f at a step, plus ψ, is minimized by accelerated proximal gradient steps,

    z ← prox_{ψ/L}(y − ∇q(y)/L),

where q is the quadratic and L its largest |curvature|. Each z is clipped to the box (exact for a separable ψ, which
bounds require) and shortened to lie in the ball. Shortening keeps ψ finite, because ψ(θz) ≤ (1 − θ)ψ(0) + θψ(z) for 0 ≤
θ ≤ 1. The prox-gradient mapping, G = −L prox_{ψ/L}(−∇f/L) at 0, replaces the gradient; it is 0 at a solution.

References:
    A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm, SIAM J. Imaging Sciences 2, 2009.
    B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient schemes, Found. Comput. Math. 15, 2015.
    C. Cartis, N. I. M. Gould, P. L. Toint, On the evaluation complexity of composite function minimization, SIAM J.
        Optim. 21, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from optimizers.subproblems.region import Region, Value, descend, halved

QUADRATICS, HALVINGS, ITERATIONS = 4, 4, 100
"""The most quadratic models per step; for each model, the most halvings of the trial step and proximal iterations."""

SETTLED = 1e-7
"""The iteration ends after a proximal step shorter than this share of the radius."""

Quadratic = tuple[Tensor, Callable[[Tensor], Tensor], float]
"""A quadratic model: its gradient, shape ``d``, the product with its Hessian, and its largest |curvature|."""

Prox = Callable[[Tensor, float], Tensor]
"""Maps a step s, shape ``d``, and L to the minimizer z of ψ(z) + L/2 ‖z − s‖²."""


def minimize_composite(
    value: Value, quadratic: Callable[[Tensor], Quadratic], prox: Prox, region: Region
) -> tuple[Tensor, float]:
    """Finds a low value of f + ψ in a region; returns the step, shape ``d``, and the value.

    Args:
        value: f + ψ at a step, shape ``d``, minus its value at 0.
        quadratic: the quadratic model of f at a step.
        prox: the prox of ψ.
        region: the region.
    """

    def trials(s: Tensor) -> Iterable[Tensor]:
        gradient, product, largest = quadratic(s)
        L = lipschitz(gradient, largest, region.delta)
        y, z, momentum = s, s, 1.0
        for _ in range(ITERATIONS):
            before, z = z, region.confined(prox(y - (gradient + product(y - s)) / L, L))
            if float((z - y).norm()) <= SETTLED * region.delta:
                break
            momentum = 1.0 if float((y - z) @ (z - before)) > 0.0 else momentum
            after = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
            y, momentum = z + (momentum - 1.0) / after * (z - before), after
        return halved(s, z, HALVINGS)

    return descend(value, trials, torch.zeros_like(region.lower), QUADRATICS)


def prox_gradient(quadratic: Quadratic, prox: Prox, delta: float) -> Tensor:
    """The prox-gradient mapping G at 0, shape ``d``, which replaces the gradient of f + ψ."""
    gradient, _, largest = quadratic
    L = lipschitz(gradient, largest, delta)
    return -L * prox(-gradient / L, L)


def lipschitz(gradient: Tensor, largest: float, delta: float) -> float:
    """L, at least the largest |curvature| and so large that a gradient step stays within the ball of radius δ."""
    return max(largest, float(gradient.norm()) / delta, 1e-300)
