"""What is computed the same under PyTorch's inference mode as elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(compute: Callable[P, R]) -> Callable[P, R]:
    """The function, which leaves inference mode while it computes, without gradients.

    In that mode no derivative can be taken, not even one that is the result, and what is made in it cannot be used for
    derivatives later, so that nothing of it may be kept.
    """

    @wraps(compute)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return compute(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return compute(*args, **kwargs)

    return outside
