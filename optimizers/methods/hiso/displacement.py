"""The paper's curvature: H learns from displacements (HiSo eq. 12)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from optimizers.core.options import check_choice, optional, positive_integer
from optimizers.directions.metric import compute_dtype
from optimizers.methods.hiso.curvature import Curvature, Learned, Step, StepOptions, fraction
from optimizers.methods.hiso.update import Learning, Term, learn

Update = Literal["per_step", "per_round", "printed", "last_step"]


@dataclass
class LearnedDiagonal(Learned):
    """H, shape ``d``, in float64 or, for a narrower x, float32."""

    hessian: Tensor = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Displacement(Curvature):
    """The paper's curvature (eq. 12): H ← L(H, Δx) = clip((1 − ν)H + ν(Δx² + ε), β_l, β_u), coordinate by coordinate.

    **Constants.** H₀ = 1 makes the first step DeComFL's. ν is the weight of the newest displacement: H averages about
    1/ν of them. H tends to ε in coordinates that do not move, hence H^(−1/2) ≤ ε^(−1/2) in the long run. Δx² has the
    units of (f/x)² H⁻², not of H: a run depends on the units of f.

    **What H learns.** At stationarity H_j² = S + 2 (∂ⱼf)²/H_j for P = 1, S = Σᵢ (∂ᵢf)²/Hᵢ: coordinates differ by at
    most √3, and a scalar H is as good (``hiso-fig5``). As S falls, H falls and the effective rate η/H rises, until H ≈
    η(trA/P + (1 + 1/P)λ)/2, below which steps are unstable. f then stops falling, at a level that falls with η.

    **Displacements of a round** are Δx_{r,k} = H^(−1/2) Σ_p c_{kp} u_{kp}, k = 0 … τ − 1. The paper prints H_r in the
    root throughout (eq. 8; Alg. 2, line 14; 2a, line 5; 2b, lines 4 and 5; Appx. C), and eq. 12 as a chain H_{r,1} …
    H_{r,τ} = H_{r+1}. The chain's top line, like Alg. 2a's line 6, has a Δx_{r,τ} that does not exist (k ≤ τ − 1); we
    read Δx_{r,k} in the line of H_{r,k+1}. Appx. C prints one update, from x_{r+1} − x_r = −η Σₖ Δx_{r,k}; we read it
    without η, which eq. 12 does not have. ``update`` selects the rule. For τ = 1 all are equal, bit for bit. H does not
    learn from a step that was not made.

    **What else the paper leaves open.** It gives no values of H₀, ν, ε, β_l and β_u; its authors' program has 1, 0.05,
    0, and no clipping. Over clients the mean Δx is squared, because the averaged scalars determine no other
    displacement.

    Attributes:
        update: ``"per_step"``: H_{r,k+1} = L(H_{r,k}, Δx_{r,k}): eq. 12's chain, with the root of its own H_{r,k} in
            each step, also in local steps. That is ours; the paper prints H_r there. ``"printed"``: the root of H_r in
            all steps of round r, then eq. 12's chain H_{r,k+1} = L(H_{r,k}, Δx_{r,k}) at its end: Alg. 2, line 14, with
            2a, line 5, 2b, lines 4 and 5, and eq. 12. ``"per_round"``: the root of H_r in all steps, then H_{r+1} =
            L(H_r, Σₖ Δx_{r,k}): Appx. C. ``"last_step"``: the root of H_r in all steps, then H_{r+1} = L(H_r,
            Δx_{r,τ−1}): the authors' program by default (github.com/ZidongLiu/DeComFL), and Alg. 2a, line 6, where
            every k overwrites H_{t+1}. For ``"printed"`` and ``"per_round"`` the displacements are recomputed from the
            round's scalars at its end, which costs their directions again but no memory.
        weight: ν, from 0 to 1; 0 leaves H unchanged, which with H₀ = 1 is DeComFL, bit for bit.
        epsilon: ε, from 0 to 1, in the squared units of Δx, f's per unit of x; the default is the paper's value.
        lower: β_l ≥ 0.
        upper: β_u ≥ β_l.
        initial: H₀ > 0, a number or shape ``d``; None: 1 with a given rate, otherwise found with it (``with_rate``).
        reset: rounds after which H is reset to H₀; None: never.

    Raises:
        TypeError: for an option of the wrong type.
        ValueError: for an option out of range.
    """

    name = "displacement"
    separable = True

    update: Update = "per_step"
    weight: float = 0.05
    epsilon: float = 1e-8
    lower: float = 0.0
    upper: float = math.inf
    initial: float | Tensor | None = None
    reset: int | None = None

    def __post_init__(self) -> None:
        check_choice("update", self.update, get_args(Update))
        optional(positive_integer, "reset", self.reset)
        fractions = {name: fraction(name, getattr(self, name)) for name in ("weight", "epsilon")}
        vars(self).update(fractions, lower=float(self.lower), upper=float(self.upper))
        if not (0.0 <= self.lower <= self.upper and self.upper > 0.0 and self.lower < math.inf):
            raise ValueError(f"lower and upper must satisfy 0 <= lower <= upper, got {self.lower} and {self.upper}")

    @property
    def eq12(self) -> Learning:
        """The parameters of eq. 12: ν, ε, β_l and β_u."""
        return self.weight, self.epsilon, self.lower, self.upper

    def start(self, x: Tensor, max_queries: int) -> LearnedDiagonal:
        """The initial state, with H = H₀."""
        return self._started(torch.empty_like(x, dtype=compute_dtype(x.dtype)))

    def _started(self, hessian: Tensor) -> LearnedDiagonal:
        given = 1.0 if self.initial is None else self.initial
        if isinstance(given, Tensor) and given.shape != hessian.shape:
            raise ValueError(f"initial must have shape ({hessian.numel()},), got {tuple(given.shape)}")
        hessian.copy_(given) if isinstance(given, Tensor) else hessian.fill_(float(given))
        least = float(hessian.min())
        if not (least > 0.0 and float(hessian.max()) < math.inf):
            raise ValueError("initial must be positive and finite")
        hessian.clamp_(self.lower, self.upper)
        return LearnedDiagonal(min(max(least, self.lower), self.upper), hessian=hessian)

    def metric(self, learned: LearnedDiagonal, x: Tensor) -> Tensor:
        """H, shape ``d``."""
        return learned.hessian

    def step(self, learned: LearnedDiagonal, step: Step) -> LearnedDiagonal:
        """Alg. 2a, lines 5 and 6, and Alg. 2, line 9: Δx = H^(−1/2) Σ c u, x ← x − η Δx, H ← eq. 12."""
        H = learned.hessian if step.in_place else learned.hessian.clone()
        together = [*itertools.chain(*learned.round)] if self.update == "per_round" else []
        if not step.fits(learned.floor, together):
            step = replace(step, terms=[])
        now, held = self._displacements([*learned.round, step.terms], bool(step.ends))
        displacements = [terms for terms in now if terms]
        at_once, floor = displacements == [step.terms], learned.floor
        step.move(H, self.eq12 if at_once else None)  # line 5 and Alg. 2, line 9; and line 6 in the same pass
        if displacements and not at_once:
            learn(H, step.directions, displacements, self.eq12)  # line 6 (eq. 12)
        for _ in displacements:
            floor = min(max((1.0 - self.weight) * floor + self.weight * self.epsilon, self.lower), self.upper)
        if self.reset and step.ends and step.ends % self.reset == 0:
            return self._started(H)
        return LearnedDiagonal(floor, held, hessian=H)

    def _displacements(self, steps: list[list[Term]], ends: bool) -> tuple[list[list[Term]], list[list[Term]]]:
        """The displacements that H learns from now, and the steps of the round that it will learn from later.

        Args:
            steps: the terms of the round's steps so far, the newest last.
            ends: whether the round ends with it.
        """
        if self.weight == 0.0:
            return [], []
        if self.update in ("per_step", "last_step"):
            return (steps[-1:] if ends or self.update == "per_step" else []), []
        if not ends:
            return [], steps
        return (steps if self.update == "printed" else [[*itertools.chain(*steps)]]), []

    def with_rate(
        self, learned: Any, rate: float, slope: float, options: StepOptions, in_place: bool
    ) -> tuple[Any, float, float]:
        """H₀, unless it is given, is the scalar at which eq. 12 of one step is stationary, which cancels f's units.

        h³ = ‖∇f‖² (1/P + (1 + 1/P)/d), or with ``projection`` h = ‖∇f‖² (1/P + (1 − 1/P)/d)/d². The rate is 0.3 of the
        largest stable one, since H falls with ‖∇f‖; with ``projection`` h cancels, and the rate is the largest.
        """
        if self.initial is not None:
            return learned, rate, 1.0
        p, d = options.perturbations, learned.hessian.numel()
        if options.projection:
            h = slope**2 * (1.0 / p + (1.0 - 1.0 / p) / d) / d**2
        else:
            h = (slope**2 * (1.0 / p + (1.0 + 1.0 / p) / d)) ** (1.0 / 3.0)
        hessian = learned.hessian if in_place else torch.empty_like(learned.hessian)
        hessian.fill_(min(max(h, self.lower, 1e-30), self.upper, 1e30))
        h = float(hessian[0])
        return LearnedDiagonal(h, hessian=hessian), (rate if options.projection else 0.3 * h * rate), h**-0.5
