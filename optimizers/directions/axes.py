"""Coordinate axes under the address of directions: row j is the unit vector e_j."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from optimizers.directions.directions import Directions


class Axes(Directions):
    """Directions that are no draw: row j of any step is the unit vector e_j.

    Args:
        d: dimension.
    """

    def __init__(self, d: int) -> None:
        super().__init__(0, d, "coordinate")
        self.distribution = "axis"

    def _make(
        self,
        step: int,
        rows: Sequence[int],
        start: int,
        stop: int | None,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> Tensor:
        step, rows, start, stop = self._check(step, rows, start, stop, dtype)
        out = torch.zeros(len(rows), stop - start, dtype=dtype, device=device)
        for i, row in enumerate(rows):
            if row >= self.d:
                raise ValueError(f"axis {row} is given; accepted: under d = {self.d}")
            if start <= row < stop:
                out[i, row - start] = 1.0
        return out

    def add_to(self, x: Tensor, step: int, row: int, scale: float, start: int = 0) -> Tensor:
        """Adds scale to coordinate ``row`` of x in place; see ``Directions.add_to``."""
        if not x.is_contiguous():
            return super().add_to(x, step, row, scale, start)
        if start <= row < start + x.numel():
            x.view(-1)[row - start] += scale
        return x
