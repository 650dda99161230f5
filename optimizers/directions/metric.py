"""Adds directions in a diagonal metric H, H^(-1/2) u, to points, and computes the squared length u^T H^(-1) u.

The bits depend on addresses and numbers alone, not on chunks, thread count or device.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from optimizers.directions.directions import Directions, chunks
from optimizers.directions.fixed_order import group_sums, halved
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.normal import square_root
from surrogates.compiled import compiled

_compiled = compiled("optimizers.directions.directions_numba")

CHUNK = 1 << 18
"""Number of coordinates processed at a time on the CPU; temporaries are a few chunks, about 5 MB, for any d."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of H and of arithmetic at a point: float64 for float64 points, float32 for narrower ones."""
    return dtype if dtype == torch.float64 else torch.float32


def dense(metric: Tensor | GroupDiagonal) -> Tensor:
    """The numbers on the diagonal, one for each coordinate."""
    return metric.tensor() if isinstance(metric, GroupDiagonal) else metric


def over_root(u: Tensor, metric: Tensor | GroupDiagonal) -> Tensor:
    """H^(−1/2) u in the dtype of u and H, shape ``... x d``."""
    return u / square_root(dense(metric))


def add_over_root(
    x: Tensor,
    directions: Directions,
    step: int,
    row: int,
    scale: float,
    metric: Tensor | GroupDiagonal,
    start: int = 0,
) -> Tensor:
    """Adds scale · H^(−1/2) u(step, row) to x in place; x holds coordinates start, start + 1, … of a point.

    Every operation is rounded once, to float64 for float64 x, else to float32; a narrower x is rounded again at the
    end. H > 0 has ``compute_dtype(x.dtype)``; a coordinate with H = inf does not change. No temporary has size d.
    """
    dtype, device = compute_dtype(x.dtype), x.device
    loops = _compiled if device.type == "cpu" and directions.distribution in ("normal", "rademacher") else None

    def apply(low: int, high: int) -> None:
        target, h = x.detach()[low:high], dense(metric[low:high])
        piece = target.to(dtype)
        if loops is not None:
            address = (directions.distribution == "rademacher", row, *directions.address(step), start + low)
            array = piece.numpy()
            loops.add(*address, array, h.numpy(), array.dtype.type(scale))
        else:
            u = directions.row(step, row, start + low, start + high, dtype, device)
            piece.add_(over_root(u, h) * scale)
        if piece.data_ptr() != target.data_ptr():
            target.copy_(piece)

    in_chunks(apply, x.numel(), device, loops is not None)
    torch.autograd.graph.increment_version(x)
    return x


def squared_norm(directions: Directions, step: int, row: int, metric: Tensor | GroupDiagonal | None = None) -> float:
    """uᵀH⁻¹u of a normal or Rademacher direction in float64, summed in a fixed order; without a metric ‖u‖²."""
    d = directions.d
    if isinstance(metric, GroupDiagonal) and d <= CHUNK:
        metric = metric.tensor()
    on_cpu = metric is None or metric.device.type == "cpu"
    if _compiled is not None and on_cpu and not isinstance(metric, GroupDiagonal):
        sums, h = np.empty(-(-d // 256)), np.empty(0) if metric is None else metric.numpy()
        _compiled.sums_of_squares(directions.distribution == "rademacher", row, *directions.address(step), d, h, sums)
        return halved(torch.from_numpy(sums)).item()
    pieces, device = [], torch.device("cpu") if metric is None else metric.device
    for low, high in chunks(d, device, CHUNK):
        square = directions.row(step, row, low, high, torch.float64, device).square()
        if metric is not None:
            square /= dense(metric[low:high]).to(torch.float64)
        pieces.append(group_sums(square))
    return halved(torch.cat(pieces)).item()


def in_chunks(apply: Callable[[int, int], None], size: int, device: torch.device, threaded: bool) -> None:
    """Calls ``apply(low, high)`` for all chunks of 0 … size − 1, on the CPU in ``torch.get_num_threads()`` threads."""
    ranges = [*chunks(size, device, CHUNK)]
    threads = min(torch.get_num_threads(), len(ranges)) if threaded and device.type == "cpu" else 1
    if threads < 2:
        for low, high in ranges:
            apply(low, high)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(apply, *zip(*ranges, strict=True)))
