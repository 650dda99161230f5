"""ZoRD: descent along gradients of a Gaussian process conditioned on the trajectory of queries.

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
"""Bounds of a fitted lengthscale, in search widths times √d: from 0.4 √d in [0, 10]^d."""

MOST_ACTIVE = 5
"""The largest number of active queries in a row."""


class ZoRD(TrajectoryDescent[WindowSurrogate]):
    """Zeroth-order optimization with trajectory-informed derivative estimation (Shu et al., ICLR 2023, Alg. 2).

    An iteration of Alg. 2, with the derived GP of all queries so far:

    - line 3: it starts at x, the last iterate x_{t−1} in the paper, the best point by default (``start``);
    - lines 4 to 6, ``virtual_steps``: z ← prox(rule(z, ∇μ(z))), along the mean gradient of the GP conditioned on the
      ``window`` queries nearest to z. The first step is always taken; further ones as long as the rule ``uncertainty``
      allows them at z (``UncertaintyRule``), at most ``max_virtual_steps``;
    - lines 7 and 8: f is queried at z, one query per iteration, and the value joins the trajectory.

    The GP (``WindowSurrogate``) has an isotropic Matern 5/2 kernel and standardises the values of each window. Without
    a given ``lengthscale``, the lengthscale ℓ, outputscale and noise maximize the window's marginal likelihood every
    ``refit_every`` queries, with ℓ between 0.04 √d and 4 √d search widths (the width of the box, or ten times the
    design's radius without one); the lower bound falls in proportion when the window is narrower than the design. A
    given ℓ may depend on the cap: for o = 1 and ℓ ≥ 2.2 the prior's 5/(3ℓ²) is below ZoRD's c = 0.35, so that only the
    cap ends the steps.

    **Where the paper is silent.** With one observation ∇μ(x₀) = 0, so that Alg. 2 cannot start; here it begins with an
    initial design of counted queries or a given history. The rule's state is kept between iterations and reset after 10
    iterations without gain, as in the authors' code. Thresholds are in standardised units.

    **Where we differ.** Iterations start at the best point, as in the authors' code; line 3 has x_{t−1}. Virtual steps
    have a cap, unlike in Sec. 3.2. The step sizes are halved at a reset (``step_decay``), because steps of constant
    length, such as Adam's, would not reach the minimum. The default ``uncertainty`` is ``"kept_information"``, because
    the spectral norm cannot fall in more dimensions than queries. ``active="gated"`` spends queries on ∇f(x) as long as
    one is expected to gain more than a step (``gainful_query``), at most five in a row, along eight directions of large
    gradient uncertainty and at four distances from the design's radius to ℓ/2. The experiment ``beyond-zord`` shows the
    effect of both.

    **Several queries at a time.** Beside an iterate z (with ``queries_per_step`` or idle workers) f is queried where it
    is expected to reduce the trace of ∇f(z)'s covariance most, given the window and all pending points
    (``informative_batch``): at z ± δu for eight or more orthonormal directions u of large gradient uncertainty and the
    same four distances δ. The experiment ``beyond-parallel`` compares q queries at a time with one, and with random
    points.

    The window's small algebra, the prox and the update rule run on one thread, without changing torch's setting
    (``surrogates.threads``).

    Memory for N queries is at most 3 N d numbers (storage is doubled when full) and four windows; saving a state takes
    N d more, and so does restoring it.

    Example::

        minimize(f, x0, "zord", bounds=bounds, max_queries=200)
        ZoRD(x0, bounds=bounds, max_queries=200, lengthscale=3.0, uncertainty="spectral_norm")   # the paper's rule

    **When to use it.** For 10 to 100 variables and a few hundred queries, with ``active="gated"``: on curved,
    ill-conditioned or noisy functions, and where f fails beyond a curved boundary. Also for thousands of variables, and
    to repeat the paper. Otherwise the default method ends lower (experiment ``problems-bbob``).

    **Cost.** One query per iteration, or more with active queries. With n queries in the window, a virtual step takes
    O(n² + nd) time, selecting the window O(Nd), and a fit O(n³ + n²d).

    Args:
        uncertainty: the measure that ends virtual steps, see ``UncertaintyRule``.
        threshold: its threshold; None: the measure's default.
        max_virtual_steps: the largest number of virtual steps of an iteration.
        lengthscale, window, nugget, noise: options of the GP, see ``LocalSurrogateOptions``. If ``lengthscale`` is
            None, it is fitted.
        refit_every: queries between fits.
        reselect: whether the nearest queries are selected anew at every virtual step, or only at the first.
        active: ``"gated"`` or None.
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
            points = batch_candidates(conditioning, z, most, nearest, farthest, seed, self.number)
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
        """The surrogate around the current iterate as a new ``DerivedGP`` in user units, e.g. for acquisitions.

        It models f, which is minimized, from the nearest ``window`` queries.

        Raises:
            RuntimeError: before two queries have succeeded.
        """
        if len(self.trajectory) < LEAST_DATA:
            raise RuntimeError(f"a model needs two successful queries, there are {len(self.trajectory)}")
        box = self.domain
        units = None if box is None or box.unit is None else (box.origin, box.unit)
        return self.surrogate.model(self._x, units)
