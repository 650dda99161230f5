"""The update of x, H and m that scalars and seeds determine (HiSo Alg. 2a, eqs. 11, 12): fast, in place, bit for bit.

Whoever holds x, H and the list of (step, row, scalar) makes the same update: on another machine, for every chunk size
and thread count, on the CPU or another device. That is what lets a client that missed rounds replay them, and it is why
this is a function of addresses and numbers and not of a gradient.
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
"""No coordinate of a normal direction exceeds it (`optimizers.directions.normal`)."""

Term = tuple[int, int, float]
"""(step, row, coefficient): the multiple of direction u(seed, step, row)."""

Learning = tuple[float, float, float, float]
"""(ν, ε, β_l, β_u) of eq. 12."""


def update(
    x: Tensor | None,
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
    r"""One update in place; nothing of size d is made.

    With Δx = H^(−1/2) Σₜ cₜ u(seed, stepₜ, rowₜ) over the terms, every H on the right the old one, and 1 where none is:

        m ← βm + (1 − β)Δx, or m = Δx where none is given,    x ← x − η m where an x is given,
        H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u) where the numbers of eq. 12 are given.

    Every operation is one IEEE operation, rounded in float64, or in float32 for a narrower x, which is then rounded
    once: so the result depends on neither chunks, threads nor device.

    Args:
        x: the point, floating, shape ``d``.
        directions: normal or Rademacher directions.
        terms: (step, row, coefficient), added in their order; at least one.
        rate: η.
        hessian: H > 0, shape ``d``, in ``compute_dtype(x.dtype)``; inf holds a coordinate in its place.
        learning: (ν, ε, β_l, β_u).
        momentum: m, shape ``d``, in the dtype of H.
        decay: β.
        chunk: coordinates at a time; on the CPU, chunks are shared among ``torch.get_num_threads()`` threads.

    Raises:
        ValueError: for vectors that do not agree, no term, or directions of another distribution.
    """
    held = [t for t in (x, hessian, momentum) if t is not None]
    if not held or not terms or directions.distribution not in ("normal", "rademacher"):
        raise ValueError(f"an update needs a vector, a term, and normal or rademacher directions, got {directions}")
    dtype, device = compute_dtype(held[0].dtype), held[0].device
    for t in held:
        if (len(t), t.device) != (directions.d, device) or t.dtype != (t.dtype if t is x else dtype):
            raise ValueError(
                f"vectors must be of {directions.d} numbers on {device}, hessian and momentum {dtype}, "
                f"got {len(t)} of {t.dtype} on {t.device}"
            )
    if learning is not None and not isinstance(hessian, Tensor):
        raise ValueError("H is to learn, but no vector of it was given")
    nu, *others = learning or (0.0, 0.0, 0.0, math.inf)
    kind: Any = np.float32 if dtype == torch.float32 else np.float64
    numbers = tuple(map(kind, (rate, decay, 1.0 - decay, 1.0 - nu, nu, *others)))
    apply_to = _apply_compiled if _compiled is not None and device.type == "cpu" else _apply

    def apply(low: int, high: int) -> None:
        part = [None if t is None else dense(t[low:high]).detach() for t in (x, hessian, momentum)]
        target = part[0]
        if target is not None:
            part[0] = target.to(dtype)
        apply_to(part, directions, terms, numbers, learning is not None, low, high)
        if target is not None and part[0] is not None and target.dtype != dtype:
            target.copy_(part[0])

    in_chunks(apply, directions.d, chunk, device, _compiled is not None)
    for tensor in (x, hessian if learning else None, momentum):
        if isinstance(tensor, Tensor):
            torch.autograd.graph.increment_version(tensor)


def stays_finite(terms: Sequence[Term], rate: float, floor: float, dtype: torch.dtype) -> bool:
    """Whether neither Δx² nor the step η Δx can overflow at an x of a dtype, by |u| ≤ 6.67 and H ≥ ``floor``."""
    largest = LARGEST_NORMAL * sum(abs(c) for *_, c in terms) / math.sqrt(floor)
    fits = largest < 1e150 and largest**2 < torch.finfo(compute_dtype(dtype)).max / 16.0
    return fits and rate * largest < torch.finfo(dtype).max / 16.0


Part = list[Tensor | None]  # a chunk of x, H and m, in the dtype of the arithmetic
Numbers = tuple[Any, ...]  # η, β, 1 − β, 1 − ν, ν, ε, β_l and β_u, rounded to it


def _apply_compiled(
    part: Part, directions: Directions, terms: Sequence[Term], numbers: Numbers, learns: bool, low: int, high: int
) -> None:
    assert _compiled is not None
    kind = type(numbers[0])
    arrays = [np.empty(0, kind) if t is None else t.numpy() for t in part]
    addresses = np.array([directions.address(step) for step, _, _ in terms], dtype=np.int64)
    rows = np.array([row for _, row, _ in terms], dtype=np.int64)
    coefficients = np.array([c for _, _, c in terms], dtype=kind)
    signs = directions.distribution == "rademacher"
    (k0, k1), (s0, s1) = addresses[0, :2].tolist(), np.ascontiguousarray(addresses[:, 2:].T)
    _compiled.update(signs, k0, k1, rows, s0, s1, coefficients, low, high, *arrays, learns, numbers)


def _apply(
    part: Part, directions: Directions, terms: Sequence[Term], numbers: Numbers, learns: bool, low: int, high: int
) -> None:
    x, h, m = part
    any_part = next(t for t in part if t is not None)
    kind = type(numbers[0])
    rate, decay, gain, keep, weight, epsilon, lower, upper = map(float, numbers)
    delta: Tensor | None = None
    for step, row, c in terms:
        product = directions.row(step, row, low, high, any_part.dtype, any_part.device) * float(kind(c))
        delta = product if delta is None else delta.add_(product)
    assert delta is not None
    if h is not None:
        delta = over_root(delta, h)
        if learns:
            h.copy_((h * keep + (delta * delta + epsilon) * weight).clamp(lower, upper))
    if m is not None:
        delta = m * decay + delta * gain
        m.copy_(delta)
    if x is not None:
        x.copy_(x - delta * rate)
