"""A dataclass to plain values and back, for ``state_dict``."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def save_fields(state: Any) -> dict[str, Any]:
    """Fields of a dataclass by name: tensors cloned, objects by their own ``state_dict``."""
    return {field.name: _save(getattr(state, field.name)) for field in dataclasses.fields(state)}


def load_fields(state: Any, saved: Mapping[str, Any], device: torch.device) -> Any:
    """A copy of a dataclass with the saved fields; objects load their ``state_dict`` into a copy of theirs.

    Raises:
        ValueError: if the fields are not the dataclass's.
    """
    names = {field.name for field in dataclasses.fields(state)}
    if names != set(saved):
        raise ValueError(f"the state has fields {sorted(saved)}, {type(state).__name__} has {sorted(names)}")
    return dataclasses.replace(
        state, **{name: _load(getattr(state, name), value, device) for name, value in saved.items()}
    )


def _save(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {k: _save(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_save(v) for v in value)
    if hasattr(value, "state_dict"):
        return copy.deepcopy(value.state_dict())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state cannot hold a {type(value).__name__}")


def _load(current: Any, value: Any, device: torch.device) -> Any:
    if hasattr(current, "load_state_dict"):
        loaded = copy.deepcopy(current)
        loaded.load_state_dict(value)
        return loaded
    if isinstance(value, Tensor):
        return value.to(device).clone()
    if isinstance(value, Mapping):
        return {k: _load(None, v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_load(None, v, device) for v in value)
    return value


def check_complete(state: Any, names: Iterable[str]) -> None:
    """Raises ``TypeError`` for a state that is no mapping, ``ValueError`` for one in which names are missing."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is what state_dict returned, a mapping, got {type(state).__name__}")
    if missing := set(names) - set(state):
        raise ValueError(f"not a state of an optimizer: {', '.join(sorted(missing))} missing")


def check_match(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` with the first name under which a state and an optimizer differ."""
    for name in [*theirs, *ours]:
        if theirs.get(name) != ours.get(name):
            given, accepted = (f"{d.get(name)!r:.200}" for d in (theirs, ours))
            raise ValueError(f"the state has {name} {given}, this optimizer has {accepted}")
