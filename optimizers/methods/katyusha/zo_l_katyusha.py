"""ZO-L-Katyusha: zeroth-order loopless Katyusha, for composite convex problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_choice, check_integer
from optimizers.estimators.estimator import GradientEstimator, confined
from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.methods.katyusha.parameters import KatyushaParameters, Option, Rule, by_rule, general_convex
from optimizers.methods.katyusha.smooth_method import LARGEST, SmoothMethod, SmoothState, check_size

ProxStep = Callable[[Tensor, float], Tensor]


def couple(parameters: KatyushaParameters, z: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Computes x = θz + ρw + (1 − ρ − θ)y (Alg. 1, line 2, with ρ = 1/2), shape ``batch x d``; ρ is w's weight."""
    theta, weight = parameters.theta, parameters.reference_weight
    return theta * z + weight * w + (1.0 - weight - theta) * y


def drawn_axes(generator: np.random.Generator, d: int, size: int) -> list[int]:
    """Draws ``size`` of the d coordinates without replacement (Alg. 1, line 3, option I)."""
    if size == 1:
        return [int(generator.integers(d))]
    return generator.choice(d, size, replace=False, shuffle=False).tolist()


def variance_reduced(reference: Tensor, axes: Tensor, derivatives: Tensor) -> Tensor:
    """Computes the gradient estimate g = (d/|S|) Σ_{i∈S} (D_i(x) − D_i(w)) e_i + D(w) of mean D(x) (eq. 4, option I).

    Alg. 1, line 4, prints the term (1/|S|) Σ D_i(w) e_i without the factor d of eq. 4. The mean of g would then be
    D(x) + (1 − 1/d) D(w), with which the method does not converge to the minimum if ψ is strongly convex.

    Args:
        reference: the differences D(w) at the reference point, shape ``batch x d``.
        axes: the indices S, all distinct, shape ``batch x |S|``.
        derivatives: the differences D_i(x) for i in S, shape ``batch x |S|``.
    """
    factor = reference.shape[-1] / axes.shape[-1]
    return reference.scatter_add(-1, axes, factor * (derivatives - reference.gather(-1, axes)))


def reduced(reference: Tensor, batch: Batch, derivatives: Tensor) -> Tensor | None:
    """Computes ``variance_reduced`` from the coordinates of a batch that did not fail; None if all failed."""
    axes, kept = torch.tensor([j for _, j in batch.addresses[1:]], device=reference.device), ~derivatives.isnan()
    return variance_reduced(reference, axes[kept], derivatives[kept]) if bool(kept.any()) else None


def z_step(q: KatyushaParameters, mu_f: float, prox: ProxStep, x: Tensor, z: Tensor, g: Tensor) -> Tensor:
    """Minimizes ψ(u) + g·u + (M/2η)‖u − z‖² + (μ_f/2)‖u − x‖² over u (Alg. 1, line 5).

    The minimizer is prox_{sψ}((ησx + z − (η/M)g)/(1 + ησ)) with σ = μ_f/M and s = η/((1 + ησ)M).
    """
    pull = q.eta * mu_f / q.M
    return prox((pull * x + z - q.eta / q.M * g) / (1.0 + pull), q.eta / ((1.0 + pull) * q.M))


@dataclass
class KatyushaState(SmoothState):
    """The state with Alg. 1's points; ``Optimizer`` stores y.

    Attributes:
        z: the point z, shape ``d``.
        w: the reference point w of lines 2 and 7, shape ``d``.
        reference: the differences D at ``reference_point``, 0 for failed queries; None before they are queried.
        reference_point: w, or for the full batch the x of the last iteration.
        reference_value: f + ψ at ``reference_point``.
        wanted: the point that becomes w after D has been queried there, or None. The full batch does not use it.
        epoch: the number of references (full batch: of iterations) since the last restart.
        curvature: the least (D(a) − D(b))·(a − b)/‖a − b‖² of successive reference points a, b since the last restart;
            inf before the second.
        rises: the number of consecutive references at which f + ψ rose.
    """

    z: Tensor
    w: Tensor
    reference: Tensor | None
    reference_point: Tensor
    reference_value: float
    wanted: Tensor | None
    epoch: int
    curvature: float
    rises: int


class ZOLKatyusha(SmoothMethod):
    """Zeroth-order loopless Katyusha (Zhang and Tang 2024, Alg. 1), which minimizes f + ψ for a smooth convex f.

    It starts from y⁰ = z⁰ = w⁰ = x0. With D(x) = Σ_i (f(x + βe_i) − f(x))/β e_i (eq. 6), iteration k is

        2  xᵏ = θzᵏ + ½wᵏ + (½ − θ)yᵏ
        3  S: option I, |S| of e_1 … e_d, uniform without replacement; option II, |S| independent draws from the
           unit sphere
        4  gᵏ = (1/|S|) Σ_{u∈S} d ((f(xᵏ + βu) − f(xᵏ))/β − ⟨D(wᵏ), u⟩) u + D(wᵏ)
        5  zᵏ⁺¹ = prox_{sψ}((ησxᵏ + zᵏ − (η/M)gᵏ)/(1 + ησ)),   s = η/((1 + ησ)M), σ = μ_f/M, η = 1/(3θ)
        6  yᵏ⁺¹ = xᵏ + θ(zᵏ⁺¹ − zᵏ)
        7  wᵏ⁺¹ = yᵏ with probability p, else wᵏ

    Line 4 follows eq. 4; the paper's print of the line lacks a factor d (``variance_reduced``). The full batch (option
    I with |S| = d) has gᵏ = D(xᵏ), and does not query D(w).

    **M, θ and p** follow from L and μ = μ_f + μ_ψ by the rule ``parameters``:

    * ``"corollary"``: Corollary 1, 2 or 3 as printed, for |S| ≤ √d or |S| = d;
    * ``"theorem_1"``: Theorem 1's M, for every |S|, with the corollaries' θ and p;
    * ``"balanced"`` (ours): Theorem 1's M with p = |S|/d, the default;
    * ``"without_reference"`` (ours): Corollary 3 without the weight of w in line 2, the default of the full batch.

    For μ > 0 the method converges linearly to a floor of order β² (Theorem 1). The paper does not treat μ = 0. If μ is
    0 or unknown, ``general_convex`` chooses θ by the schedule of Katyusha^ns and the curvature measured so far, and the
    momentum restarts if the proximal gradient at a new reference point w⁺ points along w⁺ − w. If ``smoothness`` is
    None, L is raised to ‖D(w⁺) − D(w)‖/‖w⁺ − w‖ if this is larger, and doubles if f + ψ rises at two references in a
    row soon after a restart.

    A failed difference counts as 0 in D(w), and is left out of S in a step. A reference point at which f fails is not
    used.

    **When to use it.** For a smooth convex function, such as a sum of losses, with a constraint or another prox, and
    thousands of cheap queries. It converges to rounding errors, where descent along two-point estimates stalls at the
    constraint (experiments ``katyusha-fig1``, ``katyusha-fig2``). For few queries use the default method.

    **Cost.** |S| + 1 + p(d + 1) queries per iteration on average (full batch: d + 1), and O(d) time for each.

    Args:
        option: how S is drawn, ``"I"`` or ``"II"``.
        batch_size: |S|, 1 to d; ``"full"`` is option I with all d coordinates.
        parameters: the name of a rule, or ``KatyushaParameters``; None: the default rule.
        **common: see ``SmoothMethod`` and ``Optimizer``.

    Attributes:
        current_parameters: the parameters of the next iteration, once L is known.

    Raises:
        ValueError: for ``batch_size="full"`` with option II; for a rule that does not cover this batch size; for the
            name of a rule if μ = 0.
    """

    method = "zo_l_katyusha"
    option_hints: ClassVar[dict[str, str]] = {"coordinates": "batch_size="}
    state: KatyushaState
    current_parameters: KatyushaParameters

    def __init__(
        self,
        x0: Any,
        *,
        option: Option = "I",
        batch_size: int | Literal["full"] = 1,
        parameters: KatyushaParameters | Rule | None = None,
        **common: Any,
    ) -> None:
        check_choice("option", option, get_args(Option))
        if batch_size != "full":
            check_integer("batch_size", batch_size, 1)
        elif option == "II":
            raise ValueError('batch_size="full" needs option="I", got option="II", which draws random directions')
        if isinstance(parameters, str):
            check_choice("parameters", parameters, get_args(Rule))
        elif parameters is not None and not isinstance(parameters, KatyushaParameters):
            raise TypeError(f"parameters must be KatyushaParameters or a rule's name, got {type(parameters).__name__}")
        self.option, self.batch_size, self.parameters = option, batch_size, parameters
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        d = self.dimension
        self._size = check_size("batch_size", d if self.batch_size == "full" else self.batch_size, d)
        self._full = self.option == "I" and self._size == d
        self._rule = self.parameters or ("without_reference" if self._full else "balanced")
        if isinstance(self.parameters, str):
            if self.mu_f + self.mu_psi == 0.0:
                raise ValueError(f"parameters={self.parameters!r} needs strong_convexity or prox_strong_convexity")
            by_rule(self.parameters, self.option, self.smoothness or 1.0, self.mu_f + self.mu_psi, d, self._size)
        known = self.smoothness or float(isinstance(self._rule, KatyushaParameters))
        x = self._x
        self.state = KatyushaState(known, math.inf, x, x, None, x, math.inf, x, 0, math.inf, 0)
        self._refresh()

    @property
    def _guarded(self) -> bool:
        return self.smoothness is None and not isinstance(self._rule, KatyushaParameters)

    def _refresh(self) -> None:
        """Updates the parameters for the state's smoothness and epoch."""
        L, mu, d = self.state.smoothness, self.mu_f + self.mu_psi, self.dimension
        if isinstance(self._rule, KatyushaParameters):
            self.current_parameters = self._rule
        elif L == 0.0:
            return
        elif mu == 0.0:
            met = self.state.curvature
            met = met if 0.0 < met < math.inf else 0.0
            self.current_parameters = general_convex(self.option, L, d, self._size, self.state.epoch, met)
        else:
            self.current_parameters = by_rule(self._rule, self.option, L, mu, d, self._size)

    def _load_state(self, state: Any) -> None:
        super()._load_state(state)
        self._refresh()

    def _restart(self) -> None:
        x, state = self._x, self.state
        state.z, state.w, state.wanted = x, x, x
        state.reference, state.reference_point, state.reference_value = None, x, math.inf
        state.epoch, state.curvature, state.rises = 0, math.inf, 0
        self._refresh()

    @property
    def _referring(self) -> bool:
        """Whether the next batch queries D at the new reference point."""
        return not self._full and self.state.wanted is not None

    def _method_queries(self) -> int:
        return self.dimension + 1 if self._full or self._referring else self._size + 1

    @property
    def _sphere(self) -> FiniteDifferences:
        """Eq. 5 along |S| draws from the sphere."""
        return FiniteDifferences(self._size, self.current_smoothing_radius, distribution="sphere", seed=self.seed)

    def _method_ask(self) -> Batch:
        state, generator = self.state, self._generator()
        if self._referring:
            assert state.wanted is not None
            return self._batch(self._coordinates(), state.wanted)
        estimator: GradientEstimator
        if self._full:  # line 3
            estimator = self._coordinates()
        elif self.option == "I":
            estimator = self._coordinates(drawn_axes(generator, self.dimension, self._size))
        else:
            estimator = self._sphere
        batch = self._batch(estimator, couple(self.current_parameters, state.z, state.w, self._x))  # line 2
        return replace(batch, info={"renew": bool(generator.random() < self.current_parameters.probability)})

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        state, y, x = self.state, self._x, batch.base
        if self._base_failed(values):
            if state.reference is not None:
                state.wanted = None
            return
        if self._referring:
            self._learn(x, self._all_derivatives(batch, values), self._total(batch, values))
            state.w, state.wanted = x, None
            return
        if (g := self._gradient(batch, values)) is not None:
            if self._full:
                self._learn(x, g, self._total(batch, values))
            self._move(x, g)
        if batch.info["renew"]:  # line 7
            if self._full:
                state.w = y
            else:
                state.wanted = y

    def _all_derivatives(self, batch: Batch, values: Tensor) -> Tensor:
        """D at the base of a batch of d + 1 points, 0 for failed queries."""
        return self._coordinates().derivatives(batch, values).to(self._x).nan_to_num(nan=0.0)

    def _gradient(self, batch: Batch, values: Tensor) -> Tensor | None:
        """Line 4 over the queries that did not fail; None if all failed."""
        if self._full:
            return self._all_derivatives(batch, values)
        reference = self.state.reference
        assert reference is not None
        if self.option == "I":
            return reduced(reference, batch, self._coordinates().derivatives(batch, values).to(reference))
        points = confined(replace(batch, domain=None).points(), batch.domain)  # in search coordinates
        linear = ((points - batch.base) @ reference).to(values)
        residual = self._sphere.from_values(batch, values - linear)
        return None if residual is None else reference + residual.gradient

    def _move(self, x: Tensor, g: Tensor) -> None:
        """Lines 5 and 6, unless their result is not finite."""
        state, q = self.state, self.current_parameters
        z = z_step(q, self.mu_f, self._finite_prox, x, state.z, g)  # line 5
        y = x + q.theta * (z - state.z)  # line 6
        if bool((z.isfinite() & y.isfinite()).all()):
            state.z, self._x = z, y

    def _finite_prox(self, z: Tensor, step: float) -> Tensor:
        return self._prox(z, step) if bool(z.isfinite().all()) else z

    def _total(self, batch: Batch, values: Tensor) -> float:
        return float(self._composite(batch, values)[0]) if self._guarded else 0.0

    def _learn(self, w: Tensor, reference: Tensor, total: float) -> None:
        """Takes a reference; if L or μ is unknown, learns from it and the previous one."""
        state, before = self.state, self.state.reference
        if before is not None:
            self._measure(w - state.reference_point, reference - before)
            if self.mu_f + self.mu_psi == 0.0 and not isinstance(self._rule, KatyushaParameters):
                self._schedule(w, reference)
            if self._guarded:
                state.rises = state.rises + 1 if total > state.reference_value and state.epoch <= 2 else 0
        if state.rises == 2:
            state.smoothness, state.rises = min(2.0 * state.smoothness, LARGEST), 0
        state.reference_point, state.reference, state.reference_value = w, reference, total
        self._refresh()

    def _measure(self, moved: Tensor, change: Tensor) -> None:
        """Updates L and curvature from the change of the reference over a distance."""
        state, length = self.state, float(torch.linalg.vector_norm(moved))
        if length <= self.current_smoothing_radius:
            return
        secant = float(torch.linalg.vector_norm(change)) / length
        if self._guarded and state.smoothness < secant < LARGEST:
            state.smoothness = secant
        state.curvature = min(state.curvature, float(change @ moved) / length**2)

    def _schedule(self, w: Tensor, reference: Tensor) -> None:
        """Starts the next epoch, or restarts the momentum if w moved uphill."""
        state, step = self.state, 1.0 / (3.0 * self.current_parameters.M)
        gradient = w - self._finite_prox(w - step * reference, step)
        if float(gradient @ (w - state.reference_point)) > 0.0:
            state.z, state.epoch, state.curvature = self._x, 0, math.inf
        else:
            state.epoch += 1
