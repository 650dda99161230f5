"""Compiled loops, which need numba (the optional extra ``fast``) and are imported at their first use."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def compiled(name: str) -> Any:
    """The module ``surrogates.<name>`` of loops compiled by numba, or None if numba is not installed."""
    try:
        import_module("numba")
    except ImportError:
        return None
    return import_module(f"surrogates.{name}")
