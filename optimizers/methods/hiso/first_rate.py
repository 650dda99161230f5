"""Estimates HiSo's learning rate from the first step, and checks an x0 that is modified in place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.directions.metric import CHUNK, squared_norm
from optimizers.methods.hiso.curvature import StepOptions

LEAST_DIRECTIONS = 8
"""The least number of directions in a first step from which the rate is computed."""


def found_rate(batch: Batch, values: Tensor, scalars: Tensor, options: StepOptions) -> tuple[float, float] | None:
    """Estimates the learning rate η and ‖∇f‖ from the queries x and x ± μu of a first step with H = 1.

    On a quadratic with Hessian A, the expected decrease of a step is largest at η = ‖∇f‖²/E[Δxᵀ A Δx] ≥ 1/(tr A/P + (1
    + 1/P) λ_max) (HiSo, eq. 120). The result is this bound, multiplied by uᵀu with ``projection``, or less: the first
    step is at most max(‖x‖, 1) long. The second differences |f(x + μu) + f(x − μu) − 2f(x)|/μ² have mean tr A and
    standard deviation √2 ‖A‖_F ≥ √2 λ_max. Since their mean is often too small by chance, tr A is estimated by the
    largest of them or, if that is larger, by their rounding error. λ_max is estimated by half of the difference between
    this estimate and the mean, or with fewer than 3 second differences by the estimate of tr A itself.

    For failed queries, ``values`` are NaN and ``scalars`` g_p are not finite. The result is None if no g_p is finite,
    or if all are 0.
    """
    good = scalars[torch.isfinite(scalars)]
    if not len(good):
        return None
    assert batch.directions is not None
    count, p, mu, x = batch.info["count"], options.perturbations, options.smoothing_radius, batch.base
    centre, plus, minus = values[0], values[1 : 1 + count], values[1 + count :]
    second = (plus + minus - 2.0 * centre).abs() / mu**2
    second = second[torch.isfinite(second)]
    finite = values[torch.isfinite(values)]
    rounding = torch.finfo(x.dtype).eps * float(finite.abs().max()) / mu**2
    trace = max(float(second.max()), rounding) if len(second) else rounding
    largest = 0.5 * (trace - float(second.mean())) if len(second) >= 3 else trace
    slope = float(good.square().mean().sqrt())
    if not (0.0 < slope < math.inf and 0.0 <= trace < math.inf):
        return None
    curvature = trace / p + (1.0 + 1.0 / p) * largest
    square = squared_norm(batch.directions, batch.addresses[-1][0], 0, batch.metric)
    longest = max(float(torch.linalg.vector_norm(x)), 1.0) / (slope * math.sqrt(square))
    rate = min(longest, 1.0 / curvature) if curvature > 0.0 else longest
    return (rate * square if options.projection else rate), slope


def vector_to_move(x0: Any) -> Tensor:
    """Returns a view of x0 without gradient; raises an error if x0 is not a contiguous vector of finite floats."""
    if not isinstance(x0, Tensor) or not x0.is_floating_point():
        kind = x0.dtype if isinstance(x0, Tensor) else type(x0).__name__
        raise TypeError(f"with in_place=True, x0 must be a torch tensor of a floating dtype, got {kind}")
    if x0.ndim != 1 or x0.numel() == 0 or not x0.is_contiguous():
        raise ValueError(f"with in_place=True, x0 must be a contiguous vector, got shape {tuple(x0.shape)}")
    x = x0.detach()
    for low in range(0, x.numel(), CHUNK):
        if not bool(torch.isfinite(x[low : low + CHUNK]).all()):
            raise ValueError("x0 must be finite, but has NaN or infinite coordinates")
    return x
