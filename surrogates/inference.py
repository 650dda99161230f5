"""What is computed the same under PyTorch's inference mode as elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, Self, TypeVar, overload

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


class cached_with_graph(cached_property[R]):
    """A ``cached_property`` of a tensor that gets its graph when it is first read with gradients.

    A value computed under ``torch.no_grad`` has no graph. It is kept for such reads, and computed once more for the
    first read that may ask for derivatives.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> R: ...

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | R:
        if instance is None:
            return self
        assert self.attrname is not None
        # An entry of this name hides the property, as that of any cached_property.
        name = self.attrname if torch.is_grad_enabled() else f"{self.attrname} without graph"
        kept = vars(instance)
        if name not in kept:
            kept[name] = self.func(instance)
        value: R = kept[name]
        return value
