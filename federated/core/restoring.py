"""What a saved state is held to before anything of it is taken: the options' shapes and types, name by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from federated.core.messages import MessageError, TensorSpec

ANYTHING = bool | int | float | str | list | tuple | dict | Tensor | None
"""What a saved value may be where nothing is known of it."""


def check_saved(
    name: str,
    current: Any,
    saved: Any,
    vectors: Mapping[str, TensorSpec],
    *,
    growing: bool = False,
    hint: Any = None,
) -> None:
    """Raises ``MessageError`` unless a saved value can take the place of the one that a new object has.

    A tensor must have the dtype and shape of the new object's; where that has None, those of ``vectors``. A dataclass
    or a mapping must have its names, a number or a string its type.

    Args:
        name: the value's name.
        current: what a new object has.
        saved: what ``optimizers.core.state.save`` made of it.
        vectors: specifications of tensors by name.
        growing: whether tensors of several rows may have others; those of none in a new object always may.
        hint: the type that a dataclass declares, by which values are known that a new object lacks; None: it has none.
    """
    if hasattr(current, "load_state_dict"):
        current = current.state_dict()
    if isinstance(current, Tensor):
        _check_tensor(name, current, saved, growing)
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
            raise MessageError(f"{name} has {sorted(map(str, saved))}, accepted are {sorted(map(str, fields))}")
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
    """Raises ``MessageError`` unless values are integers from ``start`` to under ``stop``, in a list or tuple."""
    _check_like(name, values, (list, tuple))
    if not all(type(value) is int and start <= value < stop for value in values):
        raise MessageError(f"{name} are {values!r:.80}, accepted are integers from {start} to under {stop}")


def _hints(state: Any) -> Mapping[str, Any]:
    """The types that a dataclass declares; none where it names types that only a type checker imports."""
    try:
        return {} if isinstance(state, Mapping) else get_type_hints(type(state))
    except NameError:
        return {}


def _check_tensor(name: str, current: Tensor, saved: Any, growing: bool) -> None:
    _check_like(name, saved, (Tensor,))
    shape, wanted = tuple(saved.shape), tuple(current.shape)
    free = wanted[:1] == (0,) or (growing and len(wanted) > 1)
    if saved.dtype != current.dtype or len(shape) != len(wanted) or shape[free:] != wanted[free:]:
        raise MessageError(f"{name} is {saved.dtype} of shape {shape}, accepted is {current.dtype} of {wanted}")


def _check_like(name: str, saved: Any, kinds: tuple[Any, ...]) -> None:
    if not isinstance(saved, kinds) or (isinstance(saved, bool) and bool not in kinds):
        accepted = " or ".join(kind.__name__ for kind in kinds)
        raise MessageError(f"{name} is a {type(saved).__name__}, accepted is a {accepted}")
