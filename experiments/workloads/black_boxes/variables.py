"""Variables of different kinds and scales, each mapped from [0, 1]."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from optimizers import Space


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable as a function of u in [0, 1].

    Attributes:
        name: its name.
        low: its value at u = 0.
        high: its value at u = 1.
        log: whether the logarithm of the value is linear in u.
        whole: whether the value is rounded to an integer.
    """

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, u: float) -> float:
        """Returns the value at u, an ``int`` if ``whole`` is set."""
        value = self.low * (self.high / self.low) ** u if self.log else self.low + (self.high - self.low) * u
        return round(value) if self.whole else float(value)


def space(variables: Sequence[Variable]) -> Space:
    """Returns the space of the variables in their own units, with integer and logarithmic variables and names."""
    integrality, log, names = zip(*((v.whole, v.log, v.name) for v in variables), strict=True)
    return Space([(v.low, v.high) for v in variables], integrality=integrality, log=log, names=names)


def named(variables: Sequence[Variable], u: np.ndarray) -> dict[str, float]:
    """Returns the values at u, shape ``d``, by the variables' names."""
    return {variable.name: variable.at(float(share)) for variable, share in zip(variables, u, strict=True)}
