"""A fingerprint of a function's code, which identifies its version."""

from __future__ import annotations

import functools
import hashlib
from types import CodeType
from typing import Any


def fingerprint(fun: Any) -> str | None:
    """A fingerprint of a function's bytecode, without docstrings, comments and line numbers; None if it has none.

    A ``partial`` or wrapper has the wrapped function's fingerprint, an object its ``__call__``'s. Called functions,
    closures, data that the function reads, and the arguments of a ``partial`` are not included. Another version of
    Python has other bytecode.
    """
    code = _code_of(fun)
    return None if code is None else hashlib.sha256(_text(code).encode()).hexdigest()[:16]


def place_of(fun: Any) -> str:
    """The file and line where a function is defined."""
    code = _code_of(fun)
    return "no file" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def _code_of(fun: Any) -> CodeType | None:
    while isinstance(fun, functools.partial) or hasattr(fun, "__wrapped__"):
        fun = fun.func if isinstance(fun, functools.partial) else fun.__wrapped__
    code = getattr(fun, "__code__", None) or getattr(type(fun).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _text(code: CodeType) -> str:
    first, *others = code.co_consts or (None,)
    constants = [None if isinstance(first, str) else first, *others]  # the first text is a docstring
    parts = [_text(c) if isinstance(c, CodeType) else _sorted(c) for c in constants]
    return repr((code.co_code, code.co_names, code.co_freevars, parts))


def _sorted(constant: Any) -> str:
    """A constant's text; a set's order differs between processes."""
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
