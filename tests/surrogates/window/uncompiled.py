"""The nearest search without numba."""

from surrogates.window import nearest_search


def uncompiled(monkeypatch):
    """Has the search run as it does where numba is not installed."""
    for name, function in list(vars(nearest_search).items()):
        monkeypatch.setattr(nearest_search, name, getattr(function, "py_func", function))
    monkeypatch.setattr(nearest_search, "evaluate_rows", nearest_search.evaluate_rows_by_torch)
