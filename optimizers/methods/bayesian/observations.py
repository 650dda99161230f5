"""The queries that succeeded, for methods that model the objective over a whole box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.designs import latin_hypercube
from optimizers.methods.bayesian.unit_box import UnitBox


class Observations:
    """Points and values of the queries that succeeded.

    Args:
        like: a point, shape ``d``, whose dtype and device the points have.

    Attributes:
        points: search units, ``n x d``.
        values: f there, float64, shape ``n``.
        totals: f + ψ there, float64, shape ``n``.
    """

    def __init__(self, like: Tensor) -> None:
        self.points = like.new_empty(0, like.numel())
        self.values = like.new_empty(0, dtype=torch.float64)
        self.totals = like.new_empty(0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.totals)

    def extended(self, batch: Batch, values: Tensor, totals: Tensor) -> Observations:
        """These and the successful queries of a batch of explicit points; these stay as they are."""
        if batch.explicit is None:
            raise ValueError("a batch of explicit points is needed")
        succeeded = torch.isfinite(totals)
        longer = Observations(batch.base)
        longer.points = torch.cat([self.points, batch.explicit[succeeded]])
        longer.values = torch.cat([self.values, values[succeeded]])
        longer.totals = torch.cat([self.totals, totals[succeeded]])
        return longer

    def best(self) -> Tensor:
        """The point of least f + ψ, a new tensor of shape ``d``."""
        return self.points[int(self.totals.argmin())].clone()

    def state_dict(self) -> dict[str, Any]:
        """The three tensors by name."""
        return {"points": self.points, "values": self.values, "totals": self.totals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described, on this device."""
        device = self.points.device
        self.points, self.values, self.totals = (
            state[name].to(device).clone() for name in ("points", "values", "totals")
        )


def initial_design(
    box: UnitBox, num_points: int, generator: np.random.Generator, first: Tensor | None = None
) -> Tensor:
    """A Latin hypercube of the box in search coordinates, ``n x d``, its first point given or its own."""
    unit = latin_hypercube(num_points, box.dimension, generator).to(box.lower.device)
    points = box.from_unit(unit)
    if first is not None:
        points[0] = first
    return points


def check_prox_value(prox: Any, method: str) -> None:
    """Raises ``TypeError`` for a prox whose ψ has no value: the method models f + ψ."""
    if prox is not None and not callable(getattr(prox, "value", None)):
        raise TypeError(f"{method} models f + ψ: its prox needs a value(x)")
