"""A batch that is out, and the values of its points that have come so far."""

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
    """Values of some points of a batch, in the order in which they came.

    Attributes:
        batch: the batch.
        told: each point's number and its value, NaN for a failed query.
    """

    batch: Batch
    told: dict[int, float] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """The numbers of the points whose values have not come."""
        return [i for i in range(len(self.batch)) if i not in self.told]

    def rows(self, which: Sequence[int] | None) -> list[int]:
        """The numbers of points whose values come now, checked; None stands for all q.

        Raises:
            ValueError: if one is no point of the batch or is told twice.
            TypeError: if one is no integer.
        """
        q = len(self.batch)
        rows = list(range(q)) if which is None else [check_integer("which", i, 0, q) for i in which]
        seen: set[int] = set()
        for i in rows:
            if i in seen or i in self.told:
                raise ValueError(f"point {i} of the batch is told twice; each value is told once")
            seen.add(i)
        return rows

    def add(self, rows: Sequence[int], values: Tensor) -> None:
        """Adds the values of further points, shape ``len(rows)``."""
        self.told.update(zip(rows, values.tolist(), strict=True))

    def remove(self, rows: Sequence[int]) -> None:
        """Removes the values of points, those that are there."""
        for i in rows:
            self.told.pop(i, None)

    def values(self, like: Tensor) -> Tensor:
        """The values of all points, shape ``q``, NaN where they have not come, of a tensor's dtype and device."""
        return like.new_tensor([self.told.get(i, math.nan) for i in range(len(self.batch))])

    def state_dict(self) -> dict[str, Any]:
        """The batch, and the values as a list and a tensor."""
        values = torch.tensor([*self.told.values()], dtype=torch.float64)
        return {"batch": self.batch.state_dict(), "which": list(self.told), "values": values}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], domain: Domain | None, device: torch.device) -> Self:
        """What ``state_dict`` described, on a device."""
        told = dict(zip(state["which"], state["values"].tolist(), strict=True))
        return cls(Batch.from_state_dict(state["batch"], domain, device), told)
