"""RGF: random gradient-free descent along orthonormal directions."""

from __future__ import annotations

from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.methods.estimated_descent import EstimatedDescent


class RGF(EstimatedDescent):
    """Random gradient-free method (Nesterov and Spokoiny, 2017), as ZoRD's baseline (Sec. 5, Appx. C.1).

    It queries f(x) and f(x + λuᵢ), i = 1…n, and steps along

        g = (d/n) Σᵢ (f(x + λuᵢ) − f(x))/λ · uᵢ

    by a first-order rule, followed by the prox. The uᵢ are Haar-distributed and orthonormal in blocks of at most d, so
    that E g = ∇f(x) + O(λ²). (ZoRD's eq. 2 omits the factor d/n.) For n = d, g is the forward-difference gradient in a
    rotated basis. ``EstimatedDescent`` has the options and the treatment of failed queries.

    **When to use it.** For cheap queries in any number of variables, or as a baseline. For expensive queries, the
    default method reaches lower values (experiment ``problems-bbob``).

    **Cost.** n + 1 queries and O(n²d) time per step; memory for n + 1 points.
    """

    method = "rgf"

    @property
    def _estimator(self) -> FiniteDifferences:
        n = min(self.directions, max(1, self.remaining - 1))
        return FiniteDifferences(n, self.smoothing_radius, distribution="orthonormal", seed=self.seed)
