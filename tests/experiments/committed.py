"""The committed results. A source distribution has none: what needs them is skipped there."""

import pytest

from experiments.page import entries
from experiments.page.publish import PUBLISHED

HERE = any(PUBLISHED.glob("*.settings.json"))
NAMES = entries.names_in(PUBLISHED) if HERE else []
ENTRIES = entries.read_all(PUBLISHED)[0] if HERE else []

needs_results = pytest.mark.skipif(not HERE, reason="the committed results are in the repository alone")
