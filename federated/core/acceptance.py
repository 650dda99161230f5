"""``accept="monotone"``: an additional phase of each round, which rejects a model that does not lower F.

The server sends x_r, client i reports fᵢ(x_r), and the server restores x_{r−1} unless Σ wᵢ fᵢ(x_r) < Σ wᵢ fᵢ(x_{r−1})
over the clients that reported. If the server lacks a participant's value at x_{r−1}, it also sends x_{r−1}, and clients
evaluate both points. The phase costs a client 1 or 2 queries, 1 or 2 numbers up, and d or 2d numbers down. FZooS's
published programs also reject rounds, but do not count the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from federated.core.algorithm import NoReportError
from federated.core.messages import Broadcast, Report
from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer

Accept = Literal["always", "monotone"]
"""Values of the option ``accept``."""


@dataclass
class PointValuesState:
    """Points to evaluate, shape ``q x d``, and their values, shape ``q``; empty before the evaluation."""

    points: Tensor
    values: Tensor


class PointValues(Optimizer):
    """The client's part of the acceptance phase: an optimizer that evaluates given points and does not move."""

    method = "point_values"
    rescale_by_default = False
    state: PointValuesState

    def begin(self, points: Tensor) -> None:
        """Sets the points to evaluate, shape ``q x d``, and cancels a pending batch."""
        self.cancel()
        self.state = PointValuesState(self._to_search(points), points.new_empty(0, dtype=torch.float64))

    def receive(self, message: Broadcast) -> None:
        """Sets the points: x_r and, if the broadcast contains it, x_{r−1}."""
        self.begin(torch.stack([message.tensors[name] for name in ("x", "previous") if name in message.tensors]))

    def report(self) -> dict[str, Tensor]:
        """Returns fᵢ(x_r) and, if requested, fᵢ(x_{r−1}), each of shape ``1``, by name.

        Raises:
            NoReportError: if a query failed.
        """
        values = self.state.values
        if not bool(torch.isfinite(values).all()):
            raise NoReportError("the query at the new or the previous model failed")
        return dict(zip(("value", "previous_value"), values.split(1), strict=False))

    @property
    def busy(self) -> bool:
        """Whether points remain to be evaluated."""
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
    """The server's part of the acceptance phase.

    Attributes:
        previous: x_{r−1}, shape ``d``.
        values: the known fᵢ(x_{r−1}), by client.
    """

    previous: Tensor
    values: dict[int, float]

    def changes(self, reports: Mapping[int, Report]) -> dict[int, float]:
        """Returns fᵢ(x_r) − fᵢ(x_{r−1}) of the clients that reported."""
        after, before = self._values(reports)
        return {client: after[client] - before[client] for client in reports}

    def decide(self, reports: Mapping[int, Report], mean_of: Callable[[Mapping[int, Tensor]], Tensor]) -> bool:
        """Returns whether x_r is accepted, and stores the clients' values at the accepted model.

        x_r is accepted if the mean of fᵢ(x_r) − fᵢ(x_{r−1}) over the clients that reported is negative; ``mean_of`` is
        the algorithm's mean, weighted or robust.
        """
        after, before = self._values(reports)
        changes = {c: torch.tensor([after[c] - before[c]], dtype=torch.float64) for c in reports}
        fell = float(mean_of(changes)) < 0.0
        self.values = after if fell else before
        return fell

    def _values(self, reports: Mapping[int, Report]) -> tuple[dict[int, float], dict[int, float]]:
        after = {client: float(report.tensors["value"]) for client, report in reports.items()}
        said = {c: float(r.tensors["previous_value"]) for c, r in reports.items() if "previous_value" in r.tensors}
        return after, self.values | said
