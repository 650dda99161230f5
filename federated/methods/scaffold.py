"""SCAFFOLD with zeroth-order estimates, types I and II.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        eqs. 91 (type I), 93 (type II), Prop. F.4.
    S. P. Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from federated.core.latest import LatestVectors
from federated.core.messages import Broadcast, MessageSpec, Report
from federated.core.server import Server
from federated.core.settling import rate_in
from federated.methods.fedzo import DescentClient, FedZO


@dataclass
class ControlState:
    """A server's model x_r and the mean of the clients' control variates (initially 0), each of shape ``d``."""

    x: Tensor
    control: Tensor


@dataclass
class TableState:
    """A server's model x_r, and each client's last reported cᵢ, of shape ``d``."""

    x: Tensor
    controls: LatestVectors


@dataclass
class OwnControl:
    """A client's control variate cᵢ, shape ``d``; None before its first round."""

    control: Tensor | None = None


class ControlServer(Server):
    """Type I: requests Δᵢ(x_{r−1}), then broadcasts their mean and averages the clients' iterates."""

    state: ControlState

    def _start(self) -> None:
        x = self.algorithm.x0
        self.state = ControlState(x, torch.zeros_like(x))

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        return {"x": self.state.x} if phase == "control" else {"control": self.state.control}

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        if phase == "control":
            self.state = replace(self.state, control=self.combine("control", reports))
        else:
            self.state = replace(self.state, x=self.moved(self.state.x, self.combine("x", reports)))


class ControlClient(DescentClient):
    """Type I: reports an estimate at x_{r−1}, then takes T steps corrected by the mean estimate minus this estimate."""

    def _receive(self, phase: str, message: Broadcast) -> None:
        a, optimizer = self.algorithm, self.optimizer
        first = a.address(message.round)
        if phase == "control":
            # If directions are redrawn for every step, the estimate's address follows those of the T steps.
            own = first + (a.local_steps if a.redraw == "step" else 0)
            rate = rate_in(message)
            optimizer.begin(message.tensors["x"], address=own, steps=1, moves=False, reset=a.reset_rule, rate=rate)
            return
        estimate = optimizer.mean_estimate
        assert estimate is not None
        correction = message.tensors["control"] - estimate
        optimizer.begin(optimizer.x, address=first, steps=a.local_steps, correction=correction, reset=False)

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        if phase == "local":
            return super()._report(phase)
        return {"control": self._estimate()}


class SCAFFOLD1(FedZO):
    """SCAFFOLD, type I (FZooS eq. 91): control variates are estimates at the round's start.

        ĝ = δᵢ(x) + Σⱼ pⱼ Δⱼ(x_{r−1}) − Δᵢ(x_{r−1})

    with δ and Δ as in FedZO. There are two phases: Δᵢ(x_{r−1}) up and its mean down, then T local steps. A client that
    cannot estimate Δᵢ does not take part in the round. A client whose second report fails still contributes to the mean
    Δ.

    **When to use it.** If the clients' functions differ, and few clients take part in a round, so that type II's cᵢ are
    old.

    **Cost.** (T + 1)(Q + 1) queries per client and round, 2d numbers each way, and two exchanges per round.

    Args: see ``FedZO``.
    """

    name = "scaffold1"
    phases = ("control", "local")
    server_class = ControlServer
    client_class = ControlClient

    def broadcasts(self, phase: str) -> MessageSpec:
        """The broadcasts are x, then the mean Δ."""
        return MessageSpec({"x" if phase == "control" else "control": self.vector})

    def reports(self, phase: str) -> MessageSpec:
        """The reports are Δᵢ, then x."""
        return MessageSpec({"control" if phase == "control" else "x": self.vector})


class TableServer(Server):
    """Type II: stores every client's last cᵢ and broadcasts their mean with x."""

    state: TableState

    def _start(self) -> None:
        a = self.algorithm
        self.state = TableState(a.x0, LatestVectors(a.weights, a.vector))

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        """x, and Σᵢ pᵢ cᵢ over the clients that have reported a cᵢ, by the chosen aggregation; initially zero."""
        s = self.state
        return {"x": s.x, "control": self.mean_of_latest(s.controls) if len(s.controls) else torch.zeros_like(s.x)}

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        s = self.state
        x = self.moved(s.x, self.combine("x", reports))
        controls = s.controls.replaced({client: report.tensors["control"] for client, report in reports.items()})
        self.state = TableState(x, controls)


class TableClient(DescentClient):
    """Type II: takes T steps corrected by c − cᵢ; then cᵢ becomes the mean of the client's estimates."""

    state: OwnControl

    def _start(self) -> None:
        super()._start()
        self.state = OwnControl()

    def _receive(self, phase: str, message: Broadcast) -> None:
        latest = self.optimizer.mean_estimate
        own = self.state.control if latest is None else latest
        self.state = OwnControl(own)
        correction = None if own is None else message.tensors["control"] - own
        self._begin(message, correction)

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        return {"x": self.optimizer.x, "control": self._estimate()}


class SCAFFOLD2(FedZO):
    """SCAFFOLD, type II (FZooS eq. 93): control variates are the means of the previous round's estimates.

        ĝ = δᵢ(x) + c − cᵢ,    cᵢ = (1/T) Σ_t δᵢ(x_{r−1,t−1}^{(i)}),    c = Σⱼ pⱼ cⱼ

    with the uncorrected estimates δ of FedZO. With partial participation cᵢ is from the client's last round, and c is
    over all clients that have reported one. A client takes no correction before its first report, whereas Karimireddy
    et al. use cᵢ = 0: c alone would add a gradient instead of a difference. ``redraw="never"`` shares the directions
    across all iterations and rounds, as Prop. F.4 assumes.

    **When to use it.** If the clients' functions differ, rounds are expensive and queries cheap (``fzoos-fig1``).

    **Cost.** T(Q + 1) queries per client and round, and 2d numbers each way; the server stores N d numbers.

    Args: see ``FedZO``.
    """

    name = "scaffold2"
    server_class = TableServer
    client_class = TableClient

    def broadcasts(self, phase: str) -> MessageSpec:
        """The broadcast is x and c."""
        return MessageSpec({"x": self.vector, "control": self.vector})

    def reports(self, phase: str) -> MessageSpec:
        """The report is x and cᵢ."""
        return MessageSpec({"x": self.vector, "control": self.vector})
