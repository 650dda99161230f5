"""Observed derivatives: their checks, their noise, and their order among the targets of a GP."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from surrogates.checks import check_floating, check_observed, check_same_kind
from surrogates.kernels.jets import upper_triangle
from surrogates.models.unobserved import observed_rows

_SYMMETRY = 1e-6


class DerivativeNoise(FixedNoiseGaussianLikelihood):
    """Fixed noise variances of N observed values and derivatives.

    Args:
        noise: The variances, ``batch x N``.
        are_values: Which of the N are values, ``N``.
    """

    def __init__(self, noise: Tensor, are_values: Tensor) -> None:
        super().__init__(noise)
        self._are_values = are_values

    @property
    def noise(self) -> Tensor:
        """The variances of the values: BoTorch takes their mean for the noise of a new value."""
        return (self.noise_covar.noise + self.second_noise)[..., self._are_values]

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Any:
        # Without the inputs, of which GPyTorch would expect as many as variances.
        return super()._shaped_noise_covar(base_shape, **kwargs)


def check_derivatives(name: str, given: Tensor, noise: Tensor | None, Y: Tensor, X: Tensor, order: int) -> None:
    """Refuses what cannot be observed derivatives at the points X, ``batch x n x d``, of the outcomes Y.

    Args:
        name: The name of the argument.
        given: The derivatives, ``batch x n (x m) x d`` or, of the second order, ``batch x n (x m) x d x d``.
        noise: Their noise variances, of the same shape, or None.
        Y: The outcomes, ``batch x n x m``.
        X: The inputs, ``batch x n x d``.
        order: 1 or 2.

    Raises:
        TypeError: If something is not a floating point tensor.
        ValueError: If shapes, dtypes or devices do not fit, an entry is infinite, second derivatives are not symmetric,
            or a variance is negative, or is NaN where the derivative is observed.
    """
    m, d = Y.shape[-1], X.shape[-1]
    shape = (*X.shape[:-1], *((m,) if m > 1 else ()), *(d,) * order)
    for label, tensor in ((name, given), (f"{name}var", noise)):
        if tensor is None:
            continue
        check_floating(label, tensor)
        if tensor.shape != shape:
            raise ValueError(
                f"{label} must be of shape {shape} for X of shape {tuple(X.shape)} and {m} outcomes, got "
                f"{tuple(tensor.shape)}."
            )
        check_same_kind(label, tensor, "X", X)
    check_observed(name, given, f"{name}var", noise)
    if order == 2:
        difference, size = (given - given.mT).abs(), given.abs().nan_to_num(nan=0.0).amax() if given.numel() else 0.0
        if bool((difference > _SYMMETRY * size).any()):
            raise ValueError(
                f"{name} must be symmetric, with one of two equal entries possibly NaN; the largest difference of "
                f"two such entries is {difference.nan_to_num(nan=0.0).max().item():g}."
            )


def joined_entries(values: Tensor, G: Tensor | None, H: Tensor | None) -> Tensor:
    """Values, ``batch x n``, and derivatives in one order: f, ∂₁f, …, ∂_d f, then ∂ᵢ∂ⱼf for i ≤ j, point by point.

    Args:
        values: The values, NaN where there is none.
        G: The first derivatives, ``batch x n x d``, or None.
        H: The second derivatives, ``batch x n x d x d``, or None. Where ∂ᵢ∂ⱼf is NaN, ∂ⱼ∂ᵢf is taken.
    """
    parts = [values.unsqueeze(-1)]
    if G is not None:
        parts.append(G)
    if H is not None:
        i, j = upper_triangle(H.shape[-1], H.device)
        parts.append(torch.where(H.isnan(), H.mT, H)[..., i, j])
    return torch.cat(parts, dim=-1).flatten(-2)


def check_all_derivatives(
    prefix: str,
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None,
    G: Tensor | None,
    Gvar: Tensor | None,
    H: Tensor | None,
    Hvar: Tensor | None,
) -> None:
    """Checks the first derivatives G and the second derivatives H by ``check_derivatives``.

    Raises:
        TypeError: As ``check_derivatives``.
        ValueError: As ``check_derivatives``, or if some noise variances are given and others are not.
    """
    for order, name, given, noise in ((1, "G", G, Gvar), (2, "H", H, Hvar)):
        if given is None:
            if noise is not None:
                raise ValueError(f"{prefix}{name}var is given without {prefix}{name}.")
            continue
        if (noise is None) != (Yvar is None):
            raise ValueError(f"{prefix}Yvar and {prefix}{name}var are given together, or neither is.")
        check_derivatives(f"{prefix}{name}", given, noise, Y, X, order)


def rows_with_data(X: Tensor, Y: Tensor, *others: Tensor | None) -> list[Any]:
    """Copies of X, Y, Yvar, G, Gvar, H and Hvar without the rows in which nothing was observed."""
    _, G, _, H, _ = others
    parts = [Y, *(t.flatten(X.dim() - 1) for t in (G, H) if t is not None)]
    found = observed_rows(X, torch.cat(parts, dim=-1), Y, *others)
    return [found[0], *found[2:]]


def observed_somewhere(targets: Tensor) -> Tensor:
    """The numbers of the targets, ``batch x N``, that some element of the batch has an observation of."""
    return (~targets.isnan()).reshape(-1, targets.shape[-1]).any(0).nonzero().squeeze(-1)
