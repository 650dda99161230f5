"""The committed results. A source distribution has none: what needs them is skipped there."""

import pytest

from experiments import registry
from experiments.report import entries
from experiments.running.listing import PUBLISHED

HERE = any(PUBLISHED.glob("*.settings.json"))
ALL = entries.names_in(PUBLISHED) if HERE else []
NAMES = [name for name in ALL if not name.startswith(registry.SCOREBOARDS)]
"""The experiments; the scoreboards' records have a form of their own."""

BOARDS = [name for name in ALL if name.startswith(registry.SCOREBOARDS)]
ENTRIES = entries.read_all(PUBLISHED)[0] if HERE else []

needs_results = pytest.mark.skipif(not HERE, reason="the committed results are in the repository alone")
