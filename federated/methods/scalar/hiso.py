"""HiSo and DeComFL: federated zeroth-order descent that communicates scalars, with and without curvature.

References:
    HiSo: Li et al., Reconciling Hessian-informed acceleration and scalar-only communication for efficient federated
        zeroth-order fine-tuning, 2025, Alg. 1, 2, 2a, 2b, Appx. C, eqs. 7, 12 and 112 (eq. 8 for P perturbations).
    DeComFL: Li et al., Achieving dimension-free communication in federated learning via zeroth-order optimization,
        2025.
"""

from __future__ import annotations

from typing import Any

from federated.methods.scalar.scalar_only import HiSoOptions, ScalarOnlyClient, ScalarOnlyServer


class HiSo(HiSoOptions):
    r"""HiSo (Li et al. 2025): all clients perturb along the same directions H^(−1/2)u_{kp} of a round.

        c_{ikp} = (1/P) (fᵢ(x + μH^(−1/2)u_{kp}) − fᵢ(x))/μ  at x = x⁽ⁱ⁾_{r,k}          Alg. 2b, line 4; eq. 112
        x⁽ⁱ⁾_{r,k+1} = prox(x − η H^(−1/2) Σ_p c_{ikp} u_{kp})                           lines 5 and 6
        c̄_{kp} = Σᵢ pᵢ c_{ikp}                                                           Alg. 2, line 13
        Δx_k = H^(−1/2) Σ_p c̄_{kp} u_{kp},   x ← prox(x − η_s η Δx_k),   k = 0 … τ − 1   lines 14 and 16
        H ← the curvature's update from Δx_k                                             Alg. 2a, line 6

    H is H_r in all steps of round r, as printed in the paper, or, with the default ``Displacement(update="per_step")``,
    is updated in each step. The prox and η_s are ours, and so are the weights pᵢ: line 13 has 1/|C_r|.

    ``HiSoOptions`` describes the messages, the counted bytes and the replay of missed rounds. A client's local steps,
    in which a ``"per_step"`` H is updated too, are undone after they are measured: model and server move by c̄ alone.
    Without a prox and with a fixed H_r the new model equals the mean of the clients' models (Appx. C; not with
    ``"per_step"`` and τ > 1). For N = 1 it is ``optimizers.HiSo``, step by step.

    The scalar of a failed perturbation is 0, and the step's other scalars are divided by the number that succeeded. If
    all perturbations of a step fail, its scalars are all 0. A client without any scalar in a round does not report.
    Probe rounds of a ``GroupProbe`` send two scalars each way, independent of d, τ and P, and cost three queries.

    **When to use it.** If bandwidth is the limit, for any d, such as a network's parameters. H adapts the length of
    steps; whether it saves rounds over DeComFL depends on the problem (experiments ``hiso-fig5``, ``hiso-table2``).

    **Cost.** τ(P + 1) queries per client and round, and τP numbers each way for any d. A party holds x and H.

    Args: see ``HiSoOptions``.
    """

    name = "hiso"
    server_class, client_class = ScalarOnlyServer, ScalarOnlyClient


class DeComFL(HiSo):
    """DeComFL (Li et al. 2025): HiSo with H = 1.

    **When to use it.** If bandwidth is the limit, before HiSo.

    **Cost.** τ(P + 1) queries per client and round, and τP numbers each way for any d. A party holds x alone.

    Args:
        **options: see ``HiSoOptions``, except ``curvature``.
    """

    name = "decomfl"

    def __init__(self, x0: Any, **options: Any) -> None:
        super().__init__(x0, curvature=None, **options)
