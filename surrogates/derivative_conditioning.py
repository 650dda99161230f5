"""Conditioning on values and derivatives of f (Eriksson et al., NeurIPS 2018; Rasmussen and Williams, Sec. 9.4).

Every observation is an entry of the jet (f, ∂₁f, …, ∂_d f, ∂₁∂₁f, ∂₁∂₂f, …, ∂_d∂_d f) at a point. The covariances of
these entries are derivatives of k. If they replace k(x, X), all formulas of ``surrogates.conditioning`` hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from gpytorch.means import ConstantMean, Mean, ZeroMean
from torch import Tensor

from surrogates.conditioning import Conditioning
from surrogates.kernels.blocks import KernelSnapshot, is_uniform
from surrogates.kernels.hessians import AutomaticHessian, check_has_hessian, mean_hessian
from surrogates.kernels.jets import jet_width, per_user_unit, prior_jets, unit_jets, upper_triangle


@dataclass(frozen=True, eq=False)
class Observations:
    """The observed entries of the jets at n points, per unit of the user's inputs.

    A jet has e entries. The n·e entries of all jets are numbered point by point.

    Attributes:
        X: The transformed points z, ``batch x n x d``.
        order: The highest order of a derivative, 1 or 2: e is 1 + d or 1 + d + d(d+1)/2.
        entries: The numbers of the N observed entries, ``N``.
        slope: dz/dx at the points, ``batch x n x d`` or ``batch x 1 x d``, or None if it is 1.
        bend: d²z/dx² at the points, ``batch x n x d``, or None if it is 0.
    """

    X: Tensor
    order: int
    entries: Tensor
    slope: Tensor | None = None
    bend: Tensor | None = None

    @cached_property
    def width(self) -> int:
        """The number of entries at each point."""
        return jet_width(self.X.shape[-1], self.order)

    def after(self, points: int) -> Observations:
        """The observations without those at the first ``points`` points."""
        entries = self.entries[self.entries >= points * self.width] - points * self.width
        slope, bend = (t if t is None or t.shape[-2] == 1 else t[..., points:, :] for t in (self.slope, self.bend))
        return Observations(self.X[..., points:, :], self.order, entries, slope, bend)

    def covariance(self, kernel: KernelSnapshot, others: Observations | None = None) -> Tensor:
        """The prior covariance with ``others``, by default of these observations, ``batch x N x N'``, float64."""
        others = self if others is None else others
        blocks = unit_jets(kernel, self.X, others.X, self.order, others.order)
        rows = self._per_user_unit(blocks.transpose(-4, -3).mT).transpose(-4, -3).mT
        return others.among_columns(rows).flatten(-3, -2)[..., self.entries, :]

    def among_columns(self, blocks: Tensor) -> Tensor:
        """Selects the observed entries from covariances ``... x q x n x r x e``; returns ``... x q x r x N``."""
        return self._per_user_unit(blocks).transpose(-3, -2).flatten(-2)[..., self.entries]

    def mean(self, mean: Mean, further: bool) -> Tensor:
        """The prior mean of the observations, ``batch x N``, with the graph to the hyper-parameters if ``further``."""
        X, d = self.X, self.X.shape[-1]
        values = mean(X).unsqueeze(-1)
        if type(mean) in (ConstantMean, ZeroMean):
            jets = torch.cat([values, values.new_zeros(*values.shape[:-1], self.width - 1)], dim=-1)
        else:
            derivatives = mean_hessian(mean, X, True)
            parts = [values, derivatives.gradient]
            if self.order == 2:
                i, j = upper_triangle(d, X.device)
                parts.append(derivatives.dense()[..., i, j])
            batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
            jets = torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], dim=-1)
        found = self.among_columns(jets.unsqueeze(-2).unsqueeze(-4)).flatten(-3)
        return found if further else found.detach()

    def check_second_derivatives(self, kernel: KernelSnapshot) -> None:
        """Raises a ValueError if second derivatives were observed and the kernel does not have four derivatives."""
        if self.order == 2 and not is_uniform(kernel):
            X = self.X.detach()
            eye = torch.eye(X.shape[-1], dtype=torch.float64, device=X.device)
            for j in range(X.shape[-2]):
                prior_jets(kernel, X[..., j : j + 1, :], eye, X)

    def _per_user_unit(self, blocks: Tensor) -> Tensor:
        """Converts covariances with whole jets, ``... x q x n x r x e``, from jets in z to jets in x."""
        slope, bend = (None if t is None else t.unsqueeze(-3) for t in (self.slope, self.bend))
        return per_user_unit(blocks, slope, bend)


@dataclass(eq=False)
class DerivativeConditioning(Conditioning):
    """A GP with one kernel, conditioned on values and derivatives of f.

    Attributes:
        observations: The observations; L is ``batch x N x N`` and α ``batch x N``.
    """

    observations: Observations = field(kw_only=True)

    def across(self, x: Tensor) -> Tensor:
        """The prior covariance of f(x) with the observations, ``... x q x N``, float64."""
        return self._with_observations(x, 0).squeeze(-2)

    def value_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The covariance of f(x) and f(x') for every pair, ``... x q x q'``, float64; usable in ``torch.func``."""
        solved = torch.cholesky_solve(self.across(x2).mT, self.factor)
        return unit_jets(self.kernel, x1, x2, 0, 0)[..., 0, 0] - self.across(x1) @ solved

    def jacobian(self, x: Tensor) -> Tensor:
        """The prior covariance of the observations with ∇f(x), ``... x q x N x d``."""
        return self._per_user_unit(self._with_observations(x, 1)[..., 1:, :].mT.to(x.dtype))

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessian in z of the posterior mean minus the prior mean, at the points, ``... x q x d x d``.

        Raises:
            ValueError: If k does not have four derivatives at x = x'.
        """
        check_has_hessian(self.kernel, covariance=True)

        def gradient(z: Tensor) -> Tensor:
            across = self._with_observations(z.double(), 1)[..., 1:, :]
            return (across @ self.alpha[..., None, :, None]).squeeze(-1)

        return AutomaticHessian(gradient, x, x.requires_grad or self.requires_grad).dense()

    def across_jets(self, x: Tensor) -> Tensor:
        """See ``Conditioning``; ``... x q x N x (1 + d + D)``."""
        return self._with_observations(x, 2).mT

    def _with_observations(self, x: Tensor, order: int) -> Tensor:
        """The prior covariance of the jets at x, per unit of z, with the observations, ``... x q x e x N``, float64."""
        observed = self.observations
        return observed.among_columns(unit_jets(self.kernel, x, observed.X, order, observed.order))
