"""The client's half of FZooS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from federated.core.algorithm import NoReportError
from federated.core.client import Client
from federated.core.messages import BehindError, Broadcast, Plain
from federated.methods.fzoos.gamma import common_points
from federated.methods.fzoos.surrogate_descent import SurrogateDescent

if TYPE_CHECKING:
    from federated.methods.fzoos.fzoos import FZooS


@dataclass
class ClientState:
    """What the server has sent, beside what the optimizer holds.

    Attributes:
        x: its last point, shape ``d``.
        x_version: the server's count of it.
        before: x_{r−1}, shape ``d``.
        w: Σ pᵢ wᵢ, shape ``M``.
        w_version: the server's count of it.
        product: Σ mᵢ·cᵢ at the common points.
    """

    x: Tensor | None = None
    x_version: int = -1
    before: Tensor | None = None
    w: Tensor | None = None
    w_version: int = 0
    product: float = 0.0


class FZooSClient(Client):
    """T local steps; then, in phases of their own where need be, active queries, wᵢ, and the scalar for γ."""

    algorithm: FZooS
    optimizer: SurrogateDescent
    state: ClientState

    def _start(self) -> None:
        self.optimizer = self.algorithm.local_optimizer(self.number)
        self.state = ClientState()

    def _receive(self, phase: str, message: Broadcast) -> None:
        if phase == "local":
            self._begin_steps(message)
        elif phase == "surrogate":
            a, x = self.algorithm, message.tensors["x"]
            self.state = replace(self.state, x=x, x_version=_integer(message, "x_version"))
            self.optimizer.begin_active(
                x,
                address=a.address(message.round) + a.local_steps,
                fits=a.corrects,
                statistics=a.gamma == "empirical_bayes",
            )
        else:
            self._compute_product(message)

    def _busy(self, phase: str) -> bool:
        return phase != "gamma" and self.optimizer.busy

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        if phase == "gamma":
            return {"product": torch.tensor([self.state.product], dtype=torch.float64)}
        a, state = self.algorithm, self.optimizer.state
        tensors: dict[str, Tensor] = {}
        if phase == "local":
            if state.succeeded == 0:
                raise NoReportError("no query of the whole phase succeeded")
            tensors["x"] = self.optimizer.x
        if a.corrects and phase == a.phase_of_weights:
            if state.weights is None:
                raise NoReportError("no query has succeeded yet")
            tensors["w"] = state.weights
        if phase == "surrogate" and state.statistics is not None:
            tensors["statistics"] = torch.tensor(state.statistics[: 1 + a.margin], dtype=torch.float64)
        return tensors

    def _position(self) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        return {}, {}

    def _catch_up(self, message: Broadcast) -> None:
        self.state = replace(self.state, **self._held(message))

    # Parts.

    def _begin_steps(self, message: Broadcast) -> None:
        a = self.algorithm
        state = replace(self.state, **self._held(message))
        sent = message.values
        if state.x is None or state.x_version != sent["x_version"]:
            raise BehindError(f"client {self.number} does not hold the present model")
        if sent["w_version"] and state.w_version != sent["w_version"]:
            raise BehindError(f"client {self.number} does not hold the present surrogate")
        own = self.optimizer.state.weights
        difference = None if state.w is None or own is None else state.w - own
        given = message.tensors.get("gamma")
        self.optimizer.begin(
            state.x,
            address=a.address(message.round),
            gammas=a.gammas(message.round, None if given is None else float(given[0])),
            difference=difference if a.corrects else None,
            at_start=a.correction_at == "start",
            reset=a.reset_rule,
            fits=a.corrects and a.phase_of_weights == "local",
        )
        self.state = replace(state, before=state.x)

    def _held(self, message: Broadcast) -> dict[str, Any]:
        """What a message leaves the client with."""
        held: dict[str, Any] = {}
        for name in ("x", "w"):
            if name in message.tensors:
                held |= {name: message.tensors[name], f"{name}_version": _integer(message, f"{name}_version")}
        return held

    def _compute_product(self, message: Broadcast) -> None:
        a, s, w = self.algorithm, self.state, message.tensors["w"]
        assert s.x is not None and s.before is not None
        product = self.optimizer.product(common_points(s.x, s.before, a.gamma_points), w)
        version = _integer(message, "w_version")
        kept: dict[str, Any] = {"w": w, "w_version": version} if version else {}
        self.state = replace(s, product=product, **kept)


def _integer(message: Broadcast, name: str) -> int:
    value = message.values[name]
    assert isinstance(value, int)
    return value
