"""An objective to try a federation with: a quadratic of its own for each client."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def quadratic(center: float, curvature: float = 1.0) -> Callable[[Tensor], Tensor]:
    """A client's function f(x) = (curvature/d) Σⱼ (j + 1)/d · (xⱼ − center)², j from 0.

    Args:
        center: where it is smallest, in each coordinate.
        curvature: scale of the values.
    """

    def f(x: Tensor) -> Tensor:
        scale = torch.arange(1, x.numel() + 1, dtype=x.dtype, device=x.device) / x.numel()
        return curvature * (scale * (x - center).square()).mean()

    return f
