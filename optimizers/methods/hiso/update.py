"""The update of x, H and m from scalars and seeds (HiSo Alg. 2a, eqs. 12, 112): in place and bitwise reproducible.

It is a function of x, H and a list of (step, row, scalar), with the same bits on every machine and device and for every
chunk size and thread count. A client that missed rounds can therefore replay them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.metric import CHUNK, compute_dtype, dense, in_chunks, over_root

_compiled: ModuleType | None
try:
    from optimizers.methods.hiso import update_numba as _compiled
except ImportError:
    _compiled = None

LARGEST_NORMAL = 6.67
"""A bound on the coordinates of a normal direction (`optimizers.directions.normal`)."""

Term = tuple[int, int, float]
"""(step, row, coefficient): the multiple of direction u(seed, step, row)."""

Learning = tuple[float, float, float, float]
"""(ν, ε, β_l, β_u) of eq. 12."""


def update(
    x: Tensor,
    directions: Directions,
    terms: Sequence[Term],
    rate: float,
    *,
    hessian: Tensor | GroupDiagonal | None = None,
    learning: Learning | None = None,
    momentum: Tensor | None = None,
    decay: float = 0.0,
    chunk: int = CHUNK,
) -> None:
    """One update in place; no temporary has size d.

    With Δx = H^(−1/2) Σₜ cₜ u(seed, stepₜ, rowₜ) over the terms, where H on the right is always the old one, or 1:

        m ← βm + (1 − β)Δx, or m = Δx without a momentum,    x ← x − η m,
        H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u) if ``learning`` is given.

    Every operation is one IEEE operation in float64, or in float32 for a narrower x, which is then rounded once; the
    result does not depend on chunks, threads or device.

    Args:
        x: the point, floating, shape ``d``.
        directions: normal or Rademacher directions.
        terms: (step, row, coefficient), added in this order; at least one.
        rate: η.
        hessian: H > 0, shape ``d``, in ``compute_dtype(x.dtype)``; inf fixes a coordinate.
        learning: (ν, ε, β_l, β_u), for an H of shape ``d``.
        momentum: m, shape ``d``, in the dtype of H.
        decay: β.
        chunk: coordinates at a time; on the CPU, chunks are shared among ``torch.get_num_threads()`` threads.
    """
    nu, *others = learning or (0.0, 0.0, 0.0, math.inf)
    dtype = compute_dtype(x.dtype)
    numbers = _rounded((rate, decay, 1.0 - decay, 1.0 - nu, nu, *others), dtype)
    kind, compiled = type(numbers[0]), _compiled if x.device.type == "cpu" else None

    def apply(low: int, high: int) -> None:
        target = x[low:high].detach()
        wide = target.to(dtype)
        h, m = (None if t is None else dense(t[low:high]).detach() for t in (hessian, momentum))
        if compiled is not None:
            arrays = [np.empty(0, kind) if t is None else t.numpy() for t in (wide, h, m)]
            compiled.update(*_addressed(directions, terms, kind), low, high, *arrays, learning is not None, numbers)
        else:
            eta, beta, gain, *eq12 = map(float, numbers)
            delta = _combined(wide, directions, terms, kind, low, high)
            if h is not None:
                delta = over_root(delta, h)
                if learning is not None:
                    _learn_from(h, delta, eq12)
            if m is not None:
                delta = m * beta + delta * gain
                m.copy_(delta)
            wide.copy_(wide - delta * eta)
        if target.dtype != dtype:
            target.copy_(wide)

    in_chunks(apply, directions.d, chunk, x.device, _compiled is not None)
    for tensor in (x, hessian if learning else None, momentum):
        if isinstance(tensor, Tensor):
            torch.autograd.graph.increment_version(tensor)


def learn(
    hessian: Tensor,
    directions: Directions,
    displacements: Sequence[Sequence[Term]],
    learning: Learning,
    *,
    chunk: int = CHUNK,
) -> None:
    """H ← eq. 12 of several displacements in turn, in place, all with the root of the given H.

    With Δx_l = H₀^(−1/2) Σₜ cₜ u(seed, stepₜ, rowₜ) over the l-th list of terms, H₀ the given H:

        H_l = clip((1 − ν)H_{l−1} + ν(Δx_l² + ε), β_l, β_u)

    For one displacement the result is the H of ``update``, bit for bit.

    Args:
        hessian: H > 0, float64 or float32, shape ``d``.
        directions: as in ``update``.
        displacements: the terms of each displacement; at least one each.
        learning: (ν, ε, β_l, β_u).
        chunk: as in ``update``.
    """
    nu, *others = learning
    numbers = _rounded((1.0 - nu, nu, *others), hessian.dtype)
    kind, eq12 = type(numbers[0]), [*map(float, numbers)]

    def apply(low: int, high: int) -> None:
        h = hessian[low:high].detach()
        before = h.clone()
        for terms in displacements:
            _learn_from(h, over_root(_combined(h, directions, terms, kind, low, high), before), eq12)

    in_chunks(apply, directions.d, chunk, hessian.device, threaded=False)
    torch.autograd.graph.increment_version(hessian)


def stays_finite(terms: Sequence[Term], rate: float, floor: float, dtype: torch.dtype) -> bool:
    """Whether neither Δx² nor the step η Δx can overflow at an x of this dtype, by |u| ≤ 6.67 and H ≥ ``floor``."""
    largest = LARGEST_NORMAL * sum(abs(c) for *_, c in terms) / math.sqrt(floor)
    fits = largest < 1e150 and largest**2 < torch.finfo(compute_dtype(dtype)).max / 16.0
    return fits and rate * largest < torch.finfo(dtype).max / 16.0


Numbers = tuple[Any, ...]
"""η, β and 1 − β where x moves, then 1 − ν, ν, ε, β_l and β_u, rounded to the dtype of the arithmetic."""


def _rounded(numbers: Sequence[float], dtype: torch.dtype) -> Numbers:
    return tuple(map(np.float32 if dtype == torch.float32 else np.float64, numbers))


def _addressed(directions: Directions, terms: Sequence[Term], kind: Any) -> tuple[Any, ...]:
    """The first arguments of a kernel: the kind of direction, its key, and each term's row, step and coefficient."""
    addresses = np.array([directions.address(step) for step, _, _ in terms], dtype=np.int64)
    rows = np.array([row for _, row, _ in terms], dtype=np.int64)
    coefficients = np.array([c for _, _, c in terms], dtype=kind)
    (k0, k1), (s0, s1) = addresses[0, :2].tolist(), np.ascontiguousarray(addresses[:, 2:].T)
    return directions.distribution == "rademacher", k0, k1, rows, s0, s1, coefficients


def _combined(like: Tensor, directions: Directions, terms: Sequence[Term], kind: Any, low: int, high: int) -> Tensor:
    """Σₜ cₜ uₜ on coordinates low … high − 1."""
    total: Tensor | None = None
    for step, row, c in terms:
        product = directions.row(step, row, low, high, like.dtype, like.device) * float(kind(c))
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def _learn_from(h: Tensor, delta: Tensor, eq12: Sequence[float]) -> None:
    keep, weight, epsilon, lower, upper = eq12
    h.copy_((h * keep + (delta * delta + epsilon) * weight).clamp(lower, upper))
