"""What a federated round costs in bytes, and whether a printed number can be so many rounds.

A round of a client is what it sends and what it is sent: numbers alone, without frames, seeds or digests. HiSo and
DeComFL have τP scalars each way, vector methods some d-vectors each way. In 4-byte numbers P = 5 and τ = 1 give 40
bytes, whatever d is.
"""

from __future__ import annotations

import dataclasses
import math

KIBIBYTE = 1024


@dataclasses.dataclass(frozen=True)
class RoundCost:
    """Numbers of one round and client: ``scalars`` + ``vectors`` · d each way, of ``size`` bytes each."""

    scalars: int = 0
    vectors: int = 0
    size: int = 4

    def bytes(self, d: int, rounds: int = 1) -> int:
        """Bytes both ways."""
        return 2 * self.size * rounds * (self.scalars + self.vectors * d)


def scalar_only(perturbations: int, local_steps: int = 1, size: int = 4) -> RoundCost:
    """The cost of HiSo and of DeComFL."""
    return RoundCost(scalars=local_steps * perturbations, size=size)


VECTORS = {"fedavg": 1, "fedadam": 1, "fedyogi": 1, "fedadagrad": 1, "fedzo": 1}
"""d-vectors each way; server-side moments are not sent."""


@dataclasses.dataclass(frozen=True)
class Printed:
    """A number as it is printed.

    Attributes:
        value: in units of ``unit`` bytes.
        decimals: digits after the point.
        unit: bytes.
    """

    value: float
    decimals: int = 2
    unit: int = KIBIBYTE

    def nearest_rounds(self, per_round: int) -> int:
        """The number of rounds whose bytes are nearest."""
        return math.floor(self.value * self.unit / per_round + 0.5)

    def miss(self, per_round: int) -> float:
        """How far the nearest number of rounds is from the number, in its last printed digits.

        At most 0.5 where the number is a whole number of rounds, rounded as printed.
        """
        nearest = self.nearest_rounds(per_round) * per_round / self.unit
        return abs(nearest - self.value) * 10**self.decimals


CELLS = {
    "7.81 KB, in the text": Printed(7.81),
    "49.18 KB, in Table 5 at the same place": Printed(49.18),
    "96.67 KB, Table 5, OPT-1.3B, QQP, HiSo": Printed(96.67),
    "43.95 KB, Table 5, OPT-1.3B, QQP, DeComFL": Printed(43.95),
}
"""The paper's numbers that we have at hand: not all of its cells."""
