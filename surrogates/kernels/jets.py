"""Covariances of jets: the value, gradient and Hessian of a Gaussian process along a few directions, as one vector.

The jet of f at x along u₁, …, u_p is (f, uᵢᵀ∇f, uᵢᵀ∇²f uⱼ for i ≤ j row by row), N = 1 + p + p(p+1)/2 numbers. It is
linear in f, so that its covariances are derivatives of k. Jets of sums add. The jet of a product of independent
processes is bilinear in their jets, and the covariances of a product kernel are bilinear in those of its factors.

For a stationary kernel o h(r²) no derivative of h beyond h'' is needed: at r = 0, with G = Uᵀ diag(1/ℓ²) U,

    Cov(uᵢᵀ∇f, uⱼᵀ∇f) = −Cov(f, uᵢᵀ∇²f uⱼ) = −2 o h'(0) Gᵢⱼ,
    Cov(uᵢᵀ∇²f uⱼ, uₖᵀ∇²f uₗ) = 4 o h''(0) (Gᵢⱼ Gₖₗ + Gᵢₖ Gⱼₗ + Gᵢₗ Gⱼₖ),

and the others vanish. Kernels given by functions of (x, x') are differentiated automatically from their blocks.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from surrogates.kernels.blocks import CompositeKernel, GeneralKernel, KernelSnapshot, kernel_blocks, scaled
from surrogates.kernels.errors import no_gradient, no_hessian_covariance
from surrogates.kernels.radial_jets import check_four_derivatives, stationary_cross_jets
from surrogates.kernels.registry import KernelFunctions
from surrogates.kernels.stationary import StationaryKernel

_AGREEMENT = 0.1
_ROUNDING = 1e-12
_GENERAL = "A kernel of the model that is no function of r² with known h''"


def prior_jets(kernel: KernelSnapshot, x: Tensor, U: Tensor, X: Tensor) -> Tensor:
    """The prior covariance of the jet at x, ``... x N x N``, float64.

    Args:
        kernel: The kernel.
        x: One point, ``... x 1 x d``.
        U: The directions, ``... x d x p``.
        X: The data, ``batch x n x d``. Automatic derivatives are checked with steps proportional to the data's ranges.

    Raises:
        ValueError: If k does not have four derivatives at x = x', so that sample paths have no second derivative.
    """
    if kernel.active_dims is not None:
        seen = kernel.active_dims
        x, X, U = x[..., seen], X[..., seen], U[..., seen, :]
    if isinstance(kernel, StationaryKernel):
        return _stationary_prior_jets(kernel, U)
    if isinstance(kernel, CompositeKernel):
        parts = [prior_jets(part, x, U, X) for part in kernel.parts]
        jets = reduce(_Product(U.shape[-1]).covariance if kernel.is_product else torch.add, parts)
    else:
        jets = _general_prior_jets(kernel, x, U, X)
    return scaled(jets, kernel, 2)


def cross_jets(kernel: KernelSnapshot, x1: Tensor, U1: Tensor, x2: Tensor, U2: Tensor) -> Tensor:
    """The covariance of the jets at x with the jets at x', for every pair, ``... x q x n x N x N'``, float64.

    Args:
        kernel: The kernel.
        x1: The points x, ``... x q x d``.
        U1: The directions at x, ``... x q x d x p``.
        x2: The points x', ``... x n x d``.
        U2: The directions at x', ``... x n x d x p'``.

    Raises:
        ValueError: If a stationary kernel does not have four derivatives at x = x' (``prior_jets`` checks others).
    """
    if kernel.active_dims is not None:
        seen = kernel.active_dims
        x1, U1, x2, U2 = x1[..., seen], U1[..., seen, :], x2[..., seen], U2[..., seen, :]
    if isinstance(kernel, StationaryKernel):
        return stationary_cross_jets(kernel, x1, U1, x2, U2)
    if isinstance(kernel, CompositeKernel):
        parts = [cross_jets(part, x1, U1, x2, U2) for part in kernel.parts]
        product = _Product(U1.shape[-1], U2.shape[-1]).covariance
        found = reduce(product if kernel.is_product else torch.add, parts)
    else:
        found = _general_cross_jets(kernel.functions, x1, U1, x2, U2)
    return scaled(found, kernel, 4)


def jet_width(d: int, order: int) -> int:
    """The number of entries of a jet of order 0, 1 or 2 in d inputs: 1, 1 + d or 1 + d + d(d+1)/2."""
    return (1, 1 + d, 1 + d + d * (d + 1) // 2)[order]


def unit_jets(kernel: KernelSnapshot, x1: Tensor, x2: Tensor, order1: int, order2: int) -> Tensor:
    """The prior covariance of the jets at x with the jets at x', per unit of each input, ``... x q x n x e x e'``.

    Args:
        kernel: The kernel.
        x1: The points x, ``... x q x d``.
        x2: The points x', ``... x n x d``.
        order1: The order of the jets at x: 0, 1 or 2.
        order2: The order of the jets at x'.
    """
    x1, x2, d = x1.double(), x2.double(), x1.shape[-1]
    if max(order1, order2) == 2:
        eye = torch.eye(d, dtype=torch.float64, device=x1.device)
        U1, U2 = (eye[:, : d if order else 0].expand(*x.shape, -1) for x, order in ((x1, order1), (x2, order2)))
        jets = cross_jets(kernel, x1, U1, x2, U2)
        return jets[..., : jet_width(d, order1), : jet_width(d, order2)]
    blocks = kernel_blocks(kernel, x1, x2, mixed=order1 == order2 == 1)
    rows = blocks.value.unsqueeze(-1)
    if order2:
        rows = torch.cat([rows, blocks.second], dim=-1)
    rows = rows.unsqueeze(-2)
    if order1:
        below = blocks.first.unsqueeze(-1)
        rows = torch.cat([rows, below if blocks.mixed is None else torch.cat([below, blocks.mixed], dim=-1)], dim=-2)
    return rows


def upper_triangle(p: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The indices i and j of a jet's second derivatives, i ≤ j, row by row."""
    i, j = torch.triu_indices(p, p, device=device)
    return i, j


def per_user_unit(jets: Tensor, slope: Tensor | None, bend: Tensor | None) -> Tensor:
    """Converts covariances with jets in the transformed inputs z to jets in the user's inputs x, by the chain rule.

    Args:
        jets: The covariances of r numbers with n jets, ``... x n x r x e``; e is 1 + d, or N with second derivatives.
        slope: dz/dx at the n points, ``... x n x d`` or ``... x 1 x d``, or None if it is 1.
        bend: d²z/dx² at the points, or None if it is 0.
    """
    if slope is None:
        return jets
    d, slope = slope.shape[-1], slope.to(jets)
    i, j = upper_triangle(d, jets.device)
    units = [torch.ones_like(slope[..., :1]), slope, slope[..., i] * slope[..., j]]
    result = jets * torch.cat(units, dim=-1)[..., : jets.shape[-1]].unsqueeze(-2)
    if bend is None or jets.shape[-1] == 1 + d:
        return result
    bent = jets[..., 1 : d + 1] * bend.to(jets).unsqueeze(-2)
    return result.index_add(-1, 1 + d + (i == j).nonzero().squeeze(-1), bent.expand(*result.shape[:-1], d))


class _Product:
    """The jet of a product fg of independent processes, whose entries are sums of products of entries of f's and g's.

    They are fg, g uᵢᵀ∇f + f uᵢᵀ∇g, and g uᵢᵀ∇²f uⱼ + f uᵢᵀ∇²g uⱼ + (uᵢᵀ∇f)(uⱼᵀ∇g) + (uⱼᵀ∇f)(uᵢᵀ∇g). Shorter sums are
    padded with products of zeros, which are appended to the jets.

    Args:
        p: The number of directions.
        p2: The number of directions of the other jet in a covariance, or None if it is p too.
    """

    def __init__(self, p: int, p2: int | None = None) -> None:
        self._terms = _terms(p)
        self._others = self._terms if p2 is None else _terms(p2)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """The covariance of the product's jet, ``... x N x N``, from those of its factors' jets."""
        a, b = (pad(factor, (0, 1, 0, 1)) for factor in (a, b))
        return torch.stack(
            [a[..., i, :][..., k] * b[..., j, :][..., l] for i, j in self._terms for k, l in self._others]
        ).sum(0)


def _terms(p: int) -> list[tuple[list[int], ...]]:
    """The entries of the factors' jets whose products are summed, four for each entry of the product's jet."""
    pairs = [(i, j) for i in range(1, p + 1) for j in range(i, p + 1)]
    sums = [[(0, 0)]]
    sums += [[(i, 0), (0, i)] for i in range(1, p + 1)]
    sums += [[(at, 0), (0, at), (i, j), (j, i)] for at, (i, j) in enumerate(pairs, start=p + 1)]
    zeros = [(len(sums), len(sums))]
    filled = [terms + zeros * (4 - len(terms)) for terms in sums]
    return [tuple(map(list, zip(*terms, strict=True))) for terms in zip(*filled, strict=True)]


def _stationary_prior_jets(kernel: StationaryKernel, U: Tensor) -> Tensor:
    o, U = kernel.outputscale.double(), U.double()
    G = U.mT @ (kernel.precision.double().mT * U)
    check_four_derivatives(kernel)
    h, h1, h2 = (f(torch.zeros_like(o)) for f in (kernel.profile.h, kernel.profile.h1, kernel.profile.h2))
    i, j = upper_triangle(U.shape[-1], U.device)
    k, l = i.unsqueeze(-1), j.unsqueeze(-1)
    outer = G[..., k, l] * G[..., i, j].unsqueeze(-2) + G[..., k, i] * G[..., l, j] + G[..., k, j] * G[..., l, i]
    f, slope = (o * h).expand(*G.shape[:-2], 1, 1), 2 * o * h1 * G
    across = slope[..., i, j].unsqueeze(-2)
    fg, gH = torch.zeros_like(slope[..., :1, :]), slope.new_zeros(*slope.shape[:-1], len(i))
    rows = [[f, fg, across], [fg.mT, -slope, gH], [across.mT, gH.mT, 4 * o * h2 * outer]]
    return torch.cat([torch.cat(row, dim=-1) for row in rows], dim=-2)


def _general_prior_jets(kernel: GeneralKernel, x: Tensor, U: Tensor, X: Tensor) -> Tensor:
    """The derivatives of the kernel's blocks between the point and itself, checked by second differences."""
    z, U, p = x.double(), U.double(), U.shape[-1]
    jets = _general_jets(kernel.functions, z, U, z, U)
    jets = 0.5 * (jets + jets.mT)
    ranges = (X.amax(-2) - X.amin(-2)).detach().double()
    HH = jets[..., 1 + p :, 1 + p :].detach()
    _check_second_differences(kernel.functions, z.detach(), U.detach(), HH, ranges)
    return jets


def _general_jets(functions: KernelFunctions, x1: Tensor, U1: Tensor, x2: Tensor, U2: Tensor) -> Tensor:
    """The covariance of the jets at two points, each ``... x 1 x d``, ``... x N x N'``, float64."""
    carries = _carries(functions, x1, U1) or _carries(functions, x2, U2)
    (i, j), (k, l) = (upper_triangle(U.shape[-1], U.device) for U in (U1, U2))
    with torch.enable_grad():
        z1, z2 = (z.clone() if z.requires_grad else z.detach().clone().requires_grad_(True) for z in (x1, x2))
        blocks = functions.blocks(z1, z2, True)
        assert blocks.mixed is not None
        out1, out2 = ((U == 0).all(-1) for U in (U1, U2))
        mixed = blocks.mixed[..., 0, 0, :, :]
        gg = (U1.mT @ _existing(functions, mixed, out1.unsqueeze(-1) | out2.unsqueeze(-2))) @ U2
        gH = _derivatives_along(gg, z2, U2)[..., k, l]
        Hg = _derivatives_along(gg, z1, U1).movedim(-1, -2)[..., i, j, :]
        HH = _derivatives_along(gH, z1, U1).movedim(-1, -2)[..., i, j, :]
        fg = _existing(functions, blocks.second[..., 0, :, :], out2.unsqueeze(-2)) @ U2
        fH = _derivatives_along(fg, z2, U2)[..., k, l]
        gf = (_existing(functions, blocks.first[..., 0, :, :], out1.unsqueeze(-2)) @ U1).mT
        Hf = _derivatives_along(gf, z1, U1).movedim(-1, -2)[..., i, j, :]
        rows = [[blocks.value, fg, fH], [gf, gg, gH], [Hf, Hg, HH]]
        jets = torch.cat([torch.cat(row, dim=-1) for row in rows], dim=-2)
    return jets if carries else jets.detach()


def _general_cross_jets(functions: KernelFunctions, x1: Tensor, U1: Tensor, x2: Tensor, U2: Tensor) -> Tensor:
    """As ``cross_jets``; all pairs are differentiated at once, as a leading dimension."""
    q, n = x1.shape[-2], x2.shape[-2]
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2], U1.shape[:-3], U2.shape[:-3])
    x1, U1 = x1.double().unsqueeze(-2), U1.double().unsqueeze(-3)
    x2, U2 = x2.double().unsqueeze(-3), U2.double().unsqueeze(-4)
    points = [x.expand(*batch, q, n, x.shape[-1]).flatten(-3, -2).movedim(-2, 0).unsqueeze(-2) for x in (x1, x2)]
    along = [U.expand(*batch, q, n, *U.shape[-2:]).flatten(-4, -3).movedim(-3, 0) for U in (U1, U2)]
    jets = _general_jets(functions, points[0], along[0], points[1], along[1])
    return jets.movedim(0, -3).unflatten(-3, (q, n))


def _existing(functions: KernelFunctions, derivatives: Tensor, out: Tensor) -> Tensor:
    """Derivatives in all inputs, with 0 in the inputs ``out``, in which all directions are 0.

    Raises:
        ValueError: If a derivative in another input does not exist.
    """
    derivatives = derivatives.masked_fill(out, 0.0)
    if bool(derivatives.isnan().any()):
        raise no_gradient(functions.title)
    return derivatives


def _carries(functions: KernelFunctions, x: Tensor, U: Tensor) -> bool:
    """Whether derivatives in the point, the directions or the hyper-parameters are requested."""
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or U.requires_grad or functions.values(x.detach(), x.detach()).requires_grad


def _derivatives_along(values: Tensor, z: Tensor, U: Tensor) -> Tensor:
    """The derivatives of values at one point z along U's columns, as a last dimension.

    They are forward derivatives of all values at once: the derivative of the backward pass in its input.
    """
    zeros = torch.zeros(*values.shape, U.shape[-1], dtype=values.dtype, device=values.device)
    if not values.requires_grad or not U.shape[-1]:
        return zeros
    fed = torch.zeros_like(values, requires_grad=True)
    (backward,) = torch.autograd.grad(values, z, fed, create_graph=True, allow_unused=True)
    if backward is None or not backward.requires_grad:
        return zeros
    along = [(backward * column.unsqueeze(-2)).sum() for column in U.unbind(-1)]
    found = [torch.autograd.grad(a, fed, create_graph=True, materialize_grads=True)[0] for a in along]
    return torch.stack(found, dim=-1)


def _check_second_differences(
    functions: KernelFunctions, x: Tensor, U: Tensor, hessian: Tensor, ranges: Tensor
) -> None:
    """Compares ``hessian`` with the covariances of (f(x + hw) − 2f(x) + f(x − hw))/h² for all w = uᵢ + uⱼ.

    Automatic differentiation of a formula in r = √Σδ² is wrong at r = 0, and a term |r|³ has no second derivative
    there. The variance along every w must agree at two successive steps h, which excludes one that grows with 1/h; the
    covariances are compared at the shorter of the two.

    Args:
        functions: The kernel.
        x: The point, ``... x 1 x d``.
        U: The directions, ``... x d x p``.
        hessian: The covariance of the second derivatives in the jet.
        ranges: The unit of h along every input, ``... x d``; 0 means 1.

    Raises:
        ValueError: If they differ.
    """
    i, j = upper_triangle(U.shape[-1], U.device)
    W = (U[..., i] + U[..., j]).mT
    diagonal = one_hot((i == j).nonzero().squeeze(-1), len(i)).to(U)
    eye = torch.eye(len(i), dtype=U.dtype, device=U.device)
    of_jets = 2 * eye + diagonal[i] + diagonal[j]
    expected = of_jets @ hessian @ of_jets.mT
    variance = torch.diagonal(expected, dim1=-2, dim2=-1)
    second_difference = torch.cat([torch.full_like(eye[:, :1], -2.0), eye, eye], dim=-1)

    def differences(h: Tensor) -> tuple[Tensor, Tensor]:
        moves = h.unsqueeze(-1) * W
        line = torch.cat([x.expand(*moves.shape[:-2], 1, -1), x + moves, x - moves], dim=-2)
        with torch.no_grad():
            k = functions.values(line, line)
        return second_difference @ k @ second_difference.mT, _ROUNDING * k.abs().amax((-2, -1)).unsqueeze(-1)

    lengths = (W / torch.where(ranges > 0, ranges, 1.0).unsqueeze(-2)).norm(dim=-1)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    steps, agree, silent = [], [], []
    for power in torch.arange(3, -8.5, -0.5, dtype=U.dtype).tolist():
        h = 10.0**power / lengths
        try:
            found, rounding = differences(h)
        except (RuntimeError, ValueError):  # steps that leave the domain of the kernel
            continue
        found, wanted = torch.diagonal(found, dim1=-2, dim2=-1), variance * h**4
        steps.append(h)
        agree.append((found - wanted).abs() < _AGREEMENT * wanted)
        silent.append((found.abs() <= rounding) & (wanted.abs() <= rounding))
    if len(steps) < 2:
        raise no_hessian_covariance(_GENERAL)
    twice = torch.stack(agree)[:-1] & torch.stack(agree)[1:]
    vanishes = torch.stack(silent).all(0)
    h = torch.stack(steps).expand(-1, *twice.shape[1:]).gather(0, twice.int().argmax(0, keepdim=True) + 1).squeeze(0)
    found = differences(h)[0] / (h**2).unsqueeze(-1) / (h**2).unsqueeze(-2)
    root = torch.where(vanishes, torch.inf, variance.clamp_min(0.0).sqrt())
    close = (found - expected).abs() <= 2 * _AGREEMENT * root.unsqueeze(-1) * root.unsqueeze(-2)
    if not bool((twice.any(0) | vanishes).all() and close.all()):
        raise no_hessian_covariance(_GENERAL)
