"""Steps of a trust region for f + ψ, with f from a model and ψ known by its values and its prox.

The model's quadratic at a step plus ψ is minimized by accelerated proximal gradient steps,

    z ← prox_{ψ/L}(x_b + y − ∇q(y)/L) − x_b,

L the largest |curvature|, each clipped to the box (exact for the separable ψ that go with bounds) and drawn back to x_b
into the ball. Both keep ψ finite: a closed convex ψ with ψ(x_b) < ∞ has ψ(x_b + θz) ≤ (1 − θ)ψ(x_b) + θψ(x_b + z) for
0 ≤ θ ≤ 1. The solution is where the prox-gradient mapping vanishes, G = L (x_b − prox_{ψ/L}(x_b − ∇μ/L)), which takes
the gradient's place in the rule of lessons.

References:
    A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm, SIAM J. Imaging Sciences 2, 2009.
    B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient schemes, Found. Comput. Math. 15, 2015.
    C. Cartis, N. I. M. Gould, P. L. Toint, On the evaluation complexity of composite function minimization, SIAM J.
        Optim. 21, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from optimizers.methods.trust_region.cut import confined
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.span_model import SpanModel

QUADRATICS, HALVINGS, ITERATIONS = 4, 4, 100
"""The most quadratics of a step, halvings of the way to the minimum of one, and proximal steps to it."""

LEAST = 1e-300
"""The least L, in the model's unit and in f's."""

SETTLED = 1e-7
"""A proximal step under this share of the radius is the last one."""

ENOUGH = 1e-3
"""The share of the decrease so far that a quadratic has to gain for another one."""


class CompositeModel:
    """A model of f + ψ about x_b.

    Args:
        model: of f.
        psi: ψ(x_b + s) of a step s, shape ``d``.
        prox: prox of ψ(x_b + ·): a step and a step size to a step.
        places: the steps from x_b to the model's queries, ``n x d``.
    """

    def __init__(
        self,
        model: RegionModel | SpanModel,
        psi: Callable[[Tensor], float],
        prox: Callable[[Tensor, float], Tensor],
        places: Tensor,
    ) -> None:
        self._model, self._prox, self._places = model, prox, places
        at_center = psi(torch.zeros_like(places[0]))
        self._rise = lambda s: psi(s) - at_center if math.isfinite(at_center) else psi(s)

    @property
    def numbers(self) -> Tensor:
        """Which queries the model is of, shape ``n``."""
        return self._model.numbers

    def means(self) -> Tensor:
        """The posterior means of f + ψ at the queries relative to x_b, shape ``n``, in f's units."""
        return self._model.means() + torch.tensor([self._rise(s) for s in self._places], dtype=torch.float64)

    def sees(self, length: float) -> bool:
        """Whether the mean of f changes by more than a value's noise within a distance of x_b."""
        return self._model.sees(length)

    def needs_noise(self) -> bool:
        """Whether f's values are much less likely without noise, as ``RegionModel.needs_noise`` has it."""
        return self._model.needs_noise()

    def mean(self, s: Tensor) -> float:
        """The posterior mean of f + ψ at a step, shape ``d``, relative to x_b and in the model's unit."""
        return self._model.mean(s) + self._rise(s) / self._model.unit

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """A step to a low mean of f + ψ in the ball of radius δ, the box and before a cut; the mean in f's units.

        Of the way to a quadratic's minimum a half, a quarter, … is taken until the mean falls.
        """
        s, least = torch.zeros_like(lower), 0.0
        for _ in range(QUADRATICS):
            target = self._target(s, delta, lower, upper)
            trials = (s + 0.5**k * (target - s) for k in range(HALVINGS + 1))
            found = next(((trial, mean) for trial in trials if (mean := self.mean(trial)) < least), None)
            if found is None:
                break
            gained, (s, least) = least - found[1], found
            if gained <= -ENOUGH * least:
                break
        return s, self._model.unit * least

    def _target(self, s: Tensor, delta: float, lower: Tensor, upper: Tensor) -> Tensor:
        """Where the quadratic at s plus ψ is low in ball and box, by accelerated proximal gradient steps from s."""
        gradient, product, largest = self._model.quadratic(s)
        L = max(largest, float(gradient.norm()) / delta, LEAST)
        size, y, momentum = self._size(L), s, 1.0
        before = s
        for _ in range(ITERATIONS):
            z = self._prox(y - (gradient + product(y - s)) / L, size)
            z = confined(z, delta, lower, upper, self._model.cut)
            if float((z - y).norm()) <= SETTLED * delta:
                return z
            if float((y - z) @ (z - before)) > 0.0:
                momentum = 1.0
            after = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
            y, before, momentum = z + (momentum - 1.0) / after * (z - before), z, after
        return before

    def lesson(self, delta: float) -> Tensor | None:
        """``RegionModel.lesson`` with G for the slope: None if ∇f(x_b) is known well enough beside it."""
        gradient, _, largest = self._model.quadratic(torch.zeros_like(self._places[0]))
        L = max(largest, float(gradient.norm()) / delta, LEAST)
        return self._model.lesson(delta, -L * self._prox(-gradient / L, self._size(L)))

    def _size(self, L: float) -> float:
        """The step size 1/L in f's units, within what a prox takes: that of a flat and small f would be infinite."""
        return 1.0 / min(max(L * self._model.unit, LEAST), 1.0 / LEAST)
