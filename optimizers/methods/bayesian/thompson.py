"""Thompson sampling in a trust region of TuRBO."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from optimizers.designs import sobol
from optimizers.methods.bayesian.local_gp import LocalGP
from optimizers.methods.bayesian.turbo_region import perturbed_candidates, region_bounds


def sampled_candidates(
    gp: LocalGP, center: Tensor, length: float, candidates: int, count: int, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Draws joint posterior samples at random candidates in a region of the unit cube.

    The candidates are Sobol' points in the region. Each of their coordinates is kept with probability min(20/d, 1) and
    otherwise replaced by the center's coordinate (Eriksson et al., 2019, Supp. D).

    Args:
        gp: the model in the unit cube.
        center: the center of the region, shape ``d``.
        length: the base side length of the region.
        candidates: n, the number of candidates.
        count: q, the number of samples.
        generator: the random generator.

    Returns:
        The candidates, ``n x d``, and the samples, ``q x n``.
    """
    n, d = candidates, len(center)
    lower, upper = region_bounds(center, gp.lengthscales, length)
    unit = sobol(n, d, generator).to(center.device)
    uniforms = torch.from_numpy(generator.random((n, d))).to(center.device)
    normals = torch.from_numpy(generator.standard_normal((count, n))).to(center.device)
    points = perturbed_candidates(center, lower, upper, unit, uniforms, min(20.0 / d, 1.0))
    return points, gp.draw(points, normals)


def distinct_minimizers(draws: Tensor) -> Tensor:
    """Returns the column of the least value in each row of ``q x n`` numbers, all different if q ≤ n, shape ``q``."""
    draws, picks = draws.clone(), []
    for row in draws:
        pick = int(row.argmin())
        picks.append(pick)
        if len(picks) < draws.shape[1]:
            draws[:, pick] = math.inf
    return torch.tensor(picks, device=draws.device)
