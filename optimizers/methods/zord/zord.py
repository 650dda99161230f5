"""ZoRD: descent along the mean gradient of a Gaussian process that is conditioned on all queries.

References:
    ZoRD: Shu et al., Zeroth-order optimization with trajectory-informed derivative estimation, ICLR 2023, Alg. 2,
        eqs. 3 to 7, Sec. 3.2, Appx. C.1.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from optimizers.core.options import check_boolean, check_choice, optional, positive_integer
from optimizers.core.result import Estimate
from optimizers.estimators.estimator import confined
from optimizers.methods.zord.active_queries import gainful_query, uncertain_candidates
from optimizers.methods.zord.informative_batch import batch_candidates, covariance_given, most_informative_set
from optimizers.methods.zord.trajectory_descent import TrajectoryDescent
from optimizers.methods.zord.virtual_steps import virtual_steps
from surrogates import DerivedGP
from surrogates.threads import small_algebra
from surrogates.window.local_options import LEAST_DATA, LocalSurrogateOptions
from surrogates.window.uncertainty import Uncertainty, UncertaintyRule
from surrogates.window.window_surrogate import WindowSurrogate

LENGTHSCALES = (0.04, 4.0)
"""The bounds of a fitted lengthscale, in units of √d times the width of the box."""

MOST_ACTIVE = 5
"""The largest number of consecutive active queries."""


class ZoRD(TrajectoryDescent[WindowSurrogate]):
    """Zeroth-order optimization with trajectory-informed derivative estimation (Shu et al., ICLR 2023, Alg. 2).

    An iteration descends along the mean gradient ∇μ of a Gaussian process of all queries, and then queries f once:

    - line 3 of Alg. 2: it starts from the best point or, with ``start="last"`` as in the paper, the last iterate;
    - lines 4 to 6: it makes virtual steps z ← prox(rule(z, ∇μ(z))), where ∇μ is conditioned on the ``window`` queries
      nearest to z. The first step is always made; further steps, up to ``max_virtual_steps``, are made as long as the
      rule ``uncertainty`` allows them at z (``UncertaintyRule``);
    - lines 7 and 8: it queries f at z, and adds the value to the trajectory.

    **Model.** The process (``WindowSurrogate``) has an isotropic Matern 5/2 kernel and standardises the values of each
    window. If ``lengthscale`` is None, lengthscale ℓ, outputscale and noise maximize the window's marginal likelihood
    every ``refit_every`` queries, with ℓ between 0.04 √d and 4 √d times the width of the box (without a finite box: ten
    times ``radius``). The lower bound falls in proportion when the window is narrower than the initial design. With a
    given ℓ ≥ 2.2 and outputscale 1, the prior variance of a derivative, 5/(3ℓ²), is below ZoRD's threshold 0.35, so
    that only ``max_virtual_steps`` ends the steps.

    **Differences from the paper.** After one query ∇μ(x₀) = 0, so that Alg. 2 cannot start; here a run begins with an
    initial design of counted queries, or with a history. As in the authors' code, iterations start from the best point,
    and the state of the first-order rule is kept between iterations and reset after 10 iterations without improvement.
    At a reset the step sizes are also halved. The number of virtual steps is limited. Thresholds are for standardised
    values. The default ``uncertainty`` is ``"kept_information"``, because the paper's spectral norm cannot fall in more
    dimensions than queries.

    **Active queries** (``active="gated"``) improve the estimate of ∇f(x) as long as a query is expected to gain more
    than a step (``gainful_query``), at most five in a row. They lie along eight directions of large gradient
    uncertainty, at four distances from ``radius`` to ℓ/2. The experiment ``beyond-zord`` shows the effect.

    **Several queries at a time.** With ``queries_per_step`` > 1, and for idle workers, f is also queried at points z ±
    δu that together reduce trace cov ∇f(z) most, given all pending points. The directions u are orthonormal and of
    large gradient uncertainty; the four distances δ are the same as for active queries. The experiment
    ``beyond-parallel`` shows the effect.

    Memory for N queries is at most 3 N d numbers and four windows; saving or restoring a state takes N d more.

    Example::

        minimize(f, x0, "zord", bounds=bounds, max_queries=200)
        ZoRD(x0, bounds=bounds, max_queries=200, lengthscale=3.0, uncertainty="spectral_norm")   # the paper's rule

    **When to use it.** For 10 to 100 variables and a few hundred queries, with ``active="gated"``, on curved,
    ill-conditioned or noisy functions, or if f fails beyond a curved boundary. Also for thousands of variables, and to
    repeat the paper. Otherwise the default method reaches lower values (experiment ``problems-bbob``).

    **Cost.** One query per iteration, or more with active queries. With n queries in the window and N in all, a virtual
    step takes O(n² + nd) time, the selection of a window O(Nd), and a fit O(n³ + n²d).

    Args:
        uncertainty: the measure of uncertainty that ends virtual steps, a name of ``UncertaintyRule``.
        threshold: the threshold of the measure; None: the measure's default.
        max_virtual_steps: the largest number of virtual steps in an iteration.
        lengthscale, window, nugget, noise: options of the Gaussian process, see ``LocalSurrogateOptions``. If
            ``lengthscale`` is None, it is fitted.
        refit_every: the number of queries from one fit to the next.
        reselect: whether the nearest queries are selected anew at every virtual step, or only at the first.
        active: ``"gated"`` for active queries, or None.
        **common: see ``TrajectoryDescent`` and ``Optimizer``.
    """

    method = "zord"

    def __init__(
        self,
        x0: Any = None,
        *,
        uncertainty: Uncertainty = "kept_information",
        threshold: float | None = None,
        max_virtual_steps: int = 10,
        lengthscale: float | None = None,
        refit_every: int = 10,
        window: int = 150,
        nugget: float = 1e-6,
        noise: float | None = None,
        reselect: bool = True,
        active: Literal["gated"] | None = None,
        **common: Any,
    ) -> None:
        self._uncertainty_rule = UncertaintyRule(uncertainty, threshold)
        self.uncertainty, self.threshold = uncertainty, self._uncertainty_rule.threshold
        self._local = LocalSurrogateOptions(window, lengthscale, nugget, noise)
        self.window, self.lengthscale, self.nugget, self.noise = window, lengthscale, nugget, noise
        self.max_virtual_steps = positive_integer("max_virtual_steps", max_virtual_steps)
        self.refit_every = positive_integer("refit_every", refit_every)
        self.reselect = check_boolean("reselect", reselect)
        self.active = optional(check_choice, "active", active, ("gated",))
        super().__init__(x0, **common)

    def _start(self) -> None:
        super()._start()
        unit = math.sqrt(self.dimension) * self.width
        self._lengthscales = (LENGTHSCALES[0] * unit, LENGTHSCALES[1] * unit)
        self._begin(self._local.surrogate(self._x, self._lengthscales[0]))

    # Algorithm 2. Line 2 is ``ask`` and ``tell``; ``_tell`` appends the value of line 7's query (line 8) and continues.

    def _iterate(self, x: Tensor) -> None:
        """Iteration t of Alg. 2, from x_{t,0} = x (line 3) to the query point (line 7)."""
        surrogate, state = self.surrogate, self.state
        self._fit_when_due(x)
        query = self._active_query(x) if self.active and state.active < MOST_ACTIVE else None
        if query is not None:
            state.active, state.steps = state.active + 1, 0
            return self._query_next(x, start=x, query=query)
        state.active = 0
        with self._small():
            z, state.steps = virtual_steps(  # lines 4 to 6
                surrogate,
                x,
                state.rule,
                self._prox,
                self._uncertainty_rule,
                most=self._halved_after_failures(self.max_virtual_steps),
                reselect=self.reselect,
                margin=self._margin(x),
            )
        self._query_next(z, start=x)  # line 7

    def _fit_when_due(self, x: Tensor) -> None:
        if self.lengthscale is None and self.surrogate.fit_is_due(self.refit_every):
            with self._small():
                self.surrogate.fit(x, self._lengthscales, reach=self.local_radius)

    def _small(self, columns: int = 1) -> AbstractContextManager[None]:
        """One thread if the window's matrices and their product with ``columns`` columns are small."""
        n = min(self.window, len(self.surrogate))
        return small_algebra(n * max(n * n, n * columns, self.dimension))

    def _active_query(self, x: Tensor) -> Tensor | None:
        """The point of an active query for ∇f(x), shape ``d``; None if a step is worth more."""
        with self._small(self.dimension):
            self.surrogate.begin(x)
            candidates = uncertain_candidates(self.surrogate.conditioning, x, *self._candidates_address())
            return gainful_query(self.surrogate, x, self._new(candidates, x))

    def _candidates_address(self) -> tuple[float, float, int, int]:
        """The least and largest distance of candidates, and seed and step of their directions."""
        return self.local_radius, 0.5 * self.surrogate.hyperparameters.lengthscale, self.seed, self.iterations + 1

    def _new(self, candidates: Tensor, x: Tensor) -> Tensor:
        """The candidates projected onto the box, without those equal to x."""
        candidates = confined(candidates, self.domain)
        return candidates[(candidates != x).any(dim=1)]

    def _informative(self, z: Tensor, pending: Tensor, count: int) -> Tensor:
        """The ``most_informative_set`` of ``batch_candidates``; O(n³ + n² m) for n queries."""
        with self._small(self.dimension):
            conditioning = covariance_given(self.surrogate, z, pending)
            nearest, farthest, seed, _ = self._candidates_address()
            most = count + len(pending)
            points = batch_candidates(conditioning, z, most, nearest, farthest, seed, self.next_id)
            points = self._unasked(points.to(z), pending)
            h = self.surrogate.hyperparameters
            return points[most_informative_set(conditioning, z, points, h.noise_ratio, count)]

    def _margin(self, x: Tensor) -> float | None:
        """The distance within which steps from x need no projection; None with a prox."""
        if self.prox is not None:
            return None
        if self.domain is None:
            return math.inf
        return float(torch.minimum(x - self.domain.search_lower, self.domain.search_upper - x).min())

    def _estimate(self) -> Estimate | None:
        if (
            not self.noise
            or len(self.trajectory) < LEAST_DATA
            or (self.prox is not None and not hasattr(self.prox, "value"))
        ):
            return None
        model = self.model()
        points = self.trajectory.X[self.trajectory.nearest(self._x, self.window)]
        with torch.no_grad():
            posterior = model.posterior(self._to_user(points))
            means, stds = posterior.mean[:, 0].double(), posterior.variance[:, 0].sqrt()
        if self.prox is not None:
            means = means + torch.stack([torch.as_tensor(self.prox.value(x)) for x in points]).to(means)
        least = int(means.argmin())
        return Estimate(points[least], float(means[least]), float(stds[least]))

    def model(self) -> DerivedGP:
        """Returns the model of f around the current iterate as a new ``DerivedGP`` in user units.

        It is conditioned on the ``window`` queries nearest to the iterate.

        Raises:
            RuntimeError: before two queries have succeeded.
        """
        if len(self.trajectory) < LEAST_DATA:
            raise RuntimeError(f"a model needs two successful queries, but {len(self.trajectory)} succeeded so far")
        box = self.domain
        units = None if box is None or box.unit is None else (box.origin, box.unit)
        return self.surrogate.model(self._x, units)
