"""Functions that compute the same under PyTorch's inference mode as elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, Self, TypeVar, overload

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(compute: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function so that it leaves inference mode and computes without gradients.

    Tensors made in inference mode cannot be used for derivatives later, so that they must not be cached.
    """

    @wraps(compute)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return compute(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return compute(*args, **kwargs)

    return outside


class cached_with_graph(cached_property[R]):
    """A ``cached_property`` of a tensor that is computed again with its graph when it is first read with gradients.

    A value computed under ``torch.no_grad`` has no graph; it is cached for such reads.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> R: ...

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | R:
        if instance is None:
            return self
        assert self.attrname is not None
        name = self.attrname if torch.is_grad_enabled() else f"{self.attrname} without graph"
        kept = vars(instance)
        if name not in kept:
            kept[name] = self.func(instance)
        value: R = kept[name]
        return value
