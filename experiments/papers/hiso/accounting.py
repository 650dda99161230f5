"""What a federated round costs in bytes, and whether a printed number can be so many rounds.

A round of a client is what it sends and what it is sent: numbers alone, without frames, seeds or digests. HiSo and
DeComFL have τP scalars each way, the other methods a d-vector each way (moments stay at the server). In 4-byte numbers
P = 5 and τ = 1 give 40 bytes, whatever d is.
"""

from __future__ import annotations

import math

FIRST_ORDER = ("fedavg", "fedadam", "fedyogi", "fedadagrad")
METHODS = (*FIRST_ORDER, "fedzo", "decomfl", "hiso")
SCALAR_ONLY = ("decomfl", "hiso", "hiso_scalar")
MODELS = {"OPT-125M": 125_000_000, "OPT-350M": 350_000_000, "OPT-1.3B": 1_300_000_000}
"""The d that a model is named by."""


def bytes_a_round(method: str, d: int, perturbations: int, local_steps: int = 1) -> int:
    """Bytes of a round and client, both ways."""
    return 2 * 4 * (local_steps * perturbations if method in SCALAR_ONLY else d)


def nearest_rounds(printed: float, per_round: int) -> int:
    """The number of rounds whose bytes are nearest to a number printed in units of 1,024 bytes."""
    return math.floor(printed * 1024 / per_round + 0.5)


def miss(printed: float, per_round: int) -> float:
    """How far the nearest number of rounds is from a number printed with two decimals, in its last digits.

    The miss is at most 0.5 where the number is a whole number of rounds, rounded as printed.
    """
    return abs(nearest_rounds(printed, per_round) * per_round / 1024 - printed) * 100


CELLS = {
    "7.81 KB, in the text": 7.81,
    "49.18 KB, in Table 5 at the same place": 49.18,
    "96.67 KB, Table 5, OPT-1.3B, QQP, HiSo": 96.67,
    "43.95 KB, Table 5, OPT-1.3B, QQP, DeComFL": 43.95,
}
"""Four of the printed numbers; Tables 2 and 5 print 30 of HiSo and DeComFL."""
