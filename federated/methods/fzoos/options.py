"""Options and message specifications of FZooS."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from federated.core.messages import MessageSpec, TensorSpec
from federated.core.settling import Rate
from federated.methods.averaging import LocalSteps
from federated.methods.fzoos.gamma import Gamma, SharedGamma, gamma_rule
from federated.methods.local_descent import local_adam
from optimizers.core.bounds import Domain
from optimizers.core.options import check_choice, check_integer, optional, positive, positive_integer
from optimizers.first_order import UpdateRule
from surrogates import FourierFeatures
from surrogates.checks import check_lengthscale
from surrogates.window.local_options import KERNELS, LEAST_DATA, KernelName, LocalSurrogateOptions, check_nugget

Active = Literal["step", "round"]

SEARCH_WIDTH = 1.0
"""Side of the search box [0, 1]^d, used if all bounds are finite and there is no prox (FZooS, Appx. G)."""

BLOCKS, HELD_ROUNDS, MOST_FEATURES = 16, 8, 10_000


def default_features(d: int, queries: int) -> int:
    """Returns M = min(10,000, max(32 d, n)), rounded up to an even number.

    *Dependence on d.* The features have h = M/2 frequencies vⱼ, and ∇φ(x)ᵀφ(x') is the mean of h samples of −o sin(v·(x
    − x')) v with outputscale o, whose expectation is ∇k. As E‖v‖² = d/ℓ² for the squared exponential kernel (5d/3ℓ² for
    Matérn 5/2), independent frequencies give

        E‖∇φ(x)ᵀφ(x') − ∇k(x, x')‖² ≤ (o²/h) E‖v‖² = 2 o² d/(M ℓ²).

    Thus M/d determines a gradient's error. (Lemma E.3 of FZooS bounds the error of the kernel's value, √(8 ln(2/δ)/M),
    independent of d.) M = 32 d, ``BLOCKS`` = 16 orthogonal blocks of d frequencies, keeps the root mean square error
    below o/4ℓ. Because a message grows with M, the limit is the paper's M = 10,000.

    *Dependence on n.* M weights can generally fit n values only if n ≤ M, which also keeps the algebra ``n x n``. The
    default n is the number of queries of a client in ``HELD_ROUNDS`` = 8 rounds, or in the Fourier surrogate's window
    if that is smaller (``feature_window``, or ``window`` with a settling rate).

    Args:
        d: the dimension.
        queries: n.
    """
    wanted = min(MOST_FEATURES, max(2 * BLOCKS * d, queries))
    return wanted + wanted % 2


class FZooSOptions(LocalSteps):
    """Options of ``FZooS``, the phases of a round, and the messages of each phase.

    Args:
        gamma: γ_t: ``"adaptive"``; ``"inverse"``, 1/t; a number; a function of (r, t), such as Cor. 1's, whose
            constants depend on the problem; or a ``GammaRule``. With 0.0 no surrogate is sent.
        correction_at: x' = x'' of eq. 6: ``"iterate"``, x_{t−1} (eq. 5), or ``"start"``, x_{r−1} (Fig. 5b).
        num_features: M; None means ``default_features`` of d and the Fourier surrogate's queries. The paper has 10,000.
        feature_kind: kind of ``FourierFeatures``; the paper uses ``"cosine"``.
        feature_seed: seed of the features; None means ``seed``.
        feature_kernel: kernel of the features, ``"rbf"`` or ``"matern52"``.
        rate_schedule: ``"constant"``, the rate of ``update_rule``, as in the paper; or ``"settling"``, which
            decreases when x reverses direction (``federated.core.settling``). Then the radius of active queries is
            active_radius · min(1, 3 η/η₀), constant if values are noisy, and both surrogates fit their nugget
            (``ClientSurrogates.settle``).
        active: when to make active queries: ``"step"``: in each step (Appx. G); ``"round"``: around x_r (Alg. 2, line
            7); None: never.
        active_queries: number of active queries of a step or round.
        candidates: number of random points from which the most uncertain are queried (Appx. G: 5 of 100, by the norm of
            the gradient's covariance; here by its trace, see ``ClientSurrogates.most_uncertain``).
        active_radius: half the side length of the candidates' box around x, in search units.
        initial_queries: minimal number of queries beside x₀ in a client's first batch; x₀ alone would give ∇μᵢ = 0.
        lengthscale: ℓ of the local GP and the features, in search units. ``LocalSurrogateOptions`` describes the next
            three.
        nugget: nugget of the local GP.
        kernel: kernel of the local GP.
        window: number of nearest queries in the local GP.
        feature_nugget: noise variance relative to the outputscale, of the Fourier surrogate; None means ``nugget``.
        feature_window: number of nearest queries in the Fourier surrogate; None means all, or ``window`` with a
            settling rate.
        update_rule: factory of the local first-order rule.
        **options: see ``LocalSteps``. Your own ``SharedGamma`` needs ``aggregation="mean"`` unless it is ``robust``.

    Attributes:
        rule: the ``GammaRule`` given by ``gamma``.
        local: options of the local GP.
        features: φ.
        corrects: whether surrogates are exchanged.
    """

    def __init__(
        self,
        x0: Any,
        *,
        gamma: Gamma = "adaptive",
        correction_at: Literal["iterate", "start"] = "iterate",
        num_features: int | None = None,
        feature_kind: str = "orthogonal",
        feature_seed: int | None = None,
        feature_kernel: KernelName = "rbf",
        rate_schedule: Rate = "settling",
        active: Active | None = "step",
        active_queries: int = 5,
        candidates: int = 100,
        active_radius: float = 0.01,
        initial_queries: int = 5,
        lengthscale: float = 1.0,
        nugget: float = 1e-6,
        kernel: KernelName = "rbf",
        window: int = 150,
        feature_nugget: float | None = None,
        feature_window: int | None = None,
        update_rule: UpdateRule = local_adam,
        **options: Any,
    ) -> None:
        self.rule = gamma_rule(gamma)
        self.gamma = float(gamma) if isinstance(gamma, int) else gamma
        self.corrects = self.gamma != 0.0
        self.correction_at = check_choice("correction_at", correction_at, ("iterate", "start"))
        self.feature_kind, self.feature_seed = feature_kind, feature_seed
        self.feature_kernel = check_choice("feature_kernel", feature_kernel, tuple(KERNELS))
        self.active = optional(check_choice, "active", active, ("step", "round"))
        self.active_queries = positive_integer("active_queries", active_queries)
        self.candidates = check_integer("candidates", candidates, self.active_queries)
        self.initial_queries = check_integer("initial_queries", initial_queries, LEAST_DATA - 1)
        self.active_radius = positive("active_radius", active_radius)
        self.lengthscale = check_lengthscale("lengthscale", lengthscale)
        self.nugget, self.kernel, self.window = nugget, kernel, window
        self.local = LocalSurrogateOptions(window, self.lengthscale, nugget, kernel=kernel)
        self.feature_nugget = optional(check_nugget, "feature_nugget", feature_nugget)
        self.feature_window = optional(positive_integer, "feature_window", feature_window)
        super().__init__(x0, update_rule=update_rule, rate_schedule=rate_schedule, **options)
        self.num_features = default_features(self.dimension, self.held) if num_features is None else num_features
        if isinstance(self.rule, SharedGamma):
            self.ungated = frozenset({self.rule.measured})
            if self.aggregation != "mean" and not self.rule.robust:
                use = "use gamma='adaptive', gamma='inverse' or a number"
                raise ValueError(f"gamma={gamma!r} needs aggregation='mean', got {self.aggregation!r}: {use}")
        seed, of_features = self.seed if feature_seed is None else feature_seed, KERNELS[feature_kernel]
        size = (self.dimension, self.num_features)
        self.features = FourierFeatures(of_features(self.lengthscale), *size, seed, feature_kind)
        several = active == "round" or self.rule.phase is not None
        self.phases = ("local", *["surrogate"] * several, *["gamma"] * (self.rule.phase == "gamma"))

    @property
    def held(self) -> int:
        """Number of a client's queries in ``HELD_ROUNDS`` rounds, at most those in the Fourier surrogate's window."""
        active = self.active_queries if self.active is not None else 0
        round_ = self.local_steps * (1 + active) if self.active == "step" else self.local_steps + active
        queries = HELD_ROUNDS * round_
        return queries if self.fourier_window is None else min(queries, self.fourier_window)

    @property
    def fourier_window(self) -> int | None:
        """``feature_window``; if it is None, ``window`` for a settling rate and None (all) for a constant rate."""
        return self.window if self.settles and self.feature_window is None else self.feature_window

    @property
    def phase_of_weights(self) -> str:
        """The phase in which wᵢ is reported."""
        return "surrogate" if "surrogate" in self.phases else "local"

    def address(self, round_number: int) -> int:
        """Returns the additional seed of the random candidates of a round's first step.

        A round has T + 1 of these seeds: one for each step, and one for the candidates around x_r.
        """
        return round_number * (self.local_steps + 1)

    def search(self, x: Tensor) -> Tensor:
        """Converts a point from user units to the surrogates' coordinates."""
        if self.box is None:
            return x
        return Domain.of(*self.box, rescale=self.prox is None, width=SEARCH_WIDTH).to_search(x)

    @property
    def state_vectors(self) -> dict[str, TensorSpec]:
        """The base class's specifications, and one for the weights of the features."""
        weights = self.scalars(self.num_features)
        return super().state_vectors | dict.fromkeys(("w", "w_present", "weights", "difference"), weights)

    def max_points(self, phase: str) -> int:
        """T steps with their active queries, more in the first batch; or the active queries around x_r."""
        step = self.active_queries if self.active == "step" else 0
        if phase == "local":
            return max(step, self.initial_queries) + (self.local_steps - 1) * step + self.local_steps
        return max(self.active_queries, self.initial_queries) if phase == "surrogate" and self.active == "round" else 0

    def broadcasts(self, phase: str) -> MessageSpec:
        """``local``: x and w unless the client has them, and γ; ``surrogate``: x_r; ``gamma``: the mean w."""
        x, w = {"x": self.vector}, {"w": self.scalars(self.num_features)}
        versions = {"x_version": int, "w_version": int}
        if phase == "surrogate":
            return MessageSpec(x, {"x_version": int})
        if phase == "gamma":
            return MessageSpec(w, {"w_version": int})
        shared = phase == "local" and self.rule.phase is not None
        tensors = x | (w if self.corrects else {}) | ({"gamma": self.scalars(1, torch.float64)} if shared else {})
        return MessageSpec(tensors, versions, frozenset({"w"} if len(self.phases) == 1 else {"x", "w"}))

    def reports(self, phase: str) -> MessageSpec:
        """``local``: x; ``local`` or ``surrogate``: wᵢ; ``surrogate`` or ``gamma``: the γ rule's measurements."""
        tensors = {"x": self.vector} if phase == "local" else {}
        if self.corrects and phase == self.phase_of_weights:
            tensors["w"] = self.scalars(self.num_features)
        if isinstance(self.rule, SharedGamma) and phase == self.rule.phase:
            tensors[self.rule.measured] = self.scalars(self.rule.num_scalars, torch.float64)
        return MessageSpec(tensors)

    def _configuration(self) -> dict[str, Any]:
        return {"features": self.features.fingerprint}
