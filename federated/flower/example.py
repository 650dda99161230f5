"""An objective for trying out a federation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def quadratic(center: float, curvature: float = 1.0) -> Callable[[Tensor], Tensor]:
    """Returns a client's function f(x) = (curvature/d) Σⱼ (j/d) (xⱼ − center)², j = 1 … d."""

    def f(x: Tensor) -> Tensor:
        scale = torch.arange(1, x.numel() + 1, dtype=x.dtype, device=x.device) / x.numel()
        return curvature * (scale * (x - center).square()).mean()

    return f
