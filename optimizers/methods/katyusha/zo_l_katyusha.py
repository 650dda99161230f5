"""ZO-L-Katyusha: loopless Katyusha on coordinate differences, for composite convex problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_choice, check_integer
from optimizers.methods.katyusha.parameters import KatyushaParameters, coordinate_batch, full_batch, general_convex
from optimizers.methods.katyusha.smooth_method import LARGEST, SmoothMethod, SmoothOptions, SmoothState

Option = Literal["I", "II"]
ProxStep = Callable[[Tensor, float], Tensor]


def couple(parameters: KatyushaParameters, z: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Line 2: x = θ₁z + θ₂w + (1 − θ₁ − θ₂)y, shape ``batch x d``."""
    q = parameters
    return q.theta1 * z + q.theta2 * w + (1.0 - q.theta1 - q.theta2) * y


def drawn_axes(generator: np.random.Generator, d: int, size: int) -> list[int]:
    """S: so many coordinates, uniform without replacement."""
    if size == 1:
        return [int(generator.integers(d))]
    return generator.choice(d, size, replace=False, shuffle=False).tolist()


def variance_reduced(reference: Tensor, axes: Tensor, derivatives: Tensor) -> Tensor:
    """Eq. 4: g = (d/|S|) Σ_{i∈S} (D_i(x) − D_i(w)) e_i + Σ_i D_i(w) e_i; unbiased for Σ_i D_i(x) e_i.

    Alg. 1, line 4, prints the middle term, (1/|S|) Σ D_i(w) e_i, without its factor d; eq. 5, its first, has one. The
    mean of g is then D(x) + (1 − 1/d) D(w). On a box that has the same minimizer, with a strongly convex ψ another one.

    Args:
        reference: D(w), shape ``batch x d``.
        axes: S, distinct coordinates, shape ``batch x |S|``.
        derivatives: D_i(x), i in S, shape ``batch x |S|``.
    """
    factor = reference.shape[-1] / axes.shape[-1]
    return reference.scatter_add(-1, axes, factor * (derivatives - reference.gather(-1, axes)))


def reduced(reference: Tensor, batch: Batch, derivatives: Tensor) -> Tensor | None:
    """Eq. 4 over the axes of a batch whose query did not fail; None where all did."""
    axes, kept = torch.tensor([j for _, j in batch.addresses[1:]], device=reference.device), ~derivatives.isnan()
    return variance_reduced(reference, axes[kept], derivatives[kept]) if bool(kept.any()) else None


def z_step(parameters: KatyushaParameters, prox: ProxStep, x: Tensor, z: Tensor, g: Tensor) -> Tensor:
    """argmin over u of ψ(u) + g·u + (M/2η)‖u − z‖² + (μ_f/2)‖u − x‖².

    That is prox_{s ψ}((z + ησ x)/(1 + ησ) − s g) with σ = μ_f/M and s = η/(M(1 + ησ)).
    """
    q = parameters
    pull = q.eta * q.mu_f / q.M
    step = q.eta / (q.M * (1.0 + pull))
    return prox((z + pull * x) / (1.0 + pull) - step * g, step)


def y_step(
    parameters: KatyushaParameters, option: Option, prox: ProxStep, x: Tensor, z: Tensor, new_z: Tensor, g: Tensor
) -> Tensor:
    """Option I: x + θ₁(z⁺ − z). Option II: prox_{s ψ}(x − s g) with s = ηθ₁/M, which is 1/(3M)."""
    if option == "I":
        return x + parameters.theta1 * (new_z - z)
    step = parameters.eta * parameters.theta1 / parameters.M
    return prox(x - step * g, step)


@dataclass
class KatyushaState(SmoothState):
    """Beside L and its guard, Alg. 1's points; y is the base's iterate.

    Attributes:
        z: the mirror point, shape ``d``.
        w: the reference point; for the full batch x of the last iteration.
        w_value: f + ψ at w.
        reference: D(w), zero where a query failed; None while w's queries are to be made. Full batch: D(x).
        wanted: the point to become w with the next reference.
        epoch: references renewed since the last restart (full batch: iterations).
        curvature: the least (D(w⁺) − D(w))·(w⁺ − w)/‖w⁺ − w‖² since the last restart; inf before.
        rises: renewals in a row at which f + ψ rose.
    """

    z: Tensor
    w: Tensor
    w_value: float
    reference: Tensor | None
    wanted: Tensor | None
    epoch: int
    curvature: float
    rises: int


class ZOLKatyusha(SmoothMethod):
    """Zeroth-order loopless Katyusha (Zhang and Tang 2024, Alg. 1) for min f + ψ, f smooth and ψ by its prox.

    From y = z = w = x0, with D_i(x) = (f(x + βe_i) − f(x))/β (eq. 6; eq. 3 prints 2β):

        x = θ₁z + θ₂w + (1 − θ₁ − θ₂)y
        g = (d/|S|) Σ_{i∈S} (D_i(x) − D_i(w)) e_i + Σ_i D_i(w) e_i         (eq. 4)
        z⁺ = argmin_u ψ(u) + g·u + (M/2η)‖u − z‖² + (μ_f/2)‖u − x‖²
        y⁺ = x + θ₁(z⁺ − z)  (option I)   or   prox_{ψ/3M}(x − g/(3M))  (option II)
        w⁺ = y with probability p, else w

    S is a set of |S| coordinates, uniform without replacement. An iteration queries |S| + 1 points, a
    reference d + 1, so |S| + 1 + p(d + 1) on average, and d + 1 once at the start. The full batch
    (``coordinates="full"``) queries d + 1 an iteration, with neither reference nor w.

    **What is the paper's.** Lines 1, 2, 4, 5 and 7, and line 6 with ``option="I"``; eq. 4 in line 4's place, and
    θ₁ ≤ 1/2, without which line 2 is no convex combination. The paper's options I and II are two ways to draw S
    (line 3), coordinates and directions from the sphere; here S is always of coordinates, and ``option="II"`` is
    loopless Katyusha's y-step (Kovalev, Horváth and Richtárik 2020; Qian, Qu and Richtárik 2019), which the paper does
    not have. Which parameters are the paper's: ``optimizers.methods.katyusha.parameters``.

    μ = μ_f + μ_ψ > 0 converges linearly to a floor of order β². Where μ = 0, or is not known,
    ``general_convex`` sets θ₁: Katyusha^ns's schedule over the references renewed, held up by the curvature
    met on the way, with a restart of the momentum where the proximal gradient at a new reference points
    along w⁺ − w; no rate is promised. A measured L grows to every ‖D(w⁺) − D(w)‖/‖w⁺ − w‖ seen, and
    doubles where f + ψ rises twice in a row in the first renewals after a restart.

    A failed derivative counts as 0 in the reference, which leaves eq. 4 unbiased, and leaves S in a step;
    a reference whose f(w) failed is not taken.

    Args:
        x0: initial point, shape ``d``.
        option: the y-step, ``"I"`` or ``"II"``, as above; not the paper's options.
        coordinates: |S|, 1 to d, or ``"full"``.
        parameters: overrides what follows from L, μ_f and μ_ψ; p included.
        **common: see ``SmoothMethod`` and ``Optimizer``.
    """

    method = "zo_l_katyusha"
    state: KatyushaState

    def __init__(
        self,
        x0: Any,
        *,
        option: Option = "I",
        coordinates: int | Literal["full"] = 1,
        parameters: KatyushaParameters | None = None,
        **common: Unpack[SmoothOptions],
    ) -> None:
        check_choice("option", option, get_args(Option))
        if coordinates != "full":
            check_integer("coordinates", coordinates, 1)
        if parameters is not None and not isinstance(parameters, KatyushaParameters):
            raise TypeError(f"parameters must be KatyushaParameters, got {type(parameters).__name__}")
        self.option, self.coordinates, self.parameters = option, coordinates, parameters
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        d = self.dimension
        if self.coordinates != "full" and self.coordinates > d:
            raise ValueError(f"coordinates must be at most d = {d}, got {self.coordinates}")
        self._size = d if self.coordinates == "full" else self.coordinates
        known = self.smoothness or float(self.parameters is not None)
        x = self._x
        self.state = KatyushaState(known, math.inf, x, x, math.inf, None, x, 0, math.inf, 0)
        self._refresh()

    @property
    def _full(self) -> bool:
        return self.coordinates == "full"

    @property
    def _guarded(self) -> bool:
        return self.smoothness is None and self.parameters is None

    def _refresh(self) -> None:
        """The parameters for the state's smoothness and epoch."""
        L, mu_f, mu_psi = self.state.smoothness, self.mu_f, self.mu_psi
        if self.parameters is not None:
            self._current = self.parameters
        elif L == 0.0:
            return
        elif mu_f + mu_psi == 0.0:
            met = self.state.curvature
            met = met if 0.0 < met < math.inf else 0.0
            self._current = general_convex(L, self.dimension, self._size, self.state.epoch, met)
        elif self._full:
            self._current = full_batch(L, mu_f, mu_psi)
        else:
            self._current = coordinate_batch(L, mu_f, mu_psi, self.dimension, self._size)

    @property
    def current_parameters(self) -> KatyushaParameters | None:
        """The parameters of the next iteration; None while L is measured."""
        return None if self._probing else self._current

    def _load_state(self, state: Any) -> None:
        super()._load_state(state)
        self._refresh()

    def _restart(self) -> None:
        x, state = self._x, self.state
        state.z, state.w, state.w_value, state.reference, state.wanted = x, x, math.inf, None, x
        state.epoch, state.curvature, state.rises = 0, math.inf, 0
        self._refresh()

    def _method_queries(self) -> int:
        return self.dimension + 1 if self._full or self.state.wanted is not None else self._size + 1

    def _method_ask(self) -> Batch:
        state = self.state
        if self._full:
            return self._batch(self._coordinates(), couple(self._current, state.z, self._x, self._x))
        if state.wanted is not None:
            return self._batch(self._coordinates(), state.wanted)
        generator = self._generator()
        axes = drawn_axes(generator, self.dimension, self._size)
        renew = bool(generator.random() < self._current.probability)
        batch = self._batch(self._coordinates(axes), couple(self._current, state.z, state.w, self._x))
        return replace(batch, info={"renew": renew})

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        if self._base_failed(values):
            if self.state.reference is not None:
                self.state.wanted = None
            return
        state, y = self.state, self._x
        derivatives = self._coordinates().derivatives(batch, values).to(y)
        if self._full or state.wanted is not None:
            reference = derivatives.nan_to_num(nan=0.0)
            self._learn(batch.base, reference, self._total(batch, values))
            if self._full:
                self._move(batch.base, reference)
            else:
                state.wanted = None
            return
        assert state.reference is not None
        if (g := reduced(state.reference, batch, derivatives)) is not None:
            self._move(batch.base, g)
        if batch.info["renew"]:
            state.wanted = y

    def _move(self, x: Tensor, g: Tensor) -> None:
        """The z- and y-steps; none where they would not stay finite."""
        state, q = self.state, self._current
        z = z_step(q, self._finite_prox, x, state.z, g)
        y = y_step(q, self.option, self._finite_prox, x, state.z, z, g)
        if bool((z.isfinite() & y.isfinite()).all()):
            state.z, self._x = z, y

    def _finite_prox(self, z: Tensor, step: float) -> Tensor:
        return self._prox(z, step) if bool(z.isfinite().all()) else z

    def _total(self, batch: Batch, values: Tensor) -> float:
        return float(self._composite(batch, values)[0]) if self._guarded else 0.0

    def _learn(self, w: Tensor, reference: Tensor, total: float) -> None:
        """Take a reference; where L or μ is not known, learn from it and the last one."""
        state, before = self.state, self.state.reference
        if before is not None:
            self._measure(w - state.w, reference - before)
            if self._current.mu == 0.0:
                self._schedule(w, reference)
            if self._guarded:
                state.rises = state.rises + 1 if total > state.w_value and state.epoch <= 2 else 0
        if state.rises == 2:
            state.smoothness, state.rises = min(2.0 * state.smoothness, LARGEST), 0
        state.w, state.reference, state.w_value = w, reference, total
        self._refresh()

    def _measure(self, moved: Tensor, change: Tensor) -> None:
        """L and curvature, from the change of the reference over a distance."""
        state, length = self.state, float(torch.linalg.vector_norm(moved))
        if length <= self.current_smoothing_radius:
            return
        secant = float(torch.linalg.vector_norm(change)) / length
        if self._guarded and state.smoothness < secant < LARGEST:
            state.smoothness = secant
        state.curvature = min(state.curvature, float(change @ moved) / length**2)

    def _schedule(self, w: Tensor, reference: Tensor) -> None:
        """The next epoch, or a restart of the momentum where w moved uphill."""
        state, step = self.state, 1.0 / (3.0 * self._current.M)
        gradient = w - self._finite_prox(w - step * reference, step)
        if float(gradient @ (w - state.w)) > 0.0:
            state.z, state.epoch, state.curvature = self._x, 0, math.inf
        else:
            state.epoch += 1
