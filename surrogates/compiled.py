"""Imports compiled loops at their first use; they need numba, the optional extra ``fast``."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def compiled(name: str) -> Any:
    """Returns the module ``surrogates.<name>`` of numba loops, or None if numba is not installed."""
    try:
        import_module("numba")
    except ImportError:
        return None
    return import_module(f"surrogates.{name}")
