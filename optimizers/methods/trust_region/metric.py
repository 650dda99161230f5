"""The linear map in which a trust region's model sees its points: curvatures more alike than in the variables."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-6
"""The least |λ| of a Hessian's eigenvalues that counts, in units of the largest."""

POWER = 0.4
"""The power of |λ| in the map: with ½ all curvatures would be alike, and the metric as wrong as the Hessian is."""


def metric_of(hessian: Tensor) -> Tensor:
    """A = |Λ|^p Qᵀ of a Hessian QΛQᵀ, p = ``POWER``, ``d x d``; the identity for one that is 0 or not finite. O(d³).

    In u = Ax the curvatures are ±|λ|^(1−2p): with p = 0.4 their ratios are the fifth roots of what they were. |λ| is at
    least ``LEAST`` of the largest, and A's scale is such that its largest singular value is 1.
    """
    if not bool(torch.isfinite(hessian).all()) or not bool(hessian.any()):
        return torch.eye(len(hessian), dtype=hessian.dtype)
    hessian = hessian / hessian.abs().max()
    eigenvalues, Q = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
    sizes = eigenvalues.abs() / eigenvalues.abs().max()
    return sizes.clamp_min(LEAST).pow(POWER)[:, None] * Q.mT
