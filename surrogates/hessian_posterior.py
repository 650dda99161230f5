"""The Gaussian posterior of a Hessian."""

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
    mean_hessian,
)
from surrogates.kernels.jets import upper_triangle
from surrogates.linalg.cholesky import covariance_root
from surrogates.point_posterior import PointPosterior
from surrogates.subspace_derivatives import SubspaceDerivatives, square_of_entries


class HessianPosterior(PointPosterior):
    """The Gaussian posterior of ∇²f at ``batch x q`` points, and of (∇f, ∇²f) along directions.

    Shapes are given for one outcome. With m > 1 independent outcomes results have a dimension of size m after q: the
    mean, for example, is ``batch x q x m x d x d``.

    Second derivatives D²f are linear in f. With A = K + diag(s²) their mean is D²m(x) + D²k(x, X) A⁻¹ (y − m(X)), and
    their covariance is D²D'²k(x, x') − D²k(x, X) A⁻¹ D'²k(X, x').

    Everything is lazy and in the user's units, outcome per squared unit of input. ``mean_times``, ``along``,
    ``directional_variance`` and ``newton_direction`` form no ``d x d`` matrix under a stationary kernel. ``variance``,
    ``joint_covariance`` and ``rsample`` are dense: they work with the D = d(d+1)/2 entries ∂ᵢ∂ⱼf, i ≤ j, row by row,
    and are meant for small d. All results are differentiable in the points and directions and, if the posterior was
    made under ``botorch.settings.propagate_grads``, in the data, the noise and the hyper-parameters. The posterior
    shares no storage with the model or the points. ``surrogates.DerivedGP.hessian_posterior`` makes one.

    Variances exist if k has four derivatives at x = x': RBF, RQ, Matérn 5/2, their sums and products, and other
    kernels that are smooth there; otherwise they raise a ValueError. Under Matérn 3/2 only the mean exists; at a data
    point it is the limit. Methods raise a TypeError if directions or vectors are no floating point tensors, and a
    ValueError if these do not broadcast to the points or hold NaN or inf.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None if it is 1.
        several_outputs: Whether the last dimension of the conditioning's batch counts m > 1 outcomes, and the points
            have size 1 there.
        chain: dz/dx and d²z/dx² of the input transform at the points, each ``batch x q x d``, if dz/dx depends on the
            point; None if dz/dx is constant, in which case the conditioning has it.

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
        super().__init__(x.expand(*batch, *x.shape[-2:]), several_outputs)
        self._conditioning, self._scale = conditioning, scale
        self._slope: Tensor | None
        self._bend: Tensor | None
        self._slope, self._bend = (conditioning.slope, None) if chain is None else chain

    def __repr__(self) -> str:
        """The shape and units of the Hessians, and the data that they are conditioned on."""
        shape = " x ".join(map(str, (*self._shape, self._shape[-1])))
        return (
            f"HessianPosterior({shape}, {self._x.dtype}, {self._x.device}; outcome per squared unit of input; "
            f"given n = {self._conditioning.num_observations} values)"
        )

    @cached_with_graph
    @outside_inference_mode
    def mean(self) -> Tensor:
        """E ∇²f(x), dense, ``batch x q x d x d``."""
        return outputs_last(self._dense, 2, self._several_outputs)

    @cached_with_graph
    @outside_inference_mode
    def variance(self) -> Tensor:
        """The variance of every entry of ∇²f(x), ``batch x q x d x d``."""
        d = self._x.shape[-1]
        diagonal = torch.diagonal(self._along_inputs.covariance_matrix, dim1=-2, dim2=-1)
        return diagonal[..., d:][..., square_of_entries(d, self._x.device)]

    @outside_inference_mode
    def joint_covariance(self) -> Tensor:
        """The covariance of the entries ∂ᵢ∂ⱼf, i ≤ j, at all q points, ``batch (x m) x qD x qD``, point by point."""
        return self._hessians_among(self._along_inputs.joint_covariance())

    @outside_inference_mode
    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Symmetric samples from standard normal base samples, ``sample_shape x base_sample_shape``.

        Raises:
            ValueError: If the base samples have another shape, or k does not have four derivatives at x = x'.
        """
        self.check_base_samples(sample_shape, base_samples)
        base = outputs_last(base_samples.double(), 1, self._several_outputs)
        drawn = (self._root @ base.flatten(-2).unsqueeze(-1)).squeeze(-1).reshape(base.shape)
        drawn = outputs_last(self._scaled(drawn, trailing=1).to(self.dtype), 1, self._several_outputs)
        return self.mean + drawn[..., square_of_entries(self._x.shape[-1], self._x.device)]

    @property
    def base_sample_shape(self) -> torch.Size:
        """``batch x q x D``: a normal number for each entry ∂ᵢ∂ⱼf, i ≤ j."""
        *shape, d = self._shape
        return torch.Size([*shape, d * (d + 1) // 2])

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._shape + self._shape[-1:]

    @cached_with_graph
    def _root(self) -> Tensor:
        """A root of the joint covariance in the model's units of outcome, float64."""
        return covariance_root(self._hessians_among(self._along_inputs.unscaled_joint_covariance()))

    def _hessians_among(self, joint: Tensor) -> Tensor:
        """The covariance of the second derivatives, ``... x qD x qD``, among that of all entries along the inputs."""
        q, d = self._x.shape[-2:]
        joint = joint.unflatten(-1, (q, -1)).unflatten(-3, (q, -1))
        return joint[..., d:, :, d:].flatten(-2).flatten(-3, -2)

    @cached_with_graph
    def _along_inputs(self) -> SubspaceDerivatives:
        return self.along(torch.eye(self._x.shape[-1], dtype=self._x.dtype, device=self._x.device))

    @outside_inference_mode
    def mean_times(self, v: Tensor) -> Tensor:
        """E ∇²f(x) v, without ``d x d``.

        Under a stationary kernel it is one pass over the ``n x d`` data for each point. Under any other it is found by
        automatic differentiation.

        Args:
            v: A vector for every point, broadcastable to ``batch x q x d``. k vectors per point are ``k x batch x q x
                d``.

        Returns:
            The products, of v's shape broadcast with the points'.
        """
        shape = self._shape if v.dim() <= self._x.dim() else torch.broadcast_shapes(v.shape, self._shape)
        v = expanded("v", v, torch.Size(shape), self._x.dtype)
        return outputs_last(self._times(outputs_last(v, 1, self._several_outputs)), 1, self._several_outputs)

    @outside_inference_mode
    def directional_variance(self, u: Tensor) -> Tensor:
        """Var(uᵀ∇²f(x)u), ``batch x q``, in O(nd + n²) per point under a stationary kernel.

        Args:
            u: The directions, of a shape that broadcasts to ``batch x q x d``. They are not normalised.
        """
        u = expanded("u", u, self._shape, self._x.dtype)
        return self.along(u.unsqueeze(-1)).covariance_matrix[..., -1, -1]

    @outside_inference_mode
    def along(self, U: Tensor) -> SubspaceDerivatives:
        """The joint posterior of Uᵀ∇f(x) and Uᵀ∇²f(x)U along the p columns of U, in O(n²p² + npd) a point.

        Args:
            U: The directions, ``d x p`` for all points or ``batch x q x d x p``. They need not be orthonormal.
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

        Under a stationary kernel with n < d it takes O(n²d + n³) per point and forms no ``d x d`` matrix, because the
        mean is a diagonal matrix plus n outer products; otherwise the system is solved densely. The result is a
        descent direction if E ∇²f + λI is positive definite, which is not required.

        Args:
            regularization: λ ≥ 0, outcome per squared unit of input.

        Raises:
            TypeError: If λ is no number.
            ValueError: If λ is negative, or E ∇²f + λI is singular to working precision at a point, that is, if the
                relative residual after refinement exceeds the square root of the dtype's precision.
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
                "Newton direction: give another regularization (it must not be 0 if the kernel ignores an input)."
            )
        return outputs_last(direction, 1, self._several_outputs)

    @cached_with_graph
    def _of_kernel(self) -> StationaryHessian | AutomaticHessian:
        return self._conditioning.hessian(self._x)

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
        """d²z/dx² E ∂f/∂z, ``batch x q x d``: the contribution of the input transform's curvature to the diagonal."""
        with torch.enable_grad():
            return None if self._bend is None else self._bend * self._conditioning.mean(self._x)

    def _shifted_inverse(self, shift: float) -> Callable[[Tensor], Tensor]:
        """Returns a function that multiplies a vector for every point by (E ∇²f + λI)⁻¹, in float64."""
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


def _bends(U: Tensor, bend: Tensor) -> Tensor:
    """d²z/dx² ∘ uᵢ ∘ uⱼ for i ≤ j, row by row, ``... x d x p(p+1)/2``."""
    i, j = upper_triangle(U.shape[-1], U.device)
    return bend.unsqueeze(-1) * U[..., i] * U[..., j]
