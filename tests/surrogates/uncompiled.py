"""The library as it is where numba is not installed."""

import sys

import pytest

from surrogates.compiled import compiled
from surrogates.window import nearest_search

needs_numba = pytest.mark.skipif(compiled("surrogates.kernels.one_pass_numba") is None, reason="numba is not installed")
PATHS = ["torch", pytest.param("compiled", marks=needs_numba)]


def uncompiled(monkeypatch):
    """Has all functions run as they do where numba is not installed."""
    for name, module in list(sys.modules.items()):
        if name.startswith("surrogates.") and name != "surrogates.compiled" and hasattr(module, "compiled"):
            monkeypatch.setattr(module, "compiled", lambda *names: None)
    for name, function in list(vars(nearest_search).items()):
        monkeypatch.setattr(nearest_search, name, getattr(function, "py_func", function))
    monkeypatch.setattr(nearest_search, "evaluate_rows", nearest_search.evaluate_rows_by_torch)
