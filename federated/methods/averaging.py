"""Shared parts of FedZO, FedAvg and related algorithms, which average the iterates of local first-order steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack, get_args

from torch import Tensor

from federated.core.acceptance import Accept
from federated.core.algorithm import Algorithm, FederatedOptions
from federated.core.messages import MessageSpec, Report
from federated.core.server import Server
from federated.core.settling import Rate
from optimizers.core.options import check_boolean, check_choice
from optimizers.first_order import FirstOrder, UpdateRule


@dataclass
class ServerState:
    """The model x_r, shape ``d``."""

    x: Tensor


class AveragingServer(Server):
    """Broadcasts x, and moves it to the mean of the clients' iterates."""

    def _start(self) -> None:
        self.state = ServerState(self.algorithm.x0)

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        return {"x": self.state.x}

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        self.state = ServerState(self.moved(self.state.x, self.combine("x", reports)))


class LocalSteps(Algorithm):
    """Options and messages of an algorithm whose clients take T local steps from x_{r−1} and report the last iterate.

    Args:
        update_rule: factory of the local first-order rule, a torch optimizer.
        reset_rule: whether the rule's moments are reset at the start of each round, as in FZooS's programs.
        accept: ``"always"``, or ``"monotone"``, which rejects a round that does not lower F over its clients. The
            check costs each client at least one query and d numbers down (``federated.core.acceptance``).
        rate_schedule: ``"constant"``, the learning rate of ``update_rule``, or ``"settling"``, which decreases
            when x reverses direction (``federated.core.settling``).
        **common: see ``Algorithm``.
    """

    server_class: ClassVar[type[Server]] = AveragingServer

    def __init__(
        self,
        x0: Any,
        *,
        update_rule: UpdateRule,
        reset_rule: bool = True,
        accept: Accept = "always",
        rate_schedule: Rate = "constant",
        **common: Unpack[FederatedOptions],
    ) -> None:
        self.update_rule, self.reset_rule = update_rule, check_boolean("reset_rule", reset_rule)
        self.accept = check_choice("accept", accept, get_args(Accept))
        self.asks_acceptance = accept == "monotone"
        self.rate_schedule = check_choice("rate_schedule", rate_schedule, get_args(Rate))
        self.settles = self.rate_schedule == "settling"
        super().__init__(x0, **common)
        FirstOrder(update_rule, self.x0)

    def broadcasts(self, phase: str) -> MessageSpec:
        """The broadcast is x."""
        return MessageSpec({"x": self.vector})

    def reports(self, phase: str) -> MessageSpec:
        """The report is x."""
        return MessageSpec({"x": self.vector})
