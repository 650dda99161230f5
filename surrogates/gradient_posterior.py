"""The Gaussian posterior of a gradient, as a BoTorch posterior that forms d x d matrices only on request."""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.checks import expanded
from surrogates.conditioning import Conditioning
from surrogates.inference import cached_with_graph, outside_inference_mode
from surrogates.kernels.blocks import is_uniform
from surrogates.kernels.one_pass import Pass
from surrogates.linalg.cholesky import covariance_root, laddered_factor
from surrogates.normal import positive_probability
from surrogates.point_posterior import PointPosterior

_DENSE = 1024


class GradientPosterior(PointPosterior):
    """N(∇μ(x), ∂σ²(x)), the posterior of ∇f at ``batch x q`` points given values of f only (ZoRD eqs. 4-6).

    All shapes below are for one outcome. With m > 1 independent outcomes m follows q: the mean, for example, is
    ``batch x q x m x d`` and the trace ``batch x q x m``.

    All results are in the user's own units, outcome per unit of input, and are computed when they are first read.
    ``mean`` makes one pass over the ``n x d`` data. ``trace`` then costs two ``n x n`` products per point for any d,
    and O(n³) once for the data, or O(n²d) per point where that is less. All results are differentiable in the points
    and, if the posterior was made under ``botorch.settings.propagate_grads``, in the data, the noise and the
    hyper-parameters. Later changes of the model or of the points do not affect the posterior. Directions u must
    broadcast to ``batch x q x d``; methods raise a TypeError if u is not a floating point tensor, and a ValueError if u
    does not broadcast or holds NaN or inf. Create a posterior with ``surrogates.DerivedGP.gradient_posterior``.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None if it is 1.
        known: The result of ``conditioning.pass_over_data`` at the points, if available.
        slope: dz/dx of a nonlinear input transform at the points, ``batch x q x d``. None stands for an affine
            transform, whose slope is in ``conditioning``.
        several_outputs: Whether the last batch dimension of ``conditioning`` counts m > 1 outcomes, and the points have
            size 1 in that dimension.
    """

    def __init__(
        self,
        conditioning: Conditioning,
        x: Tensor,
        scale: Tensor | None = None,
        known: Pass | None = None,
        slope: Tensor | None = None,
        several_outputs: bool = False,
    ) -> None:
        super().__init__(x, several_outputs)
        self._conditioning, self._scale, self._known, self._slope = conditioning, scale, known, slope

    @property
    def _about(self) -> str:
        return f"outcome per unit of input; given n = {self._conditioning.num_observations} values"

    @cached_with_graph
    @outside_inference_mode
    def mean(self) -> Tensor:
        """The posterior mean ∇μ(x) = ∇m(x) + J(x)ᵀ A⁻¹ (y − m(X)), ``batch x q x d``."""
        return self._scaled(self._chained(self._conditioning.mean(self._x, self._pass)), 1, trailing=1)

    @cached_with_graph
    @outside_inference_mode
    def trace(self) -> Tensor:
        """trace ∂σ²(x) = E‖∇f(x) − ∇μ(x)‖², exactly, ``batch x q``.

        The last bits may depend on the number of earlier traces from the same data, which selects the algorithm.
        """
        if self._slope is not None:
            return self.variance.sum(-1)
        return self._scaled(self._conditioning.trace(self._x, self._pass), 2)

    @cached_with_graph
    @outside_inference_mode
    def prior_trace(self) -> Tensor:
        """The trace of the prior covariance of ∇f, ``batch x q``; the same at every point for a stationary kernel."""
        prior = self._chained(self._conditioning.prior_variance_at(self._x), 2).sum(-1)
        return self._scaled(prior.expand(*self._shape[:-1]), 2)

    @cached_with_graph
    @outside_inference_mode
    def variance(self) -> Tensor:
        """The variance of every partial derivative, ``batch x q x d``, in O(n²d) per point."""
        return self._scaled(self._chained(self._conditioning.variance(self._x), 2), 2, trailing=1)

    @cached_with_graph
    @outside_inference_mode
    def covariance_matrix(self) -> Tensor:
        """The posterior covariance ∂σ²(x), dense, ``batch x q x d x d``."""
        return self._scaled(self._covariance(), 2, trailing=2)

    @cached_with_graph
    @outside_inference_mode
    def spectral_norm(self) -> Tensor:
        """‖∂σ²(x)‖, the largest eigenvalue of ∂σ²(x), ``batch x q``: the uncertainty that ZoRD compares with c.

        ∂σ²(x) is D − VᵀV with the prior covariance D and V of ``n x d``. If D is diagonal and more than n of its
        entries are equal to its maximum (as for every isotropic kernel with n < d), the norm is this maximum whatever
        has been observed. Otherwise the eigenvalue is computed, for d > 1024 by Lanczos iterations if D is constant.
        """
        prior = self._conditioning.prior_variance
        if prior is None or self._slope is not None:
            return self._scaled(self._largest_dense_eigenvalue(), 2)
        largest = prior.amax(-1, keepdim=True)
        if bool(((prior == largest).sum(-1) > self._conditioning.num_observations).all()):
            return self._scaled(largest.expand(*self._shape[:-1]), 2)
        if self._shape[-1] <= _DENSE or self._x.requires_grad or self._conditioning.requires_grad:
            return self._scaled(self._largest_dense_eigenvalue(), 2)
        whitened = self._conditioning.whitened_jacobian(self._x)
        priors = prior.unsqueeze(-2).expand(*whitened.shape[:-2], prior.shape[-1])
        pairs = zip(whitened.flatten(0, -3), priors.flatten(0, -2), strict=True)
        norms = torch.stack([_largest_eigenvalue(v, p) for v, p in pairs])
        return self._scaled(norms.reshape(self._shape[:-1]).to(self.device), 2)

    @outside_inference_mode
    def directional_variance(self, u: Tensor) -> Tensor:
        """Var(uᵀ∇f(x)) = uᵀ ∂σ²(x) u, ``batch x q``, in O(nd + n²) per point; u need not be a unit vector."""
        u = outputs_last(expanded("u", u, self._extended_shape(), self.dtype), 1, self._several_outputs)
        return self._scaled(self._conditioning.directional_variance(self._x, self._chained(u)), 2)

    @outside_inference_mode
    def positive_probability(self, u: Tensor | None = None) -> Tensor:
        """The probability that a partial or a directional derivative is positive.

        Without u it is P(∂f/∂xᵢ > 0) = Φ(μᵢ/σᵢ), ``batch x q x d``. Along directions u it is P(uᵀ∇f > 0) =
        Φ(uᵀ∇μ/√(uᵀ ∂σ² u)), ``batch x q``.
        """
        if u is None:
            return positive_probability(self.mean, self.variance)
        variance = self.directional_variance(u)
        along = expanded("u", u, self._extended_shape(), self.dtype)
        # An input in which u is 0 may have no derivative.
        return positive_probability((along * self.mean.masked_fill(along == 0, 0.0)).sum(-1), variance)

    @outside_inference_mode
    def descent_probability(self) -> Tensor:
        """P(−∇μ(x) is a descent direction) = Φ(‖∇μ‖² / √(∇μᵀ ∂σ² ∇μ)), ``batch x q``; it is ½ where ∇μ = 0."""
        norm = self.mean.norm(dim=-1)
        direction = self.mean / norm.clamp_min(torch.finfo(self.dtype).tiny).unsqueeze(-1)
        return positive_probability(norm, self.directional_variance(direction))

    @outside_inference_mode
    def joint_covariance(self) -> Tensor:
        """The joint covariance of the gradients at all q points, dense, ``batch (x m) x qd x qd``, ordered by point."""
        joint = self._joint_covariance().to(self.dtype)
        if self._slope is not None:
            slope = self._slope.flatten(-2)
            joint = joint * slope.unsqueeze(-1) * slope.unsqueeze(-2)
        return joint if self._scale is None else joint * self._scale.to(joint).square().unsqueeze(-1)

    def quantile(self, value: Tensor) -> Tensor:
        """The quantiles of each partial derivative, ``k x batch x q x d``, for k values in (0, 1)."""
        value = value.to(self.mean)
        normal = torch.distributions.Normal(self.mean, self.variance.sqrt())
        return normal.icdf(value.reshape(-1, *(1,) * self.mean.dim()))

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._in_order(self._shape)

    @property
    def base_sample_shape(self) -> torch.Size:
        """``batch x q x d``, or ``batch x 1 x (d + n)`` where Matheron's rule is used."""
        if self._by_matheron:
            return self._in_order(
                torch.Size([*self._shape[:-1], self._shape[-1] + self._conditioning.num_observations])
            )
        return self._in_order(self._shape)

    @outside_inference_mode
    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Samples from standard normal base samples, ``sample_shape x base_sample_shape``.

        If n < d and the prior covariance is the same diagonal D everywhere, one point is sampled without a ``d x d``
        matrix by Matheron's rule: with W = L⁻¹ J D^(−1/2), T Tᵀ = I − W Wᵀ and standard normal z and e, the vector
        D^(1/2)(z − Wᵀ(W z + T e)) has covariance D − JᵀA⁻¹J.

        Raises:
            ValueError: If the base samples have another shape.
        """
        self.check_base_samples(sample_shape, base_samples)
        base = outputs_last(base_samples.double(), 1, self._several_outputs)
        deviation = self._deviation_by_matheron(base) if self._by_matheron else self._deviation_by_cholesky(base)
        return self.mean + self._scaled(self._chained(deviation), 1, trailing=1)

    @cached_with_graph
    def _pass(self) -> Pass | None:
        return self._known or self._conditioning.pass_over_data(self._x)

    @property
    def _shape(self) -> torch.Size:
        batch = torch.broadcast_shapes(self._x.shape[:-2], self._conditioning.alpha.shape[:-1])
        return batch + self._x.shape[-2:]

    def _in_order(self, shape: torch.Size) -> torch.Size:
        """A shape that ends in q and another size, with m moved behind q."""
        if not self._several_outputs:
            return shape
        *batch, m, q, last = shape
        return torch.Size([*batch, q, m, last])

    @property
    def _by_matheron(self) -> bool:
        conditioning, (q, d) = self._conditioning, self._shape[-2:]
        if q > 1 or conditioning.num_observations >= d or not is_uniform(conditioning.kernel):
            return False
        return conditioning.prior_variance is not None and not bool(conditioning.prior_variance.isnan().any())

    def _covariance(self) -> Tensor:
        """∂σ²(x), ``batch x q x d x d``, in the model's units of outcome."""
        covariance = self._conditioning.covariance(self._x)
        if self._slope is None:
            return covariance
        return covariance * self._slope.unsqueeze(-1) * self._slope.unsqueeze(-2)

    def _joint_covariance(self) -> Tensor:
        """The covariance of all q gradients, ``batch x qd x qd``, in the model's units of outcome, per unit of z."""
        blocks = self._conditioning.cross_covariance(self._x, self._x)
        q, d = self._shape[-2:]
        joint = blocks.transpose(-3, -2).reshape(*blocks.shape[:-4], q * d, q * d)
        return 0.5 * (joint + joint.mT)

    def _largest_dense_eigenvalue(self) -> Tensor:
        """The largest eigenvalue of ∂σ²(x), ``batch x q``, in the model's units of outcome."""
        covariance = self._covariance()
        unknown = covariance.isnan().any((-2, -1), keepdim=True)
        largest = torch.linalg.eigvalsh(covariance.masked_fill(unknown, 0.0))[..., -1]
        return largest.masked_fill(unknown[..., 0, 0], torch.nan)

    def _deviation_by_cholesky(self, base: Tensor) -> Tensor:
        """The deviation of a sample from the mean, per unit of z, by a root of the joint covariance."""
        one = self._shape[-2] == 1
        joint = self._conditioning.covariance(self._x).squeeze(-3) if one else self._joint_covariance()
        return (covariance_root(joint) @ base.flatten(-2).unsqueeze(-1)).squeeze(-1).reshape(base.shape)

    def _deviation_by_matheron(self, base: Tensor) -> Tensor:
        """The deviation of a sample from the mean by Matheron's rule."""
        d, prior = self._shape[-1], self._conditioning.prior_variance
        assert prior is not None
        root = prior.sqrt()
        inverse = torch.where(root > 0, 1 / root, torch.zeros_like(root))
        whitened = self._conditioning.whitened_jacobian(self._x).squeeze(-3) * inverse.unsqueeze(-2)
        eye = torch.eye(whitened.shape[-2], dtype=whitened.dtype, device=whitened.device)
        complement, _ = laddered_factor(eye - whitened @ whitened.mT, eye.diagonal())
        z, e = base[..., 0, :d].unsqueeze(-1), base[..., 0, d:].unsqueeze(-1)
        deviation = z - whitened.mT @ (whitened @ z + complement @ e)
        return deviation.mT * root.unsqueeze(-2)

    def _chained(self, gradient: Tensor, power: int = 1) -> Tensor:
        """Converts a gradient with respect to z, or its variances (power 2), ``batch x q x d``, to one by x."""
        return gradient if self._slope is None else gradient * self._slope**power

    def _scaled(self, value: Tensor, power: int, trailing: int = 0) -> Tensor:
        """A value of ``batch x q`` and ``trailing`` dimensions times scale^power, in the points' dtype, m after q."""
        value = value if value.dtype == self._x.dtype else value.to(self._x.dtype)
        if self._scale is not None and self._scale.numel() == 1:
            value = value * self._scale.item() ** power
        elif self._scale is not None:
            value = value * self._scale.to(value).pow(power)[(..., *(None,) * trailing)]
        return outputs_last(value, trailing, self._several_outputs)


def outputs_last(value: Tensor, trailing: int, several_outputs: bool) -> Tensor:
    """Swaps m and q, the dimensions before the last ``trailing`` ones, if there are several outcomes."""
    return value.transpose(-2 - trailing, -1 - trailing) if several_outputs else value


def _largest_eigenvalue(whitened: Tensor, prior: Tensor) -> Tensor:
    """The largest eigenvalue of diag(prior) − VᵀV by Lanczos to working precision, V n x d."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    v, p = whitened.numpy(force=True), prior.numpy(force=True)
    d = p.shape[0]
    operator = LinearOperator((d, d), matvec=lambda u: p * u.ravel() - v.T @ (v @ u.ravel()), dtype=p.dtype)
    start = torch.ones(d, dtype=torch.float64).numpy()
    return torch.as_tensor(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0])
