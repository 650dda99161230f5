"""ES: evolution strategies, a search gradient from the ranks of perturbed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.first_order import FirstOrder, UpdateRule, adam
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, positive, positive_integer

Shaping = Literal["centred_ranks", "none"]


def shape_values(values: Tensor, shaping: Shaping) -> Tensor:
    """The fitness sᵢ of values that are all finite, shape ``n``.

    ``"centred_ranks"``: rank/(n − 1) − 1/2, from −1/2 for the least value to 1/2 for the largest, ties
    sharing their mean rank (0 where n = 1); ``"none"``: the values themselves.
    """
    if shaping == "none":
        return values
    ordered = values.sort().values
    below, through = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    ranks = (below + through - 1).to(values.dtype) / 2.0
    return ranks / max(len(values) - 1, 1) - (0.5 if len(values) > 1 else 0.0)


@dataclass
class ESState:
    """The first-order rule's state; the iterate is the base's."""

    rule: FirstOrder


class ES(Optimizer):
    """Evolution strategies (Salimans et al., 2017), as ZoRD's baseline (Sec. 5, Appx. C).

    At x it queries f(x + λuᵢ), i = 1…n, uᵢ standard normal, and steps along

        g = 1/(nλ) Σᵢ sᵢ uᵢ

    by a first-order rule, then the prox; sᵢ are the centred ranks of the values, so that the step does not
    change under increasing transformations of f. With ``antithetic`` the uᵢ come in pairs ±u. Failed
    queries leave the sum and n, with their pair; where all fail the iterate returns to the best point.

    Args:
        x0: initial point, shape ``d``.
        directions: n, queries a step; even with ``antithetic``.
        smoothing_radius: λ, smoothing radius.
        antithetic: n/2 pairs of opposite directions.
        shaping: ``"centred_ranks"``, or ``"none"`` for the raw values.
        query_iterate: query f(x) too, which the estimate does not need; None: only where queried points may
            be infeasible (a prox, or ``confine_queries=False``) and none might count as best otherwise.
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``.
    """

    method = "es"
    state: ESState

    def __init__(
        self,
        x0: Any,
        *,
        directions: int = 10,
        smoothing_radius: float = 0.01,
        antithetic: bool = False,
        shaping: Shaping = "centred_ranks",
        query_iterate: bool | None = None,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.directions = positive_integer("directions", directions)
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        if antithetic and directions % 2:
            raise ValueError(f"antithetic=True takes directions in pairs, got directions={directions}")
        if directions < 2:
            raise ValueError("directions must be at least 2: one value alone has no direction of descent")
        if shaping not in ("centred_ranks", "none"):
            raise ValueError(f"shaping must be 'centred_ranks' or 'none', got {shaping!r}")
        self.antithetic, self.shaping = bool(antithetic), shaping
        self.query_iterate, self.update_rule = query_iterate, update_rule
        super().__init__(x0, **common)

    def _start(self) -> None:
        if self.query_iterate is None:
            self.query_iterate = self.prox is not None or not self.confine_queries
        self.state = ESState(FirstOrder(self.update_rule, self._x))

    def _next_queries(self) -> int:
        own = int(bool(self.query_iterate))
        n = max(2, min(self.directions, self.remaining - own))
        return own + (n - n % 2 if self.antithetic else n)

    def _ask(self) -> Batch:
        own = int(bool(self.query_iterate))
        n = self._next_queries() - own
        scales = torch.full((own + n,), self.smoothing_radius, dtype=torch.float64)
        scales[:own] = 0.0
        if self.antithetic:
            scales[own + 1 :: 2] = -self.smoothing_radius
            rows = [i // 2 for i in range(n)]
        else:
            rows = list(range(n))
        return self._directions_batch([0] * own + rows, scales)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        moved = batch.scales.to(values.device) != 0.0
        used = moved & ~values.isnan()
        if self.antithetic:
            own = len(moved) - int(moved.sum())
            used[own:] = used[own:].view(-1, 2).all(dim=1).repeat_interleave(2)
        n = int(used.sum())
        if n == 0:
            self.retreat()
            return
        coefficients = torch.zeros_like(values)
        coefficients[used] = shape_values(values[used], self.shaping) / (n * self.smoothing_radius)
        self._descend(self.state.rule, batch.combine(coefficients * batch.scales.to(values.device).sign()))
