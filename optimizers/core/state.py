"""Conversion of a method's state to plain values and back, and its restoration after an error."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor


def save_fields(state: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, each converted by ``save``."""
    return {field.name: save(getattr(state, field.name)) for field in dataclasses.fields(state)}


def load_fields(state: Any, saved: Mapping[str, Any], device: torch.device) -> Any:
    """Returns a copy of a dataclass with the saved values as fields; tensors are copied to the device.

    Raises:
        ValueError: if the saved names are not those of the dataclass's fields.
    """
    names = {field.name for field in dataclasses.fields(state)}
    if names != set(saved):
        raise ValueError(f"the state has the fields {sorted(saved)}, {type(state).__name__} has {sorted(names)}")
    return dataclasses.replace(
        state, **{name: load(getattr(state, name), value, device) for name, value in saved.items()}
    )


def save(value: Any) -> Any:
    """Converts a value to plain values; an object becomes its ``state_dict``, a dataclass its fields by name.

    Raises:
        TypeError: for a value that cannot be converted.
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {k: save(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(save(v) for v in value)
    if hasattr(value, "state_dict"):
        return _copied(value.state_dict())
    if dataclasses.is_dataclass(value):
        return save_fields(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state cannot hold a {type(value).__name__}")


def _copied(value: Any) -> Any:
    """A copy of a ``state_dict``; ``copy.deepcopy`` takes ten times as long for small tensors."""
    if isinstance(value, Tensor):
        return value.clone()
    if type(value) is dict:
        return {name: _copied(v) for name, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value if value is None or isinstance(value, bool | int | float | str) else copy.deepcopy(value)


def load(current: Any, value: Any, device: torch.device) -> Any:
    """Inverts ``save``; an object or dataclass becomes a copy of ``current`` with the saved content."""
    if hasattr(current, "load_state_dict"):
        loaded = copy.deepcopy(current)
        loaded.load_state_dict(value)
        return loaded
    if isinstance(value, Tensor):
        return value.to(device).clone()
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(current):
            return load_fields(current, value, device)
        return {k: load(None, v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        held = chain(current if isinstance(current, list | tuple) else (), repeat(None))
        return type(value)(load(old, new, device) for new, old in zip(value, held, strict=False))
    return value


def marked(value: Any) -> Callable[[], Any]:
    """Returns a function that restores the value's present content and returns the value.

    Tensors must not be changed in place. Objects need ``mark()`` and ``roll_back(mark)``, or a ``state_dict``.
    """
    if isinstance(value, Tensor):
        return lambda: value
    if hasattr(value, "roll_back"):
        return _then(partial(value.roll_back, value.mark()), value)
    if hasattr(value, "load_state_dict"):
        return _then(partial(value.load_state_dict, save(value)), value)
    if getattr(getattr(value, "__dataclass_params__", None), "frozen", False):
        return lambda: value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _then(partial(_restore, value, {f.name: marked(getattr(value, f.name)) for f in fields(value)}), value)
    if isinstance(value, list | tuple):
        kind, parts = type(value), [marked(v) for v in value]
        return lambda: kind(part() for part in parts)
    if isinstance(value, Mapping):
        held = {k: marked(v) for k, v in value.items()}
        return lambda: {k: part() for k, part in held.items()}
    return lambda: value


def _then(restore: Callable[[], Any], value: Any) -> Callable[[], Any]:
    def back() -> Any:
        restore()
        return value

    return back


def _restore(state: Any, parts: Mapping[str, Callable[[], Any]]) -> None:
    for name, part in parts.items():
        object.__setattr__(state, name, part())


def check_complete(state: Any, names: Iterable[str]) -> None:
    """Raises ``TypeError`` if a state is not a mapping, ``ValueError`` if one of the names is missing."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be a mapping, as state_dict returns it, got {type(state).__name__}")
    if missing := set(names) - set(state):
        raise ValueError(f"not a state of an optimizer: missing are {', '.join(sorted(missing))}")


def check_match(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], whose: str = "the state", own: str = "this optimizer"
) -> None:
    """Raises ``ValueError`` for the first name whose value differs between a state and the optimizer."""
    for name in [*theirs, *ours]:
        if theirs.get(name) != ours.get(name):
            given, accepted = (f"{d.get(name)!r:.200}" for d in (theirs, ours))
            raise ValueError(f"{whose} has {name} {given}, {own} has {accepted}")
