"""The Gaussian posterior of a gradient, as a BoTorch posterior that never forms d x d unless asked."""

from __future__ import annotations

from functools import cached_property

import torch
from botorch.posteriors.posterior import Posterior
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.quasirandom import SobolEngine

from surrogates.checks import check_finite, check_floating
from surrogates.conditioning import Conditioning
from surrogates.kernels.blocks import is_uniform
from surrogates.kernels.one_pass import Pass

_DENSE = 1024


class GradientPosterior(Posterior):
    """N(∇μ(x), ∂σ²(x)), the posterior of ∇f at ``batch x q`` points given values of f only (ZoRD eqs. 4-6).

    Everything is lazy and in the user's own units, outcome per unit of input. ``mean`` makes one pass over the
    ``n x d`` data; ``trace`` after it costs two ``n x n`` products, whatever d is. All is differentiable in the points,
    and, where the posterior was made under ``botorch.settings.propagate_grads``, in the data, the noise and the
    hyper-parameters. What happens to the model or to the points after it was made does not reach it.
    ``surrogates.DerivedGP.gradient_posterior`` makes one.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None where it is 1.
        known: The pass over the data at the points, where it has been made already.
    """

    def __init__(
        self, conditioning: Conditioning, x: Tensor, scale: Tensor | None = None, known: Pass | None = None
    ) -> None:
        self._conditioning = conditioning
        self._x = x
        self._scale = scale
        self._known = known

    @cached_property
    def mean(self) -> Tensor:
        """∇μ(x) = ∇m(x) + J(x)ᵀ A⁻¹ (y − m(X)), ``batch x q x d``."""
        return self._scaled(self._conditioning.mean(self._x, self._pass), 1, trailing=1)

    @cached_property
    def trace(self) -> Tensor:
        """trace ∂σ²(x) = E‖∇f(x) − ∇μ(x)‖², exactly, ``batch x q``."""
        return self._scaled(self._conditioning.trace(self._x, self._pass), 2)

    @cached_property
    def prior_trace(self) -> Tensor:
        """The trace before any observation, ``batch x q``: the same at every point for functions of r²."""
        return self._scaled(self._conditioning.prior_trace_at(self._x).expand(*self._shape[:-1]), 2)

    @cached_property
    def variance(self) -> Tensor:
        """The variance of every partial derivative, ``batch x q x d``, in O(n²d) a point."""
        return self._scaled(self._conditioning.variance(self._x), 2, trailing=1)

    @cached_property
    def covariance_matrix(self) -> Tensor:
        """∂σ²(x), dense, ``batch x q x d x d``."""
        return self._scaled(self._conditioning.covariance(self._x), 2, trailing=2)

    @cached_property
    def spectral_norm(self) -> Tensor:
        """‖∂σ²(x)‖, the largest eigenvalue, ``batch x q``: the uncertainty that ZoRD thresholds.

        It is that of D − VᵀV, where D is the prior's diagonal and V is ``n x d``. Where D attains its maximum in more
        than n inputs (every isotropic kernel with n < d), some of their span is unexplored and the norm is that
        maximum, whatever has been observed. Else the eigenvalue is computed, by Lanczos for d > 1024 (not where the
        prior differs between points).
        """
        prior = self._conditioning.prior_variance
        if prior is None:
            return self._scaled(self._largest_dense_eigenvalue(), 2)
        largest = prior.amax(-1, keepdim=True)
        if bool(((prior == largest).sum(-1) > self._conditioning.X.shape[-2]).all()):
            return self._scaled(largest.expand(*self._shape[:-1]), 2)
        if self._shape[-1] <= _DENSE or self._x.requires_grad or self._conditioning.requires_grad:
            return self._scaled(self._largest_dense_eigenvalue(), 2)
        whitened = self._conditioning.whitened_jacobian(self._x)
        priors = prior.unsqueeze(-2).expand(*whitened.shape[:-2], prior.shape[-1])
        pairs = zip(whitened.flatten(0, -3), priors.flatten(0, -2), strict=True)
        norms = torch.stack([_largest_eigenvalue(v, p) for v, p in pairs])
        return self._scaled(norms.reshape(self._shape[:-1]).to(self.device), 2)

    def directional_variance(self, u: Tensor) -> Tensor:
        """Var(uᵀ∇f(x)) = uᵀ ∂σ²(x) u, ``batch x q``, in O(nd + n²) a point.

        Args:
            u: The directions, ``batch x q x d`` or what broadcasts to it. They are not normalised here.

        Raises:
            TypeError: If u is no floating point tensor.
            ValueError: If u does not broadcast to the points, or holds NaN or inf.
        """
        check_floating("u", u)
        check_finite("u", u)
        try:
            u = u.expand(self._shape)
        except RuntimeError as error:
            raise ValueError(f"u of shape {tuple(u.shape)} does not broadcast to {tuple(self._shape)}.") from error
        return self._scaled(self._conditioning.directional_variance(self._x, u.to(self.dtype)), 2)

    def descent_probability(self) -> Tensor:
        """P(−∇μ(x) is a descent direction) = Φ(‖∇μ‖² / √(∇μᵀ ∂σ² ∇μ)), ``batch x q``, and ½ where ∇μ = 0."""
        norm = self.mean.norm(dim=-1)
        direction = self.mean / norm.clamp_min(torch.finfo(self.dtype).tiny).unsqueeze(-1)
        deviation = self.directional_variance(direction).sqrt()
        score = norm / deviation.clamp_min(torch.finfo(self.dtype).tiny)
        return torch.where(norm > 0, torch.special.ndtr(score), torch.full_like(norm, 0.5))

    def joint_covariance(self) -> Tensor:
        """The covariance of all q gradients, dense, ``batch x qd x qd``, point by point."""
        blocks = self._conditioning.cross_covariance(self._x, self._x)
        q, d = self._shape[-2:]
        joint = blocks.transpose(-3, -2).reshape(*blocks.shape[:-4], q * d, q * d)
        return self._scaled(0.5 * (joint + joint.mT), 2, trailing=1)

    def quantile(self, value: Tensor) -> Tensor:
        """The marginal quantiles, ``k x batch x q x d`` for k values in (0, 1)."""
        value = value.to(self.mean)
        normal = torch.distributions.Normal(self.mean, self.variance.sqrt())
        return normal.icdf(value.reshape(-1, *(1,) * self.mean.dim()))

    @property
    def device(self) -> torch.device:
        """The points' device."""
        return self._x.device

    @property
    def dtype(self) -> torch.dtype:
        """The points' dtype, which all results have; ``n x n`` algebra is float64 whatever it is."""
        return self._x.dtype

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._shape

    @property
    def base_sample_shape(self) -> torch.Size:
        """``batch x q x d``, or ``batch x 1 x (d + n)`` for one point by Matheron's rule: see ``rsample``."""
        if self._by_matheron:
            return self._shape[:-1] + torch.Size([self._shape[-1] + self._conditioning.X.shape[-2]])
        return self._shape

    @property
    def batch_range(self) -> tuple[int, int]:
        """The t-batch dimensions of ``base_sample_shape``."""
        return 0, -2

    def rsample(self, sample_shape: torch.Size | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Joint samples of the q gradients, ``sample_shape x batch x q x d``.

        Where n < d and the prior is one diagonal D, one point is sampled without a ``d x d`` matrix: with
        W = L⁻¹ J D^(−1/2) and T Tᵀ = I − W Wᵀ, D^(1/2)(z − Wᵀ(W z + T e)) has covariance D − JᵀA⁻¹J (Matheron's rule).

        Args:
            sample_shape: The shape of the samples. None stands for one sample.
            generator: The generator of the base samples. None stands for the device's global one, as in BoTorch.
        """
        sample_shape = torch.Size([1]) if sample_shape is None else torch.Size(sample_shape)
        shape = sample_shape + self.base_sample_shape
        base = torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        return self.rsample_from_base_samples(sample_shape, base)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Samples from standard normal base samples, ``sample_shape x base_sample_shape``.

        Raises:
            ValueError: If the base samples have another shape.
        """
        if base_samples.shape[len(sample_shape) :] != self.base_sample_shape:
            accepted = (*sample_shape, *self.base_sample_shape)
            raise ValueError(f"base_samples must be of shape {accepted}, got {tuple(base_samples.shape)}.")
        base = base_samples.double()
        deviation = self._deviation_by_matheron(base) if self._by_matheron else self._deviation_by_cholesky(base)
        return self.mean + self._scaled(deviation, 1, trailing=1)

    @cached_property
    def _pass(self) -> Pass | None:
        return self._known or self._conditioning.pass_over_data(self._x)

    @property
    def _shape(self) -> torch.Size:
        batch = torch.broadcast_shapes(self._x.shape[:-2], self._conditioning.alpha.shape[:-1])
        return batch + self._x.shape[-2:]

    @property
    def _by_matheron(self) -> bool:
        conditioning = self._conditioning
        return self._shape[-2] == 1 and conditioning.X.shape[-2] < self._shape[-1] and is_uniform(conditioning.kernel)

    def _largest_dense_eigenvalue(self) -> Tensor:
        """The largest eigenvalue of ∂σ²(x), ``batch x q``, in the model's units."""
        covariance = self._conditioning.covariance(self._x)
        return torch.linalg.eigvalsh(covariance)[..., -1].clamp_min(0.0)

    def _deviation_by_cholesky(self, base: Tensor) -> Tensor:
        """A sample less the mean, by a factor of the correlations: what has no prior variance does not move."""
        prior = self._conditioning.prior_variance_at(self._x).expand(self._shape).flatten(-2)
        inverse = torch.where(prior > 0, prior.rsqrt(), torch.zeros_like(prior))
        if self._shape[-2] == 1:
            joint = self._conditioning.covariance(self._x).squeeze(-3)
        else:
            scale = 1.0 if self._scale is None else self._scale.double().unsqueeze(-1)
            joint = self.joint_covariance().double() / scale**2
        correlation = joint * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
        deviation = (psd_safe_cholesky(correlation) @ base.flatten(-2).unsqueeze(-1)).squeeze(-1)
        return (deviation * prior.sqrt()).reshape(base.shape)

    def _deviation_by_matheron(self, base: Tensor) -> Tensor:
        """A sample less the mean, by the rule that ``rsample`` states."""
        d, prior = self._shape[-1], self._conditioning.prior_variance
        assert prior is not None
        root = prior.sqrt()
        inverse = torch.where(root > 0, 1 / root, torch.zeros_like(root))
        whitened = self._conditioning.whitened_jacobian(self._x).squeeze(-3) * inverse.unsqueeze(-2)
        eye = torch.eye(whitened.shape[-2], dtype=whitened.dtype, device=whitened.device)
        complement = psd_safe_cholesky(eye - whitened @ whitened.mT)
        z, e = base[..., 0, :d].unsqueeze(-1), base[..., 0, d:].unsqueeze(-1)
        deviation = z - whitened.mT @ (whitened @ z + complement @ e)
        return deviation.mT * root.unsqueeze(-2)

    def _scaled(self, value: Tensor, power: int, trailing: int = 0) -> Tensor:
        """A value of ``batch x q`` and ``trailing`` dimensions times scale^power, in the points' dtype."""
        value = value.to(self.dtype)
        if self._scale is None:
            return value
        if self._scale.numel() == 1:
            return value * self._scale.item() ** power
        return value * self._scale.to(value).pow(power)[(..., *(None,) * trailing)]


def _largest_eigenvalue(whitened: Tensor, prior: Tensor) -> Tensor:
    """The largest eigenvalue of diag(prior) − VᵀV by Lanczos to working precision, V n x d."""
    v, p = whitened.numpy(force=True), prior.numpy(force=True)
    d = p.shape[0]
    operator = LinearOperator((d, d), matvec=lambda u: p * u.ravel() - v.T @ (v @ u.ravel()), dtype=p.dtype)
    start = torch.ones(d, dtype=torch.float64).numpy()
    return torch.as_tensor(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0]).clamp_min(0.0)


@GetSampler.register(GradientPosterior)
def _sampler(
    posterior: GradientPosterior, sample_shape: torch.Size, *, seed: int | None = None
) -> SobolQMCNormalSampler | IIDNormalSampler:
    """Sobol base samples where their dimension allows it, as for BoTorch's own posteriors."""
    dimension = posterior.base_sample_shape[posterior.batch_range[1] :].numel()
    sampler = SobolQMCNormalSampler if dimension <= SobolEngine.MAXDIM else IIDNormalSampler
    return sampler(sample_shape=sample_shape, seed=seed)
