"""HiSo and DeComFL: federated zeroth-order descent by scalars, with a learned diagonal Hessian and without.

References:
    HiSo: Li et al., Reconciling Hessian-informed acceleration and scalar-only communication for efficient
        federated zeroth-order fine-tuning, 2025, Alg. 1, 2, 2a, 2b, eqs. 7, 11, 12.
    DeComFL: Li et al., Achieving dimension-free communication in federated learning via zeroth-order
        optimization, 2025.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from torch import Tensor

from federated.core.algorithm import FederatedOptions
from federated.core.client import Client
from federated.core.server import Server
from federated.methods.scalar.replayed_model import DeComFLModel, GroupProbeModel, HiSoModel, ReplayedModel
from federated.methods.scalar.scalar_only import ScalarOnlyAlgorithm, ScalarOnlyClient, ScalarOnlyServer
from optimizers.directions.groups import Groups, GroupsLike
from optimizers.methods.hiso.group_probe import OPTIONS as PROBE_OPTIONS
from optimizers.methods.hiso.hiso import CURVATURES, Curvature, HessianUpdate
from optimizers.methods.hiso.scalar_only import Distribution, Scheme
from optimizers.options import check_choice, positive, positive_integer
from optimizers.values import parse_point

PAPER_OPTIONS = (
    "hessian_update",
    "hessian_weight",
    "hessian_epsilon",
    "hessian_lower",
    "hessian_upper",
    "initial_hessian",
    "hessian_reset",
)
"""Options of the paper's H."""


class ScalarOnlyOptions(FederatedOptions, total=False):
    """Options of ``DeComFL`` that ``HiSo`` has too."""

    perturbations: int
    smoothing_radius: float
    rate: float | None
    scheme: Scheme | None
    distribution: Distribution
    momentum: float
    projection: bool
    log_rounds: int
    scalar_dtype: str


class DeComFL(ScalarOnlyAlgorithm):
    r"""DeComFL (Li et al. 2025): HiSo with H = 1. All clients perturb along the same directions uₖₚ of a round.

        cᵢₖₚ = (1/P) (fᵢ(x + μuₖₚ) − fᵢ(x))/μ  at x = x⁽ⁱ⁾_{r,k},    x⁽ⁱ⁾_{r,k+1} = prox(x − η Σₚ cᵢₖₚ uₖₚ)
        c̄ₖₚ = Σᵢ pᵢ cᵢₖₚ,    x ← prox(x − η_s η Σₚ c̄ₖₚ uₖₚ)  for k = 0 … τ − 1, from x_r to x_{r+1}

    The τP numbers c go up and c̄ down; ``ScalarOnlyAlgorithm`` says how, what bytes are counted and how missed
    rounds are replayed. A client measures its steps along its own path and then forgets them: model and server
    move by c̄ alone. Without a prox that averages the clients' models exactly.

    A failed perturbation's scalar is 0 and the step's others are divided by the number that succeeded; a step
    that failed as a whole is a vote for no move; a client with no scalar in the whole round does not report.

    The paper's large models have P = 5, its programs P = 1, μ = 1e-3 and η = 1e-4. η is not found here, as
    ``optimizers.DeComFL`` does: the default 0.01 suits small networks, and a quadratic Σ aⱼxⱼ² wants
    η ≈ 1/(2 Σ aⱼ/P).

    Args:
        x0: initial point, shape ``d``; float32 or narrower keeps H, and hence memory, at 4 bytes a coordinate.
        perturbations: P.
        smoothing_radius: μ, in x's units.
        rate: η; None: 0.01.
        scheme: ``"forward"`` (P + 1 queries a step; None: this one) or ``"central"`` (2P).
        distribution: of u, ``"normal"`` or ``"rademacher"``.
        momentum: β of m ← βm + (1 − β)Δx, x ← x − η m; replayed, hence of no extra bytes.
        projection: divide scalars by uᵀH⁻¹u (HiSo eq. 7).
        **common: see ``ScalarOnlyAlgorithm`` and ``Algorithm``.
    """

    name = "decomfl"
    server_class: ClassVar[type[Server]] = ScalarOnlyServer
    client_class: ClassVar[type[Client]] = ScalarOnlyClient
    default_rate: float | None = 1e-2
    default_scheme: Scheme = "forward"

    def __init__(
        self,
        x0: Any,
        *,
        perturbations: int = 5,
        smoothing_radius: float = 1e-3,
        rate: float | None = None,
        scheme: Scheme | None = None,
        distribution: Distribution = "normal",
        momentum: float = 0.0,
        projection: bool = False,
        log_rounds: int = 1000,
        scalar_dtype: str = "float32",
        **common: Unpack[FederatedOptions],
    ) -> None:
        self.perturbations = positive_integer("perturbations", perturbations)
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        self.rate = self.default_rate if rate is None else positive("rate", rate)
        self.scheme, self.distribution = scheme or self.default_scheme, distribution
        self.momentum, self.projection = momentum, bool(projection)
        super().__init__(x0, log_rounds=log_rounds, scalar_dtype=scalar_dtype, **common)

    def numbers(self, round_number: int) -> int:
        """τP."""
        return self.local_steps * self.perturbations

    def model(self) -> ReplayedModel:
        """A new model at x0; raises for options out of range."""
        return DeComFLModel(self.x0, **self.model_options())

    def model_options(self) -> dict[str, Any]:
        """Options of the model that follow from the algorithm's; the seed is the same for all."""
        return self.common_options(0) | {
            "seed": self.seed,
            "steps": self.local_steps,
            "scalar_dtype": self.dtype_of_scalars,
            "server_rate": self.server_rate,
            "perturbations": self.perturbations,
            "smoothing_radius": self.smoothing_radius,
            "rate": self.rate,
            "scheme": self.scheme,
            "distribution": self.distribution,
            "momentum": self.momentum,
            "projection": self.projection,
        }


class HiSo(DeComFL):
    r"""HiSo (Li et al. 2025; Alg. 2, 2a, 2b): DeComFL along H^(−1/2)u, with a diagonal H that is learned.

        Δx = H^(−1/2) Σₚ c̄ₖₚ uₖₚ,    x ← prox(x − η_s η Δx),    H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u)

    What is squared is the clients' mean, as scalars determine no more. ``optimizers.HiSo`` says what H learns, what
    H₀, ν and ε mean, and where the paper slips; N = 1 is that method, step by step.

    ``hessian_update="per_step"`` (eq. 12): the rebuild learns from each step's Δx, in turn; and so does a client in
    its own steps, from its own Δx, on an H that it then forgets as it forgets its x. ``"per_round"`` (Appx. C): H_r
    throughout round r, for clients and rebuild, and one update from Σₖ Δxₖ at its end.

    ``curvature="group_probe"`` is ours, an H with one number a group that is measured; ``GroupProbeHiSo`` has the
    method and its options. Probe rounds send two scalars each way and no more, whatever d, τ and P are, and take
    three queries. The groups are part of the configuration that server and clients must share.

    Args:
        x0: initial point, shape ``d``.
        curvature: ``"displacement"``, the paper's, or ``"group_probe"``.
        groups: of coordinates; None: single ones. This and the next seven are of ``"group_probe"``.
        initial_probes: first probes a group.
        probe_every: rounds from a later probe to the next.
        probe_weight: weight of the newest |â_b|.
        rise_weight: the same where |â_b| is above h_b.
        shared_weight: weight of |â_b|/h_b in the other groups' h.
        clip: of the mean scalars of ordinary rounds, in running root mean squares.
        warmup: ordinary steps over which η rises to its full size.
        hessian_update: ``"per_step"`` or ``"per_round"``.
        hessian_weight: ν; 0 leaves H as it is, and with H₀ = 1 that is DeComFL, bit for bit.
        hessian_epsilon: ε ≥ 0.
        hessian_lower: β_l.
        hessian_upper: β_u.
        initial_hessian: H₀ > 0, a number or shape ``d``.
        hessian_reset: rounds after which H is H₀ again; a skipped round resets nothing. None: never.
        **options: see ``DeComFL``.
    """

    name = "hiso"

    def __init__(
        self,
        x0: Any,
        *,
        curvature: Curvature = "displacement",
        groups: GroupsLike = None,
        initial_probes: int | None = None,
        probe_every: int | None = None,
        probe_weight: float | None = None,
        rise_weight: float | None = None,
        shared_weight: float | None = None,
        clip: float | None = None,
        warmup: int | None = None,
        hessian_update: HessianUpdate = "per_step",
        hessian_weight: float = 0.05,
        hessian_epsilon: float = 1e-8,
        hessian_lower: float = 0.0,
        hessian_upper: float = math.inf,
        initial_hessian: float | Tensor = 1.0,
        hessian_reset: int | None = None,
        **options: Unpack[ScalarOnlyOptions],
    ) -> None:
        self.curvature, self.groups = check_choice("curvature", curvature, CURVATURES), groups
        self.initial_probes, self.probe_every = initial_probes, probe_every
        self.probe_weight, self.rise_weight, self.shared_weight = probe_weight, rise_weight, shared_weight
        self.clip, self.warmup = clip, warmup
        self.hessian_update, self.hessian_weight = hessian_update, hessian_weight
        self.hessian_epsilon, self.initial_hessian = hessian_epsilon, initial_hessian
        self.hessian_lower, self.hessian_upper = float(hessian_lower), float(hessian_upper)
        self.hessian_reset = None if hessian_reset is None else positive_integer("hessian_reset", hessian_reset)
        if self._probes:
            self._refuse_changed(HiSo.__init__, PAPER_OPTIONS, "displacement")
            self.groups = Groups(groups, parse_point(x0).numel())
            self.default_rate, self.default_scheme = None, "central"
        else:
            self._refuse_changed(HiSo.__init__, PROBE_OPTIONS, "group_probe")
        super().__init__(x0, **options)
        self.schedule = model.schedule if isinstance(model := self.model(), GroupProbeModel) else None

    @property
    def _probes(self) -> bool:
        return self.curvature == "group_probe"

    def _refuse_changed(self, function: Any, names: Sequence[str], curvature: str) -> None:
        """Raises ``ValueError`` for an option of the other curvature that is not at its default."""
        for name in names:
            default = inspect.signature(function).parameters[name].default
            if getattr(self, name) is not default and getattr(self, name) != default:
                raise ValueError(f"{name} goes with curvature={curvature!r}, not with {self.curvature!r}")

    def numbers(self, round_number: int) -> int:
        """τP, or 2 in a probe round."""
        probes = self.schedule is not None and self.schedule.group(round_number) is not None
        return 2 if probes else super().numbers(round_number)

    @property
    def most_numbers(self) -> int:
        """Scalars of the longest round."""
        ordinary = self.local_steps * self.perturbations
        return max(2, ordinary) if self._probes else ordinary

    def model(self) -> ReplayedModel:
        """A new model at x0; raises for options out of range."""
        return (GroupProbeModel if self._probes else HiSoModel)(self.x0, **self.model_options())

    def model_options(self) -> dict[str, Any]:
        """DeComFL's, and H's."""
        if self._probes:
            shared = super().model_options()
            for name in ("momentum", "projection"):
                if shared.pop(name):
                    raise ValueError(f"{name} goes with curvature='displacement', not with 'group_probe'")
            return shared | {name: getattr(self, name) for name in PROBE_OPTIONS}
        return super().model_options() | {
            "hessian_update": self.hessian_update,
            "local_steps": self.local_steps if self.hessian_update == "per_round" else 1,
            "hessian_weight": self.hessian_weight,
            "hessian_epsilon": self.hessian_epsilon,
            "hessian_lower": self.hessian_lower,
            "hessian_upper": self.hessian_upper,
            "initial_hessian": self.initial_hessian,
            "hessian_reset": self.hessian_reset,
        }
