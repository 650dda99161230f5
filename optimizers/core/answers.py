"""Pending batches and the values received for their points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import check_integer


@dataclass(frozen=True)
class Answers:
    """The values received so far for a batch.

    Attributes:
        batch: the batch.
        told: maps indices of points to values (with constraints: lists f, c₁, …) in order of arrival; NaN: failed.
    """

    batch: Batch
    told: dict[int, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all values have been told."""
        return len(self.told) == len(self.batch)

    @property
    def missing(self) -> list[int]:
        """The indices of the points without a value."""
        return [i for i in range(len(self.batch)) if i not in self.told]

    def rows(self, which: Sequence[int] | None) -> list[int]:
        """Checks and returns indices of points; None means all q.

        Raises:
            ValueError: if an index is out of range or told twice.
            TypeError: if an index is not an integer.
        """
        q = len(self.batch)
        rows = list(range(q)) if which is None else [check_integer("which", i, 0, q) for i in which]
        seen: set[int] = set()
        for i in rows:
            if i in seen or i in self.told:
                raise ValueError(f"point {i} of the batch is told twice; tell each value once")
            seen.add(i)
        return rows

    def with_values(self, rows: Sequence[int], values: Tensor) -> Answers:
        """Returns a copy with the values of further points, one number or row (f, c) for each index in ``rows``."""
        return Answers(self.batch, self.told | dict(zip(rows, values.tolist(), strict=True)))

    def values(self, like: Tensor) -> Tensor:
        """The values of all points, shape ``q``, NaN if missing, with the dtype and device of ``like``.

        With constraints they are rows (f, c), ``q x 1 + m``. A query that failed before m was known has a row of NaN.
        """
        found = [self.told.get(i, math.nan) for i in range(len(self.batch))]
        if width := max((len(value) for value in found if isinstance(value, list)), default=0):
            failed = [math.nan] * width
            found = [value if isinstance(value, list) and len(value) == width else failed for value in found]
        return like.new_tensor(found)

    def state_dict(self) -> dict[str, Any]:
        """The batch, the indices of the points with values, and these values."""
        values = self.values(torch.empty(0, dtype=torch.float64))[list(self.told)]
        return {"batch": self.batch.state_dict(), "which": list(self.told), "values": values}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], domain: Domain | None, device: torch.device) -> Self:
        """Restores the answers of a ``state_dict`` on a device."""
        told = dict(zip(state["which"], state["values"].tolist(), strict=True))
        return cls(Batch.from_state_dict(state["batch"], domain, device), told)


@dataclass(frozen=True)
class Pending:
    """The pending batches, the oldest first; immutable.

    Attributes:
        answers: each batch with the values received so far.
    """

    answers: tuple[Answers, ...] = ()

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.answers)

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches."""
        return tuple(answers.batch for answers in self.answers)

    @property
    def untold(self) -> int:
        """The number of points without a value."""
        return sum(len(answers.batch) - len(answers.told) for answers in self.answers)

    def of(self, batch: Batch) -> Answers:
        """The values received so far for a batch.

        Raises:
            TypeError: if ``batch`` is not a ``Batch``.
            ValueError: if the batch is not pending.
        """
        if not self.answers:
            raise ValueError("no batch is pending: call ask before tell")
        if not isinstance(batch, Batch):
            raise TypeError(f"tell takes the Batch that ask returned, got {type(batch).__name__}")
        for answers in self.answers:
            if answers.batch.id == batch.id:
                if not batch.same_as(answers.batch):
                    raise ValueError(
                        f"batch {batch.id} does not have the points that ask returned: tell that batch unchanged"
                    )
                return answers
        numbers = ", ".join(str(pending.id) for pending in self.batches)
        raise ValueError(f"batch {batch.id} is not pending; pending are: {numbers}")

    def matches(self, X: Tensor) -> tuple[list[tuple[Batch, list[int], list[int]]], list[int]]:
        """Finds pending points among the rows of X, ``n x d`` in user units, compared in X's dtype.

        Returns:
            For each batch with matches: the batch, the indices of its matched points, and the indices of the rows of X
            that equal them. Then the indices of all other rows.
        """
        others, found = list(range(len(X))), []
        for answers in self.answers:
            points, pairs = answers.batch.points().to(X.dtype), []
            for i in answers.missing:
                row = next((row for row in others if torch.equal(points[i], X[row])), None)
                if row is not None:
                    others.remove(row)
                    pairs.append((i, row))
            if pairs:
                found.append((answers.batch, [i for i, _ in pairs], [row for _, row in pairs]))
        return found, others

    def with_batch(self, batch: Batch) -> Pending:
        """Returns a copy with a further batch."""
        return Pending((*self.answers, Answers(batch)))

    def updated(self, answers: Answers) -> Pending:
        """Returns a copy with new answers of a batch; batches whose answers are complete are left out."""
        newer = (answers if held.batch.id == answers.batch.id else held for held in self.answers)
        return Pending(tuple(held for held in newer if not held.complete))
