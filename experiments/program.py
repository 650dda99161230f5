"""The program as its user knows it: the name it was started by, and what its pages of help say."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = "gradient-surrogates"
"""The name of the installed command."""
MODULE = "python -m experiments"


def program() -> str:
    """The name that the user typed: the installed command's, or else the module's."""
    return SCRIPT if Path(sys.argv[0]).stem == SCRIPT else MODULE


def plain(docstring: str | None) -> str:
    """A docstring as a terminal shows it: without marks around its code, and with the name that the user typed."""
    return (docstring or "").replace("``", "").replace(MODULE, program())
