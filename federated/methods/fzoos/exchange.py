"""What server and clients of FZooS keep of the messages, so that nothing is sent twice and a loss is seen.

x and w have versions, the server's counts of how often they have changed. A message says which versions it presumes; a
client that holds others is behind, and is caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from federated.core.algorithm import RoundSkipped
from federated.core.latest import LatestVectors, among
from federated.core.messages import BehindError, Broadcast, Plain


@dataclass
class ClientState:
    """What the server has sent, beside what the client's optimizer holds.

    Attributes:
        x: the last x_r, shape ``d``.
        x_version: its version.
        before: x_{r−1}, shape ``d``.
        w: the last w = Σ pᵢ wᵢ, shape ``M``.
        w_version: its version.
    """

    x: Tensor | None = None
    x_version: int = -1
    before: Tensor | None = None
    w: Tensor | None = None
    w_version: int = 0

    def with_sent(self, message: Broadcast) -> ClientState:
        """The state with x and w as far as a message brings them."""
        sent: dict[str, Any] = {}
        for name in ("x", "w"):
            if name in message.tensors:
                sent |= {name: message.tensors[name], f"{name}_version": message.values[f"{name}_version"]}
        return replace(self, **sent)

    def model(self, versions: Mapping[str, Plain]) -> Tensor:
        """x, if x and w are of the versions that a message presumes.

        Raises:
            BehindError: if they are not.
        """
        if self.x is None or self.x_version != versions["x_version"]:
            raise BehindError("the client does not hold the present model")
        if versions["w_version"] and self.w_version != versions["w_version"]:
            raise BehindError("the client does not hold the present surrogate")
        return self.x


@dataclass
class ServerState:
    """The model, the clients' surrogates, and who holds what.

    Attributes:
        x: x_r, shape ``d``.
        before: x_{r−1}, shape ``d``.
        surrogates: the last wᵢ of each client that has sent one, shape ``M``.
        x_version: how often x has changed.
        x_holders: clients that were sent it.
        w: Σ pᵢ wᵢ over these clients, shape ``M``; None before there is any.
        w_version: how often w has changed.
        w_holders: clients that were sent it.
        present: clients whose wᵢ came in this round.
        w_present: Σ pᵢ wᵢ over these, shape ``M``; None before there is any.
        gamma: γ_r, where the server finds it.
        fallbacks: how often what it found was not finite.
    """

    x: Tensor
    before: Tensor
    surrogates: LatestVectors
    x_version: int = 0
    x_holders: list[int] = field(default_factory=list)
    w: Tensor | None = None
    w_version: int = 0
    w_holders: list[int] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    w_present: Tensor | None = None
    gamma: float = 0.0
    fallbacks: int = 0

    def with_model(self, x: Tensor, before: Tensor) -> ServerState:
        """The state with a new x, which nobody holds."""
        return replace(self, x=x, before=before, x_version=self.x_version + 1, x_holders=[])

    def with_surrogates(
        self,
        sent: Mapping[int, Tensor],
        mean_of: Callable[[Mapping[int, Tensor]], Tensor],
        mean_of_latest: Callable[[LatestVectors], Tensor],
    ) -> ServerState:
        """The state with the clients' new wᵢ, and the mean of the latest of all and of those that were sent.

        Raises:
            RoundSkipped: if a mean is not finite.
        """
        surrogates, present = self.surrogates.replaced(sent), sorted(sent)
        w = w_present = mean_of_latest(surrogates)
        if len(present) != len(surrogates):
            w_present = mean_of(sent)
        if not bool(torch.isfinite(w).all() and torch.isfinite(w_present).all()):
            raise RoundSkipped("the mean of the surrogates is not finite")
        changed = replace(self, surrogates=surrogates, present=present, w=w, w_present=w_present)
        return replace(changed, w_version=self.w_version + 1, w_holders=[])

    @property
    def all_present(self) -> bool:
        """Whether the clients of this round are all that have sent a wᵢ."""
        return len(self.present) == len(self.surrogates)

    def with_holders(self, phase: str, clients: Collection[int]) -> ServerState:
        """The state after a phase in which these clients were sent what the phase sends, and answered."""
        if phase == "surrogate":
            return replace(self, x_holders=sorted(clients))
        if phase == "gamma":
            return replace(self, w_holders=sorted(clients) if self.all_present else [])
        return self

    def lacking(self, client: int | None) -> dict[str, Tensor]:
        """x and w, as far as a client does not hold them; None: a client that holds nothing."""
        lacking = {} if among(client, self.x_holders) else {"x": self.x}
        return lacking if self.w is None or among(client, self.w_holders) else lacking | {"w": self.w}

    def versions(self, phase: str) -> dict[str, Plain]:
        """Versions of what a phase sends; 0 for a w that is the mean of this round's clients only."""
        if phase == "gamma":
            return {"w_version": self.w_version if self.all_present else 0}
        x_version: dict[str, Plain] = {"x_version": self.x_version}
        return x_version if phase == "surrogate" else x_version | {"w_version": self.w_version}
