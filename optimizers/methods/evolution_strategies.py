"""ES: evolution strategies, a search gradient from the ranks of perturbed values."""

from __future__ import annotations

from typing import Any

from optimizers.core.options import check_boolean, check_choice, optional
from optimizers.directions.directions import DISTRIBUTIONS
from optimizers.estimators.search_gradient import SearchGradient, Shaping
from optimizers.methods.estimated_descent import EstimatedDescent


class ES(EstimatedDescent):
    """Evolution strategies (Salimans et al., 2017), as ZoRD's baseline (Sec. 5.4, Appx. C.5).

    At x it queries f(x + λuᵢ), i = 1…n, and steps along

        g = c/(nλ) Σᵢ sᵢ uᵢ,   c = 1/E[u_j²]

    by a first-order rule, then the prox; sᵢ are the centred ranks of the values, so that the step does not
    change under increasing transformations of f. With ``antithetic`` the uᵢ come in pairs ±u. Fewer than two
    values that did not fail are no estimate. The first iteration queries x0 too, so that no result is worse than x0.
    Salimans et al. have standard normal uᵢ, ZoRD the n, λ and orthonormal unit vectors of RGF (Appx. C.1), which
    reach 1/√d as far with the same λ.

    Args:
        x0: initial point, shape ``d``.
        antithetic: n/2 pairs of opposite directions; n must be even.
        distribution: of u, one of ``Directions``': ``"orthonormal"`` is ZoRD's.
        shaping: ``"centred_ranks"``, or ``"none"`` for the raw values.
        query_iterate: query f(x) in every iteration, not in the first alone, which the estimate does not need;
            None: only where queried points may be infeasible (a prox, or ``confine_queries=False``) and none but
            x0 might count as best otherwise.
        smoothing_radius: λ, in search units; wider than that of differences, as ranks need no small one.
        **options: see ``EstimatedDescent``, for failed queries too.
    """

    method = "es"
    default_directions = 10

    def __init__(
        self,
        x0: Any,
        *,
        antithetic: bool = False,
        distribution: str = "normal",
        shaping: Shaping = "centred_ranks",
        query_iterate: bool | None = None,
        smoothing_radius: float = 0.1,
        **options: Any,
    ) -> None:
        self.antithetic, self.shaping = check_boolean("antithetic", antithetic), shaping
        self.query_iterate = optional(check_boolean, "query_iterate", query_iterate)
        self.distribution = check_choice("distribution", distribution, DISTRIBUTIONS)
        super().__init__(x0, smoothing_radius=smoothing_radius, **options)

    @property
    def _estimator(self) -> SearchGradient:
        own = self.query_iterate
        own = self.prox is not None or not self.confine_queries if own is None else own
        own = own or self.iterations == 0
        most = max(2, self.remaining - own)
        n = min(self.directions, most - most % 2 if self.antithetic else most)
        return SearchGradient(
            n, self.smoothing_radius, self.shaping, self.antithetic, self.distribution, own, self.seed
        )
