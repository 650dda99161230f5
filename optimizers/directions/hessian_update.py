"""The updates of x and H that scalars and seeds determine (HiSo Alg. 2a, 2b, eqs. 11, 12), in place.

Whoever holds x, H and the list of (step, row, scalar) makes the same update, bit for bit: on another machine,
for every chunk size and thread count, on the CPU or another device. That is what lets a client that missed
rounds replay them, and it is why these are functions of addresses and numbers and not of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.directions.directions import Directions
from optimizers.directions.fixed_order import group_sums, halved
from optimizers.directions.groups import GroupDiagonal

_compiled: ModuleType | None
try:
    from optimizers.directions import hessian_update_numba as _compiled
except ImportError:
    _compiled = None

CHUNK = 1 << 18
"""Coordinates at a time; temporaries are a few chunks, about 5 MB, whatever d is."""

DISTRIBUTIONS = ("normal", "rademacher")

Term = tuple[int, int, float]
"""(step, row, coefficient): the multiple of direction u(seed, step, row)."""


@dataclass(frozen=True)
class HessianRule:
    """How H learns from a displacement (HiSo eq. 12): H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u).

    Attributes:
        weight: ν, of the newest displacement; 0 leaves H as it is.
        epsilon: ε, added to the squared displacement: what H tends to where nothing moves.
        lower: β_l.
        upper: β_u.
    """

    weight: float = 0.05
    epsilon: float = 1e-8
    lower: float = 0.0
    upper: float = float("inf")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of H, of the momentum and of the arithmetic: float64, or float32 for narrower x."""
    return dtype if dtype == torch.float64 else torch.float32


def over_root(u: Tensor, hessian: Tensor | GroupDiagonal) -> Tensor:
    """H^(−1/2) u in their dtype, shape ``... x d``; the root is the same on every device."""
    if isinstance(hessian, GroupDiagonal):
        hessian = hessian.tensor()
    if hessian.device.type == "cpu":
        # torch's own vector root is off by the last bit for 1 in 100 float64 numbers; NumPy's is IEEE 754's.
        return u / torch.from_numpy(np.sqrt(hessian.numpy()))
    return u / hessian.to(torch.float64).sqrt().to(hessian.dtype)


def update(
    x: Tensor | None,
    directions: Directions,
    terms: Sequence[Term],
    rate: float,
    *,
    hessian: Tensor | GroupDiagonal | None = None,
    rule: HessianRule | None = None,
    momentum: Tensor | None = None,
    decay: float = 0.0,
    start: int = 0,
    chunk: int = CHUNK,
) -> None:
    r"""One update in place; nothing of size d is made.

    With Δx = H^(−1/2) Σₜ cₜ u(seed, stepₜ, rowₜ) over the terms, every H on the right the old one:

    - m ← βm + (1 − β)Δx where a momentum is given, and m = Δx where not;
    - x ← x − η m where an x is given;
    - H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u) where a rule is given.

    Without H it stands for 1. Every operation is one IEEE operation, rounded in float64, or in float32 for a
    narrower x, which is then rounded once: so the result depends on neither chunks, threads nor device.

    Args:
        x: coordinates start … start + size − 1 of the point, shape ``size``, contiguous, floating.
        directions: normal or Rademacher directions.
        terms: (step, row, coefficient), added in their order; at least one.
        rate: η.
        hessian: those coordinates of H > 0, in ``compute_dtype(x.dtype)``; inf holds a coordinate in its place.
        rule: how H learns.
        momentum: those coordinates of m, in the dtype of H.
        decay: β.
        start: coordinate of the first element, where the tensors are one piece of longer ones.
        chunk: coordinates at a time; on the CPU, chunks are shared among ``torch.get_num_threads()`` threads.

    Raises:
        ValueError: for tensors that do not agree, no term, or directions of another distribution.
    """
    grouped, dense = (hessian, None) if isinstance(hessian, GroupDiagonal) else (None, hessian)
    held = [t for t in (x, dense, momentum) if t is not None]
    dtype = _check(held, x, directions, terms, start)
    if rule is not None and dense is None:
        raise ValueError("a rule was given without the hessian that it is to change")
    if grouped is not None and (len(grouped), grouped.dtype) != (held[0].numel(), dtype):
        raise ValueError(f"hessian must be {held[0].numel()} of {dtype}, got {len(grouped)} of {grouped.dtype}")
    size, device = held[0].numel(), held[0].device
    narrow = x is not None and x.dtype != dtype
    numbers = _rounded(dtype, rate, decay, 1.0 - decay, rule)

    def apply(low: int, high: int) -> None:
        part = [None if t is None else t.detach()[low:high] for t in (x, dense, momentum)]
        if grouped is not None:
            part[1] = grouped[low:high].tensor()
        target = part[0]
        if target is not None and narrow:
            part[0] = target.to(dtype)
        if _compiled is not None and device.type == "cpu":
            _apply_compiled(part, directions, terms, numbers, rule is not None, start + low, high - low)
        else:
            _apply(part, directions, terms, numbers, rule is not None, start + low, start + high)
        if target is not None and narrow and part[0] is not None:
            target.copy_(part[0])

    _in_chunks(apply, size, chunk, device)
    for tensor in (x, dense if rule is not None else None, momentum):
        if tensor is not None:
            torch.autograd.graph.increment_version(tensor)


def squared_norm(directions: Directions, step: int, row: int, hessian: Tensor | GroupDiagonal | None = None) -> float:
    """uᵀH⁻¹u in float64, summed in a fixed order; ‖u‖² without H.

    Args:
        directions: normal or Rademacher directions.
        step: step of u.
        row: row of u.
        hessian: H, shape ``d``.
    """
    d = directions.d
    if isinstance(hessian, GroupDiagonal) and d <= CHUNK:
        hessian = hessian.tensor()
    dense_on_cpu = hessian is None or (isinstance(hessian, Tensor) and hessian.device.type == "cpu")
    if _compiled is not None and dense_on_cpu:
        sums = np.empty(-(-d // 256))
        metric = hessian.numpy() if isinstance(hessian, Tensor) else np.empty(0)
        signs = directions.distribution == "rademacher"
        _compiled.sums_of_squares(signs, row, *directions.address(step), d, metric, sums)
        return halved(torch.from_numpy(sums)).item()
    pieces = []
    for low in range(0, d, CHUNK):
        device = None if hessian is None else hessian.device
        square = directions.row(step, row, low, min(d, low + CHUNK), torch.float64, device).square()
        if hessian is not None:
            part = hessian[low : low + CHUNK]
            square /= (part.tensor() if isinstance(part, GroupDiagonal) else part).to(torch.float64)
        pieces.append(group_sums(square))
    return halved(torch.cat(pieces)).item()


def _check(
    held: list[Tensor], x: Tensor | None, directions: Directions, terms: Sequence[Term], start: int
) -> torch.dtype:
    if not held:
        raise ValueError("nothing to update: x, hessian and momentum are all None")
    if not terms:
        raise ValueError("an update needs at least one term")
    if directions.distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"directions are {directions.distribution!r}; accepted: {' or '.join(map(repr, DISTRIBUTIONS))}"
        )
    dtype = compute_dtype((x if x is not None else held[0]).dtype)
    for tensor in held:
        wanted = tensor.dtype if tensor is x else dtype
        if tensor.dtype != wanted or not tensor.is_floating_point():
            raise ValueError(f"hessian and momentum must be {wanted} with this x, got {tensor.dtype}")
        if tensor.ndim != 1 or not tensor.is_contiguous() or tensor.shape != held[0].shape:
            raise ValueError(f"tensors must be contiguous vectors of one shape, got {tuple(tensor.shape)}")
        if tensor.device != held[0].device:
            raise ValueError(f"tensors must be on one device, got {tensor.device} and {held[0].device}")
    if not 0 <= start <= directions.d - held[0].numel():
        raise ValueError(f"coordinates from {start} on exceed the directions' dimension {directions.d}")
    return dtype


Numbers = tuple[float, ...]


def _rounded(dtype: torch.dtype, rate: float, decay: float, gain: float, rule: HessianRule | None) -> Numbers:
    r = rule or HessianRule()
    numbers = (rate, decay, gain, 1.0 - r.weight, r.weight, r.epsilon, r.lower, r.upper)
    kind: Any = np.float32 if dtype == torch.float32 else np.float64
    return tuple(kind(number) for number in numbers)


def _apply_compiled(
    part: list[Tensor | None],
    directions: Directions,
    terms: Sequence[Term],
    numbers: Numbers,
    learns: bool,
    start: int,
    size: int,
) -> None:
    assert _compiled is not None
    kind = type(numbers[0])
    absent = np.empty(0, kind)
    arrays = [absent if t is None else t.numpy() for t in part]
    addresses = np.array([directions.address(step) for step, _, _ in terms], dtype=np.int64)
    rows = np.array([row for _, row, _ in terms], dtype=np.int64)
    coefficients = np.array([c for _, _, c in terms], dtype=kind)
    signs = directions.distribution == "rademacher"
    (k0, k1), (s0, s1) = addresses[0, :2].tolist(), np.ascontiguousarray(addresses[:, 2:].T)
    _compiled.update(signs, k0, k1, rows, s0, s1, coefficients, start, size, *arrays, learns, *numbers)


def _apply(
    part: list[Tensor | None],
    directions: Directions,
    terms: Sequence[Term],
    numbers: Numbers,
    learns: bool,
    start: int,
    stop: int,
) -> None:
    x, h, m = part
    any_part = next(t for t in part if t is not None)
    dtype, device = any_part.dtype, any_part.device
    kind = type(numbers[0])
    rate, decay, gain, keep, weight, epsilon, lower, upper = map(float, numbers)
    delta: Tensor | None = None
    for step, row, c in terms:
        product = directions.row(step, row, start, stop, dtype, device) * float(kind(c))
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


def _in_chunks(apply: Callable[[int, int], None], size: int, chunk: int, device: torch.device) -> None:
    ranges = [(low, min(size, low + chunk)) for low in range(0, size, chunk)]
    threads = min(torch.get_num_threads(), len(ranges)) if device.type == "cpu" else 1
    if threads < 2 or _compiled is None:
        for low, high in ranges:
            apply(low, high)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(apply, *zip(*ranges, strict=True)))
