"""The record of a run: counts, the best point, and an entry for each query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.state import load_fields, save_fields


@dataclass
class Record:
    """Counts and history of a run.

    Attributes:
        queries: the number of queries told, failed ones and retries included.
        failures: the number of failed queries.
        failed_in_a_row: the number of failed queries since the last success.
        last_improvement: the number of the query that gave ``best_y``.
        best_x: the point of least f + ψ in user units, shape ``d``; None before the first success.
        best_y: the least f + ψ.
        best_place: the number of the best point's batch, and the point's index in that batch.
        values: f of each query, NaN for a failed one, in order of arrival; empty unless values are kept.
        totals: f + ψ of each query, NaN for a failed one.
        places: each query's batch number and index in the batch; index q marks a retry in a batch of q.
        points: the points of each call of ``add``, ``k x d``; empty unless points are kept.
        searched: whether a value beyond the initial design has been told.
        fell: whether a value beyond the initial design improved on the best value until then.
        moved: whether the iterate has moved, or may have.
        given: the number of evaluations told without being asked for, not counting the constructor's history.
    """

    queries: int = 0
    failures: int = 0
    failed_in_a_row: int = 0
    last_improvement: int = 0
    best_x: Tensor | None = None
    best_y: float = math.inf
    best_place: tuple[int, int] = (0, 0)
    values: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)
    searched: bool = False
    fell: bool = False
    moved: bool = False
    given: int = 0

    def add(
        self,
        batch: Batch,
        which: Sequence[int],
        values: Tensor,
        totals: Tensor,
        retries: int,
        *,
        track_best: bool,
        keep_values: bool = True,
        keep_points: bool = False,
    ) -> None:
        """Adds queries of a batch. Among equal totals the point asked first is the best, whatever the order of arrival.

        Args:
            batch: the batch.
            which: the indices of k of its points, in the order of their values.
            values: f at these points, shape ``k``, NaN for a failed query.
            totals: f + ψ at these points, shape ``k``; inf at an infeasible point, NaN for a failed query.
            retries: the number of failed evaluations beyond k.
            track_best: whether to keep the best point.
            keep_values: whether to keep the values.
            keep_points: whether to keep the points.
        """
        searching = not batch.info.get("design", False)
        self.searched = self.searched or searching
        for i, value, total in zip(which, values.tolist(), totals.tolist(), strict=True):
            self.queries += 1
            failed, place = math.isnan(value), (batch.id, i)
            self.failures += failed
            self.failed_in_a_row = self.failed_in_a_row + 1 if failed else 0
            if total < self.best_y or (total == self.best_y < math.inf and place < self.best_place):
                if total < self.best_y:
                    self.last_improvement = self.queries
                    self.fell = self.fell or (searching and self.best_y < math.inf)
                self.best_y, self.best_place = total, place
                self.best_x = batch.point(i) if track_best else None
            if keep_values:
                self._enter(value, total, place)
        self.queries += retries
        self.failures += retries
        for _ in range(retries if keep_values else 0):
            self._enter(math.nan, math.nan, (batch.id, len(batch)))
        if keep_points:
            points = batch.points(which) if which else batch.base.new_empty(0, batch.dimension)
            self.points += [points, points.new_full((retries, points.shape[1]), math.nan)]

    def include(self, points: Tensor, totals: Tensor) -> None:
        """Updates the best point with evaluations that were not queries, at points in user units, ``n x d``."""
        totals = totals.nan_to_num(nan=math.inf, posinf=math.inf)
        if len(totals) and float(totals.min()) < self.best_y:
            i = int(totals.argmin())
            self.best_y, self.best_x, self.best_place = float(totals[i]), points[i].clone(), (-1, i)
            self.last_improvement = self.queries

    def _enter(self, value: float, total: float, place: tuple[int, int]) -> None:
        self.values.append(value)
        self.totals.append(total)
        self.places.append(place)

    def mark(self) -> dict[str, Any]:
        """The counts and lengths to which ``roll_back`` returns."""
        return {name: len(value) if isinstance(value, list) else value for name, value in vars(self).items()}

    def roll_back(self, mark: dict[str, Any]) -> None:
        """Undoes all additions since the mark."""
        for name, value in mark.items():
            entries = getattr(self, name)
            if isinstance(entries, list):
                del entries[value:]
            else:
                setattr(self, name, value)

    def history(self) -> dict[str, Tensor]:
        """The queries in the order asked: ``y`` and ``best_y``, float64, shape ``queries``; ``x`` if points were kept.

        ``best_y`` is the least f + ψ up to and including each query.
        """
        order = sorted(range(len(self.places)), key=self.places.__getitem__)
        y, totals = (torch.tensor(v, dtype=torch.float64)[order] for v in (self.values, self.totals))
        best = totals.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        history = {"y": y, "best_y": best.cummin(0).values if len(best) else best}
        return history | ({"x": torch.cat(self.points)[order]} if self.points else {})

    def state_dict(self) -> dict[str, Any]:
        """All fields, with the history as tensors."""
        values, totals = (torch.tensor(v, dtype=torch.float64) for v in (self.values, self.totals))
        places = torch.tensor(self.places, dtype=torch.int64).reshape(-1, 2)
        return save_fields(self) | {"values": values, "totals": totals, "places": places}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> Record:
        """Restores the record of a ``state_dict``, with its points on a device."""
        record: Record = load_fields(cls(), state, device)
        record.values, record.totals = record.values.tolist(), record.totals.tolist()  # type: ignore[attr-defined]
        record.places = [(number, i) for number, i in record.places.tolist()]  # type: ignore[attr-defined]
        return record
