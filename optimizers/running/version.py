"""A fingerprint of a function's source, which identifies its version."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from types import CodeType
from typing import Any

_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_UNSEEN = ("ctx", "kind", "type_comment")


def fingerprint(fun: Any) -> str | None:
    """A fingerprint of a function's parsed source, without docstrings, comments and line numbers; None without source.

    A ``partial`` or wrapper has the wrapped function's fingerprint, an object its ``__call__``'s. Called functions,
    closures, data that the function reads, and the arguments of a ``partial`` are not included.
    """
    code = _code_of(fun)
    node = None if code is None else _parsed(code)
    return None if node is None else hashlib.sha256(_text(node).encode()).hexdigest()[:16]


def place_of(fun: Any) -> str:
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
