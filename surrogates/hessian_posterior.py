"""The Gaussian posterior of a Hessian given values only, which never forms d x d unless asked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from surrogates.checks import expanded, nonnegative
from surrogates.conditioning import Conditioning
from surrogates.gradient_posterior import outputs_last
from surrogates.inference import cached_with_graph, outside_inference_mode
from surrogates.kernels.hessians import (
    AutomaticHessian,
    StationaryHessian,
    check_has_hessian,
    kernel_hessian,
    mean_hessian,
)
from surrogates.kernels.jets import data_jets, prior_jets, upper_triangle
from surrogates.linalg.rounding import remaining_covariance


class HessianPosterior:
    """The Gaussian posterior of ∇²f at ``batch x q`` points given values of f only, and of (∇f, ∇²f) along directions.

    The shapes given are those of one outcome; of m > 1 independent ones all have m after q: the mean, for example, is
    ``batch x q x m x d x d``.

    Second derivatives D²f are linear in f. With A = K + diag(s²) their mean is D²m(x) + D²k(x, X) A⁻¹ (y − m(X)),
    their covariance D²D'²k(x, x') − D²k(x, X) A⁻¹ D'²k(X, x') at x' = x.

    Everything is lazy and in the user's own units, outcome per squared unit of input. All is differentiable in the
    points and directions, and, where the posterior was made under ``botorch.settings.propagate_grads``, in the data,
    the noise and the hyper-parameters. What happens to the model or to the points after it was made does not reach it.
    ``surrogates.DerivedGP.hessian_posterior`` makes one.

    Variances exist where k has four derivatives at x = x': RBF, RQ, Matérn 5/2, their sums and products, and further
    kernels that are smooth there. Under Matérn 3/2 the mean alone does; on a datum too, as a limit.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None where it is 1.
        several_outputs: Whether the last dimension of the conditioning's batch is that of m > 1 outcomes, and the
            points have a 1 there.
        chain: dz/dx and d²z/dx² of the input transform at the points, each ``batch x q x d``, where dz/dx is not the
            same everywhere and the conditioning therefore does not have it; else None.

    Raises:
        ValueError: For Matérn 1/2, alone or in a sum or product.
    """

    def __init__(
        self,
        conditioning: Conditioning,
        x: Tensor,
        scale: Tensor | None = None,
        several_outputs: bool = False,
        chain: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        check_has_hessian(conditioning.kernel)
        batch = torch.broadcast_shapes(x.shape[:-2], conditioning.alpha.shape[:-1])
        self._conditioning = conditioning
        self._x = x.expand(*batch, *x.shape[-2:])
        self._scale = scale
        self._several_outputs = several_outputs
        self._slope: Tensor | None
        self._bend: Tensor | None
        self._slope, self._bend = (conditioning.slope, None) if chain is None else chain

    def __repr__(self) -> str:
        """The shape and units of the Hessians, and the data that they are conditioned on."""
        shape = " x ".join(map(str, (*self._shape, self._shape[-1])))
        return (
            f"HessianPosterior({shape}, {self._x.dtype}, {self._x.device}; outcome per squared unit of input; "
            f"given n = {self._conditioning.X.shape[-2]} values)"
        )

    @cached_with_graph
    @outside_inference_mode
    def mean(self) -> Tensor:
        """E ∇²f(x), dense, ``batch x q x d x d``."""
        return outputs_last(self._dense, 2, self._several_outputs)

    @outside_inference_mode
    def mean_times(self, v: Tensor) -> Tensor:
        """E ∇²f(x) v, without ``d x d``.

        Under a stationary kernel it is one pass over the ``n x d`` data for each point. Under any other it is found by
        automatic differentiation.

        Args:
            v: A vector for every point, ``batch x q x d`` or what broadcasts to it. Of several, their number
                comes first.

        Returns:
            The products, of v's shape broadcast with the points'.

        Raises:
            TypeError: If v is no floating point tensor.
            ValueError: If v does not broadcast with the points, or holds NaN or inf.
        """
        shape = self._shape if v.dim() <= self._x.dim() else torch.broadcast_shapes(v.shape, self._shape)
        v = expanded("v", v, torch.Size(shape), self._x.dtype)
        return outputs_last(self._times(outputs_last(v, 1, self._several_outputs)), 1, self._several_outputs)

    @outside_inference_mode
    def directional_variance(self, u: Tensor) -> Tensor:
        """Var(uᵀ∇²f(x)u), ``batch x q``, in O(nd + n²) a point under a stationary kernel.

        Args:
            u: The directions, ``batch x q x d`` or what broadcasts to it. They are not normalised here.

        Raises:
            TypeError: If u is no floating point tensor.
            ValueError: If u does not broadcast to the points or holds NaN or inf, or the variance does not exist.
        """
        u = expanded("u", u, self._shape, self._x.dtype)
        return self.along(u.unsqueeze(-1)).covariance_matrix[..., -1, -1]

    @outside_inference_mode
    def along(self, U: Tensor) -> SubspaceDerivatives:
        """The joint posterior of Uᵀ∇f(x) and Uᵀ∇²f(x)U along the p columns of U, in O(n²p² + npd) a point.

        Args:
            U: The directions, ``d x p`` for all points or ``batch x q x d x p``. They need not be orthonormal.

        Raises:
            TypeError: If U is no floating point tensor.
            ValueError: If U does not broadcast to the points, or holds NaN or inf.
        """
        U = expanded("U", U, torch.Size([*self._shape, U.shape[-1]]), self._x.dtype)
        U = outputs_last(U, 2, self._several_outputs)
        bends = None if self._bend is None else _bends(U, self._bend)
        U = U.clone() if self._slope is None else U * self._slope.unsqueeze(-1)
        return SubspaceDerivatives(
            self._conditioning, self._x, U, bends, self._of_prior_mean, self._scale, self._several_outputs
        )

    @outside_inference_mode
    def newton_direction(self, regularization: float = 0.0) -> Tensor:
        """−(E ∇²f(x) + λI)⁻¹ E ∇f(x), ``batch x q x d``.

        Under a stationary kernel and n < d it takes O(n²d + n³) a point and no ``d x d``: the mean is a diagonal
        matrix and n signed outer products. Else it is solved for densely. It is a direction of descent where
        E ∇²f + λI is positive definite, which is not required.

        Args:
            regularization: λ ≥ 0, outcome per squared unit of input.

        Raises:
            TypeError: If λ is no number.
            ValueError: If λ is negative, or E ∇²f + λI is singular to working precision at a point: what the solution
                leaves of the gradient, after refinement, exceeds the root of the dtype's precision.
        """
        shift = nonnegative("regularization", regularization)
        gradient = self._conditioning.mean(self._x)
        if self._bend is not None and self._slope is not None:
            gradient = gradient * self._slope
        gradient = self._scaled(gradient, trailing=1)
        inverse_times = self._shifted_inverse(shift)

        def residual(direction: Tensor) -> Tensor:
            if not bool(direction.isfinite().all()):
                return torch.full_like(gradient, torch.nan)
            return gradient + self._times(direction) + shift * direction

        direction = torch.zeros_like(gradient)
        for _ in range(3):
            direction = direction - inverse_times(residual(direction)).to(gradient.dtype)
        allowed = torch.finfo(gradient.dtype).eps ** 0.5 * gradient.norm(dim=-1)
        if not bool((residual(direction).norm(dim=-1) <= allowed).all()):
            raise ValueError(
                f"The mean Hessian plus {shift:g} I is singular to working precision at a point, so that there is no "
                "Newton direction: give another regularization (an input that the kernel does not see needs one)."
            )
        return outputs_last(direction, 1, self._several_outputs)

    @cached_with_graph
    def _of_kernel(self) -> StationaryHessian | AutomaticHessian:
        conditioning = self._conditioning
        return kernel_hessian(conditioning.kernel, conditioning.X, self._x, conditioning.alpha)

    @cached_with_graph
    def _of_prior_mean(self) -> AutomaticHessian | None:
        conditioning = self._conditioning
        if conditioning.prior_mean is None:
            return None
        return mean_hessian(conditioning.prior_mean, self._x, conditioning.requires_grad)

    @property
    def _shape(self) -> torch.Size:
        """``batch x q x d``, or ``batch x q x m x d``."""
        return outputs_last(self._x, 1, self._several_outputs).shape

    @cached_with_graph
    def _dense(self) -> Tensor:
        mean = self._of_kernel.dense()
        if self._of_prior_mean is not None:
            mean = mean + self._of_prior_mean.dense()
        if self._slope is not None:
            mean = mean * self._slope.unsqueeze(-1) * self._slope.unsqueeze(-2)
        if self._bent is not None:
            mean = mean + torch.diag_embed(self._bent)
        return self._scaled(mean)

    def _times(self, v: Tensor) -> Tensor:
        along = v if self._slope is None else v * self._slope
        product = self._of_kernel.times(along)
        if self._of_prior_mean is not None:
            product = product + self._of_prior_mean.times(along)
        product = product if self._slope is None else product * self._slope
        return self._scaled(product if self._bent is None else product + self._bent * v, trailing=1)

    @cached_with_graph
    def _bent(self) -> Tensor | None:
        """d²z/dx² E ∂f/∂z, ``batch x q x d``: what the input transform's own curvature adds to the diagonal."""
        with torch.enable_grad():
            return None if self._bend is None else self._bend * self._conditioning.mean(self._x)

    def _shifted_inverse(self, shift: float) -> Callable[[Tensor], Tensor]:
        """What multiplies a vector for every point by (E ∇²f + λI)⁻¹, in float64."""
        n, d = self._conditioning.X.shape[-2:]
        of_kernel, of_prior_mean = self._of_kernel, self._of_prior_mean
        if n < d and isinstance(of_kernel, StationaryHessian) and (of_prior_mean is None or of_prior_mean.vanishes):
            # One scale less: (σ S H S + λI)⁻¹ = (S H S + λ/σ I)⁻¹/σ.
            scale = torch.ones_like(self._x[..., :1, :1]) if self._scale is None else self._scale.unsqueeze(-1)
            slope = torch.ones_like(self._x[..., :1, :]) if self._slope is None else self._slope
            diagonal = shift / scale.double()
            inverse_times = of_kernel.shifted_inverse(slope, diagonal if self._bent is None else diagonal + self._bent)
            return lambda v: inverse_times(v / scale)
        eye = torch.eye(d, dtype=torch.float64, device=self._x.device)
        lu, pivots, info = torch.linalg.lu_factor_ex(self._dense.double() + shift * eye)
        singular = (info != 0)[..., None]
        return lambda v: (
            torch.linalg.lu_solve(lu, pivots, v.double().unsqueeze(-1)).squeeze(-1).masked_fill(singular, torch.nan)
        )

    def _scaled(self, value: Tensor, trailing: int = 2) -> Tensor:
        """A value of ``batch x q`` and ``trailing`` dimensions times the outcome's scale."""
        return value if self._scale is None else value * self._scale.to(value)[(..., *(None,) * trailing)]


class SubspaceDerivatives:
    """The joint Gaussian posterior of Uᵀ∇f(x) and Uᵀ∇²f(x)U at ``batch x q`` points, in the user's units.

    Along p directions it has N = p + p(p+1)/2 entries: u₁ᵀ∇f, …, u_pᵀ∇f, and then uᵢᵀ∇²f uⱼ for i ≤ j, row by row:
    (1,1), (1,2), …, (1,p), (2,2), …, (p,p). It is lazy. Of m > 1 outcomes all shapes have m after q.
    ``HessianPosterior.along`` makes one.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        U: The directions in transformed units, dz/dx ∘ u, ``batch x q x d x p``.
        bends: d²z/dx² ∘ uᵢ ∘ uⱼ for i ≤ j, ``batch x q x d x p(p+1)/2``: the directions whose first derivatives second
            ones have in them beside; None where d²z/dx² is 0.
        of_prior_mean: The gradient and Hessian of the prior mean at the points, or None where they vanish.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None where it is 1.
        several_outputs: Whether the last dimension of the batch is that of m > 1 outcomes.
    """

    def __init__(
        self,
        conditioning: Conditioning,
        x: Tensor,
        U: Tensor,
        bends: Tensor | None = None,
        of_prior_mean: AutomaticHessian | None = None,
        scale: Tensor | None = None,
        several_outputs: bool = False,
    ) -> None:
        self._conditioning, self._x, self._scale, self._of_prior_mean = conditioning, x, scale, of_prior_mean
        self._several_outputs = several_outputs
        self._U = U
        # With bends the entries are sums of two entries of the jet along U and the bends.
        self._directions = U if bends is None else torch.cat([U, bends], dim=-1)

    def __repr__(self) -> str:
        """The number of points, directions and entries, their units, and the data that they are conditioned on."""
        *points, d, p = outputs_last(self._U, 2, self._several_outputs).shape
        shape = " x ".join(map(str, points))
        return (
            f"SubspaceDerivatives({shape} points, {p} of {d} directions, {self._entries} entries, "
            f"{self._x.dtype}, {self._x.device}; outcome per unit of input and per its square; "
            f"given n = {self._conditioning.X.shape[-2]} values)"
        )

    @cached_with_graph
    @outside_inference_mode
    def mean(self) -> Tensor:
        """The mean of all entries, ``batch x q x N``."""
        mean = (self._jets @ self._conditioning.alpha[..., None, :, None]).squeeze(-1)
        if self._of_prior_mean is not None:
            mean = mean + self._prior_mean(self._of_prior_mean)
        return self._scaled(mean, 1, trailing=1)

    @property
    def gradient_mean(self) -> Tensor:
        """E Uᵀ∇f(x), ``batch x q x p``."""
        return self.mean[..., : self._U.shape[-1]]

    @property
    def hessian_mean(self) -> Tensor:
        """E Uᵀ∇²f(x)U, ``batch x q x p x p``."""
        p, device = self._U.shape[-1], self._x.device
        i, j = upper_triangle(p, device)
        at = torch.zeros(p, p, dtype=torch.long, device=device)
        at[i, j] = at[j, i] = torch.arange(p, self._entries, device=device)
        return self.mean[..., at]

    @cached_with_graph
    @outside_inference_mode
    def covariance_matrix(self) -> Tensor:
        """The covariance of all entries, ``batch x q x N x N``.

        Raises:
            ValueError: If k has not four derivatives at x = x', as Matérn 3/2: sample paths have no Hessian.
        """
        conditioning = self._conditioning
        prior = [prior_jets(conditioning.kernel, x, U, conditioning.X) for x, U in self._points]
        prior = [self._entries_of(self._entries_of(jets).mT) for jets in prior]
        whitened = torch.linalg.solve_triangular(conditioning.factor.unsqueeze(-3), self._jets.mT, upper=False)
        covariance = remaining_covariance(self._stacked(prior, self._entries), whitened.mT @ whitened)
        return self._scaled(covariance, 2, trailing=2)

    @cached_with_graph
    def _jets(self) -> Tensor:
        """The covariance of the entries with the values at the data, in the model's units of outcome, float64."""
        kernel, X = self._conditioning.kernel, self._conditioning.X
        with torch.enable_grad():
            return self._stacked([self._entries_of(data_jets(kernel, x, X, U)) for x, U in self._points], X.shape[-2])

    def _stacked(self, of_points: list[Tensor], width: int) -> Tensor:
        """What every point has, ``batch x N x width``, as one tensor of ``batch x q x N x width``, float64."""
        if of_points:
            return torch.stack(of_points, dim=-3)
        return torch.zeros(*self._x.shape[:-1], self._entries, width, dtype=torch.float64, device=self._x.device)

    @property
    def _entries(self) -> int:
        p = self._U.shape[-1]
        return p + p * (p + 1) // 2

    @property
    def _points(self) -> list[tuple[Tensor, Tensor]]:
        """Each point, ``batch x 1 x d``, and its directions, ``batch x d x p``."""
        return [(self._x[..., j : j + 1, :], self._directions[..., j, :, :]) for j in range(self._x.shape[-2])]

    def _entries_of(self, jets: Tensor) -> Tensor:
        """The entries, ``... x N x l``, of the rows of a jet along all directions, ``... x l`` each."""
        p, P = self._U.shape[-1], self._directions.shape[-1]
        if p == P:
            return jets[..., 1:, :]
        among_U = (upper_triangle(P, jets.device)[1] < p).nonzero().squeeze(-1)
        first, second = jets[..., 1 : 1 + p, :], jets[..., 1 + P :, :][..., among_U, :]
        return torch.cat([first, second + jets[..., 1 + p : 1 + P, :]], dim=-2)

    def _prior_mean(self, of_prior_mean: AutomaticHessian) -> Tensor:
        p, device = self._U.shape[-1], self._x.device
        first = (of_prior_mean.gradient.unsqueeze(-2) @ self._directions).squeeze(-2)
        second = of_prior_mean.times(self._U.movedim(-1, 0)).movedim(0, -1)
        i, j = upper_triangle(p, device)
        second = (self._U.mT @ second)[..., i, j]
        mean = torch.cat([first[..., :p], second if self._directions is self._U else second + first[..., p:]], dim=-1)
        return mean if self._conditioning.requires_grad or self._x.requires_grad else mean.detach()

    def _scaled(self, value: Tensor, power: int, trailing: int) -> Tensor:
        value = value.to(self._x.dtype)
        if self._scale is not None:
            value = value * self._scale.to(value).pow(power)[(..., *(None,) * trailing)]
        return outputs_last(value, trailing, self._several_outputs)


def _bends(U: Tensor, bend: Tensor) -> Tensor:
    """d²z/dx² ∘ uᵢ ∘ uⱼ for i ≤ j, row by row, ``... x d x p(p+1)/2``."""
    i, j = upper_triangle(U.shape[-1], U.device)
    return bend.unsqueeze(-1) * U[..., i] * U[..., j]
