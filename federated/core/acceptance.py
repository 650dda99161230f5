"""``accept="monotone"``: a last phase of each round, in which clients say whether the new model is better.

FZooS's published programs reject a round that does not lower F, and do not count what it costs to know. Here the
clients are asked: x_r goes down (and x_{r−1} where one of them has not been asked for it), fᵢ(x_r) comes up, one
counted query and one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.optimizer import Optimizer

ACCEPT = "accept"
Accept = Literal["always", "monotone"]
ACCEPTS: tuple[Accept, ...] = ("always", "monotone")


@dataclass
class PointValuesState:
    """The points, shape ``q x d``, and their values, shape ``q``, empty before they are known."""

    points: Tensor
    values: Tensor


class PointValues(Optimizer):
    """Asks for the values at given points, and moves nowhere."""

    method = "point_values"
    rescale_by_default = False
    state: PointValuesState

    def begin(self, points: Tensor) -> None:
        """Set the points, shape ``q x d``; a batch still pending is dropped."""
        self.cancel()
        self.state = PointValuesState(self._to_search(points), points.new_empty(0, dtype=torch.float64))

    @property
    def busy(self) -> bool:
        """Whether the values are still to be asked for."""
        return len(self.state.values) < len(self.state.points)

    def _start(self) -> None:
        self.begin(self._x[None])

    def _next_queries(self) -> int:
        return len(self.state.points)

    def _ask(self) -> Batch:
        return self._points_batch(self.state.points)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        self.state = PointValuesState(self.state.points, values)


@dataclass
class Acceptance:
    """What the server knows of fᵢ at the model that it holds.

    Attributes:
        previous: x_{r−1}, shape ``d``.
        values: fᵢ(x_{r−1}) of the clients that have said it.
    """

    previous: Tensor
    values: dict[int, float]

    def message(self, x: Tensor, participants: tuple[int, ...]) -> dict[str, Tensor]:
        """Tensors of the phase's broadcast."""
        known = all(client in self.values for client in participants)
        return {"x": x} if known else {"x": x, "previous": self.previous}

    def decide(self, reports: Mapping[int, Mapping[str, Tensor]], weights: tuple[float, ...]) -> bool:
        """Whether Σ wᵢ fᵢ fell over the clients that reported; keeps the values of the model that stays."""
        after = {client: float(tensors["value"]) for client, tensors in reports.items()}
        before = {
            client: float(tensors["previous_value"]) if "previous_value" in tensors else self.values[client]
            for client, tensors in reports.items()
        }
        fell = sum(weights[c] * after[c] for c in reports) < sum(weights[c] * before[c] for c in reports)
        self.values = after if fell else {**self.values, **before}
        return fell

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {"previous": self.previous.clone(), "values": dict(self.values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a ``state_dict``."""
        self.previous = state["previous"].to(self.previous.device).clone()
        self.values = {int(client): float(value) for client, value in state["values"].items()}
