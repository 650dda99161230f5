"""Classes by name, imported when first asked for: what the registries of methods and of algorithms share."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from optimizers.options import nearest_name


def named_class(kind: str, given: str | type, known: Mapping[str, tuple[str, str]], base: type) -> type[Any]:
    """The class of a name; a subclass of the base is its own.

    Args:
        kind: what the names are of, for messages.
        given: a name or a subclass.
        known: name to the module and the class.
        base: what every class derives from.

    Raises:
        ValueError: for an unknown name, with the nearest one.
        TypeError: for anything but a name or a subclass of the base.
    """
    if isinstance(given, type) and issubclass(given, base):
        return given
    if not isinstance(given, str):
        article = "an" if base.__name__[0] in "AEIO" else "a"
        raise TypeError(f"{kind} must be a name or {article} {base.__name__} subclass, got {given!r}")
    if given not in known:
        raise ValueError(f"unknown {kind} {given!r}{nearest_name(given, known)}")
    module, name = known[given]
    found: type[Any] = getattr(import_module(module), name)
    return found
