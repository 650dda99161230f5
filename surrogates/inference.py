"""Decorators that make results independent of PyTorch's inference mode and of ``torch.no_grad``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, Self, TypeVar, overload

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(compute: Callable[P, R]) -> Callable[P, R]:
    """Runs a function under ``torch.no_grad`` instead of inference mode.

    Tensors made in inference mode cannot be used in autograd later, so they must not be cached.
    """

    @wraps(compute)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return compute(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return compute(*args, **kwargs)

    return outside


class cached_with_graph(cached_property[R]):
    """A ``cached_property`` that caches a tensor with its autograd graph and, separately, one without.

    The tensor without a graph is computed and returned under ``torch.no_grad``.
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
