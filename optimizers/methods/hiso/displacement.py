"""HiSo's rule for H: a moving average of squared displacements (eq. 12)."""

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
    """The state with the diagonal H, shape ``d``, in float64 or, for a narrower x, float32."""

    hessian: Tensor = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Displacement(Curvature):
    """HiSo's rule for H (eq. 12): H ← L(H, Δx) = clip((1 − ν)H + ν(Δx² + ε), β_l, β_u), coordinate by coordinate.

    H is a moving average of about 1/ν squared displacements. In coordinates that do not move, H tends to ε. Δx² has the
    units of f²/(xH)², not of H, so that a run depends on the units of f. Over clients, the mean Δx is squared, because
    the averaged scalars determine no other displacement.

    **Gain.** Eq. 12 hardly learns curvature: for P = 1 it is stationary at H_j² = S + 2(∂ⱼf)²/H_j with S = Σᵢ
    (∂ᵢf)²/Hᵢ, so that the H_j differ by at most a factor √3. A scalar H works equally well (``hiso-fig5``). As the
    gradient shrinks, H falls and the effective rate η/H rises. Steps become unstable when H falls below about η(tr A/P
    + (1 + 1/P)λ)/2, where A is the Hessian of f and λ its largest eigenvalue. Then f stops falling, at a level that is
    lower for smaller η.

    **Rules of** ``update``. Step k = 0 … τ − 1 of round r has the displacement Δx_{r,k} = H^(−1/2) Σ_p c_{kp} u_{kp}.
    For τ = 1 the following rules are equal, bit for bit:

    - ``"per_step"``: H_{r,k+1} = L(H_{r,k}, Δx_{r,k}) after each step, also in local steps. This is eq. 12, with
      H_{r,k} in the root of step k, where the paper prints H_r.
    - ``"printed"``: all steps of round r have H_r in the root. After the round, H_{r,k+1} = L(H_{r,k}, Δx_{r,k}) for
      each k, and H_{r+1} = H_{r,τ} (eqs. 8 and 12; Alg. 2, line 14; 2a, line 5; 2b, lines 4 and 5).
    - ``"per_round"``: all steps have H_r in the root, and H_{r+1} = L(H_r, Σₖ Δx_{r,k}) (Appx. C, without its factor η
      of Δx, which eq. 12 does not have).
    - ``"last_step"``: all steps have H_r in the root, and H_{r+1} = L(H_r, Δx_{r,τ−1}). This is the default of the
      authors' program (github.com/ZidongLiu/DeComFL), and Alg. 2a, line 6, where every k overwrites H_{t+1}.

    Eq. 12 and Alg. 2a, line 6, print a Δx_{r,τ}, which does not exist; we read Δx_{r,k} in the line for H_{r,k+1}.
    ``"printed"`` and ``"per_round"`` draw a round's directions a second time at its end, instead of storing them.

    Attributes:
        update: the name of one of these rules.
        weight: ν, from 0 to 1; with 0, H does not change, which for H₀ = 1 is DeComFL. The paper gives no values of ν,
            ε, β_l, β_u and H₀; its authors' program has 0.05, 0, no clipping, and 1.
        epsilon: ε, from 0 to 1, in the units of Δx².
        lower: β_l ≥ 0.
        upper: β_u ≥ β_l.
        initial: H₀ > 0, a number or shape ``d``. None: 1 if a rate is given, otherwise chosen with the rate.
        reset: the number of rounds after which H is reset to H₀; None: never.

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
    def learning(self) -> Learning:
        """The parameters (ν, ε, β_l, β_u) of eq. 12."""
        return self.weight, self.epsilon, self.lower, self.upper

    def start(self, x: Tensor, max_queries: int) -> LearnedDiagonal:
        """Returns the initial state, with H = H₀."""
        return self._started(torch.empty_like(x, dtype=compute_dtype(x.dtype)))

    def _started(self, hessian: Tensor) -> LearnedDiagonal:
        given = 1.0 if self.initial is None else self.initial
        if isinstance(given, Tensor) and given.shape != hessian.shape:
            raise ValueError(f"initial must have shape ({hessian.numel()},), got {tuple(given.shape)}")
        hessian.copy_(given) if isinstance(given, Tensor) else hessian.fill_(float(given))
        least = float(hessian.min())
        if not (least > 0.0 and float(hessian.max()) < math.inf):
            raise ValueError(f"initial must be positive and finite, got a least value of {least}")
        hessian.clamp_(self.lower, self.upper)
        return LearnedDiagonal(min(max(least, self.lower), self.upper), hessian=hessian)

    def metric(self, learned: LearnedDiagonal, x: Tensor) -> Tensor:
        """Returns H, shape ``d``."""
        return learned.hessian

    def step(self, learned: LearnedDiagonal, step: Step) -> LearnedDiagonal:
        """Moves x by x ← x − η Δx, Δx = H^(−1/2) Σ c u, and updates H (Alg. 2a, lines 5 and 6, and Alg. 2, line 9)."""
        H = learned.hessian if step.in_place else learned.hessian.clone()
        together = [*itertools.chain(*learned.round)] if self.update == "per_round" else []
        if not step.fits(learned.floor, together):
            step = replace(step, terms=[])
        now, held = self._displacements([*learned.round, step.terms], bool(step.ends))
        displacements = [terms for terms in now if terms]
        at_once, floor = displacements == [step.terms], learned.floor
        step.move(H, self.learning if at_once else None)  # line 5 and Alg. 2, line 9; and line 6 in the same pass
        if displacements and not at_once:
            learn(H, step.directions, displacements, self.learning)  # line 6 (eq. 12)
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
        """Chooses the scalar H₀ = h at which eq. 12 is stationary, so that the run does not depend on the units of f.

        h³ = ‖∇f‖² (1/P + (1 + 1/P)/d), or with ``projection`` h = ‖∇f‖² (1/P + (1 − 1/P)/d)/d². The rate is 0.3 times
        the largest stable rate, because H falls with ‖∇f‖; with ``projection``, where h cancels, it is the largest.
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
