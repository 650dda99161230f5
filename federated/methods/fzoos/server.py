"""The server's half of FZooS."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from federated.core.algorithm import RoundSkipped
from federated.core.messages import Plain, Report
from federated.core.server import Server
from federated.methods.fzoos.gamma import common_points, empirical_bayes_gamma, shared_gamma

if TYPE_CHECKING:
    from federated.methods.fzoos.fzoos import FZooS

logger = logging.getLogger(__name__)


@dataclass
class FZooSState:
    """The model, the clients' surrogates, and who holds what.

    Attributes:
        x: x_r, shape ``d``.
        x_version: how often it has changed.
        x_holders: clients that were sent it (where a round has several phases).
        before: x_{r−1}, shape ``d``.
        table: row i is the last wᵢ of client i, ``N x M``; empty where none are sent.
        known: clients that have sent one.
        w: Σ pᵢ wᵢ over them, shape ``M``, or None before there is any.
        w_version: how often it has changed.
        w_holders: clients that were sent it.
        present: clients whose wᵢ came in this round.
        w_present: Σ pᵢ wᵢ over these, or None.
        gamma: γ of the round, where it is estimated.
        fallbacks: estimates of it that were not finite.
    """

    x: Tensor
    before: Tensor
    table: Tensor
    x_version: int = 0
    x_holders: list[int] | None = None
    known: list[int] | None = None
    w: Tensor | None = None
    w_version: int = 0
    w_holders: list[int] | None = None
    present: list[int] | None = None
    w_present: Tensor | None = None
    gamma: float = 0.0
    fallbacks: int = 0


class FZooSServer(Server):
    """Moves x to the mean of the clients' iterates, averages their surrogates, and estimates γ."""

    algorithm: FZooS
    state: FZooSState

    def _start(self) -> None:
        a, x = self.algorithm, self.algorithm.x0
        rows = a.clients if a.corrects else 0
        self.state = FZooSState(x, x, x.new_zeros(rows, a.num_features))

    # Messages.

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        a, s = self.algorithm, self.state
        if phase == "surrogate":
            return {"x": s.x}
        if phase == "gamma":
            assert s.w_present is not None
            return {"w": s.w_present}
        message: dict[str, Tensor] = {}
        if not a.several_phases or client not in (s.x_holders or []):
            message["x"] = s.x
        if s.w is not None and client not in (s.w_holders or []):
            message["w"] = s.w
        if a.estimates_gamma:
            message["gamma"] = torch.tensor([s.gamma], dtype=torch.float64, device=s.x.device)
        return message

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        s = self.state
        if phase == "surrogate":
            return {"x_version": s.x_version}
        if phase == "gamma":
            return {"w_version": s.w_version if s.present == s.known else 0}
        return {"x_version": s.x_version, "w_version": s.w_version}

    def _catch_up(self, report: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        """All of the model, for a client that no longer holds what it was sent."""
        s = self.state
        tensors = {"x": s.x} if s.w is None else {"x": s.x, "w": s.w}
        return tensors, {"x_version": s.x_version, "w_version": s.w_version}

    # Phases.

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        if phase == "local":
            self._take_iterates(reports)
        elif phase == "surrogate":
            self._take_surrogates(reports)
        else:
            self._take_products(reports)

    def _skipped(self, phase: str) -> None:
        """x_r and the mean w stay as they are, but for x_r where no client is left to accept it."""
        if phase != "local" and self.algorithm.asks_acceptance:
            self._take_back(self.state.before)

    def _take_back(self, previous: Tensor) -> None:
        s = self.state
        self.state = replace(s, x=previous, x_version=s.x_version + 1, x_holders=[])

    def _take_iterates(self, reports: Mapping[int, Report]) -> None:
        a, s = self.algorithm, self.state
        x = self.moved(s.x, self.combine("x", reports))
        state = replace(s, x=x, before=s.x, x_version=s.x_version + 1, x_holders=[])
        if a.corrects and not a.several_phases:
            state = self._with_surrogates(state, reports)
        self.state = state

    def _take_surrogates(self, reports: Mapping[int, Report]) -> None:
        a = self.algorithm
        state = replace(self.state, x_holders=sorted(reports))
        if a.corrects:
            state = self._with_surrogates(state, reports)
        if a.gamma == "empirical_bayes":
            state = self._with_gamma(state, self._one_way_gamma(state, reports))
        self.state = state

    def _take_products(self, reports: Mapping[int, Report]) -> None:
        """γ of the next round; it stays where a product is missing: the sum over the others is not its."""
        s = self.state
        assert s.present is not None
        state = replace(s, w_holders=sorted(reports) if s.present == s.known else [])
        if sorted(reports) == s.present:
            products = torch.stack([r.tensors["product"][0] for r in reports.values()])
            state = self._with_gamma(state, shared_gamma(products, self._gradients(s), self._shares(s)))
        else:
            missing = sorted(set(s.present) - set(reports))
            logger.warning("round %d: no product came from clients %s, gamma stays %g", self.round, missing, s.gamma)
        self.state = state

    # Parts.

    def _with_surrogates(self, s: FZooSState, reports: Mapping[int, Report]) -> FZooSState:
        """The state with the clients' new weights in the table, and its means."""
        table = s.table.clone()
        for client, report in reports.items():
            table[client] = report.tensors["w"]
        known = sorted({*(s.known or []), *reports})
        w = self.mean_of({client: table[client] for client in known})
        present = sorted(reports)
        w_present = w
        if present != known:
            w_present = self.mean_of({client: table[client] for client in present})
        if not bool(torch.isfinite(w).all() and torch.isfinite(w_present).all()):
            raise RoundSkipped("the mean of the surrogates is not finite")
        return replace(
            s,
            table=table,
            known=known,
            w=w,
            w_version=s.w_version + 1,
            w_holders=[],
            present=present,
            w_present=w_present,
        )

    def _with_gamma(self, s: FZooSState, gamma: float) -> FZooSState:
        if math.isfinite(gamma):
            return replace(s, gamma=gamma)
        logger.warning("round %d: the estimate of gamma is not finite, 0 is used", self.round)
        return replace(s, gamma=0.0, fallbacks=s.fallbacks + 1)

    def _one_way_gamma(self, s: FZooSState, reports: Mapping[int, Report]) -> float:
        statistics = torch.stack([report.tensors["statistics"] for report in reports.values()])
        margin = statistics[:, 1] if self.algorithm.margin else None
        return empirical_bayes_gamma(statistics[:, 0], self._gradients(s), self._shares(s), margin)

    def _gradients(self, s: FZooSState) -> Tensor:
        """∇μ̂ᵢ of the present clients at the common points, ``points x N x d``."""
        a = self.algorithm
        assert s.present is not None
        points = common_points(s.x, s.before, a.gamma_points)
        rows = s.table[s.present]
        return torch.stack([a.features.jacobian_product(a.search(x)[None], rows) for x in points])

    def _shares(self, s: FZooSState) -> Tensor:
        assert s.present is not None
        return torch.tensor([self.algorithm.weights[c] for c in s.present], dtype=torch.float64)
