"""The modules that an import of the library loads."""

import subprocess
import sys

CODE = """
import sys
import surrogates
print(*(name for name in ("numba", "matplotlib", "scipy.stats", "scipy.optimize") if name in sys.modules))
"""


def test_compilers_and_figures_are_loaded_at_their_first_use():
    loaded = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []
