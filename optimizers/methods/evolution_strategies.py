"""ES: evolution strategies, a search gradient from the ranks of perturbed values."""

from __future__ import annotations

from typing import Any, Unpack

from optimizers.estimators.search_gradient import SearchGradient, Shaping
from optimizers.first_order import UpdateRule, adam
from optimizers.methods.estimated_descent import EstimatedDescent
from optimizers.options import CommonOptions


class ES(EstimatedDescent):
    """Evolution strategies (Salimans et al., 2017), as ZoRD's baseline (Sec. 5, Appx. C).

    At x it queries f(x + λuᵢ), i = 1…n, uᵢ standard normal, and steps along

        g = 1/(nλ) Σᵢ sᵢ uᵢ

    by a first-order rule, then the prox; sᵢ are the centred ranks of the values, so that the step does not
    change under increasing transformations of f. With ``antithetic`` the uᵢ come in pairs ±u. Failed queries: see
    ``EstimatedDescent``; fewer than two values left are no estimate.

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
        self.directions, self.smoothing_radius = directions, smoothing_radius
        self.antithetic, self.shaping = bool(antithetic), shaping
        self.query_iterate, self.update_rule = query_iterate, update_rule
        super().__init__(x0, **common)

    @property
    def _estimator(self) -> SearchGradient:
        own = self.query_iterate
        own = self.prox is not None or not self.confine_queries if own is None else bool(own)
        most = max(2, self.remaining - own)
        n = min(self.directions, most - most % 2 if self.antithetic else most)
        return SearchGradient(n, self.smoothing_radius, self.shaping, self.antithetic, own, self.seed)
