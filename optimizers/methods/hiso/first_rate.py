"""HiSo's first rate and H, which its paper does not give, and the check of an x0 that is moved in place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.directions.metric import CHUNK, squared_norm
from optimizers.methods.hiso.curvature import StepOptions

LEAST_DIRECTIONS = 8
"""The least number of directions of a first step that determines the rate."""


def found_rate(batch: Batch, values: Tensor, scalars: Tensor, options: StepOptions) -> tuple[float, float] | None:
    """Finds η and an estimate of ‖∇f‖ from a first step's queries x and x ± μu, with H = 1; None without a slope.

    On a quadratic with Hessian A the expected decrease of one step is greatest at η = ‖∇‖²/E‖Δx‖²_A ≥ 1/(trA/P + (1 +
    1/P)λ_max) (HiSo, eq. 120, at H = 1), times uᵀu under ``projection``. Second differences |f(x+μu) + f(x−μu) −
    2f(x)|/μ² have mean tr A and standard deviation √2 ‖A‖_F ≥ √2 λ_max. The largest of them, or the rounding error of a
    second difference if that is larger, estimates tr A, because the mean is more often too small by chance. Half of its
    excess over the mean estimates λ_max (the largest itself, if there are fewer than 3). The first step is at most
    max(‖x‖, 1) long, which limits it if f has no curvature. The result does not depend on the units of f.

    Args:
        batch: the queries.
        values: their values, float64, NaN for failed ones.
        scalars: g_p of each direction, not finite if a query failed.
        options: the options of the step.
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
    """Returns x0 detached, with the same memory; raises unless it is a contiguous vector of finite floats."""
    if not isinstance(x0, Tensor) or not x0.is_floating_point():
        kind = x0.dtype if isinstance(x0, Tensor) else type(x0).__name__
        raise TypeError(f"in_place=True moves x0 itself: it must be a floating tensor, got {kind}")
    if x0.ndim != 1 or x0.numel() == 0 or not x0.is_contiguous():
        raise ValueError(f"x0 must be a contiguous vector with in_place=True, got shape {tuple(x0.shape)}")
    x = x0.detach()
    for low in range(0, x.numel(), CHUNK):
        if not bool(torch.isfinite(x[low : low + CHUNK]).all()):
            raise ValueError("x0 must be finite")
    return x
