"""HiSo and DeComFL: federated zeroth-order descent that communicates scalars, with and without curvature.

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
"""Default η, unless the curvature has its own; see ``StepOptions``."""


class HiSo(ScalarOnly):
    r"""HiSo (Li et al. 2025): all clients perturb along the same directions H^(−1/2)u_{kp} of a round.

        c_{ikp} = (1/P) (fᵢ(x + μH^(−1/2)u_{kp}) − fᵢ(x))/μ  at x = x⁽ⁱ⁾_{r,k}          Alg. 2b, line 4; eq. 112
        x⁽ⁱ⁾_{r,k+1} = prox(x − η H^(−1/2) Σ_p c_{ikp} u_{kp})                           lines 5 and 6
        c̄_{kp} = Σᵢ pᵢ c_{ikp}                                                           Alg. 2, line 13
        Δx_k = H^(−1/2) Σ_p c̄_{kp} u_{kp},   x ← prox(x − η_s η Δx_k),   k = 0 … τ − 1   lines 14 and 16
        H ← the curvature's update from Δx_k                                             Alg. 2a, line 6

    H is H_r in all steps of round r, as printed in the paper, or, with the default ``Displacement(update="per_step")``,
    is updated in each step. The prox and η_s are ours, and so are the weights pᵢ: line 13 has 1/|C_r|.

    ``ScalarOnly`` describes the messages, the counted bytes and the replay of missed rounds. A client's local steps, in
    which a ``"per_step"`` H is updated too, are undone after they are measured: model and server move by c̄ alone.
    Without a prox and with a fixed H_r the new model equals the mean of the clients' models (Appx. C; not with
    ``"per_step"`` and τ > 1). For N = 1 it is ``optimizers.HiSo``, step by step.

    The scalar of a failed perturbation is 0, and the step's other scalars are divided by the number that succeeded. If
    all perturbations of a step fail, its scalars are all 0. A client without any scalar in a round does not report.
    Probe rounds of a ``GroupProbe`` send two scalars each way, independent of d, τ and P, and cost three queries.

    **When to use it.** If bandwidth is the limit, for any d, such as a network's parameters. H adapts the length of
    steps; whether it saves rounds over DeComFL depends on the problem (experiments ``hiso-fig5``, ``hiso-table2``).

    **Cost.** τ(P + 1) queries per client and round, and τP numbers each way for any d. A party holds x and H.

    Args:
        x0: initial point, shape ``d``; with float32 or narrower, H takes 4 bytes per coordinate.
        curvature: as in ``optimizers.HiSo``, the same on server and clients. A ``Displacement`` without ``initial``
            starts from H₀ = 1, and is not reset by a skipped round.
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
        """Creates a model at x0; raises an error if an option is out of range."""
        x0, in_place = (self.x0.clone(), True) if self.bounds is None else (self.x0, False)
        options = self.common_options(0) | vars(self.steps) | {"seed": self.seed, "local_steps": self.local_steps}
        method = optimizers.HiSo(x0, curvature=self.curvature, in_place=in_place, **options)
        return ScalarModel(method, self.server_rate)

    def max_points(self, phase: str) -> int:
        """τ steps of P + 1 or 2P points; three in a probe round."""
        count = self.steps.perturbations
        return max(3, self.local_steps * (2 * count if self.steps.scheme == "central" else count + 1))

    def numbers(self, round_number: int) -> int:
        """τP, or 2 in a probe round."""
        ordinary = self.local_steps * self.steps.perturbations
        return ordinary if self.curvature.probe(self.seed, round_number) is None else 2


class DeComFL(HiSo):
    """DeComFL (Li et al. 2025): HiSo with H = 1.

    **When to use it.** If bandwidth is the limit, before HiSo.

    **Cost.** τ(P + 1) queries per client and round, and τP numbers each way for any d. A party holds x alone.

    Args:
        **options: see ``HiSo``, except ``curvature``.
    """

    name = "decomfl"

    def __init__(self, x0: Any, **options: Any) -> None:
        super().__init__(x0, curvature=None, **options)
