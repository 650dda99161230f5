"""ZO-SVRG: proximal descent with variance reduction by a reference gradient, without acceleration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import positive, positive_integer
from optimizers.methods.katyusha.smooth_method import SmoothMethod, SmoothState, check_size
from optimizers.methods.katyusha.zo_l_katyusha import drawn_axes, reduced


@dataclass
class SVRGState(SmoothState):
    """The state of the present epoch; ``Optimizer`` stores x.

    Attributes:
        reference: the differences D(w) at the reference point, 0 for failed queries; None before the first batch of an
            epoch.
        inner: the number of steps since the reference.
    """

    reference: Tensor | None
    inner: int


class ZOSVRG(SmoothMethod):
    """Zeroth-order proximal SVRG on coordinates (baseline of Katyusha's Sec. 5, after Ji et al. 2019).

    An epoch begins at w = x with d + 1 queries for the differences D_i(w) = (f(w + βe_i) − f(w))/β. Then it makes m
    steps of |S| + 1 queries each, in which S is a random set of coordinates:

        g = (d/|S|) Σ_{i∈S} (D_i(x) − D_i(w)) e_i + Σ_i D_i(w) e_i,    x ← prox_{ηψ}(x − ηg)

    Katyusha's paper gives neither η nor m. Here η = c|S|/(dL) with the factor c = ``step_factor``, and m = ⌈d/|S|⌉, so
    that references cost about as many queries as steps. A failed difference counts as 0 in D(w), and is left out of S
    in a step.

    **When to use it.** As a simpler alternative to ``ZOLKatyusha``, which is a little faster with tuned steps
    (experiment ``katyusha-fig1``).

    **Cost.** (d + 1) + m(|S| + 1) queries per epoch, about 2d + m, and O(d) time for each.

    Args:
        batch_size: |S|, 1 to d.
        step_factor: multiplies η.
        **common: see ``SmoothMethod`` and ``Optimizer``; strong convexity is not used.
    """

    method = "zo_svrg"
    option_hints: ClassVar[dict[str, str]] = {"coordinates": "batch_size="}
    state: SVRGState

    def __init__(
        self,
        x0: Any,
        *,
        batch_size: int = 1,
        step_factor: float = 1.0,
        **common: Any,
    ) -> None:
        self.batch_size = positive_integer("batch_size", batch_size)
        self.step_factor = positive("step_factor", step_factor)
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        d = self.dimension
        check_size("batch_size", self.batch_size, d)
        self._length = math.ceil(d / self.batch_size)
        self.state = SVRGState(self.smoothness or 0.0, math.inf, None, 0)

    @property
    def step_size(self) -> float:
        """The step size η = ``step_factor`` · |S|/(dL)."""
        return self.step_factor * self.batch_size / (self.dimension * self.state.smoothness)

    def _restart(self) -> None:
        self.state.reference, self.state.inner = None, 0

    def _method_queries(self) -> int:
        return (self.dimension if self.state.reference is None else self.batch_size) + 1

    def _method_ask(self) -> Batch:
        if self.state.reference is None:
            return self._batch(self._coordinates(), self._x)
        axes = drawn_axes(self._generator(), self.dimension, self.batch_size)
        return self._batch(self._coordinates(axes), self._x)

    def _method_tell(self, batch: Batch, values: Tensor) -> None:
        state = self.state
        if self._base_failed(values):
            return
        derivatives = self._coordinates().derivatives(batch, values).to(self._x)
        if state.reference is None:
            state.reference = derivatives.nan_to_num(nan=0.0)
            return
        if (g := reduced(state.reference, batch, derivatives)) is not None:
            self._step(g, self.step_size)
        state.inner += 1
        if state.inner == self._length:
            self._restart()
