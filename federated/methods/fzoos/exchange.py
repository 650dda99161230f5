"""The tensors that server and clients of FZooS store, so that nothing is sent twice and a lost message is detected.

Versions count the changes of x and w. A client with other versions than a message requires must catch up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from federated.core.algorithm import RoundSkipped
from federated.core.latest import LatestVectors, among
from federated.core.messages import BehindError, Broadcast, Plain
from federated.core.server import Server


@dataclass
class ClientState:
    """The last tensors from the server, in addition to the client's optimizer.

    Attributes:
        x: the last x_r, shape ``d``.
        x_version: the version of x.
        before: x_{r−1}, shape ``d``.
        w: the last w = Σ pᵢ wᵢ, shape ``M``.
        w_version: the version of w.
    """

    x: Tensor | None = None
    x_version: int = -1
    before: Tensor | None = None
    w: Tensor | None = None
    w_version: int = 0

    def with_sent(self, message: Broadcast) -> ClientState:
        """Returns the state with x and w updated from a message."""
        sent: dict[str, Any] = {name: message.tensors[name] for name in ("x", "w") if name in message.tensors}
        versions: dict[str, Any] = {f"{name}_version": message.values[f"{name}_version"] for name in sent}
        return replace(self, **sent, **versions)

    def model(self, versions: Mapping[str, Plain]) -> Tensor:
        """Returns x; ``BehindError`` if x or w does not have the version that a message requires."""
        if self.x is None or self.x_version != versions["x_version"]:
            raise BehindError("the client does not have the current model")
        if versions["w_version"] and self.w_version != versions["w_version"]:
            raise BehindError("the client does not have the current surrogate")
        return self.x


@dataclass
class ServerState:
    """The model, the clients' surrogates, and which clients have them.

    Attributes:
        x: x_r, shape ``d``.
        before: x_{r−1}, shape ``d``.
        surrogates: the latest wᵢ of each client that has sent one, shape ``M``.
        x_version: number of changes of x.
        x_holders: clients that have received x.
        w: Σ pᵢ wᵢ over all clients that have sent a wᵢ, shape ``M``; None if there are none.
        w_version: number of changes of w.
        w_holders: clients that have received w.
        present: clients that sent wᵢ in this round.
        w_present: Σ pᵢ wᵢ over ``present``, shape ``M``; None if there are none.
        gamma: γ_r, if the server computes it.
        fallbacks: number of estimates of γ that were not finite.
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
        """Returns the state with a new x, which no client has yet."""
        return replace(self, x=x, before=before, x_version=self.x_version + 1, x_holders=[])

    def with_surrogates(self, sent: Mapping[int, Tensor], server: Server) -> ServerState:
        """Returns the state with the clients' new wᵢ, and the server's means over all latest wᵢ and over the new wᵢ.

        Raises:
            RoundSkipped: if a mean is not finite.
        """
        surrogates, present = self.surrogates.replaced(sent), sorted(sent)
        w = w_present = server.mean_of_latest(surrogates)
        if len(present) != len(surrogates):
            w_present = server.mean_of(sent)
        if not bool(torch.isfinite(w).all() and torch.isfinite(w_present).all()):
            raise RoundSkipped("the mean of the surrogates is not finite")
        changed = replace(self, surrogates=surrogates, present=present, w=w, w_present=w_present)
        return replace(changed, w_version=self.w_version + 1, w_holders=[])

    @property
    def all_present(self) -> bool:
        """Whether every client that has ever sent a wᵢ sent one in this round."""
        return len(self.present) == len(self.surrogates)

    def with_holders(self, phase: str, clients: Collection[int]) -> ServerState:
        """Returns the state after a phase in which these clients received the broadcast and answered."""
        if phase == "surrogate":
            return replace(self, x_holders=sorted(clients))
        if phase == "gamma":
            return replace(self, w_holders=sorted(clients) if self.all_present else [])
        return self

    def lacking(self, client: int | None) -> dict[str, Tensor]:
        """Returns those of x and w that the client does not have; for None, both."""
        lacking = {} if among(client, self.x_holders) else {"x": self.x}
        return lacking if self.w is None or among(client, self.w_holders) else lacking | {"w": self.w}

    def versions(self, phase: str) -> dict[str, Plain]:
        """Returns the versions of a phase's tensors; 0 for a w that averages only this round's clients."""
        if phase == "gamma":
            return {"w_version": self.w_version if self.all_present else 0}
        x_version: dict[str, Plain] = {"x_version": self.x_version}
        return x_version if phase == "surrogate" else x_version | {"w_version": self.w_version}
