"""Closed forms for further GPyTorch kernels, registered when this package is imported.

They are functions of r² (cosine, piecewise polynomial), functions of x·x' (linear, polynomial), and products of
functions of δᵢ = xᵢ − x'ᵢ over the inputs (periodic, spectral mixture).

References:
    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, Sec. 4.2.
    A. G. Wilson and R. P. Adams, Gaussian process kernels for pattern discovery and extrapolation, ICML 2013, eq. 12.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import torch
from gpytorch.kernels import (
    CosineKernel,
    LinearKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    SpectralMixtureKernel,
)
from numpy.polynomial import Polynomial
from torch import Tensor

from surrogates.kernels.blocks import Blocks, existing_blocks, kernel_values
from surrogates.kernels.registry import Copied, KernelFunctions, RadialFunctions, register_kernel
from surrogates.kernels.stationary import StationaryKernel, root

# Below this r the series of the cosine's h'' is more accurate than its quotient.
_NEAR = 0.1


def cosine(kernel: CosineKernel, copied: Copied) -> RadialFunctions:
    """k = cos(π r), r = ‖x − x'‖/p, so that h' = −(π²/2) sinc r and h'' = (π²/4)(sinc r − cos πr)/r²."""

    def h2(r2: Tensor) -> Tensor:
        near = r2 < _NEAR**2
        far = torch.where(near, torch.ones_like(r2), r2)
        quotient = (torch.sinc(root(far)) - torch.cos(pi * root(far))) / far
        s = pi**2 * r2
        series = pi**2 * (1 / 3 - s * (1 / 30 - s * (1 / 840 - s * (1 / 45360 - s / 3991680))))
        return pi**2 / 4 * torch.where(near, series, quotient)

    return RadialFunctions(
        h=lambda r2: torch.cos(pi * root(r2)),
        h1=lambda r2: -(pi**2) / 2 * torch.sinc(root(r2)),
        h2=h2,
        lengthscale=copied(kernel.period_length),
        title="CosineKernel",
    )


def piecewise_polynomial(kernel: PiecewisePolynomialKernel, copied: Copied) -> KernelFunctions:
    """k = (1 − r)₊^(j+q) P(r) with j = ⌊d/2⌋ + q + 1, d the number of inputs, and GPyTorch's polynomials P.

    For q = 2, GPyTorch's P has j + 4j where Rasmussen and Williams have j² + 4j; this function follows GPyTorch.
    """
    lengthscale, q = copied(kernel.lengthscale), kernel.q

    def stationary(d: int) -> StationaryKernel:
        functions = _piecewise_polynomial(d // 2 + q + 1, q, lengthscale)
        precision = lengthscale**-2
        return StationaryKernel(functions, torch.ones_like(precision[..., :1]), precision, precision)

    return KernelFunctions(
        lambda x1, x2: kernel_values(stationary(x1.shape[-1]), x1, x2),
        lambda x1, x2, mixed: existing_blocks(stationary(x1.shape[-1]), x1, x2, mixed),
        f"PiecewisePolynomialKernel(q={q})",
    )


def _piecewise_polynomial(j: int, q: int, lengthscale: Tensor) -> RadialFunctions:
    """h(r²) = (1 − r)₊^m P(r), from which h' = g(r)/2r and h'' = (g'(r) − g(r)/r)/4r², g = dh/dr.

    g = (1 − r)^(m−1) Q(r) with Q = (1 − r)P' − mP. For q >= 1 the constant term of Q is 0, so that g/r = (1 − r)^(m−1)
    R(r) with R = Q/r, and h'' = [(1 − r)R' − (m − 1)R] (1 − r)^(m−2)/4r has no cancellation.
    """
    m, falling = j + q, Polynomial([1.0, -1.0])
    P = Polynomial(
        {
            0: [1.0],
            1: [1.0, j + 1.0],
            2: [1.0, j + 2.0, (j + 4 * j + 3) / 3],
            3: [1.0, j + 3.0, (6 * j**2 + 36 * j + 45) / 15, (j**3 + 9 * j**2 + 23 * j + 15) / 15],
        }[q]
    )
    Q = falling * P.deriv() - m * P
    R = Polynomial(Q.coef[1:] if q else [0.0])
    T = falling * R.deriv() - (m - 1) * R

    def h(r2: Tensor) -> Tensor:
        r = root(r2)
        return (1 - r).clamp_min(0.0) ** m * _value(P, r)

    def h1(r2: Tensor) -> Tensor:
        r = root(r2)
        return 0.5 * (1 - r).clamp_min(0.0) ** (m - 1) * (_value(R, r) if q else _value(Q, r) / r)

    def h2(r2: Tensor) -> Tensor:
        r, apart = root(r2), r2 > 0
        quotient = _value(T, r) / torch.where(apart, r, torch.ones_like(r))
        return 0.25 * torch.where(apart, (1 - r).clamp_min(0.0) ** (m - 2) * quotient, torch.zeros_like(r))

    return RadialFunctions(h, h1, h2, lengthscale, title=f"PiecewisePolynomialKernel(q={q})")


def _value(polynomial: Polynomial, r: Tensor) -> Tensor:
    result = torch.zeros_like(r)
    for c in reversed(polynomial.coef.tolist()):
        result = result * r + c
    return result


def linear(kernel: LinearKernel, copied: Copied) -> KernelFunctions:
    """k = Σᵢ vᵢ xᵢ x'ᵢ; the covariance of the gradient is diag(v) at every point."""
    variance = copied(kernel.variance)

    def blocks(x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
        weighted1, weighted2 = x1 * variance, x2 * variance
        value = weighted1 @ x2.mT
        shape = (*value.shape, x1.shape[-1])
        first, second = weighted2.unsqueeze(-3).expand(shape), weighted1.unsqueeze(-2).expand(shape)
        block = torch.diag_embed(variance.unsqueeze(-2).expand(shape)).to(value) if mixed else None
        return Blocks(value, first, second, block)

    return KernelFunctions(lambda x1, x2: (x1.double() * variance.double()) @ x2.double().mT, blocks)


def polynomial(kernel: PolynomialKernel, copied: Copied) -> KernelFunctions:
    """k = uᵖ with u = x·x' + c, so that ∂k = p uᵖ⁻¹ x' and ∂ᵢ∂'ⱼk = p uᵖ⁻¹ δᵢⱼ + p(p − 1) uᵖ⁻² x'ᵢ xⱼ."""
    offset, power = copied(kernel.offset).unsqueeze(-1), kernel.power

    def blocks(x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
        base = x1 @ x2.mT + offset
        slope = power * base ** (power - 1)
        row, column = x2.unsqueeze(-3), x1.unsqueeze(-2)
        block = None
        if mixed:
            eye = torch.eye(x1.shape[-1], dtype=base.dtype, device=base.device)
            block = slope[..., None, None] * eye
            if power != 1:
                curvature = power * (power - 1) * base ** (power - 2)
                block = block + curvature[..., None, None] * row.unsqueeze(-1) * column.unsqueeze(-2)
        slope = slope.unsqueeze(-1)
        return Blocks(base**power, slope * row, slope * column, block)

    return KernelFunctions(lambda x1, x2: (x1.double() @ x2.double().mT + offset.double()) ** power, blocks)


def periodic(kernel: PeriodicKernel, copied: Copied) -> KernelFunctions:
    """k = Πᵢ exp(−2 sin²(πδᵢ/pᵢ)/λᵢ), where λ is GPyTorch's lengthscale (it is not squared)."""
    period, scale = (copied(t).unsqueeze(-2) for t in (kernel.period_length, kernel.lengthscale))

    def factors(delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w = 2 * pi / period.to(delta)
        g = torch.exp(-2 * torch.sin(0.5 * w * delta) ** 2 / scale.to(delta))
        f = -w * torch.sin(w * delta) / scale.to(delta)
        return g, f * g, (f**2 - w**2 * torch.cos(w * delta) / scale.to(delta)) * g

    return _product_over_inputs(factors)


def spectral_mixture(kernel: SpectralMixtureKernel, copied: Copied) -> KernelFunctions:
    """k = Πᵢ Σₘ wₘ exp(−2π²δᵢ²σₘᵢ²) cos(2πδᵢμₘᵢ): a product of one mixture per input, as in GPyTorch."""
    weights = copied(kernel.mixture_weights)[..., None, None, None]
    means, scales = (copied(t).unsqueeze(-2) for t in (kernel.mixture_means, kernel.mixture_scales))

    def factors(delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        delta = delta.unsqueeze(-4)
        a, w = (2 * pi * scales.to(delta)) ** 2, 2 * pi * means.to(delta)
        bell = weights.to(delta) * torch.exp(-0.5 * a * delta**2)
        cos, sin = torch.cos(w * delta), torch.sin(w * delta)
        slope = -a * delta * cos - w * sin
        curvature = (a**2 * delta**2 - a - w**2) * cos + 2 * a * delta * w * sin
        g, g1, g2 = ((bell * factor).sum(-4) for factor in (cos, slope, curvature))
        return g, g1, g2

    return _product_over_inputs(factors)


def _product_over_inputs(factors: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]) -> KernelFunctions:
    """k = Πᵢ gᵢ(δᵢ), given g, g' and g'' of δ, ``... x q x n x d``.

    ∂k/∂xᵢ = gᵢ' Π_{k≠i} g_k = −∂k/∂x'ᵢ and ∂²k/∂xᵢ∂x'ⱼ = −gᵢ' gⱼ' Π_{k≠i,j} g_k, with gᵢ'' on the diagonal. Products
    without some factors are not formed by division, because a factor may be 0.
    """

    def difference(x1: Tensor, x2: Tensor) -> Tensor:
        return x1.unsqueeze(-2) - x2.unsqueeze(-3)

    def values(x1: Tensor, x2: Tensor) -> Tensor:
        g: Tensor = factors(difference(x1.double(), x2.double()))[0]
        return g.prod(-1)

    def blocks(x1: Tensor, x2: Tensor, mixed: bool) -> Blocks:
        g, g1, g2 = (list(part.unbind(-1)) for part in factors(difference(x1, x2)))
        d, one = len(g), torch.ones_like(g[0])
        before, after = [one], [one]
        for i in range(d - 1):
            before.append(before[-1] * g[i])
            after.append(after[-1] * g[d - 1 - i])
        after.reverse()
        others = [a * b for a, b in zip(before, after, strict=True)]
        first = torch.stack([s * o for s, o in zip(g1, others, strict=True)], dim=-1)
        block = None
        if mixed:
            entries = [[one] * d for _ in range(d)]
            for i in range(d):
                entries[i][i] = -g2[i] * others[i]
                between = before[i]
                for j in range(i + 1, d):
                    entries[i][j] = entries[j][i] = -g1[i] * g1[j] * between * after[j]
                    between = between * g[j]
            block = torch.stack([torch.stack(row, dim=-1) for row in entries], dim=-2)
        return Blocks(before[-1] * g[-1], first, -first, block)

    return KernelFunctions(values, blocks)


register_kernel(CosineKernel, cosine)
register_kernel(PiecewisePolynomialKernel, piecewise_polynomial)
register_kernel(LinearKernel, linear)
register_kernel(PolynomialKernel, polynomial)
register_kernel(PeriodicKernel, periodic)
register_kernel(SpectralMixtureKernel, spectral_mixture)
