"""The values of a batch that have come so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from optimizers.core.options import check_integer


@dataclass(frozen=True)
class Answers:
    """Values of some points of a batch of q, in the order in which they came.

    Attributes:
        told: each point's number and its value, NaN for a failed query.
    """

    told: Mapping[int, float] = field(default_factory=dict)

    def missing(self, q: int) -> list[int]:
        """The numbers of the points whose values have not come."""
        return [i for i in range(q) if i not in self.told]

    def rows(self, which: Sequence[int] | None, q: int) -> list[int]:
        """The numbers of points whose values come now, checked; None stands for all q.

        Raises:
            ValueError: if there is none, or one is no point of the batch or is told twice.
            TypeError: if one is no integer.
        """
        rows = list(range(q)) if which is None else [check_integer("which", i, 0, q) for i in which]
        if not rows:
            raise ValueError("which names no point of the batch")
        seen = set(self.told)
        for i in rows:
            if i in seen:
                raise ValueError(f"point {i} of the batch is told twice; each value is told once")
            seen.add(i)
        return rows

    def plus(self, rows: Sequence[int], values: Tensor) -> Answers:
        """These and further values, shape ``len(rows)``."""
        return Answers({**self.told, **dict(zip(rows, values.tolist(), strict=True))})

    def values(self, q: int, like: Tensor) -> Tensor:
        """The values of all points, shape ``q``, NaN where they have not come, of a tensor's dtype and device."""
        return like.new_tensor([self.told.get(i, math.nan) for i in range(q)])

    def state_dict(self) -> dict[str, Any]:
        """The values as a list and a tensor."""
        return {"which": list(self.told), "values": torch.tensor([*self.told.values()], dtype=torch.float64)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any] | None) -> Self:
        """What ``state_dict`` described; None, of a state of an earlier version, is nothing: a batch was told whole."""
        return cls({} if state is None else dict(zip(state["which"], state["values"].tolist(), strict=True)))
