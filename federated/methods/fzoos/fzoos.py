"""FZooS: federated descent along trajectory-informed gradient surrogates.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        Alg. 2, eqs. 5 and 8, Prop. B.1, Appx. G.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from federated.core.acceptance import ACCEPTS, Accept
from federated.core.algorithm import Algorithm, FederatedOptions
from federated.core.configuration import check_choice
from federated.core.messages import MessageSpec, TensorSpec
from federated.methods.fzoos.client import FZooSClient
from federated.methods.fzoos.server import FZooSServer
from federated.methods.fzoos.surrogate_descent import KERNELS, Active, KernelName, SurrogateDescent
from federated.methods.local_descent import adam
from optimizers.first_order import UpdateRule
from optimizers.options import check_integer, positive
from surrogates import FourierFeatures

Gamma = float | str | Callable[[int, int], float]
ESTIMATED = ("adaptive", "empirical_bayes")
NAMED = ("inverse", *ESTIMATED)


class FZooS(Algorithm):
    """FZooS (Shu et al. 2024, Alg. 2): local steps along a derived GP, corrected towards the global function.

    In round r client i takes T steps from x_{r−1},

        x_t = prox(rule(x_{t−1}, g_t)),
        g_t = ∇μᵢ(x_{t−1}) + γ_t (∇μ̂(x') − ∇μ̂ᵢ(x'')),    x' = x'' = x_{t−1}    (eq. 5)

    with ∇μᵢ the mean gradient of a GP on its own queries nearest to x (eq. 8), and μ̂ᵢ = φᵀwᵢ the Fourier surrogate of
    all of them as of the client's last round; μ̂ = φᵀw, w = Σ pᵢ wᵢ over all clients that have sent one, the latest of
    each, as the server keeps them (N·M numbers). Features φ are a pure function of few numbers, on which both sides
    agree by fingerprint. A client that has sent none takes no correction, as none does in round 1.

    **Queries.** Each step queries f at the point that it leaves (Alg. 2: at the one that it reaches; as many, one step
    later, and the first step has its own). ``active="step"`` (Appx. G) adds 5 of 100 points within ±0.01, T (1 + 5) a
    round; ``"round"`` (Alg. 2) adds 5 about x_r, T + 5 a round; None: T. The client's first batch has 5 at least.

    **γ.** ``"adaptive"``, the default: one γ_r for all clients, the minimum of their total disparity
    (``federated.methods.fzoos.gamma.shared_gamma``), found at x_r and used in round r + 1, γ_1 = 0; ``"inverse"``: 1/t,
    t = 1 … T, the paper's; a number; a function of (r, t), such as Cor. 1's, whose constants only the user can know;
    ``"empirical_bayes"``: the rule that the adaptive one replaced. With ``gamma=0.0`` no surrogate is sent: FedZO with
    a better estimate. 1/t damps corrections that are good, γ = 1 takes also those of features that the trajectory has
    outgrown; γ_r does neither. On the quadratics of Appx. G.1 (``beyond-gamma``, five fresh seeds, C from 0.5 to 50,
    noise from 0 to 1e-2) γ_r ends at most 0.1 above the best fixed γ in log10 of the gap, in the mean of each of 18
    cells (row "d = 300, C = 0.5, noise 0"), where 1/t ends up to 1.3 above it (row "d = 50, C = 5, noise 0": −1.58
    against −2.91) and the one-way rule up to 0.9 (row "d = 300, C = 5, noise 0"). At d = 300, C = 5 it is 0.7 below 1/t
    after 15 rounds and level with it after 50 (``fzoos-fig1``: −1.69 and −1.70; γ = 1: −0.83). More ``gamma_points``
    than x_r were no better.

    **Phases and floats** a client and round, each way: x and w together, d + M, where queries are made per step and γ
    is given. Else x goes up and its mean x_r down, then, after the active queries, w up, and the mean w down with the
    next start: d + M as well. ``"adaptive"`` sends the mean w before, which the client answers by the one number mᵢ·cᵢ,
    and γ comes with the next start: d + M + 1. A client that was not there is sent what it lacks, x too. With
    partial participation γ_r is found among the round's clients, cᵢ about their own mean, which is sent besides.

    **Where the paper is silent**: inputs are scaled to [0, 1]^d where all bounds are finite and there is no prox, and
    ℓ = 1 and ±0.01 refer to that; kernels are squared exponential for both surrogates (its code: Matérn 5/2 locally);
    values are standardised, by means from generalised least squares; the rule's moments are forgotten every
    round (its code); a round that does not lower F is kept (its code rejects it without counting queries:
    ``accept="monotone"`` counts them).

    Where a round ends before its surrogates came, the last mean w stays, and x_r (but with ``accept="monotone"``).

    Args:
        x0: initial point, shape ``d``.
        gamma: γ.
        correction_at: x' and x'': ``"iterate"``, or ``"start"``, x_{r−1} (Fig. 5b).
        gamma_points: points that the adaptive γ is found at, evenly from x_r back to x_{r−1}: 1, x_r alone; 2, both.
        margin: adds the GPs' own uncertainty to the noise in ``"empirical_bayes"``.
        accept: ``"monotone"``: x_r is taken back where Σ pᵢ fᵢ did not fall, as in ``FedZO``.
        num_features: M.
        feature_kind: of ``FourierFeatures``; the paper's are ``"cosine"``.
        feature_seed: their seed; None: ``seed``.
        feature_kernel: ``"rbf"`` or ``"matern52"``.
        reset_rule: whether the rule's moments are forgotten at the start of each round.
        active: see above.
        active_queries: see above.
        candidates: that active queries are the best of.
        active_radius: half of the candidates' box.
        initial_queries: of a client's first batch, beside x₀.
        lengthscale: ℓ of both surrogates, search units.
        nugget: noise variance of a value over the variance of values, of the local GP.
        feature_nugget: the same, of the Fourier surrogate; None: ``nugget``.
        kernel: of the local GP, ``"rbf"`` or ``"matern52"``.
        window: nearest queries that the local GP holds.
        feature_window: nearest queries that the Fourier surrogate holds; None: all.
        update_rule: factory of the local first-order rule.
        **common: see ``Algorithm``. ``"adaptive"`` and ``"empirical_bayes"`` need ``aggregation="mean"``: they rest on
            Σ pᵢ cᵢ = 0.
    """

    name = "fzoos"
    personal = True
    server_class = FZooSServer
    client_class = FZooSClient

    def __init__(
        self,
        x0: Any,
        *,
        gamma: Gamma = "adaptive",
        correction_at: Literal["iterate", "start"] = "iterate",
        gamma_points: int = 1,
        margin: bool = False,
        accept: Accept = "always",
        num_features: int = 10_000,
        feature_kind: str = "orthogonal",
        feature_seed: int | None = None,
        feature_kernel: KernelName = "rbf",
        reset_rule: bool = True,
        active: Active | None = "step",
        active_queries: int = 5,
        candidates: int = 100,
        active_radius: float = 0.01,
        initial_queries: int = 5,
        lengthscale: float = 1.0,
        nugget: float = 1e-6,
        feature_nugget: float | None = None,
        kernel: KernelName = "rbf",
        window: int = 150,
        feature_window: int | None = None,
        update_rule: UpdateRule = adam,
        **common: Unpack[FederatedOptions],
    ) -> None:
        self.gamma = _gamma(gamma)
        self.correction_at = check_choice("correction_at", correction_at, ("iterate", "start"))
        check_integer("gamma_points", gamma_points, 1)
        if gamma_points > 1 and self.gamma != "adaptive":
            raise ValueError(f"gamma_points={gamma_points} goes with gamma='adaptive', got gamma={gamma!r}")
        self.gamma_points, self.margin, self.reset_rule = int(gamma_points), bool(margin), bool(reset_rule)
        self.accept = check_choice("accept", accept, ACCEPTS)
        self.asks_acceptance = self.accept == "monotone"
        self.num_features, self.feature_kind, self.feature_seed = num_features, feature_kind, feature_seed
        self.feature_kernel = check_choice("feature_kernel", feature_kernel, tuple(KERNELS))
        self.active, self.active_queries, self.candidates = active, active_queries, candidates
        self.active_radius, self.initial_queries = active_radius, initial_queries
        self.lengthscale, self.nugget, self.feature_nugget = (
            positive("lengthscale", lengthscale),
            nugget,
            feature_nugget,
        )
        self.kernel, self.window, self.feature_window = kernel, window, feature_window
        self.update_rule = update_rule
        super().__init__(x0, **common)
        if self.estimates_gamma and self.aggregation != "mean":
            raise ValueError(
                f"gamma={gamma!r} needs aggregation='mean', got {self.aggregation!r}; with another aggregation give "
                "gamma='inverse' or a number"
            )
        self.features = FourierFeatures(
            KERNELS[feature_kernel](self.lengthscale),
            self.dimension,
            num_features,
            self.seed if feature_seed is None else feature_seed,
            feature_kind,
        )
        self.phases = ("local", "surrogate", "gamma")[: self._count_phases()]
        self._search = self.local_optimizer(0).search

    def _count_phases(self) -> int:
        if self.gamma == "adaptive":
            return 3
        return 2 if self.active == "round" or self.estimates_gamma else 1

    # What its halves use.

    @property
    def corrects(self) -> bool:
        """Whether surrogates are exchanged."""
        return self.gamma != 0.0

    @property
    def estimates_gamma(self) -> bool:
        """Whether γ is found from round to round."""
        return self.gamma in ESTIMATED

    @property
    def several_phases(self) -> bool:
        """Whether x and w travel in phases of their own."""
        return len(self.phases) > 1

    @property
    def phase_of_weights(self) -> str:
        """The phase whose report has wᵢ."""
        return "surrogate" if self.several_phases else "local"

    def gammas(self, round_number: int, given: float | None) -> list[float]:
        """γ_t, t = 1 … T, of a round; ``given`` where it is estimated."""
        steps = range(1, self.local_steps + 1)
        if given is not None:
            return [given for _ in steps]
        if self.gamma == "inverse":
            return [1.0 / t for t in steps]
        if callable(self.gamma):
            return [_number(self.gamma(round_number, t)) for t in steps]
        assert isinstance(self.gamma, float)
        return [self.gamma for _ in steps]

    def address(self, round_number: int) -> int:
        """Address of a round's first candidates: T + 1 a round, the last for those about x_r."""
        return round_number * (self.local_steps + 1)

    def search(self, x: Tensor) -> Tensor:
        """A point of user units in the coordinates of the surrogates."""
        return self._search(x)

    def local_optimizer(self, number: int) -> SurrogateDescent:
        """A client's optimizer; raises for options out of range."""
        return SurrogateDescent(
            self.x0,
            features=self.features,
            active=self.active,
            active_queries=self.active_queries,
            candidates=self.candidates,
            active_radius=self.active_radius,
            initial_queries=self.initial_queries,
            lengthscale=self.lengthscale,
            nugget=self.nugget,
            feature_nugget=self.feature_nugget,
            kernel=self.kernel,
            window=self.window,
            feature_window=self.feature_window,
            update_rule=self.update_rule,
            **(self.common_options(number) | {"rescale": self.prox is None}),
        )

    # Messages.

    def broadcasts(self, phase: str) -> MessageSpec:
        """local: x and w where they are not held, γ; surrogate: x_r; gamma: the mean w."""
        versions = {"x_version": int, "w_version": int}
        if phase == "surrogate":
            return MessageSpec({"x": self.vector}, {"x_version": int})
        if phase == "gamma":
            return MessageSpec({"w": self._weights}, {"w_version": int})
        tensors = {"x": self.vector}
        optional = {"x"} if self.several_phases else set()
        if self.corrects:
            tensors["w"] = self._weights
            optional.add("w")
        if self.estimates_gamma and phase == "local":
            tensors["gamma"] = self._scalars(1)
        return MessageSpec(tensors, versions, frozenset(optional))

    def reports(self, phase: str) -> MessageSpec:
        """local: x, w where no phase follows; surrogate: w, statistics; gamma: mᵢ·cᵢ."""
        if phase == "position":
            return MessageSpec()
        if phase == "gamma":
            return MessageSpec({"product": self._scalars(1)})
        tensors = {"x": self.vector} if phase == "local" else {}
        if self.corrects and phase == self.phase_of_weights:
            tensors["w"] = self._weights
        if phase == "surrogate" and self.gamma == "empirical_bayes":
            tensors["statistics"] = self._scalars(1 + self.margin)
        return MessageSpec(tensors)

    @property
    def _weights(self) -> TensorSpec:
        return TensorSpec((self.num_features,), self.x0.dtype)

    def _scalars(self, count: int) -> TensorSpec:
        return self.scalars(count, torch.float64)

    def _configuration(self) -> dict[str, Any]:
        return {"features": self.features.fingerprint}


def _gamma(gamma: Gamma) -> Gamma:
    if isinstance(gamma, str):
        return check_choice("gamma", gamma, NAMED)
    return gamma if callable(gamma) else _number(gamma)


def _number(gamma: Any) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"gamma must be a number, {', '.join(map(repr, NAMED))} or a function of (r, t), got {gamma!r}")
    if not 0.0 <= gamma < math.inf:
        raise ValueError(f"gamma must be finite and at least 0, got {gamma}")
    return float(gamma)
