"""Sums, quotients and orthonormal frames in an order of operations that no machine, thread count or device changes."""

import math
from types import ModuleType

import torch

from optimizers.directions import philox

_compiled: ModuleType | None
try:
    from optimizers.directions import directions_numba as _compiled
except ImportError:
    _compiled = None

GROUP = 4 * philox.LANES
"""Numbers that are summed first among themselves."""


def orthonormalize(v: torch.Tensor, done: int = 0) -> torch.Tensor:
    """Modified Gram-Schmidt, each row swept twice, in an order of operations that no machine changes.

    Args:
        v: float64 tensor, ``q x d`` with q <= d, independent rows, changed in place; the first `done` are
            orthonormal already.
        done: How many rows to leave.

    Returns:
        v.
    """
    if _compiled is not None and v.device.type == "cpu" and v.is_contiguous():
        _compiled.orthonormalize(v.numpy(), done)
        return v
    for i in range(done, len(v)):
        for _ in range(2):
            for k in range(i):
                v[i] -= v[k] * _sum(v[k] * v[i])
        v[i] = divide(v[i], math.sqrt(_sum(v[i].square()).item()))
    return v


def group_sums(v: torch.Tensor) -> torch.Tensor:
    """Sums over each 256 entries of a vector (the last padded with zeros), by halving."""
    groups = -(-len(v) // GROUP)
    padded = torch.nn.functional.pad(v, (0, groups * GROUP - len(v)))
    return halved(padded.view(groups, GROUP))


def halved(s: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension, padded to a power of two: the upper half is added to the lower."""
    size = 1 << (s.shape[-1] - 1).bit_length()
    s = torch.nn.functional.pad(s, (0, size - s.shape[-1]))
    while size > 1:
        size //= 2
        s = s[..., :size] + s[..., size:]
    return s[..., 0]


def divide(x: torch.Tensor, number: float) -> torch.Tensor:
    """x / number, rounded once.

    By a tensor on x's device: on CUDA, torch divides by a plain number by multiplying by its inverse.
    """
    return x / torch.tensor(number, dtype=x.dtype, device=x.device)


def _sum(v: torch.Tensor) -> torch.Tensor:
    return halved(group_sums(v))
