"""Checks a saved state against a new object, by shapes and types, before any of the state is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from federated.core.messages import MessageError, TensorSpec

ANYTHING = bool | int | float | str | list | tuple | dict | Tensor | None
"""Allowed types of a saved value whose type is not declared."""


def check_saved(
    name: str,
    current: Any,
    saved: Any,
    vectors: Mapping[str, TensorSpec],
    *,
    growing: bool = False,
    hint: Any = None,
) -> None:
    """Raises ``MessageError`` unless a saved value can replace the corresponding value of a new object.

    A tensor must have the same dtype and shape, or those given by ``vectors`` if the new object has None. A dataclass
    or mapping must have the same names, and a number or string the same type.

    Args:
        name: the value's name.
        current: the value of a new object.
        saved: the value written by ``optimizers.core.state.save``.
        vectors: specifications of tensors by name.
        growing: whether a matrix may have another number of rows, which is always allowed if the new one has none.
        hint: the declared type of a dataclass's field; None if undeclared.
    """
    if hasattr(current, "load_state_dict"):
        current = current.state_dict()
    if isinstance(current, Tensor):
        _check_like(name, saved, (Tensor,))
        shape, wanted = tuple(saved.shape), tuple(current.shape)
        free = wanted[:1] == (0,) or (growing and len(wanted) > 1)
        if saved.dtype != current.dtype or len(shape) != len(wanted) or shape[free:] != wanted[free:]:
            raise MessageError(f"{name} is {saved.dtype} of shape {shape}, expected {current.dtype} of shape {wanted}")
    elif current is None:
        kinds = get_args(ANYTHING if hint is Any else hint) or (type(None),)
        known = tuple(get_origin(kind) or kind for kind in kinds)
        _check_like(name, saved, known)
        if name in vectors and saved is not None:
            _check_like(name, saved, (Tensor,))
            vectors[name].check_layout(name, saved.dtype, tuple(saved.shape))
    elif dataclasses.is_dataclass(current) or isinstance(current, Mapping):
        _check_like(name, saved, (Mapping,))
        fields = current if isinstance(current, Mapping) else vars(current)
        hints = _hints(current)
        if get_origin(hint) is dict:
            fields = dict.fromkeys(saved, next(iter(fields.values()), None))
        if fields and set(saved) != set(fields):
            raise MessageError(f"{name} has {sorted(map(str, saved))}, expected {sorted(map(str, fields))}")
        for key, value in fields.items():
            check_saved(str(key), value, saved[key], vectors, growing=growing, hint=hints.get(key, Any))
    else:
        number = type(current) in (int, float) and hint is not int
        _check_like(name, saved, (int, float) if number else (type(current),))
        if isinstance(current, list | tuple) and current and len(current) == len(saved):
            for one, other in zip(current, saved, strict=True):
                check_saved(name, one, other, vectors, growing=growing, hint=Any)
        element = get_args(hint)[0] if get_origin(hint) is list else None
        for value in saved if isinstance(element, type) else ():
            _check_like(name, value, (element,))


def check_integers(name: str, values: Any, stop: int, start: int = 0) -> None:
    """Raises ``MessageError`` unless values are a list or tuple of integers from ``start`` to ``stop`` − 1."""
    _check_like(name, values, (list, tuple))
    if not all(type(value) is int and start <= value < stop for value in values):
        raise MessageError(f"{name} are {values!r:.80}, expected integers from {start} to {stop - 1}")


def _hints(state: Any) -> Mapping[str, Any]:
    """Returns a dataclass's declared types; empty if they name types that only a type checker imports."""
    try:
        return {} if isinstance(state, Mapping) else get_type_hints(type(state))
    except NameError:
        return {}


def _check_like(name: str, saved: Any, kinds: tuple[Any, ...]) -> None:
    if not isinstance(saved, kinds) or (isinstance(saved, bool) and bool not in kinds):
        accepted = " or ".join(kind.__name__ for kind in kinds)
        raise MessageError(f"{name} has type {type(saved).__name__}, expected {accepted}")
