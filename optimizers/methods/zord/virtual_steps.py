"""Virtual steps: descent along a surrogate's mean gradient, between queries and without any (ZoRD, Sec. 4.2).

The direct path steps in R^d by any first-order rule. Plain gradient descent never leaves x₀ + span(Xᵢ − x₀), where a
point is n coefficients and a step costs n², whatever d is: the span path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from optimizers.first_order import FirstOrder
from surrogates.kernels.one_pass import Pass, weighted_differences
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.uncertainty import Reading, UncertaintyRule, information
from surrogates.window.window_surrogate import WindowSurrogate

Prox = Callable[[Tensor, Any], Tensor]
Correction = Callable[[Tensor], Tensor]

SPAN_PAYS = 2
"""The span path is taken where this many times the window's queries are at most the dimension."""


class Path(Protocol):
    """A point that moves."""

    @property
    def reading(self) -> Reading:
        """The gradient's posterior at the point, as the uncertainty rule is to see it."""

    def step(self) -> bool:
        """Move; False, and no move, where the step would not be finite."""


def follow(path: Path, stop: UncertaintyRule, d: int, most: int) -> int:
    """Virtual steps until the rule ends them; the number taken, 1 to ``most``.

    The first is always taken; then one as long as ``stop`` goes on at the point reached.
    """
    start = information(path.reading) if stop.relative_to_start and most > 1 else None
    for taken in range(most):
        if taken and not stop.goes_on(path.reading, d, start):
            return taken
        if not path.step():
            return taken
    return most


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
    correction: Correction | None = None,
) -> tuple[Tensor, int]:
    """x after virtual steps z ← prox(rule(z, ∇μ(z))), and their number (ZoRD, Alg. 2, lines 3 to 5).

    Args:
        surrogate: conditioned on the queries; its iteration begins at x.
        x: where the steps begin, shape ``d``, search coordinates.
        rule: the first-order rule; its state moves.
        prox: ``prox(z, step_size)``, after every step.
        stop: when they end.
        most: the cap.
        reselect: take the queries nearest to z anew at every step.
        margin: the distance from x within which ``prox`` is the identity; None: unknown.
        correction: added to the gradient at a point (FZooS, eq. 5).
    """
    surrogate.begin(x)
    step_size = rule.plain_step_size
    if step_size is not None and margin is not None and correction is None:
        whole = len(surrogate) <= surrogate.size or not reselect
        if whole and SPAN_PAYS * len(surrogate.window) <= len(x) and stop.uncertainty != "descent":
            span = SpanPath(surrogate, x, step_size, margin)
            taken = follow(span, stop, len(x), most)
            if span.inside:
                return span.lifted(), taken
    direct = DirectPath(surrogate, x, rule, prox, stop.relative_to_start, reselect, correction)
    taken = follow(direct, stop, len(x), most)
    return direct.x, taken


class DirectPath:
    """Steps in R^d, any rule and prox; one pass over the window and the rule's own work each."""

    def __init__(
        self,
        surrogate: WindowSurrogate,
        x: Tensor,
        rule: FirstOrder,
        prox: Prox,
        read_at_start: bool,
        reselect: bool,
        correction: Correction | None,
    ) -> None:
        self.x = x
        self._surrogate, self._rule, self._prox = surrogate, rule, prox
        self._reselect, self._correction = reselect, correction
        self._read_at_start = read_at_start
        self._origin, self._origin_rows = surrogate.conditioning, surrogate.window.indices

    @property
    def reading(self) -> Reading:
        """The posterior at x: under the present window, or under that at x₀."""
        posterior = self._posterior
        if not self._read_at_start or self._surrogate.conditioning is self._origin:
            return posterior
        return self._surrogate.posterior(self._start, self.x)

    def step(self) -> bool:
        """One step of the rule along ∇μ(x), in f's units, then the prox."""
        gradient = self._posterior.mean[0] * self._surrogate.scale
        if self._correction is not None:
            gradient = gradient + self._correction(self.x)
        if not _finite(gradient):
            return False
        z, step_size = self._rule.step(self.x, gradient)
        if not _finite(z):
            return False
        self.x = self._prox(z, step_size)
        del self._posterior
        return True

    @cached_property
    def _start(self) -> StationaryConditioning:
        """The conditioning at x₀, with its queries, which the window has left since."""
        return self._surrogate.again(self._origin, self._origin_rows)

    @cached_property
    def _posterior(self) -> Any:
        return self._surrogate.gradient_posterior(self.x, reselect=self._reselect)


def _finite(x: Tensor) -> bool:
    """Whether every element is; a finite sum proves it, an infinite one may be overflow."""
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())


class SpanPath:
    """Plain gradient descent in coefficients: x = x₀ + Σᵢ aᵢ (Xᵢ − x₀), the window fixed.

    With G the Gram matrix of Xᵢ − x₀, ‖x − Xᵢ‖² = aᵀGa − 2(Ga)ᵢ + Gᵢᵢ, and for w = c∘α the gradient is
    v Σᵢ wᵢ (x − Xᵢ), so that a step is a ← a − η v ((Σw) a − w). G comes from distances that the window holds, and
    R^d is seen twice: where the steps begin and where they end.

    Args:
        surrogate: its window stays where it is.
        x: x₀, shape ``d``.
        step_size: η.
        margin: distance from x₀ that the path may go.
    """

    def __init__(self, surrogate: WindowSurrogate, x: Tensor, step_size: float, margin: float) -> None:
        self._surrogate, self._x0, self._step_size, self._margin = surrogate, x, step_size, margin
        self._conditioning: StationaryConditioning = surrogate.conditioning
        self._metric = self._conditioning.metric
        self._v = float(self._metric.gradient)
        seen = self._conditioning.observe(x[None])
        square = seen.r2[0] / self._v
        distances = surrogate.window.squared_distances / self._v
        self._gram = 0.5 * (square[:, None] + square - distances)
        self._gram.diagonal().copy_(square)
        self._a = torch.zeros_like(square)
        self._r2 = seen.r2[0]
        self.inside = True

    @property
    def reading(self) -> Reading:
        """Traces at the point from its distances to the queries."""
        r2 = self._r2
        seen = Pass(
            self._x0[None], r2[None], self._v * r2[None], self._metric.slope_weights(r2)[None, :].reshape(1, -1)
        )
        return _SpanReading(self._surrogate, self._conditioning, self._x0, seen)

    def step(self) -> bool:
        """One step in coefficients; ``inside`` turns False, for good, beyond the margin."""
        w = self._metric.slope_weights(self._r2).reshape(-1) * self._conditioning.alpha
        surrogate = self._surrogate
        amplitude = surrogate.scale * surrogate.hyperparameters.outputscale**0.5
        a = self._a - self._step_size * amplitude * self._v * (w.sum() * self._a - w)
        along = self._gram @ a
        length = float(a @ along)
        if not length < float("inf"):
            return False
        self.inside = self.inside and length**0.5 < self._margin
        self._a, self._r2 = a, ((length - 2 * along + self._gram.diagonal()) * self._v).clamp_min(0.0)
        return self.inside

    def lifted(self) -> Tensor:
        """The point in R^d."""
        conditioning = self._conditioning
        displaced = weighted_differences(self._metric, conditioning.inputs, self._x0[None], self._a[None])[0]
        return self._x0 - displaced / self._v


class _SpanReading:
    """The posterior's traces without its point."""

    def __init__(self, surrogate: WindowSurrogate, conditioning: StationaryConditioning, x: Tensor, seen: Pass) -> None:
        self._outputscale = surrogate.hyperparameters.outputscale
        self._conditioning, self._x, self._seen = conditioning, x, seen

    @property
    def trace(self) -> Tensor:
        """Trace of the gradient covariance at the point, shape ``1``."""
        return self._outputscale * self._conditioning.trace(self._x[None], self._seen)

    @property
    def prior_trace(self) -> Tensor:
        """Trace of the prior's, 5 o d/(3ℓ²) for Matérn 5/2, shape ``1``."""
        return self._outputscale * self._conditioning.prior_trace

    @property
    def spectral_norm(self) -> Tensor:
        """The prior's: there are more dimensions than queries."""
        return self._outputscale * self._conditioning.prior_variance[..., :1]

    def descent_probability(self) -> Tensor:
        """Not known here: it needs the gradient's covariance along ∇μ, in R^d.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("descent probabilities are read on the direct path")
