"""The counter-based generator Philox4x32-10, for Python integers and torch int64 tensors.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A counter-based generator is a function
from (counter, key) to 128 random bits, so that any part of a sequence can be computed alone and in any order.
`optimizers.directions.directions_numba` has the same function compiled for the CPU.
"""

from typing import Any

import torch

GENERATOR = "philox4x32-10/1"
"""The name of the generator and the version of everything built on it (counter layout, normal transform)."""

LANES = 64
"""The number of Philox blocks in a group; see `words`."""

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def _multiply(constant: int, value: Any) -> tuple[Any, Any]:
    """High and low 32-bit words of ``constant * value``, without an intermediate above 2^49."""
    low = value * (constant & 0xFFFF)
    high = value * (constant >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """The ten rounds of Philox4x32.

    Args:
        counter: Four 32-bit words, each a Python integer or an int64 tensor; tensors broadcast.
        key: Two 32-bit words.

    Returns:
        Four 32-bit words with the counter's type and broadcast shape.
    """
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIERS[0], a)
        high1, low1 = _multiply(MULTIPLIERS[1], c)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return a, b, c, d


def words(key: tuple[int, int], rows: torch.Tensor, stream: tuple[int, int], first: int, groups: int) -> torch.Tensor:
    """The random words of consecutive groups of 256, int64 in [0, 2^32), ``r x groups x 4 x 64``.

    Slot 64 i + b of group g is word i of the block whose counter is (64 g + b, row, stream). A group is thus four runs
    of one word over consecutive counters, which suits vector units.

    Args:
        key: Two 32-bit words.
        rows: int64 tensor of r row numbers below 2^32; the result is on its device.
        stream: The counter's third and fourth words.
        first: Number of the first group.
        groups: Number of groups.
    """
    blocks = torch.arange(first * LANES, (first + groups) * LANES, dtype=torch.int64, device=rows.device)
    third, fourth = stream
    counter = (
        blocks.view(1, groups, LANES).expand(len(rows), -1, -1),
        rows.view(-1, 1, 1).expand(-1, groups, LANES),
        torch.full((1, 1, 1), third, dtype=torch.int64, device=rows.device),
        torch.full((1, 1, 1), fourth, dtype=torch.int64, device=rows.device),
    )
    return torch.stack(philox4x32(counter, key), dim=-2)
