"""The name under which the program was started, and its help texts."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = "gradient-surrogates"
"""The name of the installed command."""
MODULE = "python -m experiments"


def program() -> str:
    """Returns the name that the user typed: the installed command, or ``python -m experiments``."""
    return SCRIPT if Path(sys.argv[0]).stem == SCRIPT else MODULE


def plain(docstring: str | None) -> str:
    """Formats a docstring for a terminal: without backticks, and with the program name that the user typed."""
    return (docstring or "").replace("``", "").replace(MODULE, program())
