"""The kernel of ``surrogates.pinned.prior`` with its derivatives, and as a GPyTorch kernel for a ``DerivedGP``."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor

from surrogates.checks import check_finite, nonnegative
from surrogates.kernels.registry import Blocks, Copied, KernelFunctions, register_kernel
from surrogates.pinned.prior import PinnedPrior


def pinned_values(prior: PinnedPrior, amplitude: Tensor | float, U: Tensor, V: Tensor) -> Tensor:
    """Computes k(u, v), ``... x q x n``, for points u, ``... x q x d``, and v, ``... x n x d``, relative to the pin."""
    inner, left, right = U @ V.mT, U.square().sum(-1), V.square().sum(-1)
    polynomial = inner * (prior.linear + 0.5 * prior.quadratic * inner)
    polynomial = polynomial + prior.shared * prior.linear * left.unsqueeze(-1) * right.unsqueeze(-2)
    lost = [_matern(prior, points.norm(dim=-1)) for points in (U, V)]
    between = _matern(prior, (U.unsqueeze(-2) - V.unsqueeze(-3)).norm(dim=-1))
    return polynomial + amplitude * (between - lost[0].unsqueeze(-1) - lost[1].unsqueeze(-2) + 1.0)


def pinned_blocks(prior: PinnedPrior, amplitude: Tensor | float, U: Tensor, V: Tensor, mixed: bool = False) -> Blocks:
    """Computes k(u, v) and its derivatives.

    With t = u − v, D(r) = −m'(r)/r = 5/(3ℓ²) (1 + s)e⁻ˢ and s = √5 r/ℓ,

        ∂k/∂u = (w + q u·v) v + 2cw ‖v‖² u + a [D(‖u‖) u − D(‖t‖) t],
        ∂²k/∂u∂v = (w + q u·v) I + q v uᵀ + 4cw u vᵀ + a [D(‖t‖) I − 25/(3ℓ⁴) e⁻ˢ t tᵀ],

    and ∂k/∂v is ∂k/∂u with u and v exchanged.

    Args:
        prior: the kernel's constants.
        amplitude: a, a number or broadcastable to ``... x q x n``.
        U: points u relative to the pin, ``... x q x d``.
        V: points v relative to the pin, ``... x n x d``.
        mixed: whether to compute ∂²k/∂u∂v.
    """
    u, v, w = U.unsqueeze(-2), V.unsqueeze(-3), prior.linear
    t, a = u - v, torch.as_tensor(amplitude, dtype=U.dtype, device=U.device).unsqueeze(-1)
    inner, r = (u * v).sum(-1, keepdim=True), t.norm(dim=-1, keepdim=True)
    factor, shared = w + prior.quadratic * inner, 2.0 * prior.shared * w
    between = a * _decay(prior, r)
    bends = [a * _decay(prior, points.norm(dim=-1, keepdim=True)) for points in (u, v)]
    first = factor * v + shared * v.square().sum(-1, keepdim=True) * u + bends[0] * u - between * t
    second = factor * u + shared * u.square().sum(-1, keepdim=True) * v + bends[1] * v + between * t
    block = None
    if mixed:
        eye = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device)
        outer = prior.quadratic * v.unsqueeze(-1) * u.unsqueeze(-2)
        outer = outer + 2.0 * shared * u.unsqueeze(-1) * v.unsqueeze(-2)
        sharp = a * prior.curvature * prior.rate**2 * torch.exp(-prior.rate * r)
        outer = outer - sharp.unsqueeze(-1) * t.unsqueeze(-1) * t.unsqueeze(-2)
        block = outer + (factor + between).unsqueeze(-1) * eye
    return Blocks(pinned_values(prior, amplitude, U, V), first, second, block)


def _matern(prior: PinnedPrior, distances: Tensor) -> Tensor:
    s = prior.rate * distances
    return (1.0 + s + s * s / 3.0) * torch.exp(-s)


def _decay(prior: PinnedPrior, distances: Tensor) -> Tensor:
    s = prior.rate * distances
    return prior.curvature * (1.0 + s) * torch.exp(-s)


class PinnedKernel(Kernel):
    """The covariance of f(x) − f(p) for one point p, the pin; a kernel for a ``DerivedGP`` of such differences.

    The kernel is k(A(x − p), A(x' − p)) + s², with k from ``surrogates.pinned.prior``. Use it with a ``ZeroMean``, and
    with the values minus the value at the pin as data, at all points except the pin.

    If values have noise of variance s², the noise of the differences has covariance s²(I + 11ᵀ), because all contain
    the noise of the value at the pin. Set the likelihood's noise to s² for the part I, and ``pin_noise`` to s² for the
    part 11ᵀ. The model then describes f minus the noisy value at the pin; subtract its value at the pin for f − f(p).

    Example:
        A model of f about the best of n points:

        >>> best = Y.argmin()
        >>> others = torch.arange(len(Y)) != best
        >>> gp = DerivedGP(
        ...     X[others], Y[others] - Y[best], covar_module=ScaleKernel(PinnedKernel(X[best])),
        ...     mean_module=ZeroMean(), likelihood=gaussian_likelihood(1e-6), outcome_transform=None)
        >>> gp.gradient_posterior(X[best][None])

    Args:
        pin: p, shape ``d``.
        metric: A, ``d' x d``, such that points A(x − p) have a root mean square length of about 1; None: A = I.
        amplitude: a, the variance of the Matérn process, a parameter that is fitted.
        pin_noise: s², in units of the kernel; it is not fitted.
        prior: the kernel's constants.
        amplitude_prior: a GPyTorch prior of a.
        amplitude_constraint: a GPyTorch constraint of a; ``Positive()`` by default.
        **options: options of every GPyTorch ``Kernel``, such as ``active_dims`` and ``batch_shape``.

    Raises:
        ValueError: if the pin or the metric is not finite or has another shape, or ``pin_noise`` is negative.
    """

    pin: Tensor
    metric: Tensor
    raw_amplitude: torch.nn.Parameter

    def __init__(
        self,
        pin: Tensor,
        metric: Tensor | None = None,
        *,
        amplitude: float = 1.0,
        pin_noise: float = 0.0,
        prior: PinnedPrior | None = None,
        amplitude_prior: Prior | None = None,
        amplitude_constraint: Interval | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if pin.dim() != 1:
            raise ValueError(f"pin must be one point, of shape d, got shape {tuple(pin.shape)}.")
        metric = torch.eye(len(pin)).to(pin) if metric is None else metric
        if metric.dim() != 2 or metric.shape[-1] != len(pin):
            raise ValueError(f"metric must be of shape d' x {len(pin)}, got {tuple(metric.shape)}.")
        check_finite("pin", pin)
        check_finite("metric", metric)
        self.register_buffer("pin", pin.detach().clone())
        self.register_buffer("metric", metric.detach().clone().to(pin))
        self.prior, self.pin_noise = prior or PinnedPrior(), nonnegative("pin_noise", pin_noise)
        start = torch.zeros(*self.batch_shape, 1, dtype=pin.dtype, device=pin.device)
        self.register_parameter("raw_amplitude", torch.nn.Parameter(start))
        self.register_constraint("raw_amplitude", amplitude_constraint or Positive())
        if amplitude_prior is not None:
            self.register_prior("amplitude_prior", amplitude_prior, _amplitude, _set_amplitude)
        self.amplitude = amplitude

    @property
    def amplitude(self) -> Tensor:
        """The variance a of the Matérn process, ``batch x 1``."""
        return self.raw_amplitude_constraint.transform(self.raw_amplitude)

    @amplitude.setter
    def amplitude(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value).to(self.raw_amplitude).expand_as(self.raw_amplitude)
        self.initialize(raw_amplitude=self.raw_amplitude_constraint.inverse_transform(value))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Computes the covariances, ``... x q x n``, or their diagonal, ``... x q``."""
        U, V = ((x - self.pin) @ self.metric.mT for x in (x1, x2))
        a = self.amplitude.unsqueeze(-1)
        if diag:
            return (
                pinned_values(self.prior, a.unsqueeze(-1), U.unsqueeze(-2), V.unsqueeze(-2))[..., 0, 0] + self.pin_noise
            )
        return pinned_values(self.prior, a, U, V) + self.pin_noise


def _amplitude(kernel: PinnedKernel) -> Tensor:
    return kernel.amplitude


def _set_amplitude(kernel: PinnedKernel, value: Tensor) -> None:
    kernel.amplitude = value


def _read(kernel: PinnedKernel, copied: Copied) -> KernelFunctions:
    """The values and derivatives in x of k(A(x − p), A(x' − p)) + s², for ``register_kernel``."""
    a, pin, metric = copied(kernel.amplitude).unsqueeze(-1), copied(kernel.pin), copied(kernel.metric)
    prior, noise = kernel.prior, kernel.pin_noise

    def seen(x: Tensor) -> Tensor:
        return (x - pin.to(x)) @ metric.to(x).mT

    def values(x1: Tensor, x2: Tensor) -> Tensor:
        return pinned_values(prior, a.double(), seen(x1.double()), seen(x2.double())) + noise

    def blocks(x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
        A, found = metric.to(x1), pinned_blocks(prior, a.to(x1), seen(x1), seen(x2), mixed)
        block = None if found.mixed is None else A.mT @ found.mixed @ A
        return Blocks(found.value + noise, found.first @ A, found.second @ A, block)

    return KernelFunctions(values, blocks)


register_kernel(PinnedKernel, _read)
