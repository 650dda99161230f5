"""GLD: gradientless descent, one random point at each of several radii."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, optional, positive


def halved_radii(widest: float, narrowest: float) -> list[float]:
    """Returns the radii R, R/2, R/4, … from R = ``widest`` to the first that does not exceed ``narrowest``."""
    return [widest * 2.0**-k for k in range(math.ceil(math.log2(widest / narrowest) - 1e-12) + 1)]


@dataclass
class GLDState:
    """The value of f + ψ at the iterate; inf while no query has succeeded."""

    value: float = math.inf


class GLD(Optimizer):
    """Gradientless descent (Golovin et al., 2020, Alg. 1), as ZoRD's baseline (Sec. 5).

    A step queries x + rₖuₖ for each radius rₖ = 2⁻ᵏR, k = 0, 1, …, until rₖ ≤ r, with directions uₖ uniform on the unit
    sphere. It moves to the best of these points and x, without estimating a gradient. The first batch also queries x0.
    Before they are queried, points are projected onto the box and ψ's domain. If the budget is too small for all radii,
    the largest are used. ZoRD gives no radii.

    **When to use it.** For rugged functions such as a controller's return (experiment ``problems-real``), for values
    that can only be compared, and for integers.

    **Cost.** About log₂(R/r) + 1 queries per step and O(d) time for each.

    Args:
        widest: R, in search coordinates; the default is half the side of a rescaled box.
        narrowest: r; None: 2Rd/(q + 5d) after q queries.
        **common: see ``Optimizer``.
    """

    method = "gld"
    takes_integers = True
    state: GLDState

    def __init__(
        self, x0: Any, *, widest: float = 5.0, narrowest: float | None = None, **common: Unpack[CommonOptions]
    ) -> None:
        self.widest, self.narrowest = positive("widest", widest), optional(positive, "narrowest", narrowest)
        if narrowest is not None and narrowest > widest:
            raise ValueError(f"narrowest must not exceed widest, got narrowest={narrowest}, widest={widest}")
        super().__init__(x0, **common)

    def _start(self) -> None:
        self.state = GLDState()

    @property
    def radii(self) -> list[float]:
        """The radii of the next step, in descending order."""
        d = self.dimension
        return halved_radii(self.widest, self.narrowest or 2.0 * self.widest * d / (self.queries + 5.0 * d))

    def _next_queries(self) -> int:
        first = int(self.iterations == 0)
        return max(1 + first, min(len(self.radii) + first, self.remaining))

    def _ask(self) -> Batch:
        first = int(self.iterations == 0)
        n = self._next_queries() - first
        scales = [0.0] * first + self.radii[:n]
        batch = self._directions_batch([0] * first + list(range(n)), scales, distribution="sphere")
        if self.prox is None:
            return batch
        vanishing = torch.finfo(self._x.dtype).eps
        points = [self._prox(batch.search_point(i), vanishing) for i in range(len(batch))]
        return self._points_batch(torch.stack(points))

    def _tell(self, batch: Batch, values: Tensor) -> None:
        totals = self._composite(batch, values).nan_to_num(nan=math.inf, posinf=math.inf)
        i = int(totals.argmin())
        if float(totals[i]) < self.state.value:
            self.state.value, z = float(totals[i]), batch.search_point(i)
            box = self.domain
            self._x = z if box is None else torch.clamp(z, box.search_lower, box.search_upper)
