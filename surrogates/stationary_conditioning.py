"""Conditioning with one stationary kernel o h(r²); the mean and the trace need no Jacobian.

With J = diag(c) Δ diag(v) (``surrogates.kernels.stationary``) the mean is v ∘ Σ_τ c_τ α_τ Δ_τ, and
(J Jᵀ)_ij = ½ c_i c_j (q_i + q_j − E_ij), where q are the squared distances of x to the data, and E those among the
data, in the metric v². The trace takes two ``n x n`` products for any d:

    trace(∂σ²(x)) = −2 o h'(0) Σₖ (dzₖ/dxₖ)²/ℓₖ² − [(c∘q)ᵀ A⁻¹ c − ½ cᵀ (A⁻¹∘E) c]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.means import Mean
from torch import Tensor

from surrogates.compiled import compiled
from surrogates.conditioning import Conditioning
from surrogates.kernels import one_pass
from surrogates.kernels.blocks import KernelSnapshot, kernel_values
from surrogates.kernels.distances import pairwise_squared_distances, squared_distances
from surrogates.kernels.errors import gradient_at_datum, no_gradient_covariance
from surrogates.kernels.one_pass import Pass
from surrogates.kernels.stationary import StationaryKernel, over_all_inputs
from surrogates.threads import small_algebra

if TYPE_CHECKING:
    from surrogates.kernels.one_pass_numba import Arrays

# Below this share of the prior's trace, the identity loses more digits than triangular solves.
_CANCELLATION = 1e-2
_COLUMN_ELEMENTS = 1 << 20


@dataclass(eq=False)
class StationaryConditioning(Conditioning):
    """A GP with one stationary kernel, conditioned on one data set.

    The kernel is isotropic or ARD, in any number of ``ScaleKernel``s, with any ``active_dims``.

    Attributes:
        gradient_squared_distances: A function that returns E, ``batch x n x n``, float64, or None to compute E.
    """

    gradient_squared_distances: Callable[[], Tensor] | None = None
    _columns: int = field(default=0, init=False, repr=False)

    def over(
        self, X: Tensor, factor: Tensor, alpha: Tensor, gradient_squared_distances: Callable[[], Tensor] | None = None
    ) -> StationaryConditioning:
        """Returns the conditioning on other data of the same batch; quantities of the kernel alone are reused."""
        other = StationaryConditioning(
            self.kernel, self.prior_mean, X, factor, alpha, self.slope, gradient_squared_distances
        )
        of_gradient = ("prior_variance", "prior_trace", "_prior_number") if self.stationary.profile.has_gradient else ()
        for name in ("stationary", *of_gradient):
            other.__dict__[name] = getattr(self, name)
        return other

    @cached_property
    def stationary(self) -> StationaryKernel:
        """The kernel with column scales that include the slope of the input transform."""
        assert isinstance(self.kernel, StationaryKernel)
        return self.kernel.with_slope(self.slope)

    @cached_property
    def inputs(self) -> Tensor:
        """The data in the kernel's inputs, ``batch x n x d'``; X itself if the kernel uses all inputs."""
        return self.stationary.seen_inputs(self.X)

    @cached_property
    def inverse(self) -> Tensor:
        """The inverse A⁻¹, ``batch x n x n``, float64."""
        with small_algebra(self.factor.shape[:-2].numel() * self.factor.shape[-1] ** 3):
            return torch.cholesky_inverse(self.factor)

    @cached_property
    def inverse_times_distances(self) -> Tensor:
        """The elementwise product A⁻¹ ∘ E, ``batch x n x n``, float64."""
        if self.gradient_squared_distances is not None:
            return self.inverse * self.gradient_squared_distances()
        return self.inverse * pairwise_squared_distances(self.inputs, self.stationary.column_scales.square())

    @cached_property
    def prior_variance(self) -> Tensor:
        """The prior variance of every partial derivative, ``batch x d``, float64; ValueError for Matérn 1/2."""
        return self._uniform_prior_variance()

    @cached_property
    def prior_trace(self) -> Tensor:
        """The sum of ``prior_variance``, ``batch x 1``, float64."""
        return self.prior_variance.sum(-1, keepdim=True)

    @cached_property
    def _prior_number(self) -> float:
        return self.prior_trace.item()

    @cached_property
    def _arrays(self) -> Arrays | None:
        return one_pass.arrays_of(self.stationary, self.inputs, self.alpha)

    @cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """The symmetric matrices A⁻¹ and A⁻¹ ∘ E as arrays with contiguous rows."""
        matrices = (self.inverse.numpy(), self.inverse_times_distances.numpy())
        first, second = (matrix if matrix.flags.c_contiguous else matrix.T for matrix in matrices)
        return first, second

    def pass_over_data(self, x: Tensor, distances: Tensor | None = None) -> Pass:
        """Computes J(x)ᵀ α and the distances to the data at points ``... x q x d``.

        Args:
            x: The points.
            distances: Σₗ (xₗ − Xᵢₗ)², shape ``n``, float64, for one point and an isotropic kernel; computed by default.

        Raises:
            ValueError: If a point coincides with a data point and the kernel is Matérn 1/2.
        """
        kernel = self.stationary
        known = one_pass.one_pass(kernel, self.inputs, kernel.seen_inputs(x), self.alpha, self._arrays, distances)
        if not kernel.profile.has_gradient and bool((known.r2 == 0).any()):
            raise gradient_at_datum(kernel.profile.title)
        return known

    def mean(self, x: Tensor, known: Pass | None = None) -> Tensor:
        """Computes the gradient mean ∇m(x) + J(x)ᵀ α at points ``... x q x d``; errors are as in ``pass_over_data``."""
        return self._plus_prior_mean_gradient(x, self._over_all_inputs((known or self.pass_over_data(x)).mean))

    def trace(self, x: Tensor, known: Pass | None = None) -> Tensor:
        """Computes the trace of the gradient covariance at every point, ``... x q``, float64.

        The formula of ``surrogates.stationary_conditioning`` needs A⁻¹ and E once, O(n³ + n²d). Triangular solves,
        O(n²d) per point, are used instead if the formula suffers from cancellation (n ≫ d), and for the first points,
        until the solves have cost as much as A⁻¹.

        Raises:
            ValueError: For Matérn 1/2.
        """
        if not self.stationary.profile.has_gradient:
            raise no_gradient_covariance(self.stationary.profile.title)
        if not x.shape[-2] or self._solves_cost_less(x):
            return super().trace(x)
        known = known or self.pass_over_data(x)
        explained = self.explained_trace(known)
        if isinstance(explained, float):
            trace = self._prior_number - explained
            if trace < _CANCELLATION * self._prior_number:
                return super().trace(x)
            return torch.from_numpy(np.array([trace]))
        result = self.prior_trace - explained
        small = result < _CANCELLATION * self.prior_trace
        columns = small.reshape(-1, small.shape[-1]).any(0).nonzero().squeeze(-1)
        if len(columns):
            solved = result.index_copy(-1, columns, super().trace(x[..., columns, :]))
            result = torch.where(small, solved, result)
        return result

    def _solves_cost_less(self, x: Tensor) -> bool:
        """Whether the triangular solves so far, those for x included, cost less than the inverse would.

        A caller that passes E, such as a window, has many points.
        """
        if self.gradient_squared_distances is not None or "inverse" in self.__dict__:
            return False
        self._columns += x.shape[:-1].numel() * self.inputs.shape[-1]
        return self._columns < self.inputs.shape[-2]

    def explained_trace(self, known: Pass) -> Tensor | float:
        """The prior trace minus the posterior trace, ``... x q``; a float for one point.

        Args:
            known: The result of ``pass_over_data`` at the points.
        """
        loops, point = compiled("surrogates.kernels.one_pass_numba"), known.of_one_point()
        if loops is not None and point is not None:
            return float(loops.trace_explained(*point, *self.matrices))
        explained = ((known.c * known.q) @ self.inverse * known.c).sum(-1)
        return explained - 0.5 * (known.c @ self.inverse_times_distances * known.c).sum(-1)

    def value_gradient_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Computes the covariance of f(x) and ∂f(x')/∂x'ⱼ for every pair, ``... x q x q' x d``, float64.

        J(x')ᵀ A⁻¹ k(X, x) is v ∘ Σ_τ w_τ (x' − x_τ) with w = c(x') ∘ A⁻¹ k(X, x), so no Jacobian is formed.
        Arguments and errors are as in ``Conditioning.value_gradient_covariance``.
        """
        _ = self.prior_variance
        if not x2.shape[-2]:
            return super().value_gradient_covariance(x1, x2)
        kernel = self.stationary
        values, gradients = kernel.seen_inputs(x1), kernel.seen_inputs(x2)
        solved = torch.cholesky_solve(kernel_values(self.kernel, x1, self.X).mT, self.factor).mT
        columns = []
        for j in range(x2.shape[-2]):
            point = gradients[..., j : j + 1, :]
            own = kernel.row_scales(squared_distances(values - point, point - point, kernel.precision))
            prior = own * (point - values).double() * kernel.column_scales.double()
            c = kernel.row_scales(one_pass.squared_distances_to(kernel, self.inputs, point))
            columns.append(prior - one_pass.weighted_differences(kernel, self.inputs, point, c * solved))
        return self._over_all_inputs(torch.stack(columns, dim=-2))

    def jacobian_times(self, x: Tensor, u: Tensor) -> Tensor:
        """Computes J(x) u, ``... x q x n``, float64, for u of shape ``... x q x d``, without forming J."""
        if not x.shape[-2]:
            return super().jacobian_times(x, u)
        kernel = self.stationary
        points, along = kernel.seen_inputs(x), kernel.seen_inputs(u)
        rows = []
        for j in range(x.shape[-2]):
            point = points[..., j : j + 1, :]
            c = kernel.row_scales(one_pass.squared_distances_to(kernel, self.inputs, point))
            rows.append(c * one_pass.differences_along(kernel, self.inputs, point, along[..., j : j + 1, :]))
        return torch.cat(rows, dim=-2)

    def _explained_variance(self, x: Tensor) -> Tensor:
        """The diagonal of Jᵀ A⁻¹ J, ``... x q x d``, a block of inputs at a time."""
        kernel = self.stationary
        points = kernel.seen_inputs(x)
        c = self.pass_over_data(x).c.unsqueeze(-1)
        d = points.shape[-1]
        step = max(1, _COLUMN_ELEMENTS // max(1, self.inputs.shape[-2] * points.shape[-2]))
        parts = []
        for start in range(0, d, step):
            columns = slice(start, start + step)
            difference = points[..., columns].unsqueeze(-2) - self.inputs[..., columns].unsqueeze(-3)
            v = kernel.column_scales if kernel.column_scales.shape[-1] == 1 else kernel.column_scales[..., columns]
            parts.append(self._whitened(c * difference.double() * v.unsqueeze(-2).double()).square().sum(-2))
        return self._over_all_inputs(torch.cat(parts, dim=-1))

    def _over_all_inputs(self, gradient: Tensor) -> Tensor:
        return over_all_inputs(gradient, self.stationary.active_dims, self.d, -1)


def make_conditioning(
    kernel: KernelSnapshot,
    prior_mean: Mean | None,
    X: Tensor,
    factor: Tensor,
    alpha: Tensor,
    slope: Tensor | None = None,
) -> Conditioning:
    """Returns a ``StationaryConditioning`` for one stationary kernel, otherwise a ``Conditioning``.

    It is always a ``Conditioning`` if hyper-parameters or data require gradients.
    """
    number = not (factor.requires_grad or alpha.requires_grad)
    cls = StationaryConditioning if isinstance(kernel, StationaryKernel) and number else Conditioning
    return cls(kernel, prior_mean, X, factor, alpha, slope)
