"""The modules that an import of the library loads."""

import subprocess
import sys

import pytest

import surrogates
from surrogates.compiled import compiled
from tests.surrogates.uncompiled import needs_numba

CODE = """
import sys
import surrogates
print(*(name for name in ("numba", "matplotlib", "scipy.stats", "scipy.optimize") if name in sys.modules))
"""


def test_compilers_and_figures_are_loaded_at_their_first_use():
    loaded = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []


def test_names_that_are_imported_at_their_first_use_are_listed():
    assert set(surrogates.__all__) <= set(dir(surrogates))
    assert all(hasattr(surrogates, name) for name in surrogates.__all__)


@needs_numba
def test_only_a_missing_numba_takes_the_compiled_loops_away(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match="no_such_loops"):
        compiled("no_such_loops")
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiled.__wrapped__("surrogates.kernels.one_pass_numba") is None
