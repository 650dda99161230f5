"""The points over which a function is averaged, and the joint posterior at these points."""

from __future__ import annotations

from typing import Any

import torch
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from surrogates.checks import check_finite, check_floating, check_integer, positive_integer

_MOST_ENTRIES = 2**27


def averaging_points(bounds: Tensor | None, X: Tensor | None, num_points: int, seed: int) -> Tensor:
    """Returns the given sample X, or ``num_points`` scrambled Sobol' points in the box ``bounds``, ``N x d``.

    Raises:
        TypeError: If the box or sample is not a floating point tensor, or ``num_points`` or ``seed`` is not an integer.
        ValueError: If both or neither of box and sample are given, a shape is wrong, an entry is NaN or infinite, or a
            lower bound is not below its upper bound.
    """
    if (bounds is None) == (X is None):
        given = "neither" if X is None else "both"
        raise ValueError(f"Exactly one of bounds (a box) and X (a sample) is needed, got {given}.")
    if bounds is not None:
        check_bounds(bounds)
        count, number = positive_integer("num_points", num_points), check_integer("seed", seed, 0)
        return draw_sobol_samples(bounds, count, 1, seed=number).squeeze(-2)
    check_floating("X", X)
    assert X is not None
    if X.dim() != 2 or X.numel() == 0:
        raise ValueError(f"X must be a sample of shape N x d with N >= 1, got {tuple(X.shape)}.")
    check_finite("X", X)
    return X.clone()


def check_bounds(bounds: Tensor) -> None:
    """Checks that ``bounds`` is a box, ``2 x d``, with every lower bound below its upper bound."""
    check_floating("bounds", bounds)
    if bounds.dim() != 2 or bounds.shape[0] != 2 or bounds.numel() == 0:
        raise ValueError(f"bounds must be of shape 2 x d, lower bounds before upper bounds, got {tuple(bounds.shape)}.")
    check_finite("bounds", bounds)
    wrong = (bounds[0] >= bounds[1]).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(f"Every lower bound must be below its upper bound; this fails for the inputs {wrong}.")


def joint_moments(model: Any, X: Tensor) -> tuple[Any, Tensor]:
    """Returns the joint posterior of (f, ∇f) at N points and its covariance, ``batch x N x (d+1) x N x (d+1)``.

    Raises:
        TypeError: If the model has no ``joint_posterior``.
        ValueError: As ``joint_posterior``, and if the covariance would have more than 2²⁷ entries (1 GiB in float64).
    """
    if not hasattr(model, "joint_posterior"):
        raise TypeError(
            f"{type(model).__name__} has no joint_posterior of values and gradients; surrogates.DerivedGP and "
            "surrogates.GradientObservationGP have one; for a list of models, pass one model at a time."
        )
    (N, d), models = X.shape, torch.Size(getattr(model, "batch_shape", ())).numel() * model.num_outputs
    entries = models * (N * (d + 1)) ** 2
    if entries > _MOST_ENTRIES:
        most = int((_MOST_ENTRIES / models) ** 0.5 / (d + 1))
        raise ValueError(
            f"The joint covariance of f and ∇f at {N} points in {d} inputs has {entries:.2g} entries, more than "
            f"{_MOST_ENTRIES:.2g}; take at most {most} points."
        )
    joint = model.joint_posterior(X)
    covariance = joint.distribution.covariance_matrix
    return joint, covariance.unflatten(-1, (N, d + 1)).unflatten(-3, (N, d + 1))
