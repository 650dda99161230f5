"""Sums, quotients and orthonormalization whose order of operations does not depend on machine, threads or device."""

import math

import torch

from optimizers.directions import philox
from surrogates.compiled import compiled

_compiled = compiled("optimizers.directions.directions_numba")

GROUP = 4 * philox.LANES
"""The length of the groups of numbers that are summed first."""


def orthonormalize(v: torch.Tensor, done: int = 0) -> torch.Tensor:
    """Orthonormalizes the rows of v in place by modified Gram-Schmidt with two sweeps, and returns v.

    Args:
        v: float64 tensor of independent rows, ``q x d`` with q <= d.
        done: The number of leading rows that are already orthonormal.
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
    """The sums of consecutive groups of 256 entries of a vector, padded with zeros; see `halved`."""
    groups = -(-len(v) // GROUP)
    padded = torch.nn.functional.pad(v, (0, groups * GROUP - len(v)))
    return halved(padded.view(groups, GROUP))


def halved(s: torch.Tensor) -> torch.Tensor:
    """Sums the last dimension, padded to a power of two, by repeatedly adding the upper half to the lower half."""
    size = 1 << (s.shape[-1] - 1).bit_length()
    s = torch.nn.functional.pad(s, (0, size - s.shape[-1]))
    while size > 1:
        size //= 2
        s = s[..., :size] + s[..., size:]
    return s[..., 0]


def divide(x: torch.Tensor, number: float) -> torch.Tensor:
    """x / number, rounded once.

    torch on CUDA would multiply by the inverse of a plain number, so the divisor is a tensor.
    """
    return x / torch.tensor(number, dtype=x.dtype, device=x.device)


def _sum(v: torch.Tensor) -> torch.Tensor:
    return halved(group_sums(v))
