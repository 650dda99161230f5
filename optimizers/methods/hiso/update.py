"""Updates x, H and m in place from scalars and seeds (HiSo Alg. 2a, eqs. 12, 112).

The result has the same bits on every machine and device, and for every chunk size and thread count. A client that
missed rounds can therefore replay them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.directions.directions import Directions, chunks
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.metric import CHUNK, compute_dtype, dense, in_chunks, over_root
from surrogates.compiled import compiled

_compiled = compiled("optimizers.methods.hiso.update_numba")

LARGEST_NORMAL = 6.67
"""An upper bound of |u_j| for a normal direction u (`optimizers.directions.normal`)."""

Term = tuple[int, int, float]
"""(step, row, c): the vector c u(seed, step, row), where u is a random direction."""

Learning = tuple[float, float, float, float]
"""The parameters (ν, ε, β_l, β_u) of HiSo's eq. 12."""


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
) -> None:
    """Moves x by one step of HiSo, and updates m and H, in place and without temporaries of size d.

    With Δx = H^(−1/2) Σₜ cₜ u(seed, stepₜ, rowₜ) over the terms:

        m ← βm + (1 − β)Δx (m = Δx if ``momentum`` is None),    x ← x − η m,
        H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u)   if ``learning`` is given.

    Every operation is one IEEE operation, in float64 for float64 x, else float32; a narrower x is rounded at the end.

    Args:
        x: the point, floating, shape ``d``.
        directions: generates the normal or Rademacher directions u.
        terms: (step, row, c), at least one; added in this order.
        rate: the learning rate η.
        hessian: H > 0, shape ``d``, in ``compute_dtype(x.dtype)``; inf fixes a coordinate; None: H = 1.
        learning: (ν, ε, β_l, β_u), for an H of shape ``d``; None: H does not change.
        momentum: m, shape ``d``, in the dtype of H.
        decay: the weight β of the momentum.
    """
    nu, *others = learning or (0.0, 0.0, 0.0, math.inf)
    dtype = compute_dtype(x.dtype)
    numbers = _rounded((rate, decay, 1.0 - decay, 1.0 - nu, nu, *others), dtype)
    kind, loops = type(numbers[0]), _compiled if x.device.type == "cpu" else None

    def apply(low: int, high: int) -> None:
        target = x[low:high].detach()
        wide = target.to(dtype)
        h, m = (None if t is None else dense(t[low:high]).detach() for t in (hessian, momentum))
        if loops is not None:
            arrays = [np.empty(0, kind) if t is None else t.numpy() for t in (wide, h, m)]
            loops.update(*_addressed(directions, terms, kind), low, high, *arrays, learning is not None, numbers)
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

    in_chunks(apply, directions.d, x.device, _compiled is not None)
    for tensor in (x, hessian if learning else None, momentum):
        if isinstance(tensor, Tensor):
            torch.autograd.graph.increment_version(tensor)


def learn(hessian: Tensor, directions: Directions, displacements: Sequence[Sequence[Term]], learning: Learning) -> None:
    """Updates H in place by HiSo's eq. 12 from several displacements in turn.

    With ``hessian`` H₀ and Δx_l = H₀^(−1/2) Σₜ cₜ u(seed, stepₜ, rowₜ), a sum over the l-th of ``displacements``, each
    a list of at least one term (step, row, c):

        H_l = clip((1 − ν)H_{l−1} + ν(Δx_l² + ε), β_l, β_u),   ``learning`` = (ν, ε, β_l, β_u).

    For one displacement the result is the H of ``update``, bit for bit.
    """
    nu, *others = learning
    numbers = _rounded((1.0 - nu, nu, *others), hessian.dtype)
    kind, eq12 = type(numbers[0]), [*map(float, numbers)]
    for low, high in chunks(directions.d, hessian.device, CHUNK):
        h = hessian[low:high].detach()
        before = h.clone()
        for terms in displacements:
            _learn_from(h, over_root(_combined(h, directions, terms, kind, low, high), before), eq12)
    torch.autograd.graph.increment_version(hessian)


def stays_finite(terms: Sequence[Term], rate: float, floor: float, dtype: torch.dtype) -> bool:
    """Checks that Δx² and η Δx cannot overflow for an x of this dtype, given H ≥ ``floor`` and |u_j| ≤ 6.67."""
    largest = LARGEST_NORMAL * sum(abs(c) for *_, c in terms) / math.sqrt(floor)
    fits = largest < 1e150 and largest**2 < torch.finfo(compute_dtype(dtype)).max / 16.0
    return fits and rate * largest < torch.finfo(dtype).max / 16.0


Numbers = tuple[Any, ...]
"""(η, β, 1 − β, 1 − ν, ν, ε, β_l, β_u), without the first three in ``learn``, in the dtype of the arithmetic."""


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
