"""Conditioning under one stationary kernel o h(r²), without a Jacobian for what is most often asked.

J = diag(c) Δ diag(v) with c_τ = 2 o h'(r_τ²), Δ_τ = x − x_τ and v = (dz/dx)/ℓ², so that the mean is
v ∘ Σ_τ c_τ α_τ Δ_τ and (J Jᵀ)_ij = ½ c_i c_j (q_i + q_j − E_ij), q_i and E the squared distances of x to the data
and among the data in the metric v². Hence, whatever d is, in two n x n products:

    trace(∂σ²(x)) = −2 o h'(0) Σₖ (dzₖ/dxₖ)²/ℓₖ² − [(c∘q)ᵀ A⁻¹ c − ½ cᵀ (A⁻¹∘E) c]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from surrogates.conditioning import Conditioning
from surrogates.kernels import one_pass
from surrogates.kernels.blocks import StationaryKernel, as_stationary, kernel_values
from surrogates.kernels.distances import pairwise_squared_distances, squared_distances
from surrogates.kernels.one_pass import Metric, Pass
from surrogates.kernels.radial import gradient_at_datum, no_gradient_covariance

# Under this share of the prior's trace the identity loses more digits than triangular solves do.
_CANCELLATION = 1e-2
_COLUMN_ELEMENTS = 1 << 20
_OF_THE_KERNEL = ("stationary", "metric")
_OF_ITS_GRADIENT = ("prior_variance", "prior_trace", "_prior_number")


@dataclass(eq=False)
class StationaryConditioning(Conditioning):
    """One data set under one stationary kernel, isotropic or ARD, scaled, on any ``active_dims``.

    Attributes:
        gradient_distances: E, squared distances among the data in the metric v², ``batch x n x n``, float64, where
            they are known already; None: computed when a trace is asked for.
    """

    gradient_distances: Tensor | None = None

    def over(
        self, X: Tensor, factor: Tensor, alpha: Tensor, gradient_distances: Tensor | None = None
    ) -> StationaryConditioning:
        """The same kernel and mean over other data, of the same batch; nothing of the kernel is worked out anew."""
        other = StationaryConditioning(self.kernel, self.mean_module, X, factor, alpha, self.slope, gradient_distances)
        for name in _OF_THE_KERNEL + _OF_ITS_GRADIENT * self.metric.profile.has_gradient:
            other.__dict__[name] = getattr(self, name)
        return other

    @cached_property
    def stationary(self) -> StationaryKernel:
        """The kernel's profile and metric."""
        stationary = as_stationary(self.kernel)
        assert stationary is not None
        return stationary

    @cached_property
    def metric(self) -> Metric:
        """The kernel as ``surrogates.kernels.one_pass`` wants it, over the inputs that it sees."""
        kernel = self.stationary
        gradient = kernel.precision if self.slope is None else kernel.precision * self._seen(self.slope)
        return Metric(kernel.profile, kernel.outputscale, kernel.precision, gradient)

    @cached_property
    def inputs(self) -> Tensor:
        """The inputs that the kernel sees, ``batch x n x d'``: X itself where it sees them all."""
        return self._seen(self.X)

    @cached_property
    def inverse(self) -> Tensor:
        """A⁻¹, ``batch x n x n``."""
        return torch.cholesky_inverse(self.factor)

    @cached_property
    def inverse_times_distances(self) -> Tensor:
        """A⁻¹ ∘ E, ``batch x n x n``."""
        if self.gradient_distances is not None:
            return self.inverse * self.gradient_distances
        return self.inverse * pairwise_squared_distances(self.inputs, self.metric.gradient.square())

    @cached_property
    def _prior_number(self) -> float:
        return self.prior_trace.item()

    def observe(self, x: Tensor) -> Pass:
        """J(x)ᵀ α and the distances to the data.

        Raises:
            ValueError: Where a point coincides with a datum under Matérn 1/2.
        """
        seen = one_pass.one_pass(self.metric, self.inputs, self._seen(x), self.alpha)
        if not self.metric.profile.has_gradient and bool((seen.r2 == 0).any()):
            raise gradient_at_datum()
        return seen

    def mean(self, x: Tensor, seen: Pass | None = None) -> Tensor:
        """∇m(x) + J(x)ᵀ α, ``... x q x d``."""
        return self._plus_prior_mean_gradient(x, self._all_inputs((seen or self.observe(x)).mean))

    def trace(self, x: Tensor, seen: Pass | None = None) -> Tensor:
        """The trace of the gradient covariance at every point, ``... x q``, float64.

        By the identity at the head of this module; by triangular solves where that would cancel (n ≫ d).
        """
        if not self.metric.profile.has_gradient:
            raise no_gradient_covariance()
        seen = seen or self.observe(x)
        if one_pass.compiled is not None and _single(seen):
            matrices = (self.inverse, self.inverse_times_distances)
            trace = self._prior_number - one_pass.compiled.trace_explained(seen.c[0], seen.q[0], *matrices)
            if trace < _CANCELLATION * self._prior_number:
                return super().trace(x)
            return torch.tensor([trace], dtype=torch.float64)
        explained = ((seen.c * seen.q) @ self.inverse * seen.c).sum(-1)
        result = self.prior_trace - explained + 0.5 * (seen.c @ self.inverse_times_distances * seen.c).sum(-1)
        small = result < _CANCELLATION * self.prior_trace
        columns = small.reshape(-1, small.shape[-1]).any(0).nonzero().squeeze(-1)
        if len(columns):
            solved = result.index_copy(-1, columns, super().trace(x[..., columns, :]))
            result = torch.where(small, solved, result)
        return result

    def value_gradient_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """cov(f(x), ∂f(x')/∂x'ⱼ) for every pair, ``... x q x q' x d``, float64.

        J(x')ᵀ A⁻¹ k(X, x) is v ∘ Σ_τ w_τ (x' − x_τ) with w = c(x') ∘ A⁻¹ k(X, x): no Jacobian.

        Raises:
            ValueError: For Matérn 1/2.
        """
        self.require_gradient()
        metric, seen1, seen2 = self.metric, self._seen(x1), self._seen(x2)
        solved = torch.cholesky_solve(kernel_values(self.kernel, x1, self.X).mT, self.factor).mT
        columns = []
        for j in range(x2.shape[-2]):
            point = seen2[..., j : j + 1, :]
            own = metric.slope_weights(squared_distances(seen1 - point, point - point, metric.precision))
            prior = own * (point - seen1).double() * metric.gradient.double()
            c = metric.slope_weights(squared_distances_to(point, self.inputs, metric))
            columns.append(prior - one_pass.weighted_differences(metric, self.inputs, point, c * solved))
        return self._all_inputs(torch.stack(columns, dim=-2))

    def jacobian_times(self, x: Tensor, u: Tensor) -> Tensor:
        """J(x) u, ``... x q x n``, float64, for u ``... x q x d``, without J."""
        points, along = self._seen(x), self._seen(u)
        rows = []
        for j in range(x.shape[-2]):
            point = points[..., j : j + 1, :]
            c = self.metric.slope_weights(squared_distances_to(point, self.inputs, self.metric))
            rows.append(c * one_pass.differences_along(self.metric, self.inputs, point, along[..., j : j + 1, :]))
        return torch.cat(rows, dim=-2)

    def _explained_variance(self, x: Tensor) -> Tensor:
        """diag(Jᵀ A⁻¹ J), ``... x q x d``, a block of inputs at a time."""
        points, metric = self._seen(x), self.metric
        c = self.observe(x).c.unsqueeze(-1)
        d = points.shape[-1]
        step = max(1, _COLUMN_ELEMENTS // (self.inputs.shape[-2] * points.shape[-2]))
        parts = []
        for start in range(0, d, step):
            columns = slice(start, start + step)
            difference = points[..., columns].unsqueeze(-2) - self.inputs[..., columns].unsqueeze(-3)
            v = metric.gradient if metric.gradient.shape[-1] == 1 else metric.gradient[..., columns]
            parts.append(self._whitened(c * difference.double() * v.unsqueeze(-2).double()).square().sum(-2))
        return self._all_inputs(torch.cat(parts, dim=-1))

    def _seen(self, x: Tensor) -> Tensor:
        return x if self.stationary.active_dims is None else x[..., self.stationary.active_dims]

    def _all_inputs(self, gradient: Tensor) -> Tensor:
        """The gradient over all d inputs, zero along those that the kernel does not see."""
        active_dims = self.stationary.active_dims
        if active_dims is None:
            return gradient
        return gradient.new_zeros(*gradient.shape[:-1], self.d).index_copy(-1, active_dims, gradient)


def squared_distances_to(point: Tensor, X: Tensor, metric: Metric) -> Tensor:
    """r² of one point, ``... x 1 x d``, to the data, ``... x 1 x n``, from the differences."""
    weights = metric.precision.to(X.dtype)
    blocks = one_pass.centred_blocks(X, point)
    return torch.cat([((b * b) * weights).sum(-1).unsqueeze(-2).double() for _, b in blocks], dim=-1)


def condition(
    kernel: Kernel, mean_module: Mean, X: Tensor, factor: Tensor, alpha: Tensor, slope: Tensor | None = None
) -> Conditioning:
    """The conditioning that serves the kernel best; the arguments are ``Conditioning``'s."""
    cls = Conditioning if as_stationary(kernel) is None else StationaryConditioning
    return cls(kernel, mean_module, X, factor, alpha, slope)


def _single(seen: Pass) -> bool:
    return seen.c.dim() == 2 and seen.c.shape[0] == 1 and seen.c.device.type == "cpu" and not seen.c.requires_grad
