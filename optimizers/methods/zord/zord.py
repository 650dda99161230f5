"""ZoRD: descent by the gradients of a Gaussian process conditioned on the trajectory of queries."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.methods.zord.active_queries import candidate_cloud, most_informative, uncertain_candidates
from optimizers.methods.zord.trajectory_descent import DescentOptions, TrajectoryDescent
from optimizers.methods.zord.virtual_steps import virtual_steps
from optimizers.options import check_integer, positive, positive_integer
from surrogates import DerivedGP
from surrogates.kernels.makers import NOISE_FLOOR
from surrogates.window.uncertainty import Uncertainty, UncertaintyRule
from surrogates.window.window_surrogate import Hyperparameters, WindowSurrogate

Active = Literal["gated", "random"]
Gate = Literal["gain", "probability"]

LENGTHSCALE_FLOOR = 0.04
"""Least lengthscale that a fit may take, in widths of the search times √d: 0.4 √d in [0, 10]^d."""

LENGTHSCALE_CEILING = 4.0
"""The largest one, in the same units."""

GATE = 0.9
"""Probability of descent under which a query goes to learning, with ``gate="probability"``."""

GATE_LIMIT = 5
"""Such queries in a row, at most."""


class ZoRD(TrajectoryDescent):
    """Zeroth-order optimization with trajectory-informed derivative estimation (Shu et al., ICLR 2023, Alg. 2).

    An iteration, from x (``start``), with the derived GP of all queries so far:

    1. Virtual steps (``virtual_steps``): z ← prox(rule(z, ∇μ(z))), along the mean gradient of the GP that is
       conditioned on the ``window`` queries nearest to z. The first is always taken; then one as long as
       ``uncertainty`` at z is under its threshold (``UncertaintyRule``), ``max_virtual_steps`` at most.
    2. f is queried at z and joins the trajectory: one query an iteration.

    The GP (``WindowSurrogate``): Matérn 5/2, isotropic, values standardised in each window. With no ``lengthscale`` ℓ,
    outputscale and noise maximise the marginal likelihood of the window every ``refit_every`` queries, ℓ at least 0.04
    √d widths of the search (of the box; ten times the design's radius where there is none), and less in proportion once
    the window is narrower than the design. ℓ and the cap go together: for o = 1 and ℓ ≥ 2.2 the prior's 5/(3ℓ²) is
    under ZoRD's c = 0.35, and only the cap ends the steps.

    With one observation ∇μ(x₀) = 0: the paper's Alg. 2 cannot start, and begins here with an initial design of counted
    queries or a given history. Where the paper is silent: the start of an iteration is the best point (its code's;
    ``"last"`` is Alg. 2's), the rule's state is kept from iteration to iteration and reset after 10 without gain (its
    code's), thresholds are in standardised units. Where we differ: the rule's steps are halved then (``step_decay``),
    or a descent with steps of one length, as Adam's, would not end at the minimum; and ``uncertainty`` is
    ``"kept_information"`` by default, as the spectral norm cannot fall in more dimensions than queries.

    ``active="gated"``: a query goes where ``GradientInformation`` about ∇f(x) is largest among candidates about x, as
    long as a gate is open, at most five in a row. The drop in trace I that a query brings is what it is expected to add
    to ‖∇μ(x)‖², whatever its value will be: E‖∇μ'‖² + tr ∂σ'² = ‖∇μ‖² + tr ∂σ². To first order a step gains in
    proportion to ‖∇μ‖², k queries and a step (‖∇μ‖² + kI)/(k + 1) a query, which rises with k where I > ‖∇μ‖²: there
    ``gate="gain"`` is open. It has no number to choose. Candidates lie on both sides of x along eight directions in
    which ∇f(x) is least known (``uncertain_candidates``), at four distances from the design's radius to ℓ/2, projected
    onto the box. ``gate="probability"`` is open while −∇μ(x) is a descent direction with a probability under 0.9, and
    has 100 candidates in random directions: the rule that was tried first. ``active="random"`` has the same gates and
    takes one of the random points unseen: the control.

    A plain ``torch.optim.SGD`` rule without prox runs in coefficients of the queries where the window is the whole
    trajectory (or ``reselect=False``) and much smaller than d, and the box is out of reach: the same iterates up to
    rounding, at a cost that does not depend on d.

    log₁₀ of our gap less that of RGF's, 200 queries, ten seeds that nothing was tuned on (``beyond-zord``): −0.46 (95%
    interval −0.53 to −0.39) on an ill-conditioned quadratic in 50 dimensions, −0.13 on a noisy one; at d = 20 −1.4 on
    Rosenbrock, and from best points of TuRBO −0.23 on Ackley and −0.1 on Levy. Against the paper's rule it is −0.14,
    +0.11, −0.79, +0.08 (−0.09 to 0.28) and −0.01: no gain on noise and on Ackley. The gate gains −0.27 (−0.35 to −0.21)
    on the ill-conditioned quadratic, −0.57 (−0.68 to −0.36) on the noisy one, −0.36 (−0.99 to −0.11) on Rosenbrock and
    −0.63 (−0.89 to −0.44) on Ackley; nothing on Levy. As it does not gain everywhere it has to be asked for. Random
    queries nearby do nearly as well with noise, and not elsewhere. Mean rank of nine: gated 2.0, COBYQA 2.4, ungated
    4.2, the paper's rule 4.8, CMA-ES 5.8, TuRBO 6.7, RGF 7.1, least squares 8.8.
    Smooth functions in few dimensions are served by a shorter window: 4 d.

    Memory of N queries: at most 3 N d numbers (storage doubles when it is full, with the old beside the new) and four
    windows; saving a state takes N d more, and restoring one as much again.

    Example::

        minimize(f, x0, "zord", bounds=bounds, max_queries=200)
        ZoRD(x0, bounds=bounds, max_queries=200, lengthscale=3.0, uncertainty="spectral_norm")   # the paper's

    Args:
        x0: initial point, shape ``d``.
        uncertainty: what ends virtual steps.
        threshold: its threshold; None: the measure's default.
        max_virtual_steps: the cap.
        lengthscale: a fixed ℓ in search units, with outputscale 1 and noise ``nugget``; None: fitted.
        refit_every: queries from one fit to the next.
        window: most queries that the GP holds (ZoRD: 150; 300 for reinforcement learning).
        nugget: noise variance over the outputscale with a fixed ℓ, at least 1e-8; where fits begin.
        noise: noise variance of a value of f, in its squared units, where it is known.
        reselect: take the nearest queries anew along virtual steps, and not only where they begin.
        active: ``"gated"``, ``"random"`` or None.
        gate: what opens it: ``"gain"`` or ``"probability"``.
        **common: see ``TrajectoryDescent`` and ``Optimizer``.
    """

    method = "zord"

    def __init__(
        self,
        x0: Any,
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
        active: Active | None = None,
        gate: Gate = "gain",
        **common: Unpack[DescentOptions],
    ) -> None:
        self._rule = UncertaintyRule.of(uncertainty, threshold)
        self.uncertainty, self.threshold = uncertainty, self._rule.threshold
        self.max_virtual_steps = positive_integer("max_virtual_steps", max_virtual_steps)
        self.lengthscale = None if lengthscale is None else positive("lengthscale", lengthscale)
        self.refit_every = positive_integer("refit_every", refit_every)
        check_integer("window", window, 2)
        self.window, self.nugget = int(window), positive("nugget", nugget)
        if nugget < NOISE_FLOOR:
            raise ValueError(f"nugget must be at least {NOISE_FLOOR:g}, got {nugget}")
        self.noise = None if noise is None else positive("noise", noise)
        if active not in ("gated", "random", None):
            raise ValueError(f"active must be 'gated', 'random' or None, got {active!r}")
        if gate not in ("gain", "probability"):
            raise ValueError(f"gate must be 'gain' or 'probability', got {gate!r}")
        self.reselect, self.active, self.gate = bool(reselect), active, gate
        super().__init__(x0, **common)

    def model(self) -> DerivedGP:
        """The surrogate about the current iterate as a ``DerivedGP`` in user units, for BoTorch's acquisitions too.

        Its values are f's (minimized). It is a new model at every call, of the nearest ``window`` queries.

        Raises:
            RuntimeError: before two queries have succeeded.
        """
        if len(self.trajectory) < 2:
            raise RuntimeError(f"a model needs two successful queries, there are {len(self.trajectory)}")
        box = self.domain
        units = None if box is None or box.origin is None or box.unit is None else (box.origin, box.unit)
        return self.surrogate.model(self._x, units)

    @property
    def surrogate(self) -> WindowSurrogate:
        """The Gaussian process of virtual steps, in search coordinates."""
        assert isinstance(self.state.memory, WindowSurrogate)
        return self.state.memory

    def _memory(self) -> WindowSurrogate:
        unit = math.sqrt(self.dimension) * self.width
        self._lengthscales = (LENGTHSCALE_FLOOR * unit, LENGTHSCALE_CEILING * unit)
        hyperparameters = Hyperparameters(self.lengthscale or self._lengthscales[0], 1.0, self.nugget)
        return WindowSurrogate(self._x, self.window, hyperparameters, noise=self.noise)

    def _advance(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        surrogate, state = self.surrogate, self.state
        if self.lengthscale is None and surrogate.fit_is_due(self.refit_every):
            surrogate.fit(x, self._lengthscales, reach=self.local_radius)
        if self.active is not None:
            query = self._query_to_learn(x) if state.active < GATE_LIMIT else None
            if query is not None:
                state.active, state.steps = state.active + 1, 0
                return x, query
            state.active = 0
        z, state.steps = virtual_steps(
            surrogate,
            x,
            state.rule,
            self._prox,
            self._rule,
            most=self._most_steps(self.max_virtual_steps),
            reselect=self.reselect,
            margin=self._margin(x),
        )
        return z, None

    def _query_to_learn(self, x: Tensor) -> Tensor | None:
        """The point to query where that is worth more than a step."""
        surrogate = self.surrogate
        surrogate.begin(x)
        posterior = surrogate.gradient_posterior(x)
        if self.gate == "probability" and float(posterior.descent_probability()) >= GATE:
            return None
        where = (self.local_radius, 0.5 * surrogate.hyperparameters.lengthscale, self.seed, self.iterations + 1)
        cloud = self._new(candidate_cloud(x, *where), x)
        aimed = self.gate == "gain"
        candidates = self._new(uncertain_candidates(surrogate.conditioning, x, *where), x) if aimed else cloud
        if len(cloud) == 0 or len(candidates) == 0:
            return None
        if self.active == "random" and not aimed:
            return self._one_of(cloud)
        query, information = most_informative(surrogate.model(x), x, candidates)
        slope = float(posterior.mean.square().sum()) * surrogate.scale * surrogate.scale if aimed else 0.0
        if not information > slope:
            return None
        return query if self.active == "gated" else self._one_of(cloud)

    def _new(self, candidates: Tensor, x: Tensor) -> Tensor:
        """Candidates within the box, those that are x left out."""
        candidates = self._confined(candidates)
        return candidates[(candidates != x).any(dim=1)]

    def _one_of(self, cloud: Tensor) -> Tensor:
        """Another one, at another distance, in each iteration."""
        return cloud[self.iterations % len(cloud)]

    def _margin(self, x: Tensor) -> float | None:
        """The distance within which steps from x need no projection; None where a prox may act anywhere."""
        if self.prox is not None:
            return None
        if self.domain is None:
            return math.inf
        return float(torch.minimum(x - self.domain.search_lower, self.domain.search_upper - x).min())
