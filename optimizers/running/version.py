"""A fingerprint of a function's code, which identifies its version."""

from __future__ import annotations

import functools
import hashlib
import inspect
from types import CodeType
from typing import Any

_DOCUMENTED: int = getattr(inspect, "CO_HAS_DOCSTRING", -1)
"""The flag of code with a docstring; Python before 3.14 has none, and its functions begin with a docstring or None."""


def fingerprint(fun: Any) -> str | None:
    """A fingerprint of a function's bytecode, without docstrings, comments and line numbers; None if it has none.

    Defaults of arguments are included if they are numbers, texts, None, or tuples. A ``partial`` or wrapper has the
    wrapped function's fingerprint, an object its ``__call__``'s. Called functions, closures, data that the function
    reads, and the arguments of a ``partial`` are not included. Another version of Python has other bytecode.
    """
    function = _function_of(fun)
    if function is None:
        return None
    defaults = _fixed((function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items()))))
    return hashlib.sha256((_text(function.__code__) + defaults).encode()).hexdigest()[:16]


def place_of(fun: Any) -> str:
    """The file and line where a function is defined."""
    code = None if (function := _function_of(fun)) is None else function.__code__
    return "no file" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def _function_of(fun: Any) -> Any:
    while isinstance(fun, functools.partial) or hasattr(fun, "__wrapped__"):
        fun = fun.func if isinstance(fun, functools.partial) else fun.__wrapped__
    owners = (fun, type(fun).__call__)
    return next((f for f in owners if isinstance(getattr(f, "__code__", None), CodeType)), None)


def _text(code: CodeType) -> str:
    first, *others = code.co_consts or (None,)
    # Lambdas and comprehensions, whose names begin with <, have no docstring.
    documented = code.co_flags & _DOCUMENTED and code.co_name[0] != "<" and isinstance(first, str)
    constants = [None if documented else first, *others]
    parts = [_text(c) if isinstance(c, CodeType) else _sorted(c) for c in constants]
    return repr((code.co_code, code.co_names, code.co_freevars, parts))


def _sorted(constant: Any) -> str:
    """A constant's text; a set's order differs between processes."""
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _fixed(default: Any) -> str:
    """A default's text, or its type's name: an object's text has its address, and a list may be a cache."""
    if isinstance(default, tuple):
        return f"({','.join(map(_fixed, default))})"
    plain = default is None or isinstance(default, int | float | complex | str | bytes)
    return repr(default) if plain else type(default).__name__
