"""Partial dependence of a function on one of its inputs, with bands of the value and of the slope.

References:
    J. H. Friedman, Greedy function approximation: a gradient boosting machine, Annals of Statistics 29, 2001, Sec. 8.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from surrogates.checks import check_finite, check_floating, check_integer
from surrogates.inference import outside_inference_mode
from surrogates.sensitivity.averages import averaging_points, joint_moments
from surrogates.sensitivity.estimate import Band


@dataclass(frozen=True)
class PartialDependence:
    """The posterior of a partial dependence function and of its slope on a grid of one input.

    Attributes:
        input_index: i, the index of the input.
        grid: The values of the input, ``G``.
        value: The partial dependence, in outcome units.
        slope: The derivative of the partial dependence, in outcome units per unit of the input.
    """

    input_index: int
    grid: Tensor
    value: Band
    slope: Band


@outside_inference_mode
@torch.no_grad()
def partial_dependence(
    model: Any,
    input_index: int,
    *,
    bounds: Tensor | None = None,
    X: Tensor | None = None,
    grid: Tensor | int = 31,
    num_points: int = 128,
    seed: int = 0,
) -> PartialDependence:
    """Computes the posterior of f as a function of input i, averaged over the other inputs, and of its slope.

    With x₁, …, x_N the sample and x_j(t) the point x_j whose input i is set to t (Friedman 2001),

        PD(t) = 1/N Σ_j f(x_j(t)),   PD'(t) = 1/N Σ_j ∂ᵢf(x_j(t)).

    Both have normal posteriors, whose variances are the means of the N² covariances between the points x_j(t). For a
    sample of one point, PD is the slice of f through this point.

    Args:
        model: A model with a ``joint_posterior`` of values and gradients, such as ``surrogates.DerivedGP``.
        input_index: i, in [0, d).
        bounds: The box, ``2 x d``, over which the other inputs are uniform. Give either bounds or X.
        X: The sample of the inputs, ``N x d``, such as the training data.
        grid: The values t, ``G``, or the number G of equidistant values over the range of input i in the box or sample.
        num_points: N for a box, the number of scrambled Sobol' points.
        seed: The seed of the Sobol' points.

    Raises:
        TypeError: If the model has no ``joint_posterior``, or another argument has the wrong type.
        ValueError: If the box, sample, index or grid does not fit the model, there are too many points for a joint
            covariance, the outcome transform is not linear, or sample paths have no gradient.
    """
    points = averaging_points(bounds, X, num_points, seed)
    i = check_integer("input_index", input_index, 0, points.shape[-1])
    if not isinstance(grid, Tensor):
        ends = torch.stack([points.amin(0), points.amax(0)]) if bounds is None else bounds
        steps = torch.linspace(0.0, 1.0, check_integer("grid", grid, 2)).to(points)
        grid = ends[0, i] + (ends[1, i] - ends[0, i]) * steps
    check_floating("grid", grid)
    if grid.dim() != 1 or grid.numel() == 0:
        raise ValueError(f"grid must be of shape G with G >= 1, got {tuple(grid.shape)}.")
    check_finite("grid", grid)
    moments = torch.stack([_averages(model, points, i, t) for t in grid.to(points)], dim=-1)
    # The parts of a mixture are the dimension before that of the grid.
    value_mean, value_variance, slope_mean, slope_variance = moments if is_ensemble(model) else moments.unsqueeze(-2)
    return PartialDependence(i, grid.clone(), Band(value_mean, value_variance), Band(slope_mean, slope_variance))


def _averages(model: Any, points: Tensor, i: int, t: Tensor) -> Tensor:
    """Mean and variance of PD(t), mean and variance of PD'(t), ``4 x batch``."""
    points = points.clone()
    points[:, i] = t
    joint, covariance = joint_moments(model, points)
    found = []
    for entry in (0, i + 1):
        variance = covariance[..., entry, :, entry].mean((-2, -1))
        found += [joint.mean[..., entry].mean(-1), variance.clamp_min(torch.finfo(variance.dtype).tiny)]
    return torch.stack(found)
