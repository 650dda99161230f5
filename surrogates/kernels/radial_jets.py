"""Covariances of jets under a stationary kernel o h(r²), with derivatives of k up to the fourth.

As r² is quadratic, only sets of one or two directions remain in Faà di Bruno's formula (Hardy, Combinatorics of partial
derivatives, 2006): the derivative along a set S of directions is

    Σ h⁽ᵏ⁾(r²) Π_{i} e_i Π_{(i,j)} e_ij   over the partitions of S into k singles i and pairs (i, j),

where e_i and e_ij are the first and second derivatives of r². With δ = x − x' and P = diag(1/ℓ²), e_i is 2 uᵀPδ for a
direction u at x and −2 u'ᵀPδ for u' at x'; e_ij is 2 uᵀPv for two directions at the same point and −2 uᵀPu' otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from surrogates.kernels.errors import no_hessian_covariance
from surrogates.kernels.stationary import StationaryKernel


def stationary_cross_jets(kernel: StationaryKernel, x1: Tensor, U1: Tensor, x2: Tensor, U2: Tensor) -> Tensor:
    """Computes ``surrogates.kernels.jets.cross_jets`` of a stationary kernel for points in its active inputs."""
    x1, U1, x2, U2 = (t.double() for t in (x1, U1, x2, U2))
    precision = kernel.precision.double().unsqueeze(-2)
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    scaled = difference * precision
    h = _radial_derivatives(kernel, (difference * scaled).sum(-1))
    U1, U2 = U1.unsqueeze(-3), U2.unsqueeze(-4)
    metric1, metric2 = precision.unsqueeze(-1) * U1, precision.unsqueeze(-1) * U2
    slope = torch.cat([_vectors(2 * scaled, U1), _vectors(-2 * scaled, U2)], dim=-1)
    blocks = [[2 * U1.mT @ metric1, -2 * U1.mT @ metric2], [-2 * U2.mT @ metric1, 2 * U2.mT @ metric2]]
    shape = torch.broadcast_shapes(slope.shape[:-1], *(block.shape[:-2] for row in blocks for block in row))
    rows = [torch.cat([block.expand(*shape, *block.shape[-2:]) for block in row], dim=-1) for row in blocks]
    second, slope = torch.cat(rows, dim=-2), slope.expand(*shape, slope.shape[-1])
    p1, p2 = U1.shape[-1], U2.shape[-1]
    return torch.cat(
        [
            torch.cat([_along(h, slope, second, a, b) for b in _orders(p2, p1, x1.device)], dim=-1)
            for a in _orders(p1, 0, x1.device)
        ],
        dim=-2,
    )


def check_four_derivatives(kernel: StationaryKernel) -> None:
    """Raises a ``ValueError`` if k does not have four derivatives at x = x', that is, if h''(0) is not positive."""
    curvature = kernel.profile.h2(torch.zeros_like(kernel.outputscale.double()))
    if not bool((curvature.isfinite() & (curvature > 0)).all()):
        raise no_hessian_covariance(kernel.profile.title)


def _vectors(v: Tensor, U: Tensor) -> Tensor:
    return (v.unsqueeze(-2) @ U).squeeze(-2)


def _orders(p: int, start: int, device: torch.device) -> list[list[Tensor]]:
    """The directions of the value, of the first and of the second derivatives in a jet, counted from ``start``."""
    i, j = torch.triu_indices(p, p, device=device) + start
    return [[], [torch.arange(p, device=device) + start], [i, j]]


def _along(h: list[Tensor], slope: Tensor, second: Tensor, a: list[Tensor], b: list[Tensor]) -> Tensor:
    """The derivatives along all directions in a, as rows, and all directions in b, as columns."""
    directions = [i.unsqueeze(-1) for i in a] + [j.unsqueeze(0) for j in b]
    found: Tensor | float = 0.0
    for sets in _partitions(list(range(len(directions)))):
        factors = [
            slope[..., directions[one[0]]] if len(one) == 1 else second[..., directions[one[0]], directions[one[1]]]
            for one in sets
        ]
        found = found + h[len(sets)][..., None, None] * (prod(factors[1:], start=factors[0]) if factors else 1.0)
    assert isinstance(found, Tensor)
    return found.expand(*slope.shape[:-1], len(a[0]) if a else 1, len(b[0]) if b else 1)


def _partitions(items: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Yields the partitions of a set into singles and pairs."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for sets in _partitions(rest):
        yield [(first,), *sets]
    for other in rest:
        for sets in _partitions([item for item in rest if item != other]):
            yield [(first, other), *sets]


def _radial_derivatives(kernel: StationaryKernel, r2: Tensor) -> list[Tensor]:
    """O h and its first four derivatives in r², each shaped as r² or with the batch of the kernel.

    The third and fourth are automatic derivatives of h''. At r = 0 they are multiplied by zeros, and are 0 here.
    """
    o, profile = kernel.outputscale.double(), kernel.profile
    check_four_derivatives(kernel)
    first = [profile.h(r2), profile.h1(r2), profile.h2(r2)]
    carries, apart = torch.is_grad_enabled() and first[2].requires_grad, (r2 > 0).expand(first[2].shape)
    with torch.enable_grad():
        s = torch.where(apart, r2, 1.0)
        s = s if s.requires_grad else s.detach().requires_grad_(True)
        further = [profile.h2(s)]
        for _ in range(2):
            (slope,) = torch.autograd.grad(further[-1].sum(), s, create_graph=True, materialize_grads=True)
            further.append(slope if slope.requires_grad else slope + 0.0 * s)
    third, fourth = (torch.where(apart, part if carries else part.detach(), 0.0) for part in further[1:])
    return [o * part for part in (*first, third, fourth)]
