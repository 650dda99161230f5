"""FZooS: federated descent along trajectory-informed gradient surrogates.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        Alg. 2 (its lines are cited below), eqs. 3-5 and 8, Appx. G.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from federated.core.algorithm import NoReportError
from federated.core.client import Client
from federated.core.latest import LatestVectors
from federated.core.messages import Broadcast, Plain, Report
from federated.core.restoring import check_integers
from federated.core.server import Server
from federated.core.settling import rate_in
from federated.methods.fzoos.client_surrogates import ClientSurrogates
from federated.methods.fzoos.exchange import ClientState, ServerState
from federated.methods.fzoos.gamma import CLIENT_BLOCK, SharedGamma
from federated.methods.fzoos.options import SEARCH_WIDTH, FZooSOptions
from federated.methods.local_descent import renew
from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.first_order import FirstOrder
from surrogates.threads import small_algebra
from surrogates.window.local_options import LEAST_DATA

logger = logging.getLogger(__name__)

RADIUS_FACTOR = 3.0
"""The factor c in the radius of active queries under a settling rate, active_radius · min(1, c η/η₀)."""


@dataclass
class DescentState:
    """State of a client's optimizer, other than the iterate.

    Attributes:
        rule: the first-order rule.
        models: the queries of all rounds, and their surrogates.
        points: the next batch in search coordinates, ``q x d``.
        gammas: γ_t of the round's steps; empty in a phase without steps.
        difference: w − wᵢ of the round, shape ``M``; None without a correction, or if ``correction`` replaces it.
        correction: ∇φ(x_{r−1})ᵀ(w − wᵢ), shape ``d``, if all steps use this correction.
        address: additional seed of the phase's first random candidates.
        planned, told: numbers of planned and of evaluated batches of the phase.
        succeeded: number of successful queries of the phase.
        weights: the last fitted wᵢ, shape ``M``.
        scalars: the last measurements of the γ rule.
        radius: half the side length of the candidates' box around x.
    """

    rule: FirstOrder
    models: ClientSurrogates
    points: Tensor
    gammas: list[float] = field(default_factory=list)
    difference: Tensor | None = None
    correction: Tensor | None = None
    address: int = 0
    planned: int = 0
    told: int = 0
    succeeded: int = 0
    weights: Tensor | None = None
    scalars: list[float] = field(default_factory=list)
    radius: float = 0.0


class SurrogateDescent(Optimizer):
    """A client's queries and computations between two messages: lines 3 to 8 of Alg. 2."""

    method = "surrogate_descent"
    search_width = SEARCH_WIDTH
    state: DescentState

    def __init__(self, algorithm: FZooSOptions, number: int) -> None:
        self.algorithm = algorithm
        super().__init__(algorithm.x0, **(algorithm.common_options(number) | {"rescale": None}))

    def begin(
        self, x: Tensor, w: Tensor | None, gammas: list[float], round_number: int, rate: float | None = None
    ) -> None:
        """Line 3: starts steps with these γ_t at x_{r−1}, in user units, corrected by w − wᵢ if both exist."""
        a, own = self.algorithm, self.state.weights
        self._begin_phase(x, a.address(round_number), len(gammas))
        renew(self.state.rule, a.reset_rule, rate)
        if rate is not None:
            noisy = self.state.models.settle(self._x, rate < 1.0)
            factor = 1.0 if noisy else min(1.0, RADIUS_FACTOR * rate)
            self.state = replace(self.state, radius=a.active_radius * factor)
        difference = None if w is None or own is None else w - own
        self.state = replace(self.state, gammas=gammas, difference=difference, correction=None)
        if a.correction_at == "start":
            self.state = replace(self.state, difference=None, correction=self._correction(self._x))
        self._plan_step()

    def _tell(self, batch: Batch, values: Tensor) -> None:
        assert batch.explicit is not None
        s = self.state
        s.models.local.append(batch.explicit, values)  # line 5: condition ∇μᵢ on the queries
        self.state = replace(s, told=s.told + 1, succeeded=s.succeeded + int(torch.isfinite(values).sum()))
        if s.gammas:
            self._step(s.gammas[s.told])
        if self.busy:
            self._plan_step()
        else:
            self._fit_weights()

    def _step(self, gamma: float) -> None:
        """Line 6: x ← prox(rule(x, ĝ)), ĝ = ∇μᵢ(x) + γ_t (∇μ̂(x') − ∇μ̂ᵢ(x')) (eq. 5)."""
        models, x = self.state.models, self._x
        if len(models.local) < LEAST_DATA:
            return
        g = models.gradient(x)
        if gamma != 0.0 and (correction := self._correction(x)) is not None:
            g = g + gamma * correction
        self._descend(self.state.rule, g)

    def _correction(self, x: Tensor) -> Tensor | None:
        """∇μ̂(x') − ∇μ̂ᵢ(x') = ∇φ(x')ᵀ(w − wᵢ) (eqs. 3 and 4), with x' = x, or x' = x_{r−1} in Fig. 5b."""
        s = self.state
        if s.difference is None:
            return s.correction
        with s.models.small():
            return self.algorithm.features.gradient(x[None], s.difference)[0]

    def query_around(self, x: Tensor, round_number: int) -> None:
        """Lines 7 and 8: queries around x_r, in user units, if active queries are made per round; then fits wᵢ."""
        a, asks = self.algorithm, self.algorithm.active == "round"
        self._begin_phase(x, a.address(round_number) + a.local_steps, int(asks))
        self.state = replace(self.state, gammas=[])
        if asks:
            self.state = replace(self.state, points=self._active_points(a.active_queries))
        else:
            self._fit_weights()

    def _fit_weights(self) -> None:
        """Line 8: fits wᵢ to all queries in the phase that reports it, then makes the γ rule's measurements."""
        a, s = self.algorithm, self.state
        phase = "local" if s.gammas else "surrogate"
        if a.corrects and phase == a.phase_of_weights and len(s.models.local):
            self.state = replace(s, weights=s.models.fitted_weights(self._x))
            if phase == a.rule.phase:
                self.measure([self._x])

    def measure(self, points: list[Tensor], w: Tensor | None = None) -> None:
        """Makes the γ rule's measurements at points in search coordinates; w is the mean of the clients' weights."""
        s, rule = self.state, self.algorithm.rule
        assert isinstance(rule, SharedGamma) and s.weights is not None
        with s.models.small(len(points)):
            self.state = replace(s, scalars=rule.measure(s.models, points, s.weights, w))

    @property
    def busy(self) -> bool:
        """Whether batches of the phase remain."""
        return self.state.told < self.state.planned

    def _start(self) -> None:
        a = self.algorithm
        nugget = a.nugget if a.feature_nugget is None else a.feature_nugget
        models = ClientSurrogates(self._x, a.features, a.local, nugget, a.fourier_window)
        rule, points = FirstOrder(a.update_rule, self._x), self._x[None].clone()
        self.state = DescentState(rule, models, points, radius=a.active_radius)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        for name in ("gammas", "scalars"):
            if not all(isinstance(number, int | float) for number in state[name]):
                raise ValueError(f"{name} must be numbers, got {state[name]!r:.80}")
        super()._load_state(state)

    def _next_queries(self) -> int:
        return len(self.state.points)

    def _ask(self) -> Batch:
        return self._points_batch(self.state.points)

    def _begin_phase(self, x: Tensor, address: int, planned: int) -> None:
        self.move_to(x)
        self.state = replace(self.state, address=address, planned=planned, told=0, succeeded=0)

    def _plan_step(self) -> None:
        """Plans the next batch: the step's starting point and the active queries around it."""
        a = self.algorithm
        about = self._active_points(a.active_queries if a.active == "step" else 0)
        self.state = replace(self.state, points=torch.cat([self._x[None], about]))

    def _active_points(self, count: int) -> Tensor:
        """The most uncertain of random candidates around x (Appx. G), ``count x d``; arbitrary ones without a GP."""
        a, s, x = self.algorithm, self.state, self._x
        first = len(s.models.local) < LEAST_DATA
        count = max(count, a.initial_queries) if first else count
        if count == 0:
            return x.new_empty(0, self.dimension)
        uniform = self._generator(step=s.address + s.told).random((max(a.candidates, count), self.dimension))
        candidates = x + ((2.0 * torch.from_numpy(uniform) - 1.0) * s.radius).to(x)
        if self.domain is not None:
            candidates = torch.clamp(candidates, self.domain.search_lower, self.domain.search_upper)
        return candidates[:count] if first else s.models.most_uncertain(x, candidates, count)


class FZooSClient(Client):
    """The client of Alg. 2."""

    algorithm: FZooSOptions
    optimizer: SurrogateDescent
    state: ClientState

    def _start(self) -> None:
        self.optimizer, self.state = SurrogateDescent(self.algorithm, self.number), ClientState()

    def _receive(self, phase: str, message: Broadcast) -> None:
        a, held = self.algorithm, self.state.with_sent(message)
        if phase == "local":
            x, shared = held.model(message.values), message.tensors.get("gamma")
            gammas = a.rule.lengths(message.round, a.local_steps, None if shared is None else float(shared[0]))
            self.optimizer.begin(x, held.w, gammas, message.round, rate_in(message))  # lines 3 to 6
            self.state = replace(held, before=x)
        elif phase == "surrogate":
            self.optimizer.query_around(message.tensors["x"], message.round)  # lines 7 and 8
            self.state = held
        else:
            assert isinstance(a.rule, SharedGamma) and held.x is not None and held.before is not None
            points = [a.search(x) for x in a.rule.points(held.x, held.before)]
            self.optimizer.measure(points, message.tensors["w"])
            if message.values["w_version"]:
                self.state = held

    def _busy(self, phase: str) -> bool:
        return phase != "gamma" and self.optimizer.busy

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        a, s = self.algorithm, self.optimizer.state
        tensors: dict[str, Tensor] = {}
        if phase == "local":
            if s.succeeded == 0:
                raise NoReportError("all queries of the phase failed")
            tensors["x"] = self.optimizer.x  # line 7
        if a.corrects and phase == a.phase_of_weights:
            if s.weights is None:
                raise NoReportError("no query has succeeded yet")
            tensors["w"] = s.weights  # line 9
        if isinstance(a.rule, SharedGamma) and phase == a.rule.phase:
            tensors[a.rule.measured] = torch.tensor(s.scalars, dtype=torch.float64)
        return tensors

    def _catch_up(self, message: Broadcast) -> None:
        self.state = self.state.with_sent(message)


class FZooSServer(Server):
    """The server of Alg. 2, which also computes γ_r if the rule uses the clients' measurements."""

    algorithm: FZooSOptions
    state: ServerState

    def _start(self) -> None:
        a, x = self.algorithm, self.algorithm.x0
        self.state = ServerState(x, x, LatestVectors(a.weights, a.scalars(a.num_features)))

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        a, s = self.algorithm, self.state
        with small_algebra(len(reports) * a.num_features * a.dimension):
            if phase == "local":
                s = s.with_model(self.moved(s.x, self.combine("x", reports)), s.x)  # line 10: x_r = Σ pᵢ xᵢ
            if a.corrects and phase == a.phase_of_weights:
                sent = {client: report.tensors["w"] for client, report in reports.items()}
                s = s.with_surrogates(sent, self)  # line 10: w_r = Σ pᵢ wᵢ
            if phase == a.rule.phase:
                s = self._with_gamma(s, reports)
        self.state = s.with_holders(phase, reports.keys())

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        """Line 11: x_r and, after it, w_r; what a client already has is not sent again."""
        s = self.state
        if phase == "surrogate":
            return {"x": s.x}
        if phase == "gamma":
            assert s.w_present is not None
            return {"w": s.w_present}
        shared = self.algorithm.rule.phase is not None
        gamma = {"gamma": torch.tensor([s.gamma], dtype=torch.float64, device=s.x.device)} if shared else {}
        return s.lacking(client) | gamma

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        return self.state.versions(phase)

    def _catch_up(self, position: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        return self.state.lacking(None), self.state.versions("catch_up")

    def _skipped(self, phase: str) -> None:
        """Keeps x_r and w, unless no client is left to accept x_r, which is then rejected."""
        if phase != "local" and self.algorithm.asks_acceptance:
            self._take_back(self.state.before)

    def _take_back(self, previous: Tensor) -> None:
        self.state = self.state.with_model(previous, self.state.before)

    def _check_loaded(self) -> None:
        for name in ("x_holders", "w_holders", "present"):
            check_integers(name, getattr(self.state, name), self.algorithm.clients)
        super()._check_loaded()

    def _with_gamma(self, s: ServerState, reports: Mapping[int, Report]) -> ServerState:
        """Returns the state with the next round's γ; keeps γ if a client's scalars are missing, as then Σ pᵢ cᵢ ≠ 0."""
        a, rule = self.algorithm, self.algorithm.rule
        assert isinstance(rule, SharedGamma)
        missing = sorted(set(s.present) - set(reports))
        if missing:
            logger.warning("round %d: clients %s reported no scalars, gamma remains %g", self.round, missing, s.gamma)
            return s
        points = rule.points(s.x, s.before)
        scalars = torch.stack([report.tensors[rule.measured] for report in reports.values()])
        gradients = self._gradients(points, s)
        if a.aggregation == "mean":
            shares = torch.tensor([a.weights[client] for client in s.present], dtype=torch.float64)
            gamma = rule.estimate(scalars, gradients, shares)
        else:
            assert s.w_present is not None
            about = a.features.gradient(torch.stack([a.search(x) for x in points]), s.w_present)
            squares = (about[:, None] - gradients).double().square().sum((0, 2))
            gamma = rule.robust_estimate(
                scalars, squares, lambda n: float(self.mean_of(dict(zip(s.present, n[:, None], strict=True))))
            )
        if math.isfinite(gamma):
            return replace(s, gamma=gamma)
        logger.warning("round %d: the estimate of gamma is not finite, using 0", self.round)
        return replace(s, gamma=0.0, fallbacks=s.fallbacks + 1)

    def _gradients(self, points: list[Tensor], s: ServerState) -> Tensor:
        """Returns ∇μ̂ᵢ of the present clients at points in user units, ``points x N x d``, a few clients at a time."""
        a = self.algorithm
        made = s.x.new_empty(len(points), len(s.present), a.dimension)
        for i, x in enumerate(points):
            for start in range(0, len(s.present), CLIENT_BLOCK):
                rows = torch.stack([s.surrogates[client] for client in s.present[start : start + CLIENT_BLOCK]])
                made[i, start : start + CLIENT_BLOCK] = a.features.jacobian_product(a.search(x)[None], rows)
        return made


class FZooS(FZooSOptions):
    """FZooS (Shu et al. 2024, Alg. 2): local steps along a derived GP, corrected towards the global function.

    In round r client i takes T steps from x_{r−1},

        x_t = prox(rule(x_{t−1}, g_t)),
        g_t = ∇μᵢ(x_{t−1}) + γ_t (∇μ̂(x') − ∇μ̂ᵢ(x')),    x' = x_{t−1}    (eq. 5)

    ∇μᵢ is the mean gradient of a Gaussian process conditioned on the client's own queries nearest to x (eq. 8 uses all
    of them), and μ̂ᵢ = φᵀwᵢ is the Fourier surrogate of the client's queries up to its previous round (eq. 3). The
    server sets x_r = Σ pᵢ xᵢ and μ̂ = φᵀw with w = Σ pᵢ wᵢ (eq. 4), a sum over the latest wᵢ of all clients that have
    sent one; it stores these wᵢ, N·M numbers. Clients and server each construct the features φ from a few numbers. A
    client that has not sent a wᵢ, as in round 1, takes no correction.

    **Queries.** Each step queries f at its starting point, and active queries are added: T (1 + 5) queries per client
    and round with ``active="step"`` (Appx. G), T + 5 with ``"round"`` (Alg. 2, line 7), and T with None. The first
    batch has at least 5 active queries. (Alg. 2 has no line for a step's query; the size of D_{r,t−1} in Sec. 3.1
    implies a query at the step's end point.)

    **γ.** By default the server computes one γ_r for all clients at x_r, used in round r + 1 (``gamma.Adaptive``).
    ``gamma="inverse"`` is the paper's 1/t, which damps corrections even if they are accurate; γ = 1 applies them in
    full even if the features are inaccurate. ``beyond-gamma`` and ``fzoos-fig1`` compare them. ``gamma=0.0`` gives
    FedZO with a better estimate.

    **Communication** is d + M numbers per client and round each way. If active queries are made per step and γ is known
    in advance, the client sends xᵢ and wᵢ together, and receives x_r and w together. Otherwise the client sends xᵢ,
    receives x_r, sends wᵢ after its active queries, and receives w with the next round. The adaptive γ adds one number
    each way: the client receives w, sends its measurement, and receives γ with the next round. With partial
    participation γ_r is computed from the round's clients only, which also receive the mean of their wᵢ.

    **Where the paper is silent, or its code differs.** Inputs are scaled to [0, 1]^d (Appx. G) if all bounds are finite
    and there is no prox; the lengthscale 1 and the active queries' box of ±0.01 are in these units. Both kernels are
    squared exponential (Appx. D; the authors' code uses Matérn 5/2 locally). Values are standardised, with means from
    generalised least squares. The rule's moments are reset in every round, as in the authors' code. A round that does
    not lower F is kept, as in Alg. 2; the authors' code rejects it, as ``accept="monotone"`` does, but does not count
    the queries. If a round ends before its wᵢ arrive, w is unchanged; x_r is kept unless ``accept="monotone"``.

    **Settling rate** (ours, the default; see ``beyond-plateau``). With the paper's ``rate_schedule="constant"`` F stops
    decreasing at a level set by the step length. If x_r reverses direction, the rate is halved; once it is below a
    third of its initial value, the radius of active queries decreases in proportion. By default both surrogates use the
    ``window`` queries nearest to x, at least min(3d/2, 500) after the first halving. The nugget decreases with these
    queries' squared distances. With noisy values the radius is fixed and the nugget maximizes the likelihood.

    **When to use it.** If the clients' functions differ, are smooth, and queries are expensive. If rounds are expensive
    and queries cheap, ``SCAFFOLD2`` reaches as low values (experiment ``fzoos-fig1``).

    **Cost.** See *Queries* and *Communication*. With n queries in the window, a step takes O(n²(n + d)) time, and a
    client's w takes O(n²M) per round.

    Args: see ``FZooSOptions``.
    """

    name = "fzoos"
    personal = True
    server_class = FZooSServer
    client_class = FZooSClient
