"""The posterior mean of the average of ∇f ∇fᵀ over a box, in closed form for the RBF kernel.

With k = o exp(−½ Σₖ pₖ (zₖ − z'ₖ)²), G = A⁻¹ − α αᵀ and the uniform distribution on the box,

    E ∫ ∂ᵢf ∂ⱼf dz = o pᵢ δᵢⱼ − Σ_ab G_ab ∫ ∂ᵢk(z, z_a) ∂ⱼk(z, z_b) dz,

and each integral is a product of integrals in one variable, which are error functions and exponentials.

References:
    N. Wycoff, M. Binois and S. M. Wild, Sequential learning of active subspaces, Journal of Computational and
        Graphical Statistics 30, 2021.
"""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor

from surrogates.kernels.stationary import RadialProfile, StationaryKernel, over_all_inputs
from surrogates.linalg.rounding import remaining_covariance
from surrogates.models.derived_gp import DerivedGP
from surrogates.models.transforms import is_affine_input


def mean_outer_product(model: object, bounds: Tensor) -> Tensor | None:
    """The posterior mean of ∇f ∇fᵀ averaged over a box, in the user's units, ``batch (x m) x d x d``.

    It is None if there is no closed form. The closed form exists for a ``DerivedGP`` with a constant mean, an affine
    input transform and an RBF kernel, with
    or without ARD, ``ScaleKernel`` and ``active_dims``. The box is ``bounds``, ``2 x d``.
    """
    if not isinstance(model, DerivedGP) or not is_affine_input(getattr(model, "input_transform", None)):
        return None
    conditioning, scale = model.conditioning, model.outcome_scale
    kernel = conditioning.kernel
    if conditioning.prior_mean is not None or not isinstance(kernel, StationaryKernel):
        return None
    if not isinstance(kernel.profile, RadialProfile) or kernel.profile.name != "rbf":
        return None
    box = bounds if not hasattr(model, "input_transform") else model.input_transform(bounds)
    if model.num_outputs > 1:
        box = box.unsqueeze(-3)
    inputs, ends = (kernel.seen_inputs(t).double() for t in (conditioning.X, box))
    seen = _over_seen_inputs(kernel, inputs, ends, conditioning.factor, conditioning.alpha)
    matrix = over_all_inputs(seen, kernel.active_dims, bounds.shape[-1], -1, -2)
    if conditioning.slope is not None:
        slope = conditioning.slope.double()
        matrix = matrix * slope.mT * slope
    if scale is not None:
        matrix = matrix * scale.double().unsqueeze(-1).square()
    return matrix.to(bounds)


def _over_seen_inputs(kernel: StationaryKernel, X: Tensor, box: Tensor, factor: Tensor, alpha: Tensor) -> Tensor:
    """The matrix of the inputs that the kernel sees, ``batch x d' x d'``, per unit of the transformed inputs."""
    d = X.shape[-1]
    o = kernel.outputscale.double()[..., 0]
    p = kernel.precision.double()[..., 0, :].expand(*kernel.precision.shape[:-2], d)
    whole, first, second = zip(*(_integrals(X[..., k], box[..., k], p[..., k]) for k in range(d)), strict=True)
    product = torch.stack(whole).prod(0) * o.unsqueeze(-1).square()

    def summed(weights: Tensor) -> Tensor:
        weighed = weights * product
        rows = [
            [(weighed * (second[i] if i == j else first[i] * first[j].mT)).sum((-2, -1)) for j in range(d)]
            for i in range(d)
        ]
        return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2) * p.unsqueeze(-1) * p.unsqueeze(-2)

    left = remaining_covariance(torch.diag_embed(o * p), summed(torch.cholesky_inverse(factor)))
    return left + summed(alpha.unsqueeze(-1) * alpha.unsqueeze(-2))


def _integrals(x: Tensor, ends: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means over an interval, in one variable, of products of two Gaussian bells, ``batch x n x n``.

    Args:
        x: The bells' centres, ``batch x n``.
        ends: The interval's ends, ``batch x 2``.
        p: The bells' precision, ``batch``.

    Returns:
        The mean M of w(z) = exp(−½p(z − a)² − ½p(z − b)²), the mean of (z − a) w(z) divided by M, and the mean of
        (z − a)(z − b) w(z) divided by M. The quotients are finite where M is 0 to rounding.
    """
    a, b, p = x.unsqueeze(-1), x.unsqueeze(-2), p[..., None, None]
    low, high = ends[..., 0, None, None], ends[..., 1, None, None]
    middle, root = 0.5 * (a + b), p.sqrt()
    below, above = low - middle, high - middle
    mass = torch.erf(root * above) - torch.erf(root * below)
    integral = mass * sqrt(pi) / (2 * root)
    decay = torch.exp(-0.25 * p * (a - b).square())
    at_low, at_high = torch.exp(-p * below.square()), torch.exp(-p * above.square())
    safe = torch.where(integral != 0, integral, 1.0)
    linear = torch.where(integral != 0, -(at_high - at_low) / (2 * p * safe), 0.0)
    quadratic = torch.where(
        integral != 0, (1 - (above * at_high - below * at_low) / safe) / (2 * p) - 0.25 * (a - b).square(), 0.0
    )
    return decay * integral / (high - low), linear + 0.5 * (b - a), quadratic
