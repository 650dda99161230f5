"""The base class of ZO-L-Katyusha and its baselines, which measures the smoothness L if it is not given."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_integer, nonnegative, optional, positive
from optimizers.estimators.coordinate_differences import CoordinateDifferences
from optimizers.estimators.estimator import GradientEstimator
from optimizers.estimators.finite_differences import FiniteDifferences

PROBES = 5
"""The number of directions along which the smoothness is measured."""

LARGEST = 1e150
"""The largest smoothness L; a measurement above it counts as failed."""


@dataclass
class SmoothState:
    """The state common to ZO-L-Katyusha and its baselines.

    Attributes:
        smoothness: L; 0 until it is measured.
        ceiling: the largest f + ψ of the queries that measured L; inf before. L doubles if all points of a later batch
            exceed it.
        failed: the number of consecutive batches whose base point failed.
    """

    smoothness: float
    ceiling: float
    failed: int = field(default=0, kw_only=True)


def check_size(name: str, size: int, d: int) -> int:
    """Returns a number of directions; raises ``ValueError`` if it is not from 1 to d."""
    if check_integer(name, size, 1) > d:
        raise ValueError(f"{name} must be at most d = {d}, the number of variables, got {size}")
    return size


def default_radius(x: Tensor) -> float:
    """Computes β = 1e-6 max(1, ‖x‖∞) in float64, with √ε instead of 1e-6 in a dtype of machine epsilon ε."""
    relative = 1e-6 if x.dtype == torch.float64 else math.sqrt(torch.finfo(x.dtype).eps)
    return relative * max(1.0, float(x.abs().max()))


def measured_smoothness(center: float, plus: Tensor, minus: Tensor, smoothing_radius: float, scale: float) -> float:
    """Estimates the smoothness L by max_i |f(x + hu_i) + f(x − hu_i) − 2f(x)|/h² over orthonormal directions u_i.

    For d ≤ 5 the u_i are a basis, and the estimate is at least tr(∇²f)/d, which suffices for steps along random
    directions for a typical f. It is at least max_i |∂f/∂u_i|/(10 ``scale``), which limits the first step if f is
    nearly linear, and 1 for a constant f. ``center`` is f(x); ``plus`` and ``minus`` are f(x ± hu_i), NaN for failed
    queries, whose directions are left out. If all directions failed, the result is NaN.
    """
    kept = plus.isfinite() & minus.isfinite()
    if not math.isfinite(center) or not bool(kept.any()):
        return math.nan
    plus, minus = plus[kept], minus[kept]
    curvature = float(((plus - center) + (minus - center)).abs().max()) / smoothing_radius**2
    slope = float((plus - minus).abs().max()) / (2.0 * smoothing_radius)
    found = max(curvature, slope / (10.0 * scale))
    return 1.0 if found == 0.0 else found if found < LARGEST else math.nan


class SmoothMethod(Optimizer):
    """The base class of methods for f with a Lipschitz gradient, which estimate ∇f by differences of values.

    If ``smoothness`` is None, the run begins with 2n + 1 counted queries, x0 and x0 ± hu_i along n = min(5, d)
    orthonormal u_i, with h = √β (for the default β times √max(1, ‖x0‖∞)); x0 is moved into the bounds by h. L is the
    largest second difference of the values. If later f + ψ at all points of a batch exceeds the largest of these first
    values, L doubles and the method restarts from the best point. A batch whose base point fails is not used; after
    three such batches in a row, the method restarts from the best point. By default, lengths are in user units.

    A subclass defines ``_method_ask`` and ``_method_tell``. It defines ``_method_queries`` if a step does not query as
    ``_estimator`` does, and ``_restart``, which restarts from the iterate with the present L, if its state depends on
    earlier iterates.

    Args:
        smoothing_radius: β, the distance in differences of values; None: 1e-6 max(1, ‖x0‖∞), with √ε instead of 1e-6 in
            dtypes narrower than float64.
        smoothness: L, the Lipschitz constant of ∇f; None: it is measured.
        strong_convexity: μ_f, the strong convexity of f; None: 0.
        prox_strong_convexity: μ_ψ, the strong convexity of ψ; None: the prox's ``strong_convexity``, or 0.
        **common: see ``Optimizer``.
    """

    rescale_by_default = False
    follows_estimates = True
    state: SmoothState

    def __init__(
        self,
        x0: Any,
        *,
        smoothing_radius: float | None = None,
        smoothness: float | None = None,
        strong_convexity: float | None = None,
        prox_strong_convexity: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.smoothing_radius = optional(positive, "smoothing_radius", smoothing_radius)
        self.smoothness = optional(positive, "smoothness", smoothness)
        self.strong_convexity = optional(nonnegative, "strong_convexity", strong_convexity)
        self.prox_strong_convexity = optional(nonnegative, "prox_strong_convexity", prox_strong_convexity)
        super().__init__(x0, **common)

    def _start(self) -> None:
        of_prox = getattr(self.prox, "strong_convexity", 0.0)
        self.mu_f = self.strong_convexity or 0.0
        self.mu_psi = float(of_prox if self.prox_strong_convexity is None else self.prox_strong_convexity)
        self.current_smoothing_radius = self.smoothing_radius or default_radius(self._x)

    @property
    def _estimator(self) -> GradientEstimator:
        """The estimator g = d (f(x + βu) − f(x))/β u of a step, with u uniform on the sphere (Katyusha eq. 2)."""
        return FiniteDifferences(1, self.current_smoothing_radius, distribution="sphere", seed=self.seed)

    def _method_queries(self) -> int:
        return self._estimator.queries_needed(self.dimension)

    @abstractmethod
    def _method_ask(self) -> Batch: ...

    @abstractmethod
    def _method_tell(self, batch: Batch, values: Tensor) -> None: ...

    def _restart(self) -> None:
        """Begins anew at the iterate; a method whose state depends on earlier iterates overrides this."""
        return

    @property
    def _guarded(self) -> bool:
        """Whether L is measured and guarded."""
        return self.smoothness is None

    @property
    def _probing(self) -> bool:
        return self.state.smoothness == 0.0

    def _probe(self) -> tuple[Tensor, float, float]:
        """The point where curvature is measured, the radius h, and the scale max(1, ‖x‖∞)."""
        scale = max(1.0, float(self._x.abs().max()))
        h = math.sqrt(self.current_smoothing_radius * (scale if self.smoothing_radius is None else 1.0))
        if self.domain is None or not self.domain.confine:
            return self._x, h, scale
        lower, upper = self.domain.search_lower, self.domain.search_upper
        inner = torch.minimum(torch.maximum(self._x, lower + h), upper - h)
        return torch.where(upper - lower > 2.0 * h, inner, (lower + upper) / 2), h, scale

    def _next_queries(self) -> int:
        return 2 * min(PROBES, self.dimension) + 1 if self._probing else self._method_queries()

    def _ask(self) -> Batch:
        if not self._probing:
            return self._method_ask()
        n, (center, h, _) = min(PROBES, self.dimension), self._probe()
        scales = [0.0] + [h] * n + [-h] * n
        rows = [0, *range(n), *range(n)]
        info = {"design": self.iterations == 0}
        return self._directions_batch(rows, scales, distribution="orthonormal", base=center, info=info)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        if self._probing:
            self._take_probe(batch, values)
            return
        if self._guarded and self._exceeds(batch, values):
            self.state.smoothness = min(2.0 * self.state.smoothness, LARGEST)
            self.retreat()
            self._restart()
            return
        self._method_tell(batch, values)

    def _take_probe(self, batch: Batch, values: Tensor) -> None:
        plus, minus = values[1:].chunk(2)
        _, h, scale = self._probe()
        L = measured_smoothness(float(values[0]), plus, minus, h, scale)
        if math.isnan(L):
            self.retreat()
            return
        self.state.smoothness = L
        total = self._composite(batch, values)
        if bool((feasible := total[total.isfinite()]).numel()):
            self.state.ceiling = float(feasible.max())
        self._restart()

    def _base_failed(self, values: Tensor) -> bool:
        """Whether f at the base point failed."""
        failed = bool(values[0].isnan())
        self.state.failed = (self.state.failed + 1) % 3 if failed else 0
        if failed and self.state.failed == 0:
            self.retreat()
            self._restart()
        return failed

    def _exceeds(self, batch: Batch, values: Tensor) -> bool:
        """Whether f + ψ exceeds the ceiling, by more than rounding, at all successful points."""
        total = self._composite(batch, values)
        total = total[total.isfinite()]
        margin = 1e-9 if self._x.dtype == torch.float64 else 1e-3
        return bool(total.numel()) and float(total.min()) > self.state.ceiling + margin * abs(self.state.ceiling)

    def _step(self, g: Tensor, step: float) -> None:
        """x ← prox_{step·ψ}(x − step g), unless that is not finite."""
        z = self._x - step * g
        if bool(z.isfinite().all()):
            self._x = self._prox(z, step)

    def _coordinates(self, axes: Sequence[int] | None = None) -> CoordinateDifferences:
        """The estimator of eq. 6: D_j(x) = (f(x + βe_j) − f(x))/β for some coordinates, or all."""
        return CoordinateDifferences(self.current_smoothing_radius, axes=axes)

    def _batch(self, estimator: GradientEstimator, x: Tensor) -> Batch:
        return estimator.batch(x, self.iterations, number=self.iterations, domain=self.domain)
