"""Fingerprints that identify the version of a function: of its source or, without one, of its compiled code."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Self

_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_UNSEEN = ("ctx", "kind", "type_comment")


@dataclass(frozen=True)
class Version:
    """Fingerprints of a function, to compare it with another one.

    The parsed source is compared, without docstrings, comments and line numbers. Functions that it calls,
    closures, data that it reads, and the arguments of a ``partial`` are not compared.

    Attributes:
        source: fingerprint of the parsed source; None if there is no source.
        code: Python's version and the fingerprint of the compiled code; None if it is not a Python function.
    """

    source: str | None
    code: str | None

    @classmethod
    def of(cls, fun: Any) -> Self:
        """The version of a function, of the function in a ``partial`` or wrapper, or of an object's ``__call__``."""
        code = _code_of(fun)
        if code is None:
            return cls(None, None)
        node = _parsed(code)
        compiled = f"{sys.version_info.major}.{sys.version_info.minor} {_digest(repr([*_parts(code)]))}"
        return cls(None if node is None else _digest(_text(node)), compiled)

    def differs(self, other: Version) -> bool | None:
        """Whether two functions differ; None if only their compiled code differs, which is weaker evidence."""
        if self.source and other.source:
            return self.source != other.source
        ours, theirs = self.code, other.code
        if ours and theirs and ours != theirs and ours.split()[0] == theirs.split()[0]:
            return None  # code of different Python versions is not compared
        return False


def file_of(fun: Any) -> str:
    """The file and line where a function is defined."""
    code = _code_of(fun)
    return "no file" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def _code_of(fun: Any) -> CodeType | None:
    while isinstance(fun, functools.partial) or hasattr(fun, "__wrapped__"):
        fun = fun.func if isinstance(fun, functools.partial) else fun.__wrapped__
    code = getattr(fun, "__code__", None) or getattr(type(fun).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _parsed(code: CodeType) -> ast.AST | None:
    """The function or lambda that the code was compiled from; None where that cannot be found."""
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError, ValueError):
        return None
    kind = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kind)
        and getattr(node, "name", code.co_name) == code.co_name
        and code.co_firstlineno == min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    ]
    if len(found) > 1:  # several lambdas in one line: the innermost one that contains all positions of the code
        places = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d) and (a, c) != (b, d)]
        first, last = min(p[:2] for p in places), max(p[2:] for p in places)
        around = [n for n in found if isinstance(n, ast.Lambda) and _begin(n.body) <= first and last <= _end(n.body)]
        return max(around, key=lambda node: _begin(node.body), default=None)
    return found[0] if len(found) == 1 else None


def _begin(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _text(node: Any) -> str:
    """A parsed program as text, without docstrings and positions, the same for every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    parts = [f"{name}={_text(v)}" for name, v in fields.items() if name not in _UNSEEN and v not in (None, [])]
    return f"{type(node).__name__}({','.join(parts)})"


def _parts(code: CodeType) -> Iterator[str]:
    yield repr((code.co_code, code.co_names, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
