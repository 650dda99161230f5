"""Importing the library loads neither matplotlib nor what only a comparison needs."""

import subprocess
import sys

LOADED = """
import sys, optimizers, surrogates.plotting
print([name for name in ("matplotlib", "scipy.stats", "cma") if name in sys.modules])
"""


def test_no_import_loads_matplotlib():
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
