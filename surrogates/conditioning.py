"""A GP conditioned on one data set, with the quantities that determine gradient posteriors, in float64.

With A = K + diag(s²) = L Lᵀ, α = A⁻¹(y − m(X)) and J(x) the ``n x d`` matrix of rows ∂k(x, x_τ)/∂x (ZoRD eqs. 3-6):

    gradient mean               ∇m(x) + J(x)ᵀ α
    gradient covariance         ∂ₓ∂ₓ'k(x, x') − J(x)ᵀ A⁻¹ J(x')
    value-gradient covariance   ∂ₓ'k(x, x') − k(x, X) A⁻¹ J(x')

``Conditioning`` forms J and works for every kernel; ``surrogates.stationary_conditioning`` avoids J for a single
stationary kernel. Points and data are in the model's transformed inputs z; derivatives are per unit of the user's
inputs x, through the slope dz/dx of the (affine) input transform. Outcomes are in the model's units;
``GradientPosterior`` converts them to the user's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpytorch.means import Mean
from torch import Tensor

from surrogates.inference import cached_with_graph
from surrogates.kernels.blocks import (
    KernelSnapshot,
    is_uniform,
    kernel_blocks,
    kernel_values,
    prior_gradient_covariance,
    prior_gradient_variance,
)
from surrogates.kernels.hessians import kernel_hessian, mean_hessian
from surrogates.kernels.jets import unit_jets
from surrogates.kernels.one_pass import Pass
from surrogates.kernels.stationary import StationaryKernel
from surrogates.linalg.rounding import remaining, remaining_covariance

# Rounding alone does not explain more than the prior times 1 + _EXCESS, plus _ROUNDING of the data's variance.
_EXCESS = 1e-3
_ROUNDING = 1e-9


@dataclass(eq=False)
class Conditioning:
    """A GP with any kernel, conditioned on one data set, with a dense Jacobian J.

    Later changes of the model do not affect it. If it was created while autograd was enabled, its tensors are
    differentiable in the model's hyper-parameters and data.

    Attributes:
        kernel: A snapshot of k.
        prior_mean: A copy of m, or None if ∇m = 0.
        X: The transformed inputs, ``batch x n x d``.
        factor: L, lower, ``batch x n x n``, float64.
        alpha: α, ``batch x n``, float64.
        slope: dz/dx, ``batch x 1 x d``, or None if it is 1.
    """

    kernel: KernelSnapshot
    prior_mean: Mean | None
    X: Tensor
    factor: Tensor
    alpha: Tensor
    slope: Tensor | None = None

    @property
    def requires_grad(self) -> bool:
        """Whether results can be differentiated in hyper-parameters, noise or data."""
        return self.factor.requires_grad or self.alpha.requires_grad

    @property
    def d(self) -> int:
        """The number of inputs."""
        return self.X.shape[-1]

    @property
    def num_observations(self) -> int:
        """The number of observations that f is conditioned on."""
        return self.alpha.shape[-1]

    @cached_with_graph
    def prior_variance(self) -> Tensor | None:
        """The prior variance of every partial derivative if it is the same at every point, ``batch x d``, float64.

        It is None unless the kernel is a function of r², or a sum or product of such functions.

        Raises:
            ValueError: For Matérn 1/2, whose sample paths have no gradient.
        """
        return self._uniform_prior_variance() if is_uniform(self.kernel) else None

    def across(self, x: Tensor) -> Tensor:
        """The prior covariance of f(x) with the observations, ``... x q x n``, float64."""
        return kernel_values(self.kernel, x, self.X)

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessian in z of the posterior mean minus the prior mean, at the points, ``... x q x d x d``."""
        return kernel_hessian(self.kernel, self.X, x, self.alpha)

    def across_jets(self, x: Tensor) -> Tensor:
        """The prior covariance of the observations with the jets at x along all inputs, ``... x q x n x (1 + d + D)``.

        Raises:
            ValueError: If a stationary kernel does not have four derivatives at x = x'.
        """
        return unit_jets(self.kernel, x, self.X, 2, 0).squeeze(-1)

    def prior_variance_at(self, x: Tensor) -> Tensor:
        """The prior variance of every partial derivative at x, ``... x q x d``, or ``batch x 1 x d`` if constant."""
        if self.prior_variance is not None:
            return self.prior_variance.unsqueeze(-2)
        return torch.diagonal(self.prior_covariance_at(x), dim1=-2, dim2=-1)

    def prior_covariance_at(self, x: Tensor) -> Tensor:
        """∂ₓ∂ₓ'k at x = x', ``... x q x d x d``, or ``batch x 1 x d x d`` if it is the same everywhere, float64.

        Raises:
            ValueError: If sample paths have no gradient at a point.
        """
        if self.prior_variance is not None:
            return torch.diag_embed(self.prior_variance).unsqueeze(-3)
        prior = prior_gradient_covariance(self.kernel, x).double()
        if self.slope is None:
            return prior
        slope = self.slope.unsqueeze(-3).double()
        return prior * slope * slope.mT

    def pass_over_data(self, x: Tensor) -> Pass | None:
        """The result of one pass over the data for points ``... x q x d``, or None if the kernel does not support this.

        If both ``mean`` and ``trace`` are needed, give the result to both as ``known``.
        """
        return None

    def mean(self, x: Tensor, known: Pass | None = None) -> Tensor:
        """The gradient mean ∇m(x) + J(x)ᵀ α at the points x, ``... x q x d``."""
        explained = (self.jacobian(x).mT @ self.alpha.to(x.dtype)[..., None, :, None]).squeeze(-1)
        return self._plus_prior_mean_gradient(x, explained)

    def trace(self, x: Tensor, known: Pass | None = None) -> Tensor:
        """The trace of the gradient covariance at every point, ``... x q``, float64."""
        return self._left(self.prior_variance_at(x).sum(-1), self._explained_variance(x).sum(-1))

    def variance(self, x: Tensor) -> Tensor:
        """The variance of every partial derivative, ``... x q x d``, float64."""
        prior, explained = self.prior_variance_at(x), self._explained_variance(x)
        self._left(prior.sum(-1), explained.sum(-1))
        return remaining(prior, explained)

    def covariance(self, x: Tensor) -> Tensor:
        """The gradient covariance at every point, dense, ``... x q x d x d``, float64."""
        prior, whitened = self.prior_covariance_at(x), self.whitened_jacobian(x)
        explained = whitened.mT @ whitened
        self._left(*(torch.diagonal(part, dim1=-2, dim2=-1).sum(-1) for part in (prior, explained)))
        return remaining_covariance(prior, explained)

    def cross_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The covariance of ∂f(x)/∂xᵢ and ∂f(x')/∂x'ⱼ for every pair, dense, ``... x q x q' x d x d``, float64."""
        prior = kernel_blocks(self.kernel, x1, x2, mixed=True).mixed
        assert prior is not None
        if self.slope is not None:
            slope = self.slope.unsqueeze(-3).unsqueeze(-3)
            prior = prior * slope * slope.mT
        first, second = self.whitened_jacobian(x1), self.whitened_jacobian(x2)
        # One product of matrices, and not one for every pair of points.
        prior, explained = prior.double(), torch.einsum("...pni,...qnj->...pqij", first, second)
        if x1 is x2:
            # The diagonal has the traces of each point's own block.
            traces = (torch.diagonal(part, dim1=-2, dim2=-1).sum(-1) for part in (prior, explained))
            self._left(*(torch.diagonal(trace, dim1=-2, dim2=-1) for trace in traces))
        return prior - explained

    def value_gradient_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The covariance of f(x) and ∂f(x')/∂x'ⱼ for every pair, ``... x q x q' x d``, float64.

        Args:
            x1: The points x of the values, ``... x q x d``.
            x2: The points x' of the gradients, ``... x q' x d``.

        Raises:
            ValueError: If sample paths have no gradient at a point x'.
        """
        _ = self.prior_variance_at(x2)  # which may not exist
        prior = self._per_user_unit(kernel_blocks(self.kernel, x2, x1).first).transpose(-3, -2).double()
        solved = torch.cholesky_solve(self.across(x1).mT, self.factor)
        explained = torch.einsum("...nq,...pnd->...qpd", solved, self.jacobian(x2).double())
        return prior - explained

    def value_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The covariance of f(x) and f(x') for every pair, ``... x q x q'``, float64."""
        solved = torch.cholesky_solve(self.across(x2).mT, self.factor)
        return kernel_values(self.kernel, x1, x2) - self.across(x1) @ solved

    def joint_covariance(self, x: Tensor) -> Tensor:
        """The covariance of (f, ∇f) at q points, ``... x q(d+1) x q(d+1)``, float64, ordered by point."""
        q, d = x.shape[-2:]
        across = self.value_gradient_covariance(x, x)
        values = torch.cat([self.value_covariance(x, x)[..., None, None], across.unsqueeze(-2)], dim=-1)
        gradients = torch.cat([across.transpose(-3, -2).unsqueeze(-1), self.cross_covariance(x, x)], dim=-1)
        blocks = torch.cat([values, gradients], dim=-2)
        joint = blocks.transpose(-3, -2).reshape(*blocks.shape[:-4], q * (d + 1), q * (d + 1))
        return 0.5 * (joint + joint.mT)

    def directional_variance(self, x: Tensor, u: Tensor) -> Tensor:
        """The variance of uᵀ∇f(x), ``... x q``, float64, for u of ``... x q x d``."""
        along = self.jacobian_times(x, u).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(self.factor.unsqueeze(-3), along, upper=False)
        # Derivatives in inputs along which u is 0 may be NaN.
        out = u == 0
        if self.prior_variance is not None:
            prior = (self.prior_variance.unsqueeze(-2).masked_fill(out, 0.0) * u.double().square()).sum(-1)
        else:
            covariance = self.prior_covariance_at(x).masked_fill(out.unsqueeze(-1) | out.unsqueeze(-2), 0.0)
            prior = torch.einsum("...i,...ij,...j->...", u.double(), covariance, u.double())
        return self._left(prior, whitened.square().sum((-2, -1)))

    def jacobian(self, x: Tensor) -> Tensor:
        """The Jacobian J(x), dense, ``... x q x n x d``."""
        return self._per_user_unit(kernel_blocks(self.kernel, x, self.X).first)

    def jacobian_times(self, x: Tensor, u: Tensor) -> Tensor:
        """J(x) u, ``... x q x n``, float64, for u of ``... x q x d``."""
        jacobian = self.jacobian(x).double().masked_fill((u == 0).unsqueeze(-2), 0.0)
        return (jacobian @ u.double().unsqueeze(-1)).squeeze(-1)

    def whitened_jacobian(self, x: Tensor) -> Tensor:
        """The whitened Jacobian L⁻¹ J(x), dense, ``... x q x n x d``, float64."""
        return self._whitened(self.jacobian(x).double())

    def _left(self, prior: Tensor, explained: Tensor) -> Tensor:
        """The posterior variance or trace: the prior less the explained part.

        Raises:
            ValueError: If they explain more than there is, far beyond rounding.
        """
        if not isinstance(self.kernel, StationaryKernel) and bool(
            (explained > (1.0 + _EXCESS) * prior + _ROUNDING * self._variance_over_range).any()
        ):
            raise ValueError(
                "The data explain more variance of the gradient than its prior has. A kernel of the model has wrong "
                "automatic derivatives at x = x', usually because of a clamp in its formula. The gradient's mean is "
                "right; for its covariance, register the kernel's derivatives with surrogates.register_kernel."
            )
        return remaining(prior, explained)

    @cached_with_graph
    def _variance_over_range(self) -> Tensor:
        """Σᵢ k/rᵢ², ``batch x 1``: the mean variance k of the data, rᵢ the range of their ith input (user's units)."""
        ranges = (self.X.amax(-2) - self.X.amin(-2)).double()
        ranges = ranges if self.slope is None else ranges / self.slope[..., 0, :].double()
        inverse = torch.where(ranges != 0, ranges, torch.inf) ** -2
        variance = torch.diagonal(kernel_values(self.kernel, self.X, self.X), dim1=-2, dim2=-1)
        return variance.mean(-1, keepdim=True) * inverse.sum(-1, keepdim=True)

    def _explained_variance(self, x: Tensor) -> Tensor:
        """The diagonal of Jᵀ A⁻¹ J, ``... x q x d``."""
        return self.whitened_jacobian(x).square().sum(-2)

    def _uniform_prior_variance(self) -> Tensor:
        variance = prior_gradient_variance(self.kernel, self.d).double()
        return variance if self.slope is None else variance * self.slope[..., 0, :].double().square()

    def _whitened(self, jacobian: Tensor) -> Tensor:
        """L⁻¹ J, ``... x q x n x d``, with the columns of all points in one solve."""
        q, n, d = jacobian.shape[-3:]
        columns = jacobian.transpose(-3, -2).reshape(*jacobian.shape[:-3], n, q * d)
        solved = torch.linalg.solve_triangular(self.factor, columns, upper=False)
        return solved.reshape(*solved.shape[:-1], q, d).transpose(-3, -2)

    def _per_user_unit(self, jacobian: Tensor) -> Tensor:
        return jacobian if self.slope is None else jacobian * self.slope.unsqueeze(-3)

    def _plus_prior_mean_gradient(self, x: Tensor, mean: Tensor) -> Tensor:
        if self.prior_mean is None:
            return mean
        further = x.requires_grad or self.requires_grad
        # One copy of the points for each element of the batch, whose means may differ.
        gradient = mean_hessian(self.prior_mean, x.expand(mean.shape), further).gradient
        gradient = gradient if further else gradient.detach()
        return mean + (gradient if self.slope is None else gradient * self.slope)
