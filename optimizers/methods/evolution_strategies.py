"""ES: evolution strategies with a search gradient from ranked values."""

from __future__ import annotations

from typing import Any

from optimizers.core.options import check_boolean, check_choice
from optimizers.directions.directions import DISTRIBUTIONS
from optimizers.estimators.search_gradient import SearchGradient, Shaping
from optimizers.methods.estimated_descent import EstimatedDescent


class ES(EstimatedDescent):
    """Evolution strategies (Salimans et al., 2017), as ZoRD's baseline (Sec. 5.4, Appx. C.5).

    It queries f(x + λuᵢ), i = 1…n, and steps along

        g = c/(nλ) Σᵢ sᵢ uᵢ,   c = 1/E[u_j²]

    by a first-order rule, followed by the prox. The sᵢ are the centred ranks of the values, so that steps are invariant
    under increasing transformations of f. An estimate needs at least two successful queries. The first iteration also
    queries x0, so that the result is never worse than x0. If queried points may be infeasible (with a prox or
    ``confine_queries=False``), every iteration also queries f(x), because x0 might otherwise remain the only feasible
    point. Salimans et al. use standard normal uᵢ. ZoRD uses orthonormal unit vectors with RGF's n and λ (Appx. C.1).

    **When to use it.** For values that are piecewise constant or rugged, such as a classifier's metric (experiment
    ``zord-fig4``), because steps depend only on the ranks of values at distances of about λ.

    **Cost.** n queries per step, one more in the first, and O(nd) time; O(n²d) for orthonormal directions.

    Args:
        antithetic: whether the uᵢ are n/2 pairs ±u; n must then be even.
        distribution: the distribution of the uᵢ, such as ``"normal"`` or ``"orthonormal"`` (``Directions``).
        shaping: ``"centred_ranks"``, or ``"none"``, with which the sᵢ are the values.
        smoothing_radius: λ, in search coordinates.
        **options: see ``EstimatedDescent``, also for failed queries.
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
        smoothing_radius: float = 0.1,
        **options: Any,
    ) -> None:
        self.antithetic, self.shaping = check_boolean("antithetic", antithetic), shaping
        self.distribution = check_choice("distribution", distribution, DISTRIBUTIONS)
        super().__init__(x0, smoothing_radius=smoothing_radius, **options)

    @property
    def _estimator(self) -> SearchGradient:
        own = self.prox is not None or not self.confine_queries or self.iterations == 0
        most = max(2, self.remaining - own)
        n = min(self.directions, most - most % 2 if self.antithetic else most)
        how: Any = {"shaping": self.shaping, "antithetic": self.antithetic, "distribution": self.distribution}
        return SearchGradient(n, self.smoothing_radius, query_center=own, seed=self.seed, **how)
