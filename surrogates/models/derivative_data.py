"""Observed derivatives: checks, noise variances, and their order in a GP's targets."""

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
        are_values: A mask, ``N``: True for values, False for derivatives.
    """

    def __init__(self, noise: Tensor, are_values: Tensor) -> None:
        super().__init__(noise)
        self._are_values = are_values

    @property
    def noise(self) -> Tensor:
        """The variances of the values, whose mean BoTorch uses as the noise of a new value."""
        return (self.noise_covar.noise + self.second_noise)[..., self._are_values]

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Any:
        # The inputs are not passed on: GPyTorch would expect as many of them as variances.
        return super()._shaped_noise_covar(base_shape, **kwargs)


def joined_entries(values: Tensor, G: Tensor | None, H: Tensor | None) -> Tensor:
    """Joins values and derivatives point by point, in the order f, ∂₁f, …, ∂_d f, then ∂ᵢ∂ⱼf for i ≤ j.

    Args:
        values: The values, ``batch x n``, NaN if not observed.
        G: The first derivatives, ``batch x n x d``, or None.
        H: The second derivatives, ``batch x n x d x d``, or None. If ∂ᵢ∂ⱼf is NaN, ∂ⱼ∂ᵢf is used.
    """
    parts = [values.unsqueeze(-1)]
    if G is not None:
        parts.append(G)
    if H is not None:
        i, j = upper_triangle(H.shape[-1], H.device)
        parts.append(torch.where(H.isnan(), H.mT, H)[..., i, j])
    return torch.cat(parts, dim=-1).flatten(-2)


def check_derivatives(
    prefix: str,
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None,
    G: Tensor | None,
    Gvar: Tensor | None,
    H: Tensor | None,
    Hvar: Tensor | None,
) -> None:
    """Checks observed first derivatives G and second derivatives H for ``GradientObservationGP``.

    Args:
        prefix: A prefix of the names in messages.
        X: The inputs, ``batch x n x d``.
        Y: The outcomes, ``batch x n x m``.
        Yvar: The noise variances of Y, or None.
        G: The first derivatives, ``batch x n (x m) x d``, or None.
        Gvar: The noise variances of G, or None.
        H: The second derivatives, ``batch x n (x m) x d x d``, or None.
        Hvar: The noise variances of H, or None.

    Raises:
        TypeError: If a derivative or variance is not a floating point tensor.
        ValueError: If shapes, dtypes or devices do not match, an entry is infinite, second derivatives are not
            symmetric, the variance of an observed derivative is negative or NaN, or only some variances are given.
    """
    m, d = Y.shape[-1], X.shape[-1]
    for order, name, given, noise in ((1, f"{prefix}G", G, Gvar), (2, f"{prefix}H", H, Hvar)):
        if given is None:
            if noise is not None:
                raise ValueError(f"{name}var was given without {name}; pass both or neither.")
            continue
        if (noise is None) != (Yvar is None):
            raise ValueError(f"{prefix}Yvar and {name}var must be given together, or not at all.")
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
    if H is not None:
        difference, size = (H - H.mT).abs(), H.abs().nan_to_num(nan=0.0).amax() if H.numel() else 0.0
        if bool((difference > _SYMMETRY * size).any()):
            raise ValueError(
                f"{prefix}H must be symmetric (one of the entries (i, j) and (j, i) may be NaN); these entries "
                f"differ by up to {difference.nan_to_num(nan=0.0).max().item():g}."
            )


def rows_with_data(X: Tensor, Y: Tensor, *others: Tensor | None) -> list[Any]:
    """Copies X, Y, Yvar, G, Gvar, H and Hvar without the rows that have only NaN in Y, G and H."""
    _, G, _, H, _ = others
    parts = [Y, *(t.flatten(X.dim() - 1) for t in (G, H) if t is not None)]
    found = observed_rows(X, torch.cat(parts, dim=-1), Y, *others)
    return [found[0], *found[2:]]


def observed_somewhere(targets: Tensor) -> Tensor:
    """The indices of the targets, ``batch x N``, that are observed in at least one element of the batch."""
    return (~targets.isnan()).reshape(-1, targets.shape[-1]).any(0).nonzero().squeeze(-1)
