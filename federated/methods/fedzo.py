"""FedZO and FedProx: averages of local zeroth-order descent.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        eqs. 87 (FedZO) and 89 (FedProx).
    W. Fang et al., Communication-efficient stochastic zeroth-order optimization for federated learning, 2022.
    T. Li et al., Federated optimization in heterogeneous networks, MLSys 2020.
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
    """T local steps from the server's x, which go up as the new iterate."""

    algorithm: FedZO
    optimizer: LocalDescent

    def _start(self) -> None:
        self.optimizer = self.algorithm.local_optimizer(self.number)

    def _receive(self, phase: str, message: Broadcast) -> None:
        self._begin(message)

    def _begin(self, message: Broadcast, correction: Tensor | None = None) -> None:
        """Start the local steps of a round at x, each corrected by b."""
        a, rate = self.algorithm, rate_in(message) if self.algorithm.settles else None
        self.optimizer.begin(
            message.tensors["x"],
            address=a.address(message.round),
            steps=a.local_steps,
            correction=correction,
            reset=a.reset_rule,
            rate=rate,
        )

    def _busy(self, phase: str) -> bool:
        return self.optimizer.busy

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        self._estimate()
        return {"x": self.optimizer.x}

    def _estimate(self) -> Tensor:
        """The mean estimate of the phase; where there is none, the client has nothing to report."""
        estimate = self.optimizer.mean_estimate
        if estimate is None:
            raise NoReportError("no estimate in the whole phase: the queries failed")
        return estimate


class FedZO(LocalSteps):
    """FedZO (Fang et al. 2022; FZooS eq. 87): the clients' mean after T zeroth-order steps each.

        ĝ = (1/(Q E[u_j²])) Σ_q (fᵢ(x + λu_q) − fᵢ(x))/λ · u_q,    x_r = Σᵢ pᵢ x_{r,T}^{(i)}

    A step costs Q + 1 queries, a round T(Q + 1) a client, and d numbers each way. The paper's pᵢ is 1/N. The scale 1/Q
    of its eq. 7, which eq. 87 takes, is right for directions with E uuᵀ = I (Lemma F.1's are normal); unit vectors,
    the default being orthonormal ones, need d/Q. Q = 20 is that of FZooS's Fig. 3, λ = 0.01 of its authors' program.

    Args:
        x0: initial point, shape ``d``.
        directions: Q.
        smoothing_radius: λ, in x's units; the default is FZooS's number, for inputs in [0, 1]^d.
        distribution: of u, one of ``Directions``'.
        redraw: whether u is drawn anew for every ``"step"``, every ``"round"``, or ``"never"`` (FZooS, Prop. F.4:
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
        return FiniteDifferences(self.directions, self.smoothing_radius, self.distribution, seed=seed)

    def local_optimizer(self, number: int) -> LocalDescent:
        """A client's optimizer; raises for options out of range."""
        common, rule, redraw = self.common_options(number), self.update_rule, self.redraw == "step"
        estimator = self._estimator(common["seed"])
        return LocalDescent(self.x0, estimator=estimator, pull=self.pull, redraw=redraw, update_rule=rule, **common)

    def most_points(self, phase: str) -> int:
        """T estimates; of SCAFFOLD's Δᵢ one."""
        queries = self._estimator(0).queries_needed(self.dimension)
        return queries * (1 if phase == "control" else self.local_steps)

    def address(self, round_number: int) -> int:
        """Direction address of a round's first step: T + 1 of them a round, the last for a control variate."""
        return 0 if self.redraw == "never" else round_number * (self.local_steps + 1)


class FedProx(FedZO):
    """FedProx (Li et al. 2020; FZooS eq. 89): FedZO with local steps pulled to x_{r−1}.

        ĝ = δᵢ(x) + γ (x − x_{r−1}),    the gradient of fᵢ + (γ/2)‖· − x_{r−1}‖²

    The paper says of γ that it is a constant (eq. 89) in [0, 1] (eq. 6). Its authors' program has γ = 1 and a δᵢ that
    is a mean over unit vectors without the factor d, ∇fᵢ/d in the mean: beside it the pull is as strong as γ = d
    beside ours, and with Adam, to whose steps only the ratio matters (but for its ε), γ = d is the program's FedProx.
    γ = 1 is then nearly FedZO.

    Args:
        x0: initial point, shape ``d``.
        pull: γ; ``pull=d`` is the authors' program, 0 is FedZO.
        **options: see ``FedZO``.
    """

    name = "fedprox"

    def __init__(self, x0: Any, *, pull: float = 1.0, **options: Any) -> None:
        self.pull = pull
        super().__init__(x0, **options)
