"""HiSo and DeComFL: federated zeroth-order descent by scalars, with a curvature and without.

References:
    HiSo: Li et al., Reconciling Hessian-informed acceleration and scalar-only communication for efficient federated
        zeroth-order fine-tuning, 2025, Alg. 1, 2, 2a, 2b, Appx. C, eqs. 7, 12 and 112 (eq. 8 for P perturbations).
    DeComFL: Li et al., Achieving dimension-free communication in federated learning via zeroth-order optimization,
        2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import optimizers
from federated.methods.scalar.model import ScalarModel
from federated.methods.scalar.scalar_only import ScalarOnly, ScalarOnlyClient, ScalarOnlyServer
from optimizers.core.options import take_options
from optimizers.core.values import parse_point
from optimizers.methods.hiso.curvature import StepOptions
from optimizers.methods.hiso.hiso import CurvatureLike, curvature_of

RATE = 0.01
"""η where neither the user nor the curvature has one; see ``StepOptions``."""


class HiSo(ScalarOnly):
    r"""HiSo (Li et al. 2025): all clients perturb along the same directions H^(−1/2)u_{kp} of a round.

        c_{ikp} = (1/P) (fᵢ(x + μH^(−1/2)u_{kp}) − fᵢ(x))/μ  at x = x⁽ⁱ⁾_{r,k}          Alg. 2b, line 4; eq. 112
        x⁽ⁱ⁾_{r,k+1} = prox(x − η H^(−1/2) Σ_p c_{ikp} u_{kp})                           lines 5 and 6
        c̄_{kp} = Σᵢ pᵢ c_{ikp}                                                           Alg. 2, line 13
        Δx_k = H^(−1/2) Σ_p c̄_{kp} u_{kp},   x ← prox(x − η_s η Δx_k),   k = 0 … τ − 1   lines 14 and 16
        H ← what the curvature learns from Δx_k                                          Alg. 2a, line 6

    Here H is H_r in all steps of round r, as the paper prints it, or with ``Displacement(update="per_step")``, the
    default, that of each step. The prox and η_s are ours, and the weights pᵢ: line 13 has 1/|C_r|.

    ``ScalarOnly`` says how scalars travel, what bytes are counted and how missed rounds are replayed. A client measures
    its steps along its own path, ``"per_step"`` H learning on the way, and then forgets them: model and server move by
    c̄ alone. Without a prox, and with H_r throughout, that is the mean of the clients' models (Appx. C; not with
    ``"per_step"`` and τ > 1). N = 1 is ``optimizers.HiSo``, step by step.

    A failed perturbation's scalar is 0 and the step's others are divided by the number that succeeded; a step that
    failed as a whole is a vote for no move; a client with no scalar in the whole round does not report. A
    ``GroupProbe``'s probe rounds send two scalars each way, whatever d, τ and P are, and take three queries.

    Args:
        x0: initial point, shape ``d``; float32 or narrower keeps H, and hence memory, at 4 bytes a coordinate.
        curvature: as in ``optimizers.HiSo``; server and clients must have the same. A ``Displacement`` without
            ``initial`` starts from H₀ = 1, and a skipped round resets nothing.
        **options: see ``StepOptions``, ``ScalarOnly`` and ``Algorithm``.
    """

    name = "hiso"
    server_class, client_class = ScalarOnlyServer, ScalarOnlyClient
    option_sets: ClassVar[tuple[type, ...]] = optimizers.HiSo.option_sets
    option_hints: ClassVar[dict[str, str]] = optimizers.HiSo.option_hints

    def __init__(self, x0: Any, *, curvature: CurvatureLike = "displacement", **options: Any) -> None:
        given, d = take_options(StepOptions, options), parse_point(x0).numel()
        self.curvature, steps = curvature_of(curvature).prepared(given, d)
        self.steps = replace(steps, rate=steps.rate or RATE)
        vars(self).update(vars(self.steps))
        super().__init__(x0, **options)
        self.most_numbers = max(2, self.local_steps * self.steps.perturbations)

    def model(self) -> ScalarModel:
        """A new model at x0; raises for options out of range."""
        in_place = self.bounds is None
        options = self.common_options(0) | vars(self.steps) | {"seed": self.seed, "local_steps": self.local_steps}
        x0 = self.x0.clone() if in_place else self.x0
        return ScalarModel(
            optimizers.HiSo(x0, curvature=self.curvature, in_place=in_place, **options), self.server_rate
        )

    def most_points(self, phase: str) -> int:
        """τ steps of P + 1 points, or 2P; three in a probe round."""
        count = self.steps.perturbations
        return max(3, self.local_steps * (2 * count if self.steps.scheme == "central" else count + 1))

    def numbers(self, round_number: int) -> int:
        """τP, or 2 in a probe round."""
        ordinary = self.local_steps * self.steps.perturbations
        return ordinary if self.curvature.probe(self.seed, round_number) is None else 2


class DeComFL(HiSo):
    """DeComFL (Li et al. 2025): HiSo with H = 1.

    Args:
        x0: initial point, shape ``d``.
        **options: see ``HiSo``, but for the curvature.
    """

    name = "decomfl"

    def __init__(self, x0: Any, **options: Any) -> None:
        super().__init__(x0, curvature=None, **options)
