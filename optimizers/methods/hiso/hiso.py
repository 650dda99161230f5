"""HiSo and DeComFL: zeroth-order descent by scalars, with a learned diagonal Hessian and without."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.directions.groups import GroupsLike
from optimizers.directions.hessian_update import HessianRule, compute_dtype
from optimizers.methods.hiso.scalar_only import Distribution, ScalarOnly, Scheme, fraction
from optimizers.options import CommonOptions, positive_integer

HessianUpdate = Literal["per_step", "per_round"]
Curvature = Literal["displacement", "group_probe"]
CURVATURES = ("displacement", "group_probe")


class DeComFL(ScalarOnly):
    """DeComFL (Li et al., 2025) on one machine: HiSo with H = 1 throughout.

        Δx = (1/P) Σₚ gₚ uₚ,   x ← prox(x − η Δx)

    with gₚ the difference quotient of f along uₚ, so that E Δx = ∇f(x) + O(μ). Memory is x alone; see
    ``ScalarOnly`` for the arguments.
    """

    method = "decomfl"


class HiSo(ScalarOnly):
    r"""HiSo (Li et al., 2025; Alg. 2, 2a, 2b, eqs. 11, 12) on one machine.

    With w = H^(−1/2) u it queries x and x + μ wₚ, p = 1…P, and moves by

        gₚ = (f(x + μ wₚ) − f(x))/μ,   Δx = (1/P) Σₚ gₚ wₚ,   x ← x − η Δx,
        H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u)

    so that E Δx = H⁻¹∇f(x) + O(μ) and, for g = wᵀ∇f and Σ = ∇f ∇fᵀ (Theorem 2),
    E[Δx Δxᵀ] = (1/P) Tr(ΣH⁻¹) H⁻¹ + (1 + 1/P) H⁻¹ΣH⁻¹.

    **What the constants mean.** H₀ = 1 makes the first step DeComFL's. ν is the share of the newest
    displacement: H remembers about 1/ν steps. ε is what H tends to where nothing moves, hence H^(−1/2) ≤ ε^(−1/2)
    in the long run. Δx² has the units of (f/x)² H⁻², not of H: H is not invariant to the units of f.

    **What H learns.** At stationarity H_j² = S + 2 (∂ⱼf)²/H_j for P = 1, S = Σᵢ (∂ᵢf)²/Hᵢ: coordinates differ
    by at most √3, and a scalar H does as well. As S falls, H falls and the effective rate η/H rises, until
    H ≈ η(trA/P + (1 + 1/P)λ)/2, below which steps are unstable: f stops falling there, at a level that falls
    with η.

    **Where the paper leaves a choice, or slips.** Eq. 11 prints 2μ², and it is μ². Eq. 12's top line and
    Alg. 2a's line 6 print a Δx_{r,τ} that does not exist: ``hessian_update="per_step"`` takes each step's Δx
    with the H of that step; ``"per_round"`` (Appx. C) takes Σₖ Δxₖ of a round's ``local_steps`` steps, all
    with the H of its start. That sum is drawn anew from the round's scalars, which costs its directions and
    no memory. H₀, ν, ε, β and the rate are not in the paper; its programs have 1, 0.05, 0, none, 1e-4.
    ``projection`` is the factor 1/(uᵀH⁻¹u) of eq. 7. ``momentum``, a remark of the paper, is read as a moving
    average of Δx, which H does not see.

    **Prox.** The step of coordinate j is η/H_j, and so is its prox's: ψ must be separable.

    Memory is x and H, and one vector more with momentum, or without ``in_place``.

    ``curvature="group_probe"`` is ours instead, an H that is measured: such a HiSo is a ``GroupProbeHiSo``, whose
    docstring has its method and options.

    Args:
        x0: initial point, shape ``d``.
        curvature: ``"displacement"``, the paper's, or ``"group_probe"``.
        hessian_update: ``"per_step"`` or ``"per_round"``.
        local_steps: steps of a round, for ``"per_round"``.
        hessian_weight: ν; 0 leaves H as it is.
        hessian_epsilon: ε ≥ 0.
        hessian_lower: β_l.
        hessian_upper: β_u.
        initial_hessian: H₀ > 0, a number or shape ``d``; None: 1 with a given rate, else found with it.
        perturbations: P.
        smoothing_radius: μ.
        rate: η; None: found at the first step, and H₀ with it (``_scale``).
        scheme: ``"forward"`` as printed, or ``"central"``.
        distribution: of u.
        momentum: β.
        projection: whether gₚ is divided by uₚᵀH⁻¹uₚ.
        in_place: whether x0 itself is moved.
        groups: this and the next seven are of ``curvature="group_probe"``; see ``GroupProbeHiSo``.
        initial_probes: first probes a group.
        probe_every: rounds from a later probe to the next.
        probe_weight: of the newest probe.
        rise_weight: the same where it is above h.
        shared_weight: of a probe in the other groups' h.
        clip: of scalars.
        warmup: steps over which the rate rises.
        **common: see ``Optimizer``.
    """

    method = "hiso"

    def __new__(cls, *arguments: Any, curvature: Curvature = "displacement", **options: Any) -> HiSo:
        """A ``GroupProbeHiSo`` where its curvature is asked for by name."""
        from optimizers.methods.hiso.group_probe import GroupProbeHiSo

        return super().__new__(GroupProbeHiSo if cls is HiSo and curvature == "group_probe" else cls)

    def __init__(
        self,
        x0: Any,
        *,
        curvature: Curvature = "displacement",
        hessian_update: HessianUpdate = "per_step",
        local_steps: int = 1,
        hessian_weight: float = 0.05,
        hessian_epsilon: float = 1e-8,
        hessian_lower: float = 0.0,
        hessian_upper: float = math.inf,
        initial_hessian: float | Tensor | None = None,
        perturbations: int = 5,
        smoothing_radius: float = 1e-3,
        rate: float | None = None,
        scheme: Scheme = "forward",
        distribution: Distribution = "normal",
        momentum: float = 0.0,
        projection: bool = False,
        in_place: bool = False,
        groups: GroupsLike = None,
        initial_probes: int | None = None,
        probe_every: int | None = None,
        probe_weight: float | None = None,
        rise_weight: float | None = None,
        shared_weight: float | None = None,
        clip: float | None = None,
        warmup: int | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        if curvature not in CURVATURES:
            raise ValueError(f"curvature must be one of {CURVATURES}, got {curvature!r}")
        self.curvature = curvature
        probing = {"groups": groups, "initial_probes": initial_probes, "probe_every": probe_every}
        probing |= {
            "probe_weight": probe_weight,
            "rise_weight": rise_weight,
            "shared_weight": shared_weight,
            "clip": clip,
            "warmup": warmup,
        }
        for name, value in probing.items():
            if value is not None:
                raise ValueError(f"{name} goes with curvature='group_probe', not with 'displacement'")
        if hessian_update not in ("per_step", "per_round"):
            raise ValueError(f"hessian_update must be 'per_step' or 'per_round', got {hessian_update!r}")
        self.hessian_update = hessian_update
        self.local_steps = positive_integer("local_steps", local_steps)
        if self.local_steps > 1 and hessian_update == "per_step":
            raise ValueError("local_steps is the length of a round: it goes with hessian_update='per_round'")
        self.hessian_weight = fraction("hessian_weight", hessian_weight)
        self.hessian_epsilon = fraction("hessian_epsilon", hessian_epsilon)
        lower, upper = float(hessian_lower), float(hessian_upper)
        if not (0.0 <= lower <= upper and upper > 0.0 and lower < math.inf):
            raise ValueError(f"0 <= hessian_lower <= hessian_upper is accepted, got {lower} and {upper}")
        self.hessian_lower, self.hessian_upper, self.initial_hessian = lower, upper, initial_hessian
        self.hessian_rule = HessianRule(self.hessian_weight, self.hessian_epsilon, lower, upper)
        prox = common.get("prox")
        if prox is not None and not getattr(prox, "separable", False):
            raise ValueError("HiSo's step differs between coordinates: its prox must be separable (DeComFL's not)")
        super().__init__(
            x0,
            perturbations=perturbations,
            smoothing_radius=smoothing_radius,
            rate=rate,
            scheme=scheme,
            distribution=distribution,
            momentum=momentum,
            projection=projection,
            in_place=in_place,
            **common,
        )

    def _start(self) -> None:
        super()._start()
        dtype = compute_dtype(self._x.dtype)
        given, rule = self.initial_hessian, self.hessian_rule
        given = 1.0 if given is None else given
        if isinstance(given, Tensor) and given.shape != self._x.shape:
            raise ValueError(f"initial_hessian must have shape ({self.dimension},), got {tuple(given.shape)}")
        hessian = torch.empty_like(self._x, dtype=dtype)
        hessian.copy_(given) if isinstance(given, Tensor) else hessian.fill_(float(given))
        floor = float(hessian.min())
        if not (floor > 0.0 and float(hessian.max()) < float("inf")):
            raise ValueError("initial_hessian must be positive and finite")
        hessian.clamp_(rule.lower, rule.upper)
        self.state.hessian = hessian
        self.state.hessian_floor = min(max(floor, rule.lower), rule.upper)

    @property
    def hessian(self) -> Tensor:
        """The diagonal of H in search coordinates, shape ``d``."""
        assert self.state.hessian is not None
        return self.state.hessian

    def _scale(self, rate: float, slope: float) -> tuple[float, float]:
        """The rate, and H₀ where it is not given: what H tends to for this slope, so that f's units cancel.

        For a scalar H eq. 12 is stationary at h³ = ‖∇f‖² (1/P + (1 + 1/P)/d), or with ``projection`` at
        h = ‖∇f‖² (1/P + (1 − 1/P)/d)/d². The rate is 0.3 of what is stable there, because H falls with
        the slope and η/H rises (not with ``projection``, where h cancels). The scalars were measured along
        u, not h^(−1/2) u.
        """
        if self.initial_hessian is not None:
            return rate, 1.0
        p, d, rule = self.perturbations, self.dimension, self.hessian_rule
        if self.projection:
            h = slope**2 * (1.0 / p + (1.0 - 1.0 / p) / d) / d**2
        else:
            h = (slope**2 * (1.0 / p + (1.0 + 1.0 / p) / d)) ** (1.0 / 3.0)
        h = min(max(h, rule.lower, 1e-30), rule.upper, 1e30)
        self.state.hessian = (self.hessian if self.in_place else torch.empty_like(self.hessian)).fill_(h)
        h = self.state.hessian_floor = float(self.hessian[0])
        return (rate if self.projection else 0.3 * h * rate), h**-0.5

    def _rule(self) -> HessianRule | None:
        return self.hessian_rule if self.hessian_weight > 0.0 else None

    def _learns_each_step(self) -> bool:
        return self.hessian_update == "per_step"

    def _ends_round(self) -> bool:
        return (self.iterations + 1) % self.local_steps == 0
