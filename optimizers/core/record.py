"""The record of a run: its counts, its best point, and an entry for each query."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from optimizers.core.batch import Batch


@dataclass
class Record:
    """Counts and history of a run.

    Attributes:
        queries: the number of queries told, with failed ones and retries.
        failures: the number of failed queries.
        failed_in_a_row: the number of failed queries since the last that succeeded.
        last_improvement: the number of the query that gave ``best_y``.
        best_x: the point of least f + ψ in user units, shape ``d``; None before the first success.
        best_y: the least f + ψ.
        values: f of each query, NaN for a failed one.
        best_values: the least f + ψ after each query.
        points: the points that were told together, ``k x d``; empty unless points are kept.
    """

    queries: int = 0
    failures: int = 0
    failed_in_a_row: int = 0
    last_improvement: int = 0
    best_x: Tensor | None = None
    best_y: float = math.inf
    values: list[float] = field(default_factory=list)
    best_values: list[float] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)

    def add(
        self,
        batch: Batch,
        which: Sequence[int],
        values: Tensor,
        totals: Tensor,
        retries: int,
        *,
        track_best: bool,
        keep: bool,
    ) -> None:
        """Adds some of the queries of a batch.

        Args:
            batch: the batch.
            which: the numbers of k of its points, in the order in which their values came.
            values: f at these points, shape ``k``, NaN for a failed query.
            totals: f + ψ at these points, shape ``k``; inf at an infeasible point, NaN for a failed query.
            retries: the number of failed queries beyond k.
            track_best: whether the best point is kept.
            keep: whether all points are kept.
        """
        for i, value, total in zip(which, values.tolist(), totals.tolist(), strict=True):
            self.queries += 1
            failed = math.isnan(value)
            self.failures += failed
            self.failed_in_a_row = self.failed_in_a_row + 1 if failed else 0
            if total < self.best_y:
                self.best_y, self.last_improvement = total, self.queries
                self.best_x = batch.point(i) if track_best else None
            self.values.append(value)
            self.best_values.append(self.best_y)
        self.queries += retries
        self.failures += retries
        self.values += [math.nan] * retries
        self.best_values += [self.best_y] * retries
        if keep:
            points = batch.points(which)
            self.points += [points, points.new_full((retries, points.shape[1]), math.nan)]

    def mark(self) -> dict[str, Any]:
        """A mark at which ``roll_back`` restores the record, whatever is added later."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: len(value) if isinstance(value, list) else value for name, value in values.items()}

    def roll_back(self, mark: dict[str, Any]) -> None:
        """Removes what was added since the mark."""
        for name, value in mark.items():
            entries = getattr(self, name)
            if isinstance(entries, list):
                del entries[value:]
            else:
                setattr(self, name, value)

    def history(self) -> dict[str, Tensor]:
        """``y`` and ``best_y`` of each query, float64, shape ``queries``."""
        return {
            "y": torch.tensor(self.values, dtype=torch.float64),
            "best_y": torch.tensor(self.best_values, dtype=torch.float64),
        }


class StopReason(StrEnum):
    """Why a run stopped; each reason equals its string."""

    BUDGET = "budget"
    TARGET = "target reached"
    STAGNATION = "stagnation"
    CALLBACK = "callback"
    ALL_FAILED = "all queries failed"


ENDINGS: dict[StopReason | None, tuple[int, str]] = {
    None: (-1, "Running, {count}."),
    StopReason.TARGET: (0, "Target reached {count}."),
    StopReason.BUDGET: (1, "Budget of {budget} queries spent as far as whole batches fit, {count}."),
    StopReason.STAGNATION: (2, "No further improvement {count}."),
    StopReason.ALL_FAILED: (3, "All queries failed: no finite value to go on with {count}."),
    StopReason.CALLBACK: (99, "Stopped by the callback {count}."),
}
"""The status and the message of a run that stopped for a reason, or, under None, that has not stopped."""


def describe(
    reason: StopReason | None, target: float | None, queries: int, failures: int, max_queries: int
) -> dict[str, Any]:
    """The entries status, success, message and stop_reason of a run's ``OptimizeResult``.

    A run succeeds if it reaches its target or stagnates, or if it has no target and spends its budget.
    """
    planned = {StopReason.TARGET, StopReason.STAGNATION} | ({StopReason.BUDGET} if target is None else set())
    status, message = ENDINGS[reason]
    failed = f", {failures} of them failed" if failures else ""
    return {
        "status": status,
        "success": reason in planned,
        "message": message.format(count=f"after {queries} queries{failed}", budget=max_queries),
        "stop_reason": None if reason is None else str(reason),
    }
