"""Imports modules of compiled loops, which need numba (the optional extra ``fast``) or Triton."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def compiled(name: str, needs: str = "numba") -> Any:
    """Returns the module of this name, or None if the package ``needs`` is not installed."""
    try:
        import_module(needs)
    except ImportError:
        return None
    return import_module(name)
