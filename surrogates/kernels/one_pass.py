"""Gradient mean and squared distances in one pass over the data, row block by row block.

Row τ's weight w_τ = 2 o h'(r_τ²) α_τ depends on its own distance alone, so that the mean v ∘ Σ w_τ (x − x_τ)
and the distances come out of the same pass. The rows are centred at the points asked for, never the whole of X at
once: no copy of X, no n x d temporary, and no digits lost to an offset. n-vectors are float64 whatever X is.

On the CPU a single point takes the compiled loop of ``surrogates.kernels.one_pass_numba`` where numba is installed;
every other case runs in torch, on any device, with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from surrogates.kernels.distances import refined
from surrogates.kernels.radial import RadialProfile

try:
    from surrogates.kernels import one_pass_numba as compiled
except ImportError:  # numba is the optional extra `fast`
    compiled = None  # type: ignore[assignment]

_BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}


@dataclass(frozen=True)
class Metric:
    """A stationary kernel o h(r²) with the two diagonal metrics of its gradient.

    Attributes:
        profile: h.
        outputscale: o, ``batch x 1 x 1``.
        precision: p = 1/ℓ² per unit of the transformed inputs, ``batch x 1 x d`` or ``batch x 1 x 1``.
        gradient: v = slope/ℓ², in which J = diag(c) Δ diag(v); the same shapes.
    """

    profile: RadialProfile
    outputscale: Tensor
    precision: Tensor
    gradient: Tensor

    @property
    def isotropic(self) -> bool:
        """Whether both metrics are multiples of the identity."""
        return self.precision.shape[-1] == 1 and self.gradient.shape[-1] == 1

    @cached_property
    def numbers(self) -> tuple[float, float, float, float]:
        """The exponent (1 but for RQ), o, p and v as numbers, of an isotropic kernel without batch."""
        exponent = 1.0 if self.profile.alpha is None else self.profile.alpha.item()
        return (
            exponent,
            self.outputscale.item(),
            self.precision.reshape(-1)[0].item(),
            self.gradient.reshape(-1)[0].item(),
        )

    def slope_weights(self, r2: Tensor) -> Tensor:
        """c = 2 o h'(r²), float64."""
        return 2 * self.outputscale.double() * self.profile.h1(r2.double())


class Pass(NamedTuple):
    """What one pass over the data gives for the points ``... x q x d``.

    Attributes:
        mean: J(x)ᵀ α, ``... x q x d``.
        r2: Squared distances to the data in the metric p, ``... x q x n``, float64.
        q: Squared distances in the metric v², ``... x q x n``, float64.
        c: 2 o h'(r²), ``... x q x n``, float64.
    """

    mean: Tensor
    r2: Tensor
    q: Tensor
    c: Tensor


def one_pass(metric: Metric, X: Tensor, x: Tensor, alpha: Tensor) -> Pass:
    """J(x)ᵀ α with the distances of x to the data.

    Args:
        metric: The kernel.
        X: ``batch x n x d``.
        x: ``... x q x d``; its leading dimensions broadcast with the batch of X.
        alpha: A⁻¹(y − m), ``batch x n``.
    """
    if X.dim() == 2 and x.dim() > 2 and metric.outputscale.dim() == 2:
        # The points of all batches share the data: one matrix product serves them.
        flat = one_pass(metric, X, x.reshape(-1, x.shape[-1]), alpha)
        return Pass(*(part.reshape(*x.shape[:-1], part.shape[-1]) for part in flat))
    if compiled is not None and _compiled_serves(metric, X, x):
        return Pass(*compiled.one_point(metric, X, x, alpha))
    centre = x.mean(dim=-2, keepdim=True)
    points = x - centre
    mean: Tensor | float = 0.0
    r2s, qs, cs = [], [], []
    for rows, block in centred_blocks(X, centre):
        r2 = _distances(points, block, metric.precision).double()
        if metric.isotropic:
            q = r2 * (metric.gradient.square() / metric.precision).double()
        else:
            q = _distances(points, block, metric.gradient.square()).double()
        c = metric.slope_weights(r2)
        weights = (c * alpha[..., None, rows].double()).to(x.dtype)
        mean = mean + weights.sum(-1, keepdim=True) * points - weights @ block
        r2s.append(r2)
        qs.append(q)
        cs.append(c)
    assert isinstance(mean, Tensor)
    return Pass(mean * metric.gradient.to(x.dtype), *(torch.cat(parts, dim=-1) for parts in (r2s, qs, cs)))


def weighted_differences(metric: Metric, X: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """Σ_τ w_τ (x − x_τ) ∘ v for weights of any number of right-hand sides.

    Args:
        metric: The kernel.
        X: ``batch x n x d``.
        x: ``... x 1 x d``.
        weights: ``... x q x n``.

    Returns:
        ``... x q x d``.
    """
    result: Tensor | float = 0.0
    for rows, block in centred_blocks(X, x):
        result = result - weights[..., rows].to(x.dtype) @ block
    assert isinstance(result, Tensor)
    return result * metric.gradient.to(x.dtype)


def differences_along(metric: Metric, X: Tensor, x: Tensor, u: Tensor) -> Tensor:
    """(x − x_τ)·(v ∘ u) for every datum.

    Args:
        metric: The kernel.
        X: ``batch x n x d``.
        x: ``... x 1 x d``.
        u: ``... x q x d``.

    Returns:
        ``... x q x n``, float64.
    """
    along = u * metric.gradient.to(u.dtype)
    return torch.cat([-(along @ block.mT).double() for _, block in centred_blocks(X, x)], dim=-1)


def centred_blocks(X: Tensor, centre: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows of X less the centre, each a few megabytes.

    Args:
        X: ``batch x n x d``.
        centre: ``... x 1 x d``.

    Yields:
        The rows' slice and the block, ``... x m x d``.
    """
    n, d = X.shape[-2:]
    batch = torch.broadcast_shapes(X.shape[:-2], centre.shape[:-2]).numel()
    budget = _BLOCK_BYTES.get(X.device.type, _BLOCK_BYTES["cuda"])
    step = max(1, budget // max(1, batch * d * X.element_size()))
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        yield rows, X[..., rows, :] - centre


def _distances(points: Tensor, block: Tensor, weights: Tensor) -> Tensor:
    """Squared distances of the centred points to a centred block, ``... x q x m``."""
    weights = weights.to(block.dtype)
    norms = ((block * block) * weights).sum(-1).unsqueeze(-2)
    if points.shape[-2] == 1:
        return norms
    weighted = points * weights
    scale = (weighted * points).sum(-1, keepdim=True) + norms
    return refined(scale - 2 * weighted @ block.mT, scale, points, block, weights)


def _compiled_serves(metric: Metric, X: Tensor, x: Tensor) -> bool:
    """Whether the compiled loop applies: one point, one data set, on the CPU, without autograd."""
    return (
        X.dim() == 2
        and x.shape[-2] == 1
        and x.dim() == 2
        and X.device.type == "cpu"
        and X.dtype == x.dtype
        and X.dtype in (torch.float32, torch.float64)
        and X.stride(-1) == 1
        and not (x.requires_grad and torch.is_grad_enabled())
    )
