"""FedZO and FedProx: averaging of local zeroth-order descent.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024, eqs. 87, 89.
    W. Fang et al., Communication-efficient stochastic zeroth-order optimization for federated learning, 2022. T. Li et
    al., Federated optimization in heterogeneous networks, MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from federated.core.algorithm import NoReportError
from federated.core.client import Client
from federated.core.messages import Broadcast
from federated.core.settling import rate_in
from federated.methods.averaging import LocalSteps
from federated.methods.local_descent import LocalDescent, local_adam
from optimizers.core.options import check_choice
from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.first_order import UpdateRule

Redraw = Literal["step", "round", "never"]


class DescentClient(Client):
    """Takes T local steps from the server's x and reports the last iterate."""

    algorithm: FedZO
    optimizer: LocalDescent

    def _start(self) -> None:
        self.optimizer = self.algorithm.local_optimizer(self.number)

    def _receive(self, phase: str, message: Broadcast) -> None:
        self._begin(message)

    def _begin(self, message: Broadcast, correction: Tensor | None = None) -> None:
        """Starts a round's local steps at x, with a correction b of every step."""
        a = self.algorithm
        x, address, rate = message.tensors["x"], a.address(message.round), rate_in(message)
        self.optimizer.begin(
            x, address=address, steps=a.local_steps, correction=correction, reset=a.reset_rule, rate=rate
        )

    def _busy(self, phase: str) -> bool:
        return self.optimizer.busy

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        self._estimate()
        return {"x": self.optimizer.x}

    def _estimate(self) -> Tensor:
        """Returns the mean gradient estimate of the phase; raises ``NoReportError`` if there is none."""
        estimate = self.optimizer.mean_estimate
        if estimate is None:
            raise NoReportError("the phase has no gradient estimate: the queries failed")
        return estimate


class FedZO(LocalSteps):
    """FedZO (Fang et al. 2022; FZooS eq. 87): the mean of the clients' iterates after T zeroth-order steps each.

        ĝ = (1/(Q E[u_j²])) Σ_q (fᵢ(x + λu_q) − fᵢ(x))/λ · u_q,    x_r = Σᵢ pᵢ x_{r,T}^{(i)}

    In the paper pᵢ = 1/N. The factor 1/Q of FZooS's eqs. 7 and 87 is unbiased for directions with E uuᵀ = I (normal in
    Lemma F.1); unit vectors, such as the default orthonormal ones, need d/Q. Q = 20 is from Fig. 3, λ = 0.01 from the
    authors' program.

    **When to use it.** If queries are cheap and the clients' functions are similar. If they differ, see ``SCAFFOLD2``.

    **Cost.** A step costs Q + 1 queries, and a round T(Q + 1) queries per client and d numbers each way.

    Args:
        directions: Q.
        smoothing_radius: λ, in x's units; the default is FZooS's value for inputs in [0, 1]^d.
        distribution: distribution of u, as in ``Directions``.
        redraw: whether u is redrawn for every ``"step"``, every ``"round"`` or ``"never"`` (FZooS, Prop. F.4:
            directions shared across all iterations and rounds).
        update_rule: factory of the local first-order rule, a torch optimizer.
        **options: see ``LocalSteps``.
    """

    name = "fedzo"
    client_class: ClassVar[type[Client]] = DescentClient
    pull = 0.0

    def __init__(
        self,
        x0: Any,
        *,
        directions: int = 20,
        smoothing_radius: float = 0.01,
        distribution: str = "orthonormal",
        redraw: Redraw = "step",
        update_rule: UpdateRule = local_adam,
        **options: Any,
    ) -> None:
        self.directions, self.smoothing_radius = directions, smoothing_radius
        self.distribution, self.redraw = distribution, check_choice("redraw", redraw, get_args(Redraw))
        super().__init__(x0, update_rule=update_rule, **options)
        self.local_optimizer(0)

    def _estimator(self, seed: int) -> FiniteDifferences:
        return FiniteDifferences(self.directions, self.smoothing_radius, distribution=self.distribution, seed=seed)

    def local_optimizer(self, number: int) -> LocalDescent:
        """Creates a client's optimizer; raises an error if an option is out of range."""
        common, rule, redraw = self.common_options(number), self.update_rule, self.redraw == "step"
        estimator = self._estimator(common["seed"])
        return LocalDescent(self.x0, estimator=estimator, pull=self.pull, redraw=redraw, update_rule=rule, **common)

    def max_points(self, phase: str) -> int:
        """The points of T gradient estimates, or of one for SCAFFOLD's Δᵢ."""
        queries = self._estimator(0).queries_needed(self.dimension)
        return queries * (1 if phase == "control" else self.local_steps)

    def address(self, round_number: int) -> int:
        """Returns the additional seed of a round's first directions; the last of its T + 1 is for a control variate."""
        return 0 if self.redraw == "never" else round_number * (self.local_steps + 1)


class FedProx(FedZO):
    """FedProx (Li et al. 2020; FZooS eq. 89): FedZO with a proximal term at x_{r−1} in each local step.

        ĝ = δᵢ(x) + γ (x − x_{r−1}),    the gradient of fᵢ + (γ/2)‖· − x_{r−1}‖²

    In the paper γ is a constant (eq. 89) in [0, 1] (eq. 6). The authors' program has γ = 1, but its δᵢ averages over
    unit vectors without the factor d and has mean ∇fᵢ/d. This corresponds to γ = d here: with Adam, whose steps depend
    only on the ratio of the two terms (except for its ε), γ = d gives the program's FedProx, and γ = 1 nearly FedZO.

    **When to use it.** If the clients' functions differ, and few queries or clients per round make SCAFFOLD too noisy.

    **Cost.** As for FedZO.

    Args:
        pull: γ; ``pull=d`` gives the authors' program, 0 gives FedZO.
        **options: see ``FedZO``.
    """

    name = "fedprox"

    def __init__(self, x0: Any, *, pull: float = 1.0, **options: Any) -> None:
        self.pull = pull
        super().__init__(x0, **options)
